"""Combines a resource and its pods into an explanation. Reads neither the cluster nor the clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from hindcast.api.attempt import UNCOUNTED_REASON
from hindcast.api.run_policy import RunPolicy
from hindcast_operator.extract import find_condition, pod_facts
from hindcast_operator.facts import AttemptFacts, PodFacts
from hindcast_operator.names import ATTEMPT_LABEL, KIND_LABEL, NAME_LABEL, REVISION_LABEL, find_references
from hindcast_operator.planning.diagnosis import diagnose
from hindcast_operator.times import parse_optional_time

Raw = Mapping[str, Any]

"""A Kubernetes object, or a part of one, as parsed JSON."""

UNSEEN: Final = "Unseen"
"""State of a resource that no operator has processed."""

_POOLS: Final = ("head", "data", "runner", "learner", "submitter")
_SIZE_NAMES: Final = ("cpu", "gpus", "memory")


@dataclass(frozen=True)
class PodRow:
    """A pod of the current attempt.

    Attributes:
        name: name of the pod.
        phase: phase in Kubernetes; `Terminating` while the pod is being deleted.
        ready: True if all its containers are ready and it is not being deleted.
        node: node that it runs on; None before it is scheduled.
        restarts: restarts of all its containers.
        problem: what prevents it from running, with a remedy; None if nothing does.
    """

    name: str
    phase: str
    ready: bool
    node: str | None
    restarts: int
    problem: str | None


@dataclass(frozen=True)
class PoolRow:
    """A pool: desired and actual pods.

    Attributes:
        pool: name of the pool.
        desired: desired number of pods: `2`, or `2 to 8` for an autoscaled pool; None if unknown.
        size: size of a pod: `cpu`, `gpus`, `memory`, as far as known.
        reasons: `pods`, `cpu`, `gpus` or `memory` -> why the operator chose that value.
        pods: actual pods.
    """

    pool: str
    desired: str | None
    size: Mapping[str, Any]
    reasons: Mapping[str, str]
    pods: tuple[PodRow, ...] = ()

    @property
    def num_ready(self) -> int:
        """Number of ready pods."""
        return sum(pod.ready for pod in self.pods)

    @property
    def is_complete(self) -> bool:
        """True if the pool's minimum number of pods is ready; all its pods, if that number is unknown."""
        min_pods = len(self.pods) if self.desired is None else int(self.desired.split()[0])
        return self.num_ready >= min_pods


@dataclass(frozen=True)
class Explanation:
    """Everything that one screen shows about a resource.

    Attributes:
        kind, name, namespace: identity of the resource.
        state: state that the operator reports, or `Unseen`.
        since: time at which it entered that state; None if unknown.
        reason: reason in one word; None before the operator has processed the resource.
        message: reason in a sentence.
        notes: further remarks for the reader.
        should_suspend: spec.suspend.
        revision: spec.revision.
        progress, checkpoint, output: sections of the status; empty if missing.
        pools: pools of the latest attempt.
        retries: number of lost attempts of this revision.
        retries_allowed: spec.runPolicy.backoffLimit; None if the platform's default applies.
        runs: attempts of the status, newest first.
        references: `Kind/name` of the resources that the spec refers to.
        now: time of the explanation; two explanations that differ only in it are equal.
    """

    kind: str
    name: str
    namespace: str
    state: str
    since: datetime | None
    reason: str | None
    message: str | None
    notes: tuple[str, ...]
    should_suspend: bool
    revision: int
    progress: Raw
    checkpoint: Raw
    output: Raw
    pools: tuple[PoolRow, ...]
    retries: int
    retries_allowed: int | None
    runs: tuple[Raw, ...]
    references: tuple[str, ...] = ()
    now: datetime = field(compare=False, kw_only=True)

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def is_finished(self) -> bool:
        """True if the revision has reached its final state."""
        return self.state in ("Succeeded", "Failed")


def explain(resource: Raw, pods: Sequence[Raw], now: datetime) -> Explanation:
    """Explain a resource.

    Args:
        resource: the resource with its status.
        pods: pods of all its attempts.
        now: current time, with a time zone.
    """
    metadata, spec, status = resource["metadata"], resource["spec"], resource.get("status") or {}
    runs = tuple(status.get("runs") or ())
    revision = int(spec.get("revision", 1))
    ready = find_condition(status, "Ready")
    state = str(status.get("state") or UNSEEN)
    return Explanation(
        kind=str(resource["kind"]),
        name=str(metadata["name"]),
        namespace=str(metadata.get("namespace", "default")),
        state=state,
        since=_state_entry_time(state, resource),
        reason=ready.get("reason"),
        message=status.get("message"),
        notes=tuple(_notes(resource)),
        should_suspend=bool(spec.get("suspend", False)),
        revision=revision,
        progress=status.get("progress") or {},
        checkpoint=status.get("checkpoint") or {},
        output=status.get("output") or {},
        pools=_pool_rows(status, _current_pods(pods, runs), now),
        retries=_count_lost_attempts(runs, revision),
        retries_allowed=(spec.get("runPolicy") or {}).get("backoffLimit"),
        runs=runs,
        references=tuple(f"{kind}/{name}" for kind, name in find_references(resource["kind"], spec)),
        now=now,
    )


def label_selector(kind: str, name: str, run: Raw | None = None) -> str:
    """Return the label selector of a resource's pods, or with `run` of that attempt's pods."""
    labels = {KIND_LABEL: kind, NAME_LABEL: name}
    if run is not None:
        labels |= {REVISION_LABEL: run["revision"], ATTEMPT_LABEL: run["attempt"]}
    return ",".join(f"{key}={value}" for key, value in labels.items())


DEFAULT_RETRIES: Final[int] = RunPolicy().backoff_limit
"""Retries if neither the resource nor the platform sets a limit."""


def _state_entry_time(state: str, resource: Raw) -> datetime | None:
    """Return the time at which the resource entered its state."""
    # The condition Ready is not enough: its lastTransitionTime stays the same if only its reason changes.
    status = resource.get("status") or {}
    run = (status.get("runs") or [{}])[0]
    time = {
        UNSEEN: resource["metadata"].get("creationTimestamp"),
        "Starting": run.get("admissionTime") or run.get("startTime"),
        "Queued": run.get("startTime"),
        "Running": run.get("firstReportTime"),
        "Suspending": run.get("stopRequestedTime"),
        "Retrying": run.get("endTime"),
        "Suspended": find_condition(status, "Suspended").get("lastTransitionTime"),
        "Stalled": find_condition(status, "Stalled").get("lastTransitionTime"),
        "Succeeded": find_condition(status, "Finished").get("lastTransitionTime"),
        "Failed": find_condition(status, "Finished").get("lastTransitionTime"),
    }.get(state, find_condition(status, "Ready").get("lastTransitionTime"))
    return parse_optional_time(time)


def _notes(resource: Raw) -> list[str]:
    metadata, status = resource["metadata"], resource.get("status") or {}
    notes = []
    observed_generation, generation = status.get("observedGeneration", -1), metadata.get("generation", 0)
    if metadata.get("deletionTimestamp"):
        notes.append("It is being deleted.")
    if 0 <= observed_generation < generation:
        notes.append("The operator has not processed the latest change of the spec yet.")
    return notes


def _count_lost_attempts(runs: Sequence[Raw], revision: int) -> int:
    """Count the lost attempts of a revision, as backoffLimit does."""
    # The status lists only the newest attempts, but each one has the number of losses before it.
    latest = next((run for run in runs if run.get("revision") == revision), None)
    if latest is None:
        return 0
    is_counted_loss = latest.get("outcome") == "Lost" and latest.get("reason") != UNCOUNTED_REASON
    return int(latest.get("retries", 0)) + is_counted_loss


# -- pools and pods -------------------------------------------------------------------------------------------


def _current_pods(pods: Sequence[Raw], runs: Sequence[Raw]) -> list[Raw]:
    """Return the pods of the latest attempt."""
    if not runs:
        return []
    attempt = (str(runs[0]["revision"]), str(runs[0]["attempt"]))
    labels = [(pod, pod["metadata"].get("labels") or {}) for pod in pods]
    return [
        pod
        for pod, pod_labels in labels
        if (pod_labels.get(REVISION_LABEL), pod_labels.get(ATTEMPT_LABEL)) == attempt
    ]


def _pool_rows(status: Raw, pods: Sequence[Raw], now: datetime) -> tuple[PoolRow, ...]:
    resolved = status.get("resolved") or {}
    image = str((status.get("runs") or [{}])[0].get("image") or "")
    sizes: Raw = resolved.get("pools") or {}
    rows_by_pool: dict[str, list[PodRow]] = {}
    for pod in pods:
        facts = pod_facts(dict(pod))
        rows_by_pool.setdefault(facts.pool, []).append(_pod_row(pod, facts, image, resolved, now))
    return tuple(
        _pool_row(pool, sizes.get(pool) or {}, rows_by_pool.get(pool, []))
        for pool in _POOLS
        if pool in sizes or pool in rows_by_pool
    )


def _pool_row(pool: str, pool_sizes: Raw, pods: Sequence[PodRow]) -> PoolRow:
    num_pods = (pool_sizes.get("pods") or {}).get("value")
    return PoolRow(
        pool=pool,
        desired=None if num_pods is None else str(num_pods),
        size={name: pool_sizes[name]["value"] for name in _SIZE_NAMES if name in pool_sizes},
        reasons={name: str(size.get("reason", "")) for name, size in pool_sizes.items()},
        pods=tuple(pods),
    )


def _pod_row(pod: Raw, facts: PodFacts, image: str, resolved: Raw, now: datetime) -> PodRow:
    problem = diagnose(AttemptFacts("", pods=(facts,)), image, resolved, now)
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return PodRow(
        name=facts.name,
        # Kubernetes keeps the phase of a pod that is being deleted.
        phase="Terminating" if facts.is_deleting else facts.phase,
        ready=facts.is_ready and not facts.is_deleting,
        node=(pod.get("spec") or {}).get("nodeName"),
        restarts=sum(int(status.get("restartCount", 0)) for status in statuses),
        problem=None if problem is None else problem.message,
    )
