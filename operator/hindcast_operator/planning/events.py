"""Events: one for each transition that the status shows, none at rest."""

from collections.abc import Iterator
from typing import Final

from hindcast.api.status import Condition, RunStatus, Status
from hindcast_operator.decision import Event
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.status import condition_of

LONGEST_MESSAGE: Final = 1000
"""Kubernetes takes 1024 bytes."""


def events_of(old: Status, new: Status) -> tuple[Event, ...]:
    """What happened between two statuses, in the order of cause and effect."""
    return (*_ends(old, new), *_begins(old, new), *_changes(old, new))


def _ends(old: Status, new: Status) -> Iterator[Event]:
    """Attempts that ended without finishing the run."""
    went_on = {run.child for run in old.runs if run.outcome is None}
    for run in new.runs:
        if run.child in went_on and run.outcome in ("Lost", "Preempted", "Superseded"):
            yield _event(Reason.of(run.reason or Reason.LOST_DRIVER), f"{_name(run)} ended: {run.message}")


def _begins(old: Status, new: Status) -> Iterator[Event]:
    known = {run.child for run in old.runs}
    for run in new.runs[:1]:
        if run.child not in known:
            yield _event(Reason.ATTEMPT_CREATED, f"{_name(run)}: RayJob {run.child}")


def _changes(old: Status, new: Status) -> Iterator[Event]:
    """What a condition says that it did not say."""
    ready = _news(old, new, "Ready")
    if ready is not None and ready.reason != Reason.ACCEPTED:
        yield _event(Reason.of(ready.reason), ready.message)
    cluster = _news(old, new, "ClusterReady")
    if cluster is not None and cluster.status == "False" and new.state in ("Running", "Suspending"):
        yield _event(Reason.of(cluster.reason), cluster.message)
    drift = _news(old, new, "SpecDrift")
    if drift is not None and new.state != "Stalled":
        yield _event(Reason.of(drift.reason), drift.message)


def _news(old: Status, new: Status, type_: str) -> Condition | None:
    """The condition, where its reason is another than it was."""
    before, now = condition_of(old, type_), condition_of(new, type_)
    return now if now is not None and (before is None or before.reason != now.reason) else None


def _event(reason: Reason, message: str) -> Event:
    short = message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 1] + "…"
    return Event(reason.type, reason.value, short)


def _name(run: RunStatus) -> str:
    return f"Attempt {run.attempt} of revision {run.revision}"
