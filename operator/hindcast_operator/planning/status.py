"""The status, its conditions and the events that follow from a situation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from hindcast.api.attempt import Report
from hindcast.api.status import Condition, RunStatus, Status
from hindcast_operator.decision import Action, Event
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.times import format_timestamp

State = Literal[
    "Pending",
    "Waiting",
    "Queued",
    "Starting",
    "Running",
    "Retrying",
    "Suspending",
    "Suspended",
    "Stalled",
    "Succeeded",
    "Failed",
]
"""`Stalled`: a person must act; the run then continues by itself. `Failed`: final for the revision."""

FINISHED_STATES: Final = ("Succeeded", "Failed")
_READY_STATES: Final[tuple[State, ...]] = ("Running", "Suspended", "Succeeded")
_STALLED_STATES: Final[tuple[State, ...]] = ("Stalled", "Failed")
_MAX_EVENT_BYTES: Final = 1000
"""Kubernetes accepts 1024 bytes."""
_MAX_MESSAGE_BYTES: Final = 8000
"""A condition's message has at most 32,768 characters. A status repeats it, so it is kept shorter."""


@dataclass(frozen=True)
class Check:
    """A condition's status, reason and message."""

    is_true: bool
    reason: Reason
    message: str


@dataclass(frozen=True)
class Situation:
    """The state of a resource, and the actions that it needs.

    Attributes:
        reason: reason of Ready, and of Reconciling or Stalled.
        message: one sentence for people: the cause, and what to do next.
        runs: the history, newest first.
        actions: the actions, in order.
        data_ready: the condition DataReady; None if the resource refers to no other resource.
        cluster_ready: the condition ClusterReady; None if no live attempt has a RayJob.
        requeue_at: when to reconcile even if nothing changes; None if never.
        ends_silent_attempt: an attempt has just been ended because it reported nothing new for too long.
    """

    state: State
    reason: Reason
    message: str
    runs: tuple[RunStatus, ...]
    actions: tuple[Action, ...] = ()
    data_ready: Check | None = None
    cluster_ready: Check | None = None
    requeue_at: datetime | None = None
    ends_silent_attempt: bool = False


# -- the status ---------------------------------------------------------------------------------------------


def read_status(document: Mapping[str, Any]) -> Status:
    """Parse the status of a resource. A new resource has an empty one."""
    return Status.model_validate(dict(document), by_alias=True, by_name=False)


def plain_status(status: Status) -> dict[str, Any]:
    """Return the status as JSON values with camelCase names, without unset or empty fields."""
    document: dict[str, Any] = _without_empty(
        status.model_dump(mode="json", by_alias=True, exclude_none=True)
    )
    return document


def _without_empty(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_empty(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    entries = {name: _without_empty(entry) for name, entry in value.items()}
    return {name: entry for name, entry in entries.items() if entry not in ({}, [])}


def new_status(
    situation: Situation,
    old: Status,
    *,
    report: Report | None,
    resolved: Mapping[str, Any] | None,
    spec_changes: Mapping[str, Check],
    generation: int,
    now: datetime,
    is_new_revision: bool,
) -> Status:
    """Return the whole new status.

    Args:
        situation: the situation that the new status describes.
        old: the stored status.
        report: latest report of the current attempt. Results that the report leaves out keep their stored values.
        resolved: the new value of `status.resolved` if an attempt is created now; None keeps the old one.
        spec_changes: the conditions SpecDrift and ChangeWaiting, if they are true.
        generation: generation of the spec.
        now: the transition time of changed conditions.
        is_new_revision: the results in the stored status are not of this revision, so they are dropped.
    """
    base = Status() if is_new_revision else old
    # Without a report, this placeholder contains no results.
    report = report or Report(number=1, report_time="", last_progress_time="")
    runs = situation.runs
    has_seen_job = bool(runs) and runs[0].ray_job_uid is not None
    has_job = has_seen_job and (runs[0].outcome is None or situation.state in FINISHED_STATES)
    return Status(
        observed_generation=generation,
        state=situation.state,
        message=_cut(_status_message(situation, spec_changes), _MAX_MESSAGE_BYTES),
        conditions=_conditions(situation, spec_changes, old.conditions, generation, now),
        ray_job_name=runs[0].ray_job_name if has_job else None,
        progress=report.progress or base.progress,
        output=report.output or base.output,
        checkpoint=report.checkpoint or base.checkpoint,
        resolved=base.resolved if resolved is None else dict(resolved),
        runs=list(runs),
    )


def _status_message(situation: Situation, spec_changes: Mapping[str, Check]) -> str:
    if situation.state == "Stalled":
        return situation.message
    sentences = [situation.message, *(change.message for change in spec_changes.values())]
    return ". ".join([*(sentence.rstrip(".") for sentence in sentences[:-1]), sentences[-1]])


# -- conditions, as kstatus, Argo, Flux and `kubectl wait` read them -----------------------------------------


def find_condition(status: Status, type_: str) -> Condition | None:
    """Return the condition of a type, or None."""
    return next((entry for entry in status.conditions if entry.type == type_), None)


def _conditions(
    situation: Situation,
    spec_changes: Mapping[str, Check],
    old: Sequence[Condition],
    generation: int,
    now: datetime,
) -> list[Condition]:
    """Return all conditions in a fixed order. A condition with an unchanged status keeps its transition time."""
    transition_times: dict[tuple[str, str], str] = {
        (entry.type, entry.status): entry.last_transition_time for entry in old
    }
    conditions = []
    for type_, check in _checks(situation, spec_changes):
        status: Literal["True", "False"] = "True" if check.is_true else "False"
        conditions.append(
            Condition(
                type=type_,
                status=status,
                reason=check.reason.value,
                message=_cut(check.message, _MAX_MESSAGE_BYTES),
                last_transition_time=transition_times.get((type_, status), format_timestamp(now)),
                observed_generation=generation,
            )
        )
    return conditions


def _checks(situation: Situation, spec_changes: Mapping[str, Check]) -> Iterator[tuple[str, Check]]:
    """Yield the type and the check of each condition. Most conditions exist only while they are true."""
    # kstatus decides by whichever of Reconciling and Stalled is True, and `kubectl wait` waits for True.
    state = situation.state
    true_check = Check(True, situation.reason, situation.message)
    is_ready = state in _READY_STATES
    yield "Ready", Check(is_ready, situation.reason, situation.message)
    if not is_ready:
        yield "Stalled" if state in _STALLED_STATES else "Reconciling", true_check
    if situation.data_ready is not None:
        yield "DataReady", situation.data_ready
    if situation.cluster_ready is not None:
        yield "ClusterReady", situation.cluster_ready
    yield from spec_changes.items()
    if state == "Suspended":
        yield "Suspended", true_check
    if state == "Suspending":
        yield "Suspended", Check(False, Reason.SUSPENDING, situation.message)
    if state in FINISHED_STATES:
        yield "Complete" if state == "Succeeded" else "Failed", true_check
        yield "Finished", true_check


# -- events: one for each transition in the status, none while it is unchanged -------------------------------


def events_between(old: Status, new: Status) -> tuple[Event, ...]:
    """Return the events between two statuses, in the order of cause and effect."""
    return (*_end_events(old, new), *_creation_events(old, new), *_condition_events(old, new))


def _end_events(old: Status, new: Status) -> Iterator[Event]:
    """Yield an event for each attempt that was lost, preempted or superseded since the old status."""
    unfinished_children = {run.ray_job_name for run in old.runs if run.outcome is None}
    for run in new.runs:
        if run.ray_job_name in unfinished_children and run.outcome in ("Lost", "Preempted", "Superseded"):
            yield _make_event(
                Reason.from_word(run.reason or Reason.LOST_DRIVER),
                f"{_attempt_name(run)} ended: {run.message}",
            )


def _creation_events(old: Status, new: Status) -> Iterator[Event]:
    old_children = {run.ray_job_name for run in old.runs}
    for run in new.runs[:1]:
        if run.ray_job_name not in old_children:
            yield _make_event(Reason.ATTEMPT_CREATED, f"{_attempt_name(run)}: RayJob {run.ray_job_name}")


def _condition_events(old: Status, new: Status) -> Iterator[Event]:
    ready = _changed_condition(old, new, "Ready")
    if ready is not None and ready.reason != Reason.ACCEPTED:
        yield _make_event(Reason.from_word(ready.reason), ready.message)
    cluster = _changed_condition(old, new, "ClusterReady")
    if cluster is not None and cluster.status == "False" and new.state in ("Running", "Suspending"):
        yield _make_event(Reason.from_word(cluster.reason), cluster.message)
    if (obstacle := _new_obstacle(old, new)) is not None:
        yield _make_event(Reason.UNSCHEDULABLE, obstacle.message)
    for type_ in ("SpecDrift", "ChangeWaiting"):
        change = _changed_condition(old, new, type_)
        if change is not None and new.state != "Stalled":
            yield _make_event(Reason.from_word(change.reason), change.message)


def _changed_condition(old: Status, new: Status, type_: str) -> Condition | None:
    """Return the condition if it is new or its reason has changed, else None."""
    old_condition, new_condition = find_condition(old, type_), find_condition(new, type_)
    if (
        old_condition is not None
        and new_condition is not None
        and old_condition.reason == new_condition.reason
    ):
        return None
    return new_condition


def _new_obstacle(old: Status, new: Status) -> Condition | None:
    """Return the condition ClusterReady if pods are still unschedulable, but now need another remedy; else None."""
    old_condition, new_condition = find_condition(old, "ClusterReady"), find_condition(new, "ClusterReady")
    if old_condition is None or new_condition is None:
        return None
    if not old_condition.reason == new_condition.reason == Reason.UNSCHEDULABLE:
        return None
    # The scheduler's message changes with the number of nodes. Only the remedy, after the last semicolon, is compared.
    old_remedy, new_remedy = (entry.message.rpartition("; ")[2] for entry in (old_condition, new_condition))
    return new_condition if new_remedy != old_remedy else None


def _make_event(reason: Reason, message: str) -> Event:
    return Event(reason.type, reason.value, _cut(message, _MAX_EVENT_BYTES))


def _cut(text: str, max_bytes: int) -> str:
    """Return the text with at most `max_bytes` bytes of UTF-8; the end of a longer one becomes an ellipsis."""
    data = text.encode(errors="replace")
    return text if len(data) <= max_bytes else data[: max_bytes - 3].decode(errors="ignore") + "…"


def _attempt_name(run: RunStatus) -> str:
    return f"Attempt {run.attempt} of revision {run.revision}"
