"""What the operator counts."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

from hindcast.api import OfflineTraining
from hindcast_operator.facts import AttemptFacts, Facts
from hindcast_operator.times import parse_time

disable_created_metrics()

RECONCILES = Counter("hindcast_reconciles", "Reconciliations by result.", ["kind", "result"])
RECONCILE_SECONDS = Histogram("hindcast_reconcile_seconds", "Seconds that a reconciliation took.", ["kind"])
QUEUE_DEPTH = Gauge("hindcast_queue_depth", "Resources waiting to be reconciled.")
QUEUE_AGE = Gauge("hindcast_queue_age_seconds", "Seconds that the oldest of them has waited.")
API_ERRORS = Counter(
    "hindcast_api_errors", "Answers of the API server other than 2xx; none: no answer.", ["code"]
)
WRITES = Counter("hindcast_writes", "Writes that the API server accepted.", ["what"])
WATCH_STARTS = Counter("hindcast_watch_starts", "Starts of the watches, including the first.")
OBJECTS = Gauge("hindcast_objects", "Resources by kind and state.", ["kind", "state"])
RUN_SECONDS = Histogram(
    "hindcast_run_seconds",
    "Seconds from the start of an attempt to its end.",
    ["kind", "outcome"],
    buckets=(60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600),
)
GPU_WAIT_SECONDS = Counter(
    "hindcast_gpu_wait_seconds",
    "GPU-seconds spent waiting: for the run to start, and for data while it trained.",
    ["namespace"],
)
LEADER = Gauge("hindcast_leader", "1 if this replica is the leader.")

_DATA_WAIT: Final = "dataWaitShare"


class RunMeter:
    """Measures runs from one reconciliation to the next: how long attempts took, how long GPUs waited for work."""

    def __init__(self) -> None:
        self._seen: dict[str, datetime] = {}

    def update(self, facts: Facts, status: Mapping[str, Any]) -> None:
        """Count what happened since the last reconciliation."""
        _count_ends(facts, status)
        waiting = _gpus_waiting(facts)
        before = self._seen.pop(facts.uid, None)
        if waiting is None:
            return
        self._seen[facts.uid] = facts.now
        if before is not None:
            seconds = (facts.now - before).total_seconds()
            GPU_WAIT_SECONDS.labels(facts.namespace).inc(max(seconds, 0.0) * waiting)

    def forget(self, uid: str) -> None:
        """The resource is gone."""
        self._seen.pop(uid, None)


def _count_ends(facts: Facts, status: Mapping[str, Any]) -> None:
    known = {run.get("rayJobName"): run.get("outcome") for run in facts.status.get("runs") or ()}
    for run in status.get("runs") or ():
        if run.get("outcome") and run["rayJobName"] in known and not known[run["rayJobName"]]:
            started, finished = run.get("startTime"), run.get("endTime")
            if started and finished:
                seconds = (parse_time(finished) - parse_time(started)).total_seconds()
                RUN_SECONDS.labels(facts.kind, run["outcome"]).observe(seconds)


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
