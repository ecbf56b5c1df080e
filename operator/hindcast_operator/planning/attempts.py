"""An attempt that has not ended: what exists of it, and its deadlines."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from hindcast.api.attempt import LONGEST_SILENCE_SECONDS, Report
from hindcast.api.run_policy import RunPolicy
from hindcast.api.status import Condition, RunStatus, Status
from hindcast_operator.facts import AttemptFacts, ConfigMapFacts, Facts, PodFacts, RayJobFacts
from hindcast_operator.planning.diagnosis import Diagnosis, diagnose
from hindcast_operator.planning.revisions import Revision, renew_run
from hindcast_operator.planning.status import find_condition
from hindcast_operator.times import after, earliest, format_timestamp, parse_time

UNREACHABLE_SECONDS: Final = 300
"""A pod whose node has not answered this long counts as gone; should it run on, the output's lease keeps it out."""

FINAL_REPORT_SECONDS: Final = 10
"""A RayJob that has ended may be seen before the attempt's final report."""

HEADLESS_SECONDS: Final = 2 * LONGEST_SILENCE_SECONDS
"""An attempt without a head pod that is silent this long has no driver."""


@dataclass(frozen=True)
class LiveAttempt:
    """An attempt that has not ended.

    Attributes:
        uid: of the resource: objects of another one are not the attempt's.
        diagnosis: what keeps its pods from running now.
        cluster: the ClusterReady condition so far, which remembers what killed pods that are gone.
    """

    run: RunStatus
    facts: AttemptFacts
    revision: Revision
    uid: str
    diagnosis: Diagnosis | None
    cluster_condition: Condition | None
    now: datetime

    def with_run(self, run: RunStatus) -> "LiveAttempt":
        """The same with a changed entry."""
        return replace(self, run=run)

    @property
    def policy(self) -> RunPolicy:
        """Its deadlines."""
        return self.revision.policy

    @property
    def job(self) -> RayJobFacts | None:
        """Its RayJob, where that is the attempt's own."""
        job = self.facts.ray_job
        if job is None or job.owner_uid != self.uid:
            return None
        return job if self.run.ray_job_uid in (None, job.uid) else None

    @property
    def config_map(self) -> ConfigMapFacts | None:
        """Its ConfigMap, where that is the attempt's own."""
        return owned_config_map(self.facts, self.uid)

    @property
    def report(self) -> Report | None:
        """Its latest report."""
        return None if self.config_map is None else self.config_map.report

    @property
    def head(self) -> PodFacts | None:
        """The pod that the driver runs in, while it is alive."""
        return next((pod for pod in self.facts.pods if pod.pool == "head" and _is_alive(pod)), None)


def observe_attempt(
    facts: Facts, old: Status, revision: Revision, run: RunStatus, now: datetime
) -> LiveAttempt:
    """The attempt as it was observed; its entry records what was seen."""
    found = facts.attempts.get(run.ray_job_name, AttemptFacts(run.ray_job_name))
    attempt = LiveAttempt(
        run=run,
        facts=found,
        revision=revision,
        uid=facts.uid,
        diagnosis=diagnose(found, run.image or "", old.resolved, now),
        cluster_condition=find_condition(old, "ClusterReady"),
        now=now,
    )
    run = _with_what_was_seen(attempt, was_queued=old.state == "Queued")
    if attempt.job is None and run.ray_job_uid is None:
        run = renew_run(facts, revision, run)
    return attempt.with_run(run)


def _with_what_was_seen(attempt: LiveAttempt, was_queued: bool) -> RunStatus:
    job, run = attempt.job, attempt.run
    if job is None:
        return run
    seen: dict[str, str | int | None] = {}
    if not job.deleting and run.ray_job_uid is None:
        seen["ray_job_uid"] = job.uid
    if attempt.report is not None and run.first_report_time is None:
        seen["first_report_time"] = format_timestamp(attempt.now)
    if _has_saved(attempt):
        seen["retries"] = 0
    if is_queued(job):
        if run.first_report_time is None:
            seen["admission_time"] = None
    elif run.admission_time is None:
        began = job.created if job.started is None else max(job.created, job.started)
        seen["admission_time"] = format_timestamp(attempt.now if was_queued else began)
    return run.model_copy(update=seen)


def _has_saved(attempt: LiveAttempt) -> bool:
    """Whether it has saved a checkpoint of its own. Both times are stamps: as texts they are in the order of time."""
    checkpoint = None if attempt.report is None else attempt.report.checkpoint
    return checkpoint is not None and (checkpoint.save_time or "") > (attempt.run.start_time or "")


# -- what exists --------------------------------------------------------------------------------------------


def owned_config_map(attempt: AttemptFacts, uid: str) -> ConfigMapFacts | None:
    """The attempt's ConfigMap, where the resource of that uid owns it."""
    found = attempt.config_map
    return found if found is not None and found.owner_uid == uid else None


def is_gone(attempt: AttemptFacts, now: datetime) -> bool:
    """No RayJob, and no pod that could still write."""
    return attempt.ray_job is None and all(_pod_is_gone(pod, now) for pod in attempt.pods)


def next_pod_loss_time(attempts: Iterable[AttemptFacts], now: datetime) -> datetime | None:
    """When the next pod on an unreachable node counts as gone."""
    pods = [pod for attempt in attempts for pod in attempt.pods if not _pod_is_gone(pod, now)]
    return earliest(*(_given_up(pod) for pod in pods))


def is_over(job: RayJobFacts) -> bool:
    """KubeRay is done with it."""
    return job.deployment_status in ("Complete", "Failed")


def is_queued(job: RayJobFacts) -> bool:
    """Kueue keeps it queued, or KubeRay has not yet seen that it no longer does."""
    return job.suspended or job.deployment_status in ("Suspending", "Suspended")


def _is_alive(pod: PodFacts) -> bool:
    return pod.phase not in ("Succeeded", "Failed") and not pod.deleting


def _pod_is_gone(pod: PodFacts, now: datetime) -> bool:
    given_up = _given_up(pod)
    return pod.phase in ("Succeeded", "Failed") or (given_up is not None and now >= given_up)


def _given_up(pod: PodFacts) -> datetime | None:
    since = pod.unreachable_since
    return None if since is None else after(since, UNREACHABLE_SECONDS)


# -- deadlines, each by its own clock; None where that clock does not run -----------------------------------

Deadline = Callable[[LiveAttempt], datetime | None]


def start_deadline(attempt: LiveAttempt) -> datetime | None:
    """Until when the attempt must have reported: from its admission; none while it is queued."""
    if attempt.run.admission_time is None or attempt.run.first_report_time is not None:
        return None
    return after(parse_time(attempt.run.admission_time), attempt.policy.start_deadline_seconds)


def active_deadline(attempt: LiveAttempt) -> datetime | None:
    """Until when all attempts together may run; queued and suspended time does not count."""
    limit = attempt.policy.active_deadline_seconds
    if limit is None or attempt.run.admission_time is None:
        return None
    return after(parse_time(attempt.run.admission_time), limit - attempt.run.active_seconds)


def heartbeat_deadline(attempt: LiveAttempt) -> datetime | None:
    """Until when the attempt must report again."""
    found = attempt.config_map
    if found is None or found.beat_seen is None:
        return None
    return after(found.beat_seen, attempt.policy.stall_timeout_seconds)


def progress_deadline(attempt: LiveAttempt) -> datetime | None:
    """Until when the attempt must make progress."""
    found = attempt.config_map
    if found is None or found.moved_seen is None:
        return None
    return after(found.moved_seen, attempt.policy.stall_timeout_seconds)


def head_deadline(attempt: LiveAttempt) -> datetime | None:
    """Until when an attempt that has reported, and has no head now, must report again."""
    found, head = attempt.config_map, attempt.head
    if found is None or found.beat_seen is None:
        return None
    if head is None:
        return after(found.beat_seen, HEADLESS_SECONDS)
    if head.unreachable_since is None:
        return None
    return after(max(head.unreachable_since, found.beat_seen), UNREACHABLE_SECONDS)


def final_report_deadline(attempt: LiveAttempt) -> datetime | None:
    """Until when the final report of an attempt whose RayJob has ended is awaited."""
    job = attempt.job
    if job is None or not is_over(job):
        return None
    return attempt.now if job.ended is None else after(job.ended, FINAL_REPORT_SECONDS)


def stop_deadline(attempt: LiveAttempt) -> datetime | None:
    """Until when an attempt that was asked to checkpoint and stop must have done so."""
    if attempt.run.stop_requested_time is None:
        return None
    return after(parse_time(attempt.run.stop_requested_time), attempt.policy.suspend_grace_seconds)
