"""Endings of attempts: by their own report, by a change of their objects, or by a deadline that they missed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from hindcast.api.attempt import AttemptOutcome
from hindcast.api.status import RunStatus
from hindcast_operator.facts import RayJobFacts
from hindcast_operator.planning.attempts import (
    GANG_SECONDS,
    Deadline,
    LiveAttempt,
    active_deadline,
    final_report_deadline,
    gang_deadline,
    head_deadline,
    heartbeat_deadline,
    is_disrupted,
    is_queued,
    progress_deadline,
    start_deadline,
    stop_deadline,
)
from hindcast_operator.planning.diagnosis import POD_LOSSES, memory_hint, quote
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.runs import Outcome, end_run, num_losses
from hindcast_operator.times import earliest_time, format_timestamp


@dataclass(frozen=True)
class Ending:
    """The end of an attempt. `Failed` is final; after `Lost` another attempt is created.

    Attributes:
        outcome: the outcome in the attempt's entry.
        reason: the reason in the attempt's entry.
        message: one sentence for people.
        is_silent: the attempt ends because it sends no more reports, or because its head's node does not answer.
    """

    outcome: Outcome
    reason: Reason
    message: str
    is_silent: bool = False


def find_ending(attempt: LiveAttempt, resolved: Mapping[str, Any]) -> tuple[RunStatus, Ending | None]:
    """Return the attempt's entry and its ending; the ending is None while the attempt is running.

    If the resource is to be suspended, set `stop_requested_time` of an attempt that has reported, and end an attempt
    that has not.

    Args:
        attempt: the observed attempt.
        resolved: `status.resolved`, which contains the sizes of the attempt's pools.
    """
    ending = _detect_ending(attempt, resolved)
    run = attempt.run
    if ending is not None:
        return run, ending
    if not attempt.revision.suspend or run.stop_requested_time is not None:
        return run, None
    if run.first_report_time is None:
        return run, Ending("Suspended", Reason.SUSPENDED, "Suspended before the attempt started")
    return run.model_copy(update={"stop_requested_time": format_timestamp(attempt.now)}), None


def end_attempt(attempt: LiveAttempt, ending: Ending) -> RunStatus:
    """Return the entry of an attempt that has ended. If `backoffLimit` is exceeded, `Lost` becomes `Failed`."""
    limit = attempt.policy.backoff_limit
    run = end_run(attempt.run, ending.outcome, ending.reason, ending.message, attempt.now)
    num_lost_attempts = num_losses(run)
    if ending.outcome != "Lost" or num_lost_attempts <= limit:
        return run
    losses = "1 attempt was lost" if num_lost_attempts == 1 else f"{num_lost_attempts} attempts were lost"
    text = (
        f"{losses} (spec.runPolicy.backoffLimit is {limit}); the last one ({ending.reason}): {ending.message}"
    )
    return end_run(run, "Failed", Reason.BACKOFF_LIMIT_EXCEEDED, text, attempt.now)


def _detect_ending(attempt: LiveAttempt, resolved: Mapping[str, Any]) -> Ending | None:
    outcome = None if attempt.report is None else attempt.report.outcome
    if outcome is not None:
        return _suspend_if_stopping(attempt, _reported_ending(attempt, outcome, resolved))
    ending = (
        _ending_if_deleted(attempt)
        or _ending_if_invalid(attempt)
        or _ending_if_preempted(attempt)
        or _ending_if_overdue(attempt)
    )
    return None if ending is None else _suspend_if_stopping(attempt, ending)


def _ending_if_overdue(attempt: LiveAttempt) -> Ending | None:
    for deadline, make_ending in _DEADLINES:
        due_time = deadline(attempt)
        if due_time is not None and attempt.now >= due_time:
            return make_ending(attempt)
    return None


def next_deadline(attempt: LiveAttempt) -> datetime | None:
    """Return the earliest deadline of the attempt, or None. If the attempt misses the deadline, it ends."""
    return earliest_time(*(deadline(attempt) for deadline, _ in _DEADLINES))


def _suspend_if_stopping(attempt: LiveAttempt, ending: Ending) -> Ending:
    """Turn the loss or preemption of an attempt that was asked to stop into a suspension, which is no loss."""
    if attempt.run.stop_requested_time is None or ending.outcome not in ("Lost", "Preempted"):
        return ending
    message = f"Stopped without a new checkpoint: {ending.message}"
    return replace(ending, outcome="Suspended", message=message)


def _reported_ending(attempt: LiveAttempt, outcome: AttemptOutcome, resolved: Mapping[str, Any]) -> Ending:
    message = outcome.message
    if outcome.reason in ("WorkerLost", "Terminated"):
        return _lost_ending(attempt, Reason.from_word(outcome.reason), message)
    if outcome.reason == "OutOfMemory" and "spec." not in message:
        message = f"{message.rstrip('. ')}; {memory_hint(outcome.pool, resolved)}"
    # A state that only a newer runtime knows does not count as success; another attempt may end in a known state.
    state: Outcome = outcome.state if outcome.state in ("Succeeded", "Failed", "Suspended") else "Lost"  # type: ignore[assignment]
    return Ending(state, Reason.from_word(outcome.reason), message)


# -- endings by a change of the attempt's objects -----------------------------------------------------------


def _ending_if_deleted(attempt: LiveAttempt) -> Ending | None:
    job = attempt.job
    if (job is None and attempt.run.ray_job_uid is not None) or (job is not None and job.is_deleting):
        message = f"RayJob {attempt.run.ray_job_name} was deleted by a user or another controller"
        return Ending("Lost", Reason.RAY_JOB_DELETED, message)
    return None


def _ending_if_invalid(attempt: LiveAttempt) -> Ending | None:
    if attempt.job is None or attempt.job.deployment_status != "ValidationFailed":
        return None
    message = (
        f"KubeRay rejected the RayJob: {quote(attempt.job.message)}; correct the spec and raise spec.revision"
    )
    return Ending("Failed", Reason.INVALID_RAY_JOB, message)


def _ending_if_preempted(attempt: LiveAttempt) -> Ending | None:
    if attempt.job is None or not is_queued(attempt.job) or attempt.run.first_report_time is None:
        return None
    return Ending("Preempted", Reason.PREEMPTED, "Preempted by Kueue; the next attempt is queued again")


# -- endings by a deadline ----------------------------------------------------------------------------------


def _ending_without_final_report(attempt: LiveAttempt) -> Ending:
    """Return the ending of an attempt whose RayJob has ended without a final report."""
    job = attempt.job
    assert job is not None
    if job.reason == "DeadlineExceeded":
        return _ending_by_kuberay(attempt, job)
    if job.reason == "SubmissionFailed":
        return _lost_ending(
            attempt, Reason.SUBMISSION_FAILED, "KubeRay could not submit the job to the Ray cluster"
        )
    status = job.job_status or job.deployment_status
    return _lost_ending(
        attempt, Reason.LOST_DRIVER, f"RayJob {job.name} ended ({status}) without a final report"
    )


def _ending_by_kuberay(attempt: LiveAttempt, job: RayJobFacts) -> Ending:
    """Return the ending of an attempt that KubeRay ended by the active deadline of the RayJob."""
    # The spec's deadline is later if it was raised and the RayJob was not updated: the operator was down, or the API
    # server rejected the update.
    due_time = active_deadline(attempt)
    if due_time is not None and attempt.now >= due_time:
        return _ending_by_active_deadline(attempt)
    text = f"KubeRay ended RayJob {job.name} because of an earlier deadline than the spec's ({job.reason})"
    return _lost_ending(attempt, Reason.LOST_DRIVER, text)


def _ending_by_stop_timeout(attempt: LiveAttempt) -> Ending:
    limit = f"{attempt.policy.suspend_grace_seconds} s (spec.runPolicy.suspendGraceSeconds)"
    message = f"No checkpoint was saved within {limit}; the run will resume from the latest one, if any"
    return Ending("Suspended", Reason.SUSPENDED, message)


def _ending_by_active_deadline(attempt: LiveAttempt) -> Ending:
    limit = attempt.policy.active_deadline_seconds
    text = f"all attempts together exceeded spec.runPolicy.activeDeadlineSeconds ({limit} s)"
    message = f"Stopped: {text}; raise this limit and spec.revision to run again"
    return Ending("Failed", Reason.DEADLINE_EXCEEDED, message)


def _ending_without_head(attempt: LiveAttempt) -> Ending:
    """Return the ending of an attempt whose head pod, in which the driver ran, is gone or unreachable."""
    # The operator does not wait for KubeRay, which may take long to notice the loss. A head whose node does not answer
    # may be running: if the control plane loses its connection to all nodes, this looks the same for every run.
    ending = _lost_ending(attempt, Reason.LOST_DRIVER, "The head pod, which ran the driver, is gone")
    return replace(ending, is_silent=attempt.unreachable_head is not None)


def _ending_without_heartbeat(attempt: LiveAttempt) -> Ending:
    text = f"No report for {attempt.policy.stall_timeout_seconds} s (spec.runPolicy.stallTimeoutSeconds)"
    return replace(_lost_ending(attempt, Reason.NO_HEARTBEAT, text), is_silent=True)


def _ending_without_progress(attempt: LiveAttempt) -> Ending:
    limit = f"{attempt.policy.stall_timeout_seconds} s (spec.runPolicy.stallTimeoutSeconds)"
    text = f"The attempt is reporting, but has made no progress for {limit}"
    return Ending("Lost", Reason.NO_PROGRESS, text)


def _ending_with_released_gpus(_: LiveAttempt) -> Ending:
    text = f"Some learners held GPUs for {GANG_SECONDS} s while another found no node; all were released"
    return Ending("Lost", Reason.GPUS_RELEASED, text)


def _ending_without_start(attempt: LiveAttempt) -> Ending:
    """Return the ending of an attempt that did not report in time: `Failed` if the cause is known, else `Lost`."""
    # A known cause would keep the next attempt from starting too, unless it is the loss of a pod, which is temporary.
    limit = attempt.policy.start_deadline_seconds
    text = f"No report within {limit} s (spec.runPolicy.startDeadlineSeconds)"
    if attempt.diagnosis is None:
        return Ending("Lost", Reason.START_DEADLINE_EXCEEDED, text)
    if attempt.diagnosis.reason in POD_LOSSES:
        return _lost_ending(attempt, Reason.START_DEADLINE_EXCEEDED, text)
    cause = f"{text}: {attempt.diagnosis.message}; then raise spec.revision"
    return Ending("Failed", Reason.START_DEADLINE_EXCEEDED, cause)


def _lost_ending(attempt: LiveAttempt, reason: Reason, message: str) -> Ending:
    """Return the ending of a lost attempt. What killed the pods, if it is known, replaces `reason`."""
    # Once the pods are gone, only the ClusterReady condition still records what killed them.
    if is_disrupted(attempt):
        return Ending("Lost", Reason.DISRUPTED, f"{message}: a pod had to leave its node")
    if attempt.diagnosis is not None and attempt.diagnosis.reason in POD_LOSSES:
        return Ending("Lost", attempt.diagnosis.reason, f"{message}: {attempt.diagnosis.message}")
    condition = attempt.cluster_condition
    if condition is not None and condition.status == "False" and condition.reason in POD_LOSSES:
        return Ending("Lost", Reason.from_word(condition.reason), f"{message}: {condition.message}")
    return Ending("Lost", reason, message)


_DEADLINES: Final[tuple[tuple[Deadline, Callable[[LiveAttempt], Ending]], ...]] = (
    (final_report_deadline, _ending_without_final_report),
    (stop_deadline, _ending_by_stop_timeout),
    (active_deadline, _ending_by_active_deadline),
    (head_deadline, _ending_without_head),
    (heartbeat_deadline, _ending_without_heartbeat),
    (progress_deadline, _ending_without_progress),
    (start_deadline, _ending_without_start),
    (gang_deadline, _ending_with_released_gpus),
)
"""Each deadline with the ending of an attempt that missed it. If several have passed, the first one in this order
counts."""
