"""The operator's metrics."""

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
QUEUE_AGE = Gauge("hindcast_queue_age_seconds", "Seconds that the oldest key in the queue has waited.")
API_ERRORS = Counter(
    "hindcast_api_errors", "Answers of the API server other than 2xx; code none: no answer.", ["code"]
)
WRITES = Counter("hindcast_writes", "Writes that the API server accepted.", ["what"])
VERDICTS_HELD = Counter(
    "hindcast_verdicts_held", "Silent attempts that were not ended, because many fell silent at once."
)
WATCH_STARTS = Counter("hindcast_watch_starts", "Starts of the watches, including the first.")
WATCHES_FORBIDDEN = Gauge(
    "hindcast_watches_forbidden",
    "1 for each kind that may not be watched in a namespace.",
    ["namespace", "kind"],
)
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

_DATA_WAIT_METRIC: Final = "dataWaitShare"


class RunMeter:
    """Measures, from one reconciliation to the next, the duration of attempts and the time that GPUs wait for work."""

    def __init__(self) -> None:
        self._last_times: dict[str, datetime] = {}

    def update(self, facts: Facts, status: Mapping[str, Any]) -> None:
        """Count the ends of attempts and the waiting time since the last reconciliation.

        Args:
            facts: the facts about a resource, with its old status.
            status: its new status.
        """
        _count_ends(facts, status)
        num_waiting_gpus = _num_waiting_gpus(facts)
        last_time = self._last_times.pop(facts.uid, None)
        if num_waiting_gpus is None:
            return
        self._last_times[facts.uid] = facts.now
        if last_time is not None:
            seconds = (facts.now - last_time).total_seconds()
            GPU_WAIT_SECONDS.labels(facts.namespace).inc(max(seconds, 0.0) * num_waiting_gpus)

    def forget(self, uid: str) -> None:
        """Forget the resource with this uid, which is gone."""
        self._last_times.pop(uid, None)


def _count_ends(facts: Facts, status: Mapping[str, Any]) -> None:
    """Count each attempt that has an outcome in the new status but not yet in the old one, with its duration."""
    old_outcomes = {run.get("rayJobName"): run.get("outcome") for run in facts.status.get("runs") or ()}
    for run in status.get("runs") or ():
        if run.get("outcome") and run["rayJobName"] in old_outcomes and not old_outcomes[run["rayJobName"]]:
            start_time, end_time = run.get("startTime"), run.get("endTime")
            if start_time and end_time:
                seconds = (parse_time(end_time) - parse_time(start_time)).total_seconds()
                RUN_SECONDS.labels(facts.kind, run["outcome"]).observe(seconds)


def _num_waiting_gpus(facts: Facts) -> float | None:
    """Return the average number of learners' GPUs that wait now; None if no learner pod with a GPU runs."""
    if not isinstance(facts.resource, OfflineTraining) or not facts.resource.spec.learners.gpus:
        return None
    for attempt in facts.attempts.values():
        num_pods = sum(pod.pool == "learner" and pod.phase == "Running" for pod in attempt.pods)
        if num_pods:
            return num_pods * facts.resource.spec.learners.gpus * _waiting_fraction(attempt)
    return None


def _waiting_fraction(attempt: AttemptFacts) -> float:
    """Return the fraction of its time for which a learner waits: 1 until the attempt reports progress."""
    report = attempt.config_map.report if attempt.config_map else None
    if report is None or report.progress is None:
        return 1.0
    return min(max(report.progress.metrics.get(_DATA_WAIT_METRIC, 0.0), 0.0), 1.0)
