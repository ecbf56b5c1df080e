"""What follows when no attempt goes on: nothing more, a pause, a wait, or the next attempt."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from hindcast.api.status import RunStatus
from hindcast_operator.decision import Action, CreateAttempt, DeleteAttempt
from hindcast_operator.facts import AttemptFacts, Facts
from hindcast_operator.names import child_name
from hindcast_operator.planning.backoff import pause_seconds
from hindcast_operator.planning.holds import hold_of_names, hold_of_spec
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.references import data_check, inputs_entry
from hindcast_operator.planning.runs import (
    attempt_of,
    begin,
    current_run,
    losses,
    next_number,
    number_of,
    with_new,
)
from hindcast_operator.planning.situation import Check, Situation, State
from hindcast_operator.planning.times import after, for_people, parse
from hindcast_operator.planning.view import gone_due, is_gone, is_over
from hindcast_operator.planning.wishes import Wishes, used_defaults

ENDING_SECONDS: Final = 120
"""A driver that has reported its end goes, and KubeRay then deletes the cluster; after this long we do."""


def finished(
    facts: Facts, run: RunStatus, runs: Sequence[RunStatus], data: Check | None, now: datetime
) -> Situation:
    """A run that is over: its status stays, its RayJob too, once it holds no nodes."""
    state: State = "Succeeded" if run.outcome == "Succeeded" else "Failed"
    reason = Reason.SUCCEEDED if state == "Succeeded" else Reason.of(run.reason or Reason.INTERNAL_ERROR)
    actions = deletions(facts, spared=run.child)
    job = facts.attempts.get(run.child, AttemptFacts(run.child)).ray_job
    again = None
    if job is not None and job.owner_uid == facts.uid and not is_over(job) and not job.deleting:
        due = after(parse(run.finished or ""), ENDING_SECONDS)
        by_report = run.reason not in _STOPPED_BY_US
        again = due if by_report and now < due else None
        if again is None:
            actions = (*actions, DeleteAttempt(run.child, keep_config_map=True))
    message = run.message or "Done"
    if state == "Failed" and "spec.revision" not in message:
        message = f"{message.rstrip('.')}. Raise spec.revision to run again once this is mended"
    return Situation(state, reason, message, tuple(runs), actions, data, look_again=again)


def next_step(facts: Facts, wishes: Wishes, runs: Sequence[RunStatus], now: datetime) -> Situation:
    """What comes before the next attempt, or its creation."""
    run = current_run(runs, wishes.revision)
    data = data_check(facts, run)
    actions = deletions(facts, spared=None)
    waits = _suspended(facts, wishes, runs, data, now) or _waits(facts, wishes, runs, data, now)
    if waits is None and not actions:
        return _created(facts, wishes, runs, data, now)
    situation = waits or _cleaning(facts, run, runs, data, now)
    return replace(situation, actions=actions)


def adopted(facts: Facts, wishes: Wishes, now: datetime) -> tuple[RunStatus, ...]:
    """The entry of an attempt that exists although the status knows of none: it was lost, or wiped."""
    if wishes.resource is None:
        return ()
    stem = child_name(facts.kind, facts.name, wishes.revision, 0)[:-1]
    numbers = [
        number
        for child, attempt in facts.attempts.items()
        if attempt.ray_job is not None and attempt.ray_job.owner_uid == facts.uid
        if (number := number_of(child, stem)) is not None
    ]
    if not numbers:
        return ()
    number = max(numbers)
    return (_entry(facts, wishes, number, previous=None, now=now),)


_STOPPED_BY_US: Final = (
    Reason.BACKOFF_LIMIT_EXCEEDED,
    Reason.DEADLINE_EXCEEDED,
    Reason.START_DEADLINE_EXCEEDED,
    Reason.INVALID_RAY_JOB,
)


def _suspended(
    facts: Facts, wishes: Wishes, runs: Sequence[RunStatus], data: Check | None, now: datetime
) -> Situation | None:
    if not wishes.suspend:
        return None
    if any(not is_gone(attempt, now) for attempt in _own(facts)):
        return Situation(
            "Suspending", Reason.SUSPENDING, "The pods are being deleted", tuple(runs), data=data
        )
    message = "Suspended by spec.suspend: no pods; set it to false to go on"
    return Situation("Suspended", Reason.SUSPENDED, message, tuple(runs), data=data)


def _waits(
    facts: Facts, wishes: Wishes, runs: Sequence[RunStatus], data: Check | None, now: datetime
) -> Situation | None:
    run = current_run(runs, wishes.revision)
    hold = hold_of_spec(facts, wishes)
    if hold is not None:
        return hold.situation(runs, data, now)
    if data is not None and not data.holds:
        state: State = "Stalled" if data.reason == Reason.DEPENDENCY_FAILED else "Waiting"
        return Situation(state, data.reason, data.message, tuple(runs), data=data)
    if facts.kuberay == "NotInstalled":
        return without_kuberay(runs, data)
    if any(not is_gone(attempt, now) for attempt in _own(facts)):
        return _cleaning(facts, run, runs, data, now)
    if run is not None and run.outcome == "Lost":
        begins = after(parse(run.finished or ""), pause_seconds(run.child, losses(run)))
        if now < begins:
            return _pausing(run, runs, data, begins)
    hold = hold_of_names(_next_attempt(facts, wishes, runs), facts.uid)
    return None if hold is None else hold.situation(runs, data, now)


def without_kuberay(runs: Sequence[RunStatus], data: Check | None) -> Situation:
    """Nothing can be made, or seen, of an attempt."""
    message = "The cluster has no RayJobs: install KubeRay 1.6 or later; the run then goes on by itself"
    return Situation("Pending", Reason.KUBERAY_NOT_INSTALLED, message, tuple(runs), data=data)


def _cleaning(
    facts: Facts, run: RunStatus | None, runs: Sequence[RunStatus], data: Check | None, now: datetime
) -> Situation:
    state: State = "Retrying" if run is not None and run.outcome == "Lost" else "Pending"
    message = "Waits until the pods and objects of the attempt before are gone"
    again = gone_due(_own(facts), now)
    return Situation(state, Reason.CLEANING_UP, message, tuple(runs), data=data, look_again=again)


def _pausing(run: RunStatus, runs: Sequence[RunStatus], data: Check | None, begins: datetime) -> Situation:
    message = (
        f"Attempt {run.attempt} was lost ({run.reason}): {(run.message or '').rstrip('.')}. "
        f"Attempt {run.attempt + 1} begins at {for_people(begins)}"
    )
    return Situation("Retrying", Reason.RETRYING, message, tuple(runs), data=data, look_again=begins)


def _created(
    facts: Facts, wishes: Wishes, runs: Sequence[RunStatus], data: Check | None, now: datetime
) -> Situation:
    assert wishes.resource is not None, "a hold comes before"
    previous = current_run(runs, wishes.revision)
    number = next_number(runs, wishes.revision)
    run = _entry(facts, wishes, number, previous, now)
    create = CreateAttempt(wishes.resource, attempt_of(run, facts))
    message = f"Attempt {number} of revision {wishes.revision} is being created"
    return Situation("Pending", Reason.ACCEPTED, message, with_new(runs, run), (create,), data)


def _entry(facts: Facts, wishes: Wishes, number: int, previous: RunStatus | None, now: datetime) -> RunStatus:
    assert wishes.resource is not None and wishes.spec_hash is not None
    return begin(
        facts,
        revision=wishes.revision,
        number=number,
        resource=wishes.resource,
        spec_hash=wishes.spec_hash,
        previous=previous,
        inputs=inputs_entry(facts, previous, used_defaults(wishes.defaults)),
        now=now,
    )


def _next_attempt(facts: Facts, wishes: Wishes, runs: Sequence[RunStatus]) -> AttemptFacts:
    child = child_name(facts.kind, facts.name, wishes.revision, next_number(runs, wishes.revision))
    return facts.attempts.get(child, AttemptFacts(child))


def deletions(facts: Facts, spared: str | None) -> tuple[Action, ...]:
    """Deletes what is left of attempts that are over."""
    return tuple(DeleteAttempt(child) for child in _leftovers(facts) if child != spared)


def _leftovers(facts: Facts) -> Iterator[str]:
    for child in sorted(facts.attempts):
        attempt = facts.attempts[child]
        for found in (attempt.ray_job, attempt.config_map):
            if found is not None and found.owner_uid == facts.uid and not found.deleting:
                yield child
                break


def _own(facts: Facts) -> Iterator[AttemptFacts]:
    """Attempts with anything left of them that is not another resource's."""
    for attempt in facts.attempts.values():
        job = attempt.ray_job
        if job is None or job.owner_uid == facts.uid:
            yield attempt
