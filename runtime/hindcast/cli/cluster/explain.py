"""Combines a resource's object and its pods into an explanation. Pure: plain objects and a time in, values out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from hindcast.api.attempt import UNCOUNTED_REASON
from hindcast.api.run_policy import RunPolicy
from hindcast_operator.extract import find_condition
from hindcast_operator.extract import pod as pod_facts
from hindcast_operator.facts import AttemptFacts, PodFacts
from hindcast_operator.names import ATTEMPT_LABEL, KIND_LABEL, NAME_LABEL, REVISION_LABEL, references
from hindcast_operator.planning.diagnosis import diagnose
from hindcast_operator.times import parse_optional_time

Raw = Mapping[str, Any]

UNSEEN: Final = "Unseen"
"""The state of a resource that no operator has looked at."""

_POOLS: Final = ("head", "data", "runner", "learner", "submitter")
_SIZES: Final = ("cpu", "gpus", "memory")


@dataclass(frozen=True)
class PodRow:
    """A pod of the current attempt.

    Attributes:
        phase: as Kubernetes has it; `Terminating` while it is being deleted.
        node: where it runs; None before it is scheduled.
        restarts: of its containers, together.
        problem: what keeps it from running, and what to do; None if nothing does.
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
        wanted: `2`, or `2 to 8` of an autoscaled pool; None where it is not known.
        size: of a pod: `cpu`, `gpus`, `memory`, where they are known.
        reasons: why it is so large, by number.
    """

    pool: str
    wanted: str | None
    size: Mapping[str, Any]
    reasons: Mapping[str, str]
    pods: tuple[PodRow, ...] = ()

    @property
    def num_ready(self) -> int:
        return sum(pod.ready for pod in self.pods)

    @property
    def is_complete(self) -> bool:
        """Whether as many are ready as it begins with; all, where that is not known."""
        fewest = len(self.pods) if self.wanted is None else int(self.wanted.split()[0])
        return self.num_ready >= fewest


@dataclass(frozen=True)
class Explanation:
    """Everything that one screen shows about a resource.

    Attributes:
        state: the operator's word, or `Unseen`.
        since: when it entered that state; None if unknown.
        reason: one word; None before the operator has seen the resource.
        message: why, in a sentence.
        notes: what else the reader should know.
        retries: attempts of this revision that were lost.
        retries_allowed: spec.runPolicy.backoffLimit; None where the platform's holds.
        runs: attempts, newest first, as the status has them.
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
        """Whether nothing more happens at this revision."""
        return self.state in ("Succeeded", "Failed")


def explain(resource: Raw, pods: Sequence[Raw], now: datetime) -> Explanation:
    """Explain a resource.

    Args:
        pods: of all its attempts, as the API server has them.
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
        since=_since(state, resource),
        reason=ready.get("reason"),
        message=status.get("message"),
        notes=tuple(_notes(resource)),
        should_suspend=bool(spec.get("suspend", False)),
        revision=revision,
        progress=status.get("progress") or {},
        checkpoint=status.get("checkpoint") or {},
        output=status.get("output") or {},
        pools=_pools(status, _current(pods, runs), now),
        retries=_losses(runs, revision),
        retries_allowed=(spec.get("runPolicy") or {}).get("backoffLimit"),
        runs=runs,
        references=tuple(f"{kind}/{name}" for kind, name in references(resource["kind"], spec)),
        now=now,
    )


def selector(kind: str, name: str, run: Raw | None = None) -> str:
    """Label selector of a resource's pods; of one attempt's."""
    labels = {KIND_LABEL: kind, NAME_LABEL: name}
    if run is not None:
        labels |= {REVISION_LABEL: run["revision"], ATTEMPT_LABEL: run["attempt"]}
    return ",".join(f"{key}={value}" for key, value in labels.items())


DEFAULT_RETRIES: Final[int] = RunPolicy().backoff_limit
"""Of resources and platforms that do not say otherwise."""


def _since(state: str, resource: Raw) -> datetime | None:
    """From what is recorded of that state; conditions keep their time while only their reason changes."""
    status = resource.get("status") or {}
    run = (status.get("runs") or [{}])[0]
    found = {
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
    return parse_optional_time(found)


def _notes(resource: Raw) -> list[str]:
    metadata, status = resource["metadata"], resource.get("status") or {}
    notes = []
    seen, generation = status.get("observedGeneration", -1), metadata.get("generation", 0)
    if metadata.get("deletionTimestamp"):
        notes.append("It is being deleted.")
    if 0 <= seen < generation:
        notes.append("The operator has not processed the latest change of the spec yet.")
    return notes


def _losses(runs: Sequence[Raw], revision: int) -> int:
    latest = next((run for run in runs if run.get("revision") == revision), None)
    if latest is None:
        return 0
    counts = latest.get("outcome") == "Lost" and latest.get("reason") != UNCOUNTED_REASON
    return int(latest.get("retries", 0)) + counts


# -- pools and pods -------------------------------------------------------------------------------------------


def _current(pods: Sequence[Raw], runs: Sequence[Raw]) -> list[Raw]:
    """The pods of the latest attempt."""
    if not runs:
        return []
    wanted = (str(runs[0]["revision"]), str(runs[0]["attempt"]))
    labels = [(pod, pod["metadata"].get("labels") or {}) for pod in pods]
    return [pod for pod, own in labels if (own.get(REVISION_LABEL), own.get(ATTEMPT_LABEL)) == wanted]


def _pools(status: Raw, pods: Sequence[Raw], now: datetime) -> tuple[PoolRow, ...]:
    resolved = status.get("resolved") or {}
    image = str((status.get("runs") or [{}])[0].get("image") or "")
    sizes: Raw = resolved.get("pools") or {}
    rows: dict[str, list[PodRow]] = {}
    for raw in pods:
        facts = pod_facts(dict(raw))
        rows.setdefault(facts.pool, []).append(_pod(raw, facts, image, resolved, now))
    return tuple(
        _pool(pool, sizes.get(pool) or {}, rows.get(pool, []))
        for pool in _POOLS
        if pool in sizes or pool in rows
    )


def _pool(pool: str, numbers: Raw, pods: Sequence[PodRow]) -> PoolRow:
    wanted = (numbers.get("pods") or {}).get("value")
    return PoolRow(
        pool=pool,
        wanted=None if wanted is None else str(wanted),
        size={name: numbers[name]["value"] for name in _SIZES if name in numbers},
        reasons={name: str(about.get("reason", "")) for name, about in numbers.items()},
        pods=tuple(pods),
    )


def _pod(raw: Raw, facts: PodFacts, image: str, resolved: Raw, now: datetime) -> PodRow:
    problem = diagnose(AttemptFacts("", pods=(facts,)), image, resolved, now)
    statuses = (raw.get("status") or {}).get("containerStatuses") or ()
    return PodRow(
        name=facts.name,
        phase="Terminating" if facts.deleting else facts.phase,
        ready=facts.ready and not facts.deleting,
        node=(raw.get("spec") or {}).get("nodeName"),
        restarts=sum(int(status.get("restartCount", 0)) for status in statuses),
        problem=None if problem is None else problem.message,
    )
