"""An attempt that has not ended: its objects and its deadlines."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from hindcast.api.attempt import MAX_REPORT_INTERVAL_SECONDS, Report
from hindcast.api.run_policy import RunPolicy
from hindcast.api.status import Condition, RunStatus, Status
from hindcast_operator.facts import AttemptFacts, ConfigMapFacts, Facts, PodFacts, RayJobFacts
from hindcast_operator.planning.diagnosis import Diagnosis, diagnose
from hindcast_operator.planning.revisions import Revision, renew_run
from hindcast_operator.planning.status import find_condition
from hindcast_operator.times import earliest_time, format_timestamp, parse_time, time_after

UNREACHABLE_SECONDS: Final = 300
"""A pod counts as gone if its node has not answered for this long. If the pod still runs, the output's lease keeps it
from writing."""

FINAL_REPORT_SECONDS: Final = 10
"""For how long to wait for an attempt's final report after its RayJob has ended: the end may be observed first."""

HEADLESS_SECONDS: Final = 2 * MAX_REPORT_INTERVAL_SECONDS
"""If an attempt has no head pod and has not reported for this long, its driver is gone."""


@dataclass(frozen=True)
class LiveAttempt:
    """An attempt that has not ended.

    Attributes:
        run: the attempt's entry in `status.runs`.
        facts: the attempt's objects.
        revision: the revision to run.
        uid: uid of the resource; objects of another owner are not the attempt's.
        diagnosis: what keeps the attempt's pods from running now; None if nothing does.
        cluster_condition: the stored condition ClusterReady, which records what killed pods that are gone; None if the
            stored status has none.
        now: the time of the observation.
    """

    run: RunStatus
    facts: AttemptFacts
    revision: Revision
    uid: str
    diagnosis: Diagnosis | None
    cluster_condition: Condition | None
    now: datetime

    def with_run(self, run: RunStatus) -> "LiveAttempt":
        """Return a copy with a changed entry."""
        return replace(self, run=run)

    @property
    def policy(self) -> RunPolicy:
        """The revision's deadlines and retries."""
        return self.revision.policy

    @property
    def job(self) -> RayJobFacts | None:
        """The attempt's RayJob; None if it is missing, has another owner, or not the uid that the entry records."""
        job = self.facts.ray_job
        if job is None or job.owner_uid != self.uid:
            return None
        return job if self.run.ray_job_uid in (None, job.uid) else None

    @property
    def config_map(self) -> ConfigMapFacts | None:
        """The ConfigMap of the attempt; None if it does not exist or has another owner."""
        return owned_config_map(self.facts, self.uid)

    @property
    def report(self) -> Report | None:
        """The attempt's latest report, or None."""
        return None if self.config_map is None else self.config_map.report

    @property
    def head(self) -> PodFacts | None:
        """The pod in which the driver runs; None if there is no such pod, or if it has ended or is being deleted."""
        return next((pod for pod in self.facts.pods if pod.pool == "head" and _is_alive(pod)), None)


def observe_attempt(
    facts: Facts, old: Status, revision: Revision, run: RunStatus, now: datetime
) -> LiveAttempt:
    """Return the observed attempt, with an entry that records the new observations.

    Args:
        facts: the facts about the resource.
        old: the stored status of the resource.
        revision: the revision to run.
        run: the attempt's entry in the stored status.
        now: the time of the observation.
    """
    attempt_facts = facts.attempts.get(run.ray_job_name, AttemptFacts(run.ray_job_name))
    attempt = LiveAttempt(
        run=run,
        facts=attempt_facts,
        revision=revision,
        uid=facts.uid,
        diagnosis=diagnose(attempt_facts, run.image or "", old.resolved, now),
        cluster_condition=find_condition(old, "ClusterReady"),
        now=now,
    )
    run = _update_run(attempt, was_queued=old.state == "Queued")
    if attempt.job is None and run.ray_job_uid is None:
        run = renew_run(facts, revision, run)
    return attempt.with_run(run)


def _update_run(attempt: LiveAttempt, was_queued: bool) -> RunStatus:
    """Return the attempt's entry with new observations: the RayJob's uid, first report, checkpoint, admission.

    A checkpoint of this attempt resets `retries`.

    `was_queued` is True if the stored state is Queued: an admission since then counts from now.
    """
    job, run = attempt.job, attempt.run
    if job is None:
        return run
    changes: dict[str, str | int | None] = {}
    if not job.is_deleting and run.ray_job_uid is None:
        changes["ray_job_uid"] = job.uid
    if attempt.report is not None and run.first_report_time is None:
        changes["first_report_time"] = format_timestamp(attempt.now)
    if _has_saved_checkpoint(attempt):
        changes["retries"] = 0
    if is_queued(job):
        if run.first_report_time is None:
            changes["admission_time"] = None
    elif run.admission_time is None:
        admission_time = job.created_at if job.started_at is None else max(job.created_at, job.started_at)
        changes["admission_time"] = format_timestamp(attempt.now if was_queued else admission_time)
    return run.model_copy(update=changes)


def _has_saved_checkpoint(attempt: LiveAttempt) -> bool:
    """Return True if the latest checkpoint was saved by this attempt, not by an earlier one."""
    # Both times are timestamps in the same format: their order as text is their order in time.
    checkpoint = None if attempt.report is None else attempt.report.checkpoint
    return checkpoint is not None and (checkpoint.save_time or "") > (attempt.run.start_time or "")


# -- what exists --------------------------------------------------------------------------------------------


def owned_config_map(attempt: AttemptFacts, uid: str) -> ConfigMapFacts | None:
    """Return the attempt's ConfigMap if the resource with this uid owns it, else None."""
    config_map = attempt.config_map
    return config_map if config_map is not None and config_map.owner_uid == uid else None


def is_gone(attempt: AttemptFacts, now: datetime) -> bool:
    """Return True if neither a RayJob nor a pod that could still write exists."""
    return attempt.ray_job is None and all(_is_pod_gone(pod, now) for pod in attempt.pods)


def next_pod_loss_time(attempts: Iterable[AttemptFacts], now: datetime) -> datetime | None:
    """Return when the next pod on an unreachable node counts as gone; None if there is no such pod."""
    pods = [pod for attempt in attempts for pod in attempt.pods if not _is_pod_gone(pod, now)]
    return earliest_time(*(_give_up_time(pod) for pod in pods))


def is_over(job: RayJobFacts) -> bool:
    """Return True if KubeRay reports the end of the RayJob."""
    return job.deployment_status in ("Complete", "Failed")


def is_queued(job: RayJobFacts) -> bool:
    """Return True if Kueue keeps the RayJob queued."""
    # KubeRay updates its status some time after `suspend` changes. Until then an admitted job still counts as queued.
    return job.is_suspended or job.deployment_status in ("Suspending", "Suspended")


def _is_alive(pod: PodFacts) -> bool:
    return pod.phase not in ("Succeeded", "Failed") and not pod.is_deleting


def _is_pod_gone(pod: PodFacts, now: datetime) -> bool:
    give_up_time = _give_up_time(pod)
    return pod.phase in ("Succeeded", "Failed") or (give_up_time is not None and now >= give_up_time)


def _give_up_time(pod: PodFacts) -> datetime | None:
    since = pod.unreachable_since
    return None if since is None else time_after(since, UNREACHABLE_SECONDS)


# -- deadlines ----------------------------------------------------------------------------------------------

Deadline = Callable[[LiveAttempt], datetime | None]
"""A function that returns a deadline of an attempt; None while the deadline does not apply."""


def start_deadline(attempt: LiveAttempt) -> datetime | None:
    """Return the deadline of the first report, counted from the admission; None while queued and after a report."""
    if attempt.run.admission_time is None or attempt.run.first_report_time is not None:
        return None
    return time_after(parse_time(attempt.run.admission_time), attempt.policy.start_deadline_seconds)


def active_deadline(attempt: LiveAttempt) -> datetime | None:
    """Return the deadline of all attempts together. Queued and suspended time does not count.

    None without a limit, and while the attempt is queued.
    """
    limit = attempt.policy.active_deadline_seconds
    if limit is None or attempt.run.admission_time is None:
        return None
    return time_after(parse_time(attempt.run.admission_time), limit - attempt.run.active_seconds)


def heartbeat_deadline(attempt: LiveAttempt) -> datetime | None:
    """Return the deadline of the next report; None before the first one."""
    config_map = attempt.config_map
    if config_map is None or config_map.beat_seen_at is None:
        return None
    return time_after(config_map.beat_seen_at, attempt.policy.stall_timeout_seconds)


def progress_deadline(attempt: LiveAttempt) -> datetime | None:
    """Return the deadline of the next progress; None before the first report."""
    config_map = attempt.config_map
    if config_map is None or config_map.progress_seen_at is None:
        return None
    return time_after(config_map.progress_seen_at, attempt.policy.stall_timeout_seconds)


def head_deadline(attempt: LiveAttempt) -> datetime | None:
    """Return the deadline of the next report without a reachable head pod, earlier than `heartbeat_deadline`.

    None while the head pod is reachable, and before the first report.
    """
    config_map, head = attempt.config_map, attempt.head
    if config_map is None or config_map.beat_seen_at is None:
        return None
    if head is None:
        return time_after(config_map.beat_seen_at, HEADLESS_SECONDS)
    if head.unreachable_since is None:
        return None
    return time_after(max(head.unreachable_since, config_map.beat_seen_at), UNREACHABLE_SECONDS)


def final_report_deadline(attempt: LiveAttempt) -> datetime | None:
    """Return the deadline of the final report; None until the RayJob has ended. Without its end time: at once."""
    job = attempt.job
    if job is None or not is_over(job):
        return None
    return attempt.now if job.ended_at is None else time_after(job.ended_at, FINAL_REPORT_SECONDS)


def stop_deadline(attempt: LiveAttempt) -> datetime | None:
    """Return when an attempt that was asked to save a checkpoint must have stopped; None if it was not asked."""
    if attempt.run.stop_requested_time is None:
        return None
    return time_after(parse_time(attempt.run.stop_requested_time), attempt.policy.suspend_grace_seconds)
