"""How attempts end: what they report, what becomes of their objects, what they take too long for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from hindcast.api.attempt import AttemptOutcome
from hindcast_operator.planning.deadlines import (
    active_due,
    head_due,
    settled_due,
    silence_due,
    start_due,
    still_due,
    stop_due,
)
from hindcast_operator.planning.diagnosis import more_memory, quoted
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.runs import Outcome
from hindcast_operator.planning.view import View, is_queued

REMEMBERED: Final = (Reason.OUT_OF_MEMORY, Reason.EVICTED, Reason.NODE_UNREACHABLE)


@dataclass(frozen=True)
class Ending:
    """An attempt's end. `Failed` is final; `Lost` is worth another attempt."""

    outcome: Outcome
    reason: Reason
    message: str


def ending_of(view: View, resolved: Mapping[str, Any]) -> Ending | None:
    """How the attempt has ended; None while it goes on."""
    outcome = None if view.report is None else view.report.outcome
    if outcome is not None:
        return _while_stopping(view, _reported(outcome, resolved))
    ending = next((found for look in _LOOKS if (found := look(view)) is not None), None)
    return None if ending is None else _while_stopping(view, ending)


def _while_stopping(view: View, ending: Ending) -> Ending:
    """An attempt that was asked to end, and was lost over it, is suspended: no retry is counted."""
    if view.run.asked_to_stop is None or ending.outcome not in ("Lost", "Preempted"):
        return ending
    return Ending("Suspended", ending.reason, f"Stopped without a new checkpoint: {ending.message}")


def _reported(outcome: AttemptOutcome, resolved: Mapping[str, Any]) -> Ending:
    message = outcome.message
    if outcome.reason == "OutOfMemory" and "spec." not in message:
        message = f"{message.rstrip('. ')}; {more_memory(outcome.pool, resolved)}"
    return Ending(outcome.state, Reason.of(outcome.reason), message)


def _deleted(view: View) -> Ending | None:
    job = view.job
    if (job is None and view.run.child_uid is not None) or (job is not None and job.deleting):
        return Ending("Lost", Reason.RAY_JOB_DELETED, f"RayJob {view.run.child} was deleted by someone")
    return None


def _invalid(view: View) -> Ending | None:
    if view.job is None or view.job.deployment_status != "ValidationFailed":
        return None
    message = f"KubeRay refuses the RayJob: {quoted(view.job.message)}; correct it and raise spec.revision"
    return Ending("Failed", Reason.INVALID_RAY_JOB, message)


def _preempted(view: View) -> Ending | None:
    if view.job is None or not is_queued(view.job) or view.run.heard is None:
        return None
    return Ending("Preempted", Reason.PREEMPTED, "Kueue took its nodes away; the next attempt queues again")


def _over(view: View) -> Ending | None:
    """The RayJob has ended, and the report does not say how."""
    job, due = view.job, settled_due(view)
    if job is None or due is None or view.now < due:
        return None
    if job.reason == "PreRunningDeadlineExceeded":
        return _late(view)
    if job.reason == "DeadlineExceeded":
        return _overdue(view)
    if job.reason == "SubmissionFailed":
        text = "KubeRay could not submit the job to the Ray cluster"
        return _explained(view, Ending("Lost", Reason.SUBMISSION_FAILED, text))
    said = f"RayJob {job.name} ended ({job.job_status or job.deployment_status}) without the attempt's last report"
    return _explained(view, Ending("Lost", Reason.LOST_DRIVER, said))


def _headless(view: View) -> Ending | None:
    """The head is gone, and with it the driver: KubeRay may take long to see it."""
    due = head_due(view)
    if due is None or view.now < due:
        return None
    return _explained(
        view, Ending("Lost", Reason.LOST_DRIVER, "Its head pod is gone, and with it the driver")
    )


def _past_active_deadline(view: View) -> Ending | None:
    due = active_due(view)
    return _overdue(view) if due is not None and view.now >= due else None


def _overdue(view: View) -> Ending:
    limit = view.wishes.policy.active_deadline_seconds
    text = f"its attempts together took spec.runPolicy.activeDeadlineSeconds ({limit} s)"
    return Ending(
        "Failed", Reason.DEADLINE_EXCEEDED, f"Stopped: {text}; raise it and spec.revision to run again"
    )


def _silent(view: View) -> Ending | None:
    due = silence_due(view)
    if due is None or view.now < due:
        return None
    limit = view.wishes.policy.stall_timeout_seconds
    return _explained(view, Ending("Lost", Reason.NO_HEARTBEAT, f"It did not report for {limit} s"))


def _still(view: View) -> Ending | None:
    due = still_due(view)
    if due is None or view.now < due:
        return None
    limit = view.wishes.policy.stall_timeout_seconds
    text = f"It reports, but made no progress for {limit} s (spec.runPolicy.stallTimeoutSeconds)"
    return Ending("Lost", Reason.NO_PROGRESS, text)


def _started_late(view: View) -> Ending | None:
    due = start_due(view)
    return _late(view) if due is not None and view.now >= due else None


def _late(view: View) -> Ending:
    """A known cause would wait for the next attempt too: only an unknown one is worth another attempt."""
    limit = view.wishes.policy.start_deadline_seconds
    text = f"It did not report within {limit} s (spec.runPolicy.startDeadlineSeconds)"
    if view.diagnosis is None:
        return Ending("Lost", Reason.START_DEADLINE_EXCEEDED, text)
    cause = f"{text}: {view.diagnosis.message}; then raise spec.revision"
    return Ending("Failed", Reason.START_DEADLINE_EXCEEDED, cause)


def _graceless(view: View) -> Ending | None:
    due = stop_due(view)
    if due is None or view.now < due:
        return None
    limit = view.wishes.policy.suspend_grace_seconds
    text = f"No checkpoint within {limit} s (spec.runPolicy.suspendGraceSeconds); it goes on at the last one"
    return Ending("Suspended", Reason.SUSPENDED, text)


def _explained(view: View, ending: Ending) -> Ending:
    """With what killed the pods, seen now or remembered from before they went."""
    if view.diagnosis is not None and view.diagnosis.kills:
        return replace(
            ending, reason=view.diagnosis.reason, message=f"{ending.message}: {view.diagnosis.message}"
        )
    old = view.cluster
    if old is not None and old.status == "False" and old.reason in REMEMBERED:
        return replace(ending, reason=Reason.of(old.reason), message=f"{ending.message}: {old.message}")
    return ending


_LOOKS: Final[tuple[Callable[[View], Ending | None], ...]] = (
    _deleted,
    _invalid,
    _preempted,
    _over,
    _graceless,
    _past_active_deadline,
    _headless,
    _silent,
    _still,
    _started_late,
)
