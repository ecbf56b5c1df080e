"""What becomes of runs, for the metrics: how long attempts took, and how long GPUs were held without work."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from hindcast.api import OfflineTraining
from hindcast_operator.control import metrics
from hindcast_operator.control.trim import time_of
from hindcast_operator.facts import AttemptFacts, Facts

_DATA_WAIT: Final = "dataWaitShare"


class Meter:
    """Counts from one look at a resource to the next."""

    def __init__(self) -> None:
        self._seen: dict[str, datetime] = {}

    def look(self, facts: Facts, status: Mapping[str, Any]) -> None:
        """Count what happened since the last look."""
        _count_ends(facts, status)
        waiting = _gpus_waiting(facts)
        before = self._seen.pop(facts.uid, None)
        if waiting is None:
            return
        self._seen[facts.uid] = facts.now
        if before is not None:
            seconds = (facts.now - before).total_seconds()
            metrics.GPU_WAIT_SECONDS.labels(facts.namespace).inc(max(seconds, 0.0) * waiting)

    def forget(self, uid: str) -> None:
        """The resource is gone."""
        self._seen.pop(uid, None)


def _count_ends(facts: Facts, status: Mapping[str, Any]) -> None:
    known = {run.get("child"): run.get("outcome") for run in facts.status.get("runs") or ()}
    for run in status.get("runs") or ():
        if run.get("outcome") and run["child"] in known and not known[run["child"]]:
            started, finished = run.get("started"), run.get("finished")
            if started and finished:
                seconds = (time_of(finished) - time_of(started)).total_seconds()
                metrics.RUN_SECONDS.labels(facts.kind, run["outcome"]).observe(seconds)


def _gpus_waiting(facts: Facts) -> float | None:
    """How many GPUs wait now, on average; None where none is held."""
    if not isinstance(facts.resource, OfflineTraining) or not facts.resource.spec.learners.gpus:
        return None
    for attempt in facts.attempts.values():
        holding = sum(pod.pool == "learner" and pod.phase == "Running" for pod in attempt.pods)
        if holding:
            return holding * facts.resource.spec.learners.gpus * _share_waiting(attempt)
    return None


def _share_waiting(attempt: AttemptFacts) -> float:
    report = attempt.config_map.report if attempt.config_map else None
    if report is None or report.progress is None:
        return 1.0
    return min(max(report.progress.metrics.get(_DATA_WAIT, 0.0), 0.0), 1.0)
