"""Combines a resource and its pods into an explanation. Reads neither the cluster nor the clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from hindcast.api.attempt import UNCOUNTED_REASONS
from hindcast.api.run_policy import RunPolicy
from hindcast_operator.extract import find_condition, pod_facts
from hindcast_operator.facts import AttemptFacts, PodFacts
from hindcast_operator.names import ATTEMPT_LABEL, KIND_LABEL, NAME_LABEL, REVISION_LABEL, find_references
from hindcast_operator.planning.diagnosis import diagnose
from hindcast_operator.times import parse_optional_time

Raw = Mapping[str, Any]
"""A Kubernetes object, or a section of it, as parsed JSON."""

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
        ready: True if all containers are ready and the pod is not being deleted.
        node: node that the pod runs on; None before it is scheduled.
        restarts: number of restarts of all containers together, without init containers.
        problem: what prevents the pod from running, with a remedy; None if nothing does.
    """

    name: str
    phase: str
    ready: bool
    node: str | None
    restarts: int
    problem: str | None


@dataclass(frozen=True)
class PoolRow:
    """The desired and the actual pods of a pool.

    Attributes:
        pool: name of the pool.
        desired: desired number of pods: `2`, or `2 to 8` for an autoscaled pool; None if unknown.
        size: size of one pod: `cpu`, `gpus` and `memory` -> value, as far as known.
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
        """True if the minimum desired number of pods is ready or, if that number is unknown, all existing pods."""
        min_pods = len(self.pods) if self.desired is None else int(self.desired.split()[0])  # 2 of `2 to 8`
        return self.num_ready >= min_pods


@dataclass(frozen=True)
class Explanation:
    """Everything that one screen shows about a resource.

    Attributes:
        kind, name, namespace: identity of the resource.
        state: state that the operator reports, or `Unseen`.
        since: time at which the resource entered the state; None if unknown.
        reason: reason of the state in one word; None before the operator has processed the resource.
        message: reason of the state in a sentence; None if the operator reports none.
        notes: further remarks for the reader.
        should_suspend: spec.suspend.
        revision: spec.revision.
        progress, checkpoint, output: sections of the status; empty if missing.
        pools: pools of the latest attempt.
        retries: number of lost attempts of this revision that count against the limit.
        retries_allowed: spec.runPolicy.backoffLimit; None if the platform's default applies.
        attempts: the entries of status.runs, one for each attempt, newest first.
        references: `Kind/name` of the resources that the spec refers to.
        now: time of the explanation; explanations that differ only in `now` are equal.
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
    attempts: tuple[Raw, ...]
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
    attempts = tuple(status.get("runs") or ())
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
        pools=_pool_rows(status, _current_pods(pods, attempts), now),
        retries=_count_lost_attempts(attempts, revision),
        retries_allowed=(spec.get("runPolicy") or {}).get("backoffLimit"),
        attempts=attempts,
        references=tuple(f"{kind}/{name}" for kind, name in find_references(resource["kind"], spec)),
        now=now,
    )


def label_selector(kind: str, name: str, attempt: Raw | None = None) -> str:
    """Return the label selector of the pods of a resource; with `attempt` (see `Explanation`), only of that attempt."""
    labels = {KIND_LABEL: kind, NAME_LABEL: name}
    if attempt is not None:
        labels |= {REVISION_LABEL: attempt["revision"], ATTEMPT_LABEL: attempt["attempt"]}
    return ",".join(f"{key}={value}" for key, value in labels.items())


DEFAULT_RETRIES: Final[int] = RunPolicy().backoff_limit
"""Retries if neither the resource nor the platform sets a limit."""


def _state_entry_time(state: str, resource: Raw) -> datetime | None:
    """Return the time at which the resource entered its state."""
    # The condition Ready is not enough: its lastTransitionTime stays the same if only its reason changes.
    status = resource.get("status") or {}
    latest_attempt = (status.get("runs") or [{}])[0]
    time = {
        UNSEEN: resource["metadata"].get("creationTimestamp"),
        "Starting": latest_attempt.get("admissionTime") or latest_attempt.get("startTime"),
        "Queued": latest_attempt.get("startTime"),
        "Running": latest_attempt.get("firstReportTime"),
        "Suspending": latest_attempt.get("stopRequestedTime"),
        "Retrying": latest_attempt.get("endTime"),
        "Suspended": find_condition(status, "Suspended").get("lastTransitionTime"),
        "Stalled": find_condition(status, "Stalled").get("lastTransitionTime"),
        "Succeeded": find_condition(status, "Finished").get("lastTransitionTime"),
        "Failed": find_condition(status, "Finished").get("lastTransitionTime"),
    }.get(state, find_condition(status, "Ready").get("lastTransitionTime"))
    return parse_optional_time(time)


def _notes(resource: Raw) -> list[str]:
    metadata, status = resource["metadata"], resource.get("status") or {}
    notes = []
    # observedGeneration is -1 until an operator has processed the resource.
    observed_generation, generation = status.get("observedGeneration", -1), metadata.get("generation", 0)
    if metadata.get("deletionTimestamp"):
        notes.append("The resource is being deleted.")
    if 0 <= observed_generation < generation:
        notes.append("The operator has not processed the latest change of the spec yet.")
    return notes


def _count_lost_attempts(attempts: Sequence[Raw], revision: int) -> int:
    """Count the lost attempts of a revision, as backoffLimit does."""
    # The status lists only the newest attempts, but each of them has the number of losses before it.
    latest = next((attempt for attempt in attempts if attempt.get("revision") == revision), None)
    if latest is None:
        return 0
    is_counted_loss = latest.get("outcome") == "Lost" and latest.get("reason") not in UNCOUNTED_REASONS
    return int(latest.get("retries", 0)) + is_counted_loss


# -- pools and pods -------------------------------------------------------------------------------------------


def _current_pods(pods: Sequence[Raw], attempts: Sequence[Raw]) -> list[Raw]:
    """Return the pods of the latest attempt."""
    if not attempts:
        return []
    latest = (str(attempts[0]["revision"]), str(attempts[0]["attempt"]))
    labelled_pods = [(pod, pod["metadata"].get("labels") or {}) for pod in pods]
    return [
        pod
        for pod, labels in labelled_pods
        if (labels.get(REVISION_LABEL), labels.get(ATTEMPT_LABEL)) == latest
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
    """Return the row of a pool; `pool_sizes` are its entries of status.resolved: name -> `value` and `reason`."""
    num_pods = (pool_sizes.get("pods") or {}).get("value")
    return PoolRow(
        pool=pool,
        desired=None if num_pods is None else str(num_pods),
        size={name: pool_sizes[name]["value"] for name in _SIZE_NAMES if name in pool_sizes},
        reasons={name: str(size.get("reason", "")) for name, size in pool_sizes.items()},
        pods=tuple(pods),
    )


def _pod_row(pod: Raw, facts: PodFacts, image: str, resolved: Raw, now: datetime) -> PodRow:
    # An attempt with no name and one pod: `diagnose` then describes the problem of this pod, if it has one.
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
