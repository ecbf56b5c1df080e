"""The situation of a resource: with a live attempt, with a finished run, or before the next attempt."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from hindcast.api.attempt import CHECKPOINT
from hindcast.api.status import RunStatus
from hindcast.formatting import capitalise
from hindcast_operator.decision import (
    Action,
    CreateAttempt,
    DeleteAttempt,
    RestoreAttempt,
    SetDeadlines,
    SetIntent,
)
from hindcast_operator.facts import DEADLINE_FIELDS, AttemptFacts, Facts
from hindcast_operator.manifests import find_refusals, ray_job_deadlines
from hindcast_operator.names import child_name
from hindcast_operator.planning.attempts import (
    LiveAttempt,
    is_cut_off,
    is_gone,
    is_over,
    is_queued,
    next_pod_loss_time,
    start_deadline,
)
from hindcast_operator.planning.diagnosis import POD_LOSSES, kuberay_deadline, quote
from hindcast_operator.planning.outcomes import next_deadline
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.revisions import (
    Revision,
    check_change_waiting,
    check_data_ready,
    created_account,
    invalid_spec_message,
    new_run,
)
from hindcast_operator.planning.runs import (
    add_run,
    attempt_number,
    current_run,
    describe_attempt,
    next_attempt_number,
    num_uncounted_losses,
    replace_latest_run,
    retry_time,
)
from hindcast_operator.planning.status import Check, Situation, State
from hindcast_operator.times import (
    earliest_time,
    format_for_people,
    parse_optional_time,
    parse_time,
    time_after,
)

ENDING_SECONDS: Final = 120
"""After a driver has reported its end, it exits and KubeRay deletes the cluster. If that takes longer than this, the
operator deletes the RayJob."""
POLL_SECONDS: Final = 30
"""Maximum time between checks of another owner's object that has a name the attempt needs."""
STALL_LOSSES: Final = 3
"""If so many attempts got no answer from storage, and no attempt of the revision ever did, its address is probably
wrong."""
CREATION_SECONDS: Final = 60
"""Maximum time between retries of a creation that the API server refused."""


@dataclass(frozen=True)
class Case:
    """A resource, the revision that its spec asks for, and the entries of its attempts, newest first."""

    facts: Facts
    revision: Revision
    runs: tuple[RunStatus, ...]
    now: datetime

    @property
    def run(self) -> RunStatus | None:
        """The entry of the revision's latest attempt, or None."""
        return current_run(self.runs, self.revision.number)

    @property
    def data_ready(self) -> Check | None:
        """The condition DataReady; None if the resource refers to no other resource."""
        return check_data_ready(self.facts, self.run)

    def with_run(self, run: RunStatus) -> "Case":
        """Return a copy with a changed latest entry."""
        return replace(self, runs=replace_latest_run(self.runs, run))

    def situation(
        self,
        state: State,
        reason: Reason,
        message: str,
        *actions: Action,
        cluster_ready: Check | None = None,
        requeue_at: datetime | None = None,
    ) -> Situation:
        """Return a situation with this history."""
        return Situation(
            state, reason, message, self.runs, actions, self.data_ready, cluster_ready, requeue_at
        )


# -- the live attempt ---------------------------------------------------------------------------------------


def live_situation(case: Case, attempt: LiveAttempt) -> Situation:
    """Return the situation of a resource with a live attempt. Its actions also delete all other attempts' objects."""
    situation = _situation_by_state(case.with_run(attempt.run), attempt)
    deletions = _deletions(case, kept_name=attempt.run.ray_job_name)
    repairs = _repair_actions(case, attempt)
    return replace(situation, actions=(*deletions, *repairs, *situation.actions, *_deadline_actions(attempt)))


def _repair_actions(case: Case, attempt: LiveAttempt) -> tuple[Action, ...]:
    """Return the action that restores the objects through which a live attempt reports, if one is missing."""
    if not is_cut_off(attempt):
        return ()
    description = describe_attempt(attempt.run, case.facts)
    if attempt.has_reported:
        return (RestoreAttempt(description, created_account(attempt.run)),)
    # Pods that have not started yet read their settings from the ConfigMap. With a changed spec, a new ConfigMap would
    # give them other settings than the attempt was created with.
    resource, drift = case.revision.resource, case.revision.drift
    change = check_change_waiting(case.facts.resource, attempt.run)
    if resource is None or drift is not None or change is not None:
        return ()
    return (CreateAttempt(resource, description),)


def unobservable_situation(case: Case) -> Situation | None:
    """Return the situation in which no attempt can be created or observed: without rights, or without KubeRay."""
    if case.facts.forbidden_kinds or case.facts.has_kuberay:
        return _forbidden_situation(case)
    message = "KubeRay is not installed: install KubeRay 1.5.1 or later; the run then continues by itself"
    return case.situation("Pending", Reason.KUBERAY_NOT_INSTALLED, message)


def _forbidden_situation(case: Case) -> Situation | None:
    """Return the situation in which the operator may not watch the objects of the namespace, else None."""
    if not case.facts.forbidden_kinds:
        return None
    kinds, cause = ", ".join(case.facts.forbidden_kinds), next(iter(case.facts.forbidden_kinds.values()))
    message = f"The operator may not watch {kinds} here: {quote(cause)}; {Reason.WATCH_FORBIDDEN.action}"
    return case.situation("Stalled", Reason.WATCH_FORBIDDEN, message)


def _situation_by_state(case: Case, attempt: LiveAttempt) -> Situation:
    run = attempt.run
    if attempt.job is None:
        return _situation_before_creation(case, attempt)
    if run.stop_requested_time is not None:
        return _suspending_situation(case, attempt)
    if is_queued(attempt.job):
        message = f"RayJob {run.ray_job_name} is queued by Kueue; no deadline applies while it waits"
        return case.situation(
            "Queued", Reason.QUEUED, message, cluster_ready=Check(False, Reason.QUEUED, message)
        )
    if not attempt.has_reported:
        return _starting_situation(case, attempt)
    return _running_situation(case, attempt)


def _deadline_actions(attempt: LiveAttempt) -> tuple[Action, ...]:
    """Return the action that passes changed deadlines of the spec to KubeRay, if any."""
    # Otherwise KubeRay would end the run by the old deadlines.
    job, expected = attempt.job, ray_job_deadlines(attempt.policy)
    if job is None or is_over(job) or job.deadlines == expected:
        return ()
    changes = {
        name: expected.get(name) for name in DEADLINE_FIELDS if expected.get(name) != job.deadlines.get(name)
    }
    return (SetDeadlines(attempt.run.ray_job_name, changes),)


def _situation_before_creation(case: Case, attempt: LiveAttempt) -> Situation:
    obstacle = _invalid_spec_situation(case) or _name_conflict_situation(case, attempt.facts)
    if obstacle is not None:
        return obstacle
    assert case.revision.resource is not None
    create = CreateAttempt(case.revision.resource, describe_attempt(attempt.run, case.facts))
    problem = attempt.facts.creation_problem
    if problem is None:
        return _creating_situation(case, attempt.run, create)
    recheck_time = time_after(case.now, CREATION_SECONDS)
    if problem.reason == "CreationRefused":
        message = f"The API server refused to create the attempt: {problem.cause}; will retry"
        return case.situation("Stalled", Reason.CREATION_REFUSED, message, create, requeue_at=recheck_time)
    message = f"The attempt cannot be created now: {quote(problem.cause)}; will retry"
    return case.situation("Pending", Reason.CREATION_FAILING, message, create, requeue_at=recheck_time)


def _creating_situation(case: Case, run: RunStatus, create: CreateAttempt) -> Situation:
    message = f"Creating attempt {run.attempt} of revision {run.revision}"
    return case.situation("Pending", Reason.ACCEPTED, message, create)


def _suspending_situation(case: Case, attempt: LiveAttempt) -> Situation:
    config_map = attempt.config_map
    should_ask = config_map is not None and config_map.intent != CHECKPOINT
    return case.situation(
        "Suspending",
        Reason.SUSPENDING,
        "The attempt was asked to save a checkpoint and stop; its pods are deleted afterwards",
        *((SetIntent(attempt.run.ray_job_name, CHECKPOINT),) if should_ask else ()),
        cluster_ready=_check_cluster_ready(attempt),
        requeue_at=next_deadline(attempt),
    )


def _starting_situation(case: Case, attempt: LiveAttempt) -> Situation:
    due = start_deadline(attempt)
    deadline_text = "" if due is None else f"; waiting until {format_for_people(due)} (startDeadlineSeconds)"
    cluster_ready = _check_cluster_ready(attempt)
    reason, text = cluster_ready.reason, cluster_ready.message
    if reason == Reason.CLUSTER_STARTING:
        text = f"The pods of attempt {attempt.run.attempt} are starting"
    kuberay_due = kuberay_deadline(attempt.facts, parse_optional_time(attempt.run.admission_time))
    if kuberay_due is not None and kuberay_due <= case.now:
        kuberay_due = None
    return case.situation(
        "Starting",
        reason,
        f"{text}{deadline_text}",
        cluster_ready=cluster_ready,
        requeue_at=earliest_time(next_deadline(attempt), kuberay_due),
    )


def _running_situation(case: Case, attempt: LiveAttempt) -> Situation:
    report = attempt.report
    message = f"Attempt {attempt.run.attempt} is running"
    if report is not None and report.stage:
        message = f"{message}: {report.stage}"
    if report is not None and report.note:
        message = f"{message}. {report.note}"
    cluster_ready = _check_cluster_ready(attempt)
    if not cluster_ready.is_true:
        message = f"{message}. {cluster_ready.message}"
    return case.situation(
        "Running", Reason.RUNNING, message, cluster_ready=cluster_ready, requeue_at=next_deadline(attempt)
    )


def _check_cluster_ready(attempt: LiveAttempt) -> Check:
    """Return the condition ClusterReady. After the head's pod is gone, it still names what killed the pod."""
    if (obstacle := _check_repair(attempt) or _check_pods(attempt)) is not None:
        return obstacle
    problem = None if attempt.config_map is None else attempt.config_map.report_problem
    if problem is not None:
        message = f"The attempt's report is of another version: {problem}; the run is not affected"
        return Check(False, Reason.REPORT_UNREADABLE, message)
    old = attempt.cluster_condition
    if old is not None and old.status == "False" and old.reason in POD_LOSSES and attempt.head is None:
        return Check(False, Reason.from_word(old.reason), old.message)
    return Check(True, Reason.CLUSTER_READY, "The pods are running and the attempt is reporting")


def _check_pods(attempt: LiveAttempt) -> Check | None:
    """Return the condition ClusterReady if pods do not run, have not reported yet, or have fallen silent."""
    if attempt.is_verdict_held:
        message = (
            "The attempt has reported nothing new for a long time. It is not ended, because many runs fell silent at "
            "once: check the operator's clock, its connection, and the connection of the nodes to the API server"
        )
        return Check(False, Reason.MANY_RUNS_SILENT, message)
    if attempt.diagnosis is not None:
        return Check(False, attempt.diagnosis.reason, capitalise(attempt.diagnosis.message))
    renewal_time = attempt.facts.token_renewal_time
    if renewal_time is not None and attempt.now < renewal_time:
        message = (
            "The run's ServiceAccount was deleted and created again: the attempt goes on, and reports again once its "
            f"token is renewed, by {format_for_people(renewal_time)}"
        )
        return Check(False, Reason.TOKEN_OUTDATED, message)
    if not attempt.has_reported:
        return Check(False, Reason.CLUSTER_STARTING, "The attempt has not reported yet")
    return None


def _check_repair(attempt: LiveAttempt) -> Check | None:
    """Return the condition ClusterReady if the objects through which an attempt reports cannot be restored."""
    problem = attempt.facts.creation_problem
    if problem is None or not is_cut_off(attempt):
        return None
    text = "The attempt cannot report: an object that it needs for this was deleted and cannot be restored"
    return Check(False, Reason.from_word(problem.reason), f"{text}: {quote(problem.cause)}; will retry")


# -- a finished run -----------------------------------------------------------------------------------------

_OPERATOR_STOPS: Final = (
    Reason.BACKOFF_LIMIT_EXCEEDED,
    Reason.DEADLINE_EXCEEDED,
    Reason.START_DEADLINE_EXCEEDED,
    Reason.INVALID_RAY_JOB,
)
"""Reasons for which the operator ends a run, so the RayJob does not end by itself and is deleted at once."""


def should_continue(case: Case, run: RunStatus) -> bool:
    """Return True if a finished training continues, because its `stop` or `evaluation` has changed."""
    revision = case.revision
    is_extended = revision.course_hash is not None and run.course_hash == revision.course_hash
    return run.outcome == "Succeeded" and is_extended and run.spec_hash != revision.spec_hash


def finished_situation(case: Case, run: RunStatus) -> Situation:
    """Return the situation of a finished run. Its RayJob is deleted only if it still uses nodes after a while."""
    state: State = "Succeeded" if run.outcome == "Succeeded" else "Failed"
    reason = (
        Reason.SUCCEEDED if state == "Succeeded" else Reason.from_word(run.reason or Reason.INTERNAL_ERROR)
    )
    actions = _deletions(case, kept_name=run.ray_job_name)
    job = case.facts.attempts.get(run.ray_job_name, AttemptFacts(run.ray_job_name)).ray_job
    recheck_time = None
    if job is not None and job.is_current(case.facts.uid) and not is_over(job):
        assert run.end_time is not None, "a finished run has ended"
        due = time_after(parse_time(run.end_time), ENDING_SECONDS)
        recheck_time = due if run.reason not in _OPERATOR_STOPS and case.now < due else None
        if recheck_time is None:
            actions = (*actions, DeleteAttempt(run.ray_job_name, keep_config_map=True))
    message = run.message or "Done"
    if state == "Failed" and "spec.revision" not in message:
        message = f"{message.rstrip('.')}. Fix this, then raise spec.revision to run again"
    return case.situation(state, reason, message, *actions, requeue_at=recheck_time)


# -- before the next attempt --------------------------------------------------------------------------------


def situation_before_attempt(case: Case) -> Situation:
    """Return the situation in which the next attempt is created, or in which an obstacle delays it."""
    actions = _deletions(case, kept_name=None)
    obstacle = _suspended_situation(case) or _find_obstacle(case)
    if obstacle is None and not actions:
        return _create_attempt(case)
    return replace(obstacle or _cleaning_up_situation(case), actions=actions)


def adopt_run(facts: Facts, revision: Revision, now: datetime) -> tuple[RunStatus, ...]:
    """Return the history of a resource without one: empty, or if the status was lost, an entry for the latest attempt.

    This is the existing attempt of the revision with the highest number. It cannot be recorded while the spec is not
    valid.
    """
    if revision.resource is None:
        return ()
    stem = child_name(facts.kind, facts.name, revision.number, 0)[:-1]  # without the attempt's number
    numbers = [
        number
        for name, attempt in facts.attempts.items()
        if attempt.ray_job is not None and attempt.ray_job.owner_uid == facts.uid
        if (number := attempt_number(name, stem)) is not None
    ]
    return (new_run(facts, revision, max(numbers), None, now),) if numbers else ()


def _suspended_situation(case: Case) -> Situation | None:
    if not case.revision.suspend:
        return None
    if _is_deletion_unfinished(case):
        return case.situation("Suspending", Reason.SUSPENDING, "The pods are being deleted")
    message = "Suspended by spec.suspend, without pods; set spec.suspend to false to resume"
    return case.situation("Suspended", Reason.SUSPENDED, message)


def _find_obstacle(case: Case) -> Situation | None:
    """Return the situation in which the next attempt has to wait; None if it can be created."""
    obstacle = _forbidden_situation(case) or _invalid_spec_situation(case)
    if obstacle is not None:
        return obstacle
    data, run = case.data_ready, case.run
    state: State
    if data is not None and not data.is_true:
        is_stalled = data.reason in (Reason.DEPENDENCY_FAILED, Reason.CIRCULAR_REFERENCE)
        state = "Stalled" if is_stalled else "Waiting"
        return case.situation(state, data.reason, data.message)
    if not case.facts.has_kuberay:
        return unobservable_situation(case)
    if _is_deletion_unfinished(case):
        return _cleaning_up_situation(case)
    if run is not None and run.outcome == "Lost" and case.now < (next_start := retry_time(case.runs)):
        message = (
            f"Attempt {run.attempt} was lost ({run.reason}): {(run.message or '').rstrip('.')}. "
            f"Attempt {run.attempt + 1} starts at {format_for_people(next_start)}"
        )
        state, reason = ("Retrying", Reason.RETRYING)
        if _has_never_reached_storage(case, run):
            state, reason = ("Stalled", Reason.STORAGE_UNAVAILABLE)
            message += ". No attempt of the revision has reached storage: check its address and credentials"
        return case.situation(state, reason, message, requeue_at=next_start)
    number = next_attempt_number(case.runs, case.revision.number)
    next_name = child_name(case.facts.kind, case.facts.name, case.revision.number, number)
    return _name_conflict_situation(case, case.facts.attempts.get(next_name, AttemptFacts(next_name)))


def _has_never_reached_storage(case: Case, run: RunStatus) -> bool:
    has_results = case.facts.status.get("progress") or case.facts.status.get("checkpoint")
    is_unreachable = run.reason == Reason.STORAGE_UNAVAILABLE and not has_results
    return is_unreachable and num_uncounted_losses(case.runs) >= STALL_LOSSES


def _cleaning_up_situation(case: Case) -> Situation:
    state: State = "Retrying" if case.run is not None and case.run.outcome == "Lost" else "Pending"
    message = "Waiting for the pods and objects of the previous attempt to be deleted"
    recheck_time = next_pod_loss_time(_owned_attempts(case.facts), case.now)
    return case.situation(state, Reason.CLEANING_UP, message, requeue_at=recheck_time)


def _create_attempt(case: Case) -> Situation:
    resource, number = case.revision.resource, next_attempt_number(case.runs, case.revision.number)
    assert resource is not None, "an invalid spec is an obstacle"
    run = new_run(case.facts, case.revision, number, case.run, case.now)
    create = CreateAttempt(resource, describe_attempt(run, case.facts))
    return replace(_creating_situation(case, run, create), runs=add_run(case.runs, run))


# -- objects that finished attempts leave behind ------------------------------------------------------------


def _deletions(case: Case, kept_name: str | None) -> tuple[Action, ...]:
    """Return the actions that delete the objects of all attempts except the one with the child name `kept_name`."""
    return tuple(
        DeleteAttempt(name)
        for name, attempt in sorted(case.facts.attempts.items())
        if name != kept_name and _leaves_objects(attempt, case.facts.uid)
    )


def _leaves_objects(attempt: AttemptFacts, uid: str) -> bool:
    objects = (attempt.ray_job, attempt.config_map)
    return any(facts is not None and facts.is_current(uid) for facts in objects)


def _is_deletion_unfinished(case: Case) -> bool:
    return any(not is_gone(attempt, case.now) for attempt in _owned_attempts(case.facts))


def _owned_attempts(facts: Facts) -> Iterator[AttemptFacts]:
    """Yield the attempts that do not belong to another resource."""
    for attempt in facts.attempts.values():
        job = attempt.ray_job
        if job is None or job.owner_uid == facts.uid:
            yield attempt


# -- obstacles to the creation of an attempt ----------------------------------------------------------------


def _invalid_spec_situation(case: Case) -> Situation | None:
    """Return the situation if the spec allows no new attempt, else None."""
    revision = case.revision
    if revision.resource is None:
        return case.situation("Stalled", Reason.INVALID_SPEC, invalid_spec_message(case.facts))
    if revision.drift is not None:
        return case.situation("Stalled", revision.drift.reason, revision.drift.message)
    if problems := find_refusals(revision.resource, revision.defaults):
        return case.situation("Stalled", Reason.REFUSED_BY_PLATFORM, "; ".join(map(str, problems)))
    return None


def _name_conflict_situation(case: Case, attempt: AttemptFacts) -> Situation | None:
    """Return the situation if another object has a name that the attempt needs, else None."""
    # A change of the other object does not queue this resource, so it is checked again after a while.
    recheck_time = time_after(case.now, POLL_SECONDS)
    problem = attempt.creation_problem
    if problem is not None and problem.reason == "NameConflict":
        message = (
            f"{problem.cause} has a name that the attempt needs; rename this resource or delete that object"
        )
        return case.situation("Stalled", Reason.NAME_CONFLICT, message, requeue_at=recheck_time)
    for kind, object_facts in (("RayJob", attempt.ray_job), ("ConfigMap", attempt.config_map)):
        if object_facts is None or object_facts.is_current(case.facts.uid):
            continue
        name = f"{kind}/{attempt.child_name}"
        if object_facts.owner_uid is None and not object_facts.is_deleting:
            message = (
                f"{name} has no owner, and the attempt needs its name; delete it or rename this resource"
            )
            return case.situation("Stalled", Reason.NAME_CONFLICT, message, requeue_at=recheck_time)
        message = f"Waiting for {name} of an earlier resource or attempt to be deleted"
        return case.situation("Pending", Reason.CLEANING_UP, message, requeue_at=recheck_time)
    return None
