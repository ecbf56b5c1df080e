"""The attempt that goes on: how it stands, or how it has ended."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from hindcast.api.attempt import CHECKPOINT
from hindcast.api.status import RunStatus, Status
from hindcast_operator.decision import CreateAttempt, SetIntent
from hindcast_operator.facts import AttemptFacts, Facts, RayJobFacts
from hindcast_operator.planning.deadlines import next_deadline, start_due
from hindcast_operator.planning.diagnosis import diagnose, kuberay_due
from hindcast_operator.planning.endings import REMEMBERED, Ending, ending_of
from hindcast_operator.planning.holds import hold_on_creation
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.runs import attempt_of, ended, replace_latest
from hindcast_operator.planning.situation import Check, Situation
from hindcast_operator.planning.status import condition_of
from hindcast_operator.planning.times import after, earliest, for_people, stamp
from hindcast_operator.planning.view import View, is_queued
from hindcast_operator.planning.wishes import Wishes


def look(facts: Facts, old: Status, wishes: Wishes, run: RunStatus, now: datetime) -> View:
    """The attempt as it is looked at; its entry tells what was seen for the first time."""
    attempt = facts.attempts.get(run.child, AttemptFacts(run.child))
    seen = View(
        run=run,
        attempt=attempt,
        wishes=wishes,
        uid=facts.uid,
        diagnosis=diagnose(attempt, run.image or "", old.resolved, now),
        cluster=condition_of(old, "ClusterReady"),
        now=now,
    )
    return seen.with_run(_noted(seen, was_queued=old.state == "Queued"))


def ended_or_asked(view: View, resolved: Mapping[str, Any]) -> tuple[RunStatus, Ending | None]:
    """The attempt's entry, and how it has ended; an attempt that is to be suspended is asked to end."""
    ending = ending_of(view, resolved)
    if ending is not None:
        return view.run, ending
    if not view.wishes.suspend or view.run.asked_to_stop is not None:
        return view.run, None
    if view.run.heard is None:
        return view.run, Ending("Suspended", Reason.SUSPENDED, "Suspended before it had begun")
    return view.run.model_copy(update={"asked_to_stop": stamp(view.now)}), None


def concluded(view: View, ending: Ending) -> RunStatus:
    """The entry of the attempt that has ended; the loss that uses attempts up is final."""
    run, limit = view.run, view.wishes.policy.backoff_limit
    if ending.outcome == "Lost" and run.retries + 1 > limit:
        lost = "1 attempt was" if run.retries == 0 else f"{run.retries + 1} attempts were"
        text = f"{lost} lost (spec.runPolicy.backoffLimit is {limit}); the last one ({ending.reason}): {ending.message}"
        return ended(run, "Failed", Reason.BACKOFF_LIMIT_EXCEEDED, text, view.now)
    return ended(run, ending.outcome, ending.reason, ending.message, view.now)


def standing(view: View, facts: Facts, runs: Sequence[RunStatus], data: Check | None) -> Situation:
    """How the attempt stands that goes on."""
    history = replace_latest(runs, view.run)
    if view.job is None:
        return _unmade(view, facts, history, data)
    if view.run.asked_to_stop is not None:
        return _suspending(view, history, data)
    if is_queued(view.job):
        message = f"RayJob {view.run.child} waits in its Kueue queue; no deadline runs"
        cluster = Check(False, Reason.QUEUED, message)
        return Situation("Queued", Reason.QUEUED, message, history, data=data, cluster=cluster)
    if view.report is None and view.run.heard is None:
        return _starting(view, history, data)
    return _running(view, history, data)


def _noted(view: View, was_queued: bool) -> RunStatus:
    job, run = view.job, view.run
    if job is None:
        return run
    noted: dict[str, str | None] = {}
    if not job.deleting and run.child_uid is None:
        noted["child_uid"] = job.uid
    if view.report is not None and run.heard is None:
        noted["heard"] = stamp(view.now)
    if is_queued(job):
        if run.heard is None:
            noted["admitted"] = None
    elif run.admitted is None:
        noted["admitted"] = stamp(view.now if was_queued else _begun(job))
    return run.model_copy(update=noted)


def _begun(job: RayJobFacts) -> datetime:
    return job.created if job.started is None else max(job.created, job.started)


def _unmade(view: View, facts: Facts, runs: tuple[RunStatus, ...], data: Check | None) -> Situation:
    hold = hold_on_creation(view.attempt, view.wishes, facts)
    if hold is not None:
        return hold.situation(runs, data, view.now)
    assert view.wishes.resource is not None
    create = CreateAttempt(view.wishes.resource, attempt_of(view.run, facts))
    if view.attempt.refusal is not None:
        message = f"The API server refuses to create the attempt: {view.attempt.refusal}; it is tried again"
        return Situation(
            *("Stalled", Reason.CREATION_REFUSED, message, runs, (create,), data),
            look_again=after(view.now, 60),
        )
    message = f"Attempt {view.run.attempt} of revision {view.run.revision} is being created"
    return Situation("Pending", Reason.ACCEPTED, message, runs, (create,), data)


def _suspending(view: View, runs: tuple[RunStatus, ...], data: Check | None) -> Situation:
    found = view.config_map
    asked = found is None or found.intent == CHECKPOINT
    actions = () if asked else (SetIntent(view.run.child, CHECKPOINT),)
    message = "The attempt was asked to checkpoint and end; then its pods are deleted"
    return Situation(
        *("Suspending", Reason.SUSPENDING, message, runs, actions, data, _cluster(view)),
        look_again=next_deadline(view),
    )


def _starting(view: View, runs: tuple[RunStatus, ...], data: Check | None) -> Situation:
    due = start_due(view)
    until = "" if due is None else f"; waits until {for_people(due)} (startDeadlineSeconds)"
    reason, message = Reason.CLUSTER_STARTING, f"The pods of attempt {view.run.attempt} start{until}"
    if view.diagnosis is not None:
        reason, message = view.diagnosis.reason, f"{_sentence(view.diagnosis.message)}{until}"
    kuberay = kuberay_due(view.attempt)
    again = earliest(next_deadline(view), kuberay if kuberay is not None and kuberay > view.now else None)
    return Situation("Starting", reason, message, runs, (), data, _cluster(view), look_again=again)


def _running(view: View, runs: tuple[RunStatus, ...], data: Check | None) -> Situation:
    report = view.report
    said = f"Attempt {view.run.attempt} runs"
    if report is not None and report.stage:
        said = f"{said}: {report.stage}"
    if report is not None and report.note:
        said = f"{said}. {report.note}"
    cluster = _cluster(view)
    message = said if cluster.holds else f"{said}. {cluster.message}"
    return Situation(
        *("Running", Reason.RUNNING, message, runs, (), data, cluster), look_again=next_deadline(view)
    )


def _cluster(view: View) -> Check:
    """ClusterReady; what killed the head's pod is remembered after it has gone."""
    if view.diagnosis is not None:
        return Check(False, view.diagnosis.reason, _sentence(view.diagnosis.message))
    if view.run.heard is None:
        return Check(False, Reason.CLUSTER_STARTING, "The attempt has not reported yet")
    old = view.cluster
    if old is not None and old.status == "False" and old.reason in REMEMBERED and view.head is None:
        return Check(False, Reason.of(old.reason), old.message)
    return Check(True, Reason.CLUSTER_READY, "The pods run and the attempt reports")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
