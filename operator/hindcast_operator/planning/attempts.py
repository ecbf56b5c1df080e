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
from hindcast_operator.planning.revisions import Revision, achieved_amount, renew_run
from hindcast_operator.planning.status import find_condition
from hindcast_operator.times import (
    earliest_time,
    format_timestamp,
    parse_optional_time,
    parse_time,
    time_after,
)

UNREACHABLE_SECONDS: Final = 300
"""A pod counts as gone if its node has not answered for this long. If the pod still runs, the output's lease keeps it
from writing."""

FINAL_REPORT_SECONDS: Final = 10
"""For how long to wait for an attempt's final report after its RayJob has ended: the end may be observed first."""

DISRUPTION_SECONDS: Final = 600
"""If an attempt ends within this time after one of its pods had to leave its node, the loss does not count."""

GANG_SECONDS: Final = 600
"""If some learners have held GPUs for this long while another has found no node, all are released."""

HEADLESS_SECONDS: Final = 2 * MAX_REPORT_INTERVAL_SECONDS
"""If an attempt has no head pod and has not reported for this long, its driver is gone."""

_END_PHASES: Final = ("Succeeded", "Failed")


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
        is_verdict_held: the attempt may not be ended for its silence now.
    """

    run: RunStatus
    facts: AttemptFacts
    revision: Revision
    uid: str
    diagnosis: Diagnosis | None
    cluster_condition: Condition | None
    now: datetime
    is_verdict_held: bool = False

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
    def has_reported(self) -> bool:
        """True once a report was seen, also one that cannot be read."""
        is_reporting = self.config_map is not None and bool(self.config_map.beat)
        return is_reporting or self.run.first_report_time is not None

    @property
    def unreachable_head(self) -> PodFacts | None:
        """The head pod if its node does not answer, also while it is being deleted; None if another one replaced it."""
        heads = [pod for pod in self.facts.pods if pod.pool == "head" and pod.phase not in _END_PHASES]
        is_unreachable = all(pod.unreachable_since is not None for pod in heads)
        return heads[0] if heads and is_unreachable else None

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
        diagnosis=diagnose(
            attempt_facts, run.image or "", old.resolved, now, parse_optional_time(run.admission_time)
        ),
        cluster_condition=find_condition(old, "ClusterReady"),
        now=now,
        is_verdict_held=facts.is_verdict_held,
    )
    run = _update_run(attempt, facts.kind, was_queued=old.state == "Queued")
    if attempt.job is None and run.ray_job_uid is None:
        run = renew_run(facts, revision, run)
    return attempt.with_run(run)


def _update_run(attempt: LiveAttempt, kind: str, was_queued: bool) -> RunStatus:
    """Return the attempt's entry with new observations: the RayJob's uid, first report, disruption, admission.

    Progress beyond the earlier attempts resets `retries`.

    Args:
        attempt: the attempt, with its entry in the stored status.
        kind: the resource's kind.
        was_queued: the stored state is Queued. If the attempt is not queued any more, it was admitted now.
    """
    job, run = attempt.job, attempt.run
    if job is None:
        return run
    changes: dict[str, str | int | None] = {}
    if not job.is_deleting and run.ray_job_uid is None:
        changes["ray_job_uid"] = job.uid
    if attempt.has_reported and run.first_report_time is None:
        changes["first_report_time"] = format_timestamp(attempt.now)
    report = attempt.report
    if report is not None:
        amount = achieved_amount(kind, report.checkpoint, report.progress)
        if amount > (run.initial_amount or 0):
            changes["retries"] = 0
    disruption_times = [pod.disrupted_at for pod in attempt.facts.pods if pod.disrupted_at is not None]
    if disruption_times:
        changes["disruption_time"] = format_timestamp(max(disruption_times))
    if is_queued(job):
        if run.first_report_time is None:
            changes["admission_time"] = None
    elif run.admission_time is None:
        admission_time = job.created_at if job.started_at is None else max(job.created_at, job.started_at)
        changes["admission_time"] = format_timestamp(attempt.now if was_queued else admission_time)
    return run.model_copy(update=changes)


def is_disrupted(attempt: LiveAttempt) -> bool:
    """Return True if a pod of the attempt had to leave its node in the last minutes."""
    time = parse_optional_time(attempt.run.disruption_time)
    return time is not None and attempt.now < time_after(time, DISRUPTION_SECONDS)


# -- what exists --------------------------------------------------------------------------------------------


def owned_config_map(attempt: AttemptFacts, uid: str) -> ConfigMapFacts | None:
    """Return the attempt's ConfigMap if the resource with this uid owns it, else None."""
    config_map = attempt.config_map
    return config_map if config_map is not None and config_map.owner_uid == uid else None


def is_cut_off(attempt: LiveAttempt) -> bool:
    """Return True if the ConfigMap is missing through which the attempt reports, or what gives it access to it."""
    job = attempt.job
    if job is None or job.is_deleting or is_over(job) or is_queued(job):
        return False
    return attempt.facts.config_map is None or not attempt.facts.has_access


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
    return pod.phase not in _END_PHASES and not pod.is_deleting


def _is_pod_gone(pod: PodFacts, now: datetime) -> bool:
    give_up_time = _give_up_time(pod)
    return pod.phase in _END_PHASES or (give_up_time is not None and now >= give_up_time)


def _give_up_time(pod: PodFacts) -> datetime | None:
    """Return when the pod counts as gone because its node does not answer; None if the node seems reachable."""
    if pod.unreachable_since is None:
        return None
    return time_after(pod.unreachable_since, UNREACHABLE_SECONDS)


# -- deadlines ----------------------------------------------------------------------------------------------

Deadline = Callable[[LiveAttempt], datetime | None]
"""A function that returns a deadline of an attempt; None while the deadline does not apply."""


def start_deadline(attempt: LiveAttempt) -> datetime | None:
    """Return the deadline of the first report, counted from the admission.

    None without a limit, while the attempt is queued, and after a report.
    """
    limit = attempt.policy.start_deadline_seconds
    if limit is None or attempt.run.admission_time is None or attempt.has_reported:
        return None
    return time_after(parse_time(attempt.run.admission_time), limit)


def gang_deadline(attempt: LiveAttempt) -> datetime | None:
    """Return when the learners release their GPUs, because another learner finds no node; None if none waits."""
    learners = [pod for pod in attempt.facts.pods if pod.pool == "learner" and not pod.is_deleting]
    creation_times = [pod.created_at for pod in learners if pod.scheduling_failure is not None]
    scheduling_times = [pod.scheduled_at for pod in learners if pod.scheduled_at is not None]
    if attempt.has_reported or not creation_times or not scheduling_times:
        return None
    # In a full cluster all learners may wait for long before the first one gets a node.
    return time_after(max(min(creation_times), min(scheduling_times)), GANG_SECONDS)


def active_deadline(attempt: LiveAttempt) -> datetime | None:
    """Return the deadline of all attempts together. Queued and suspended time does not count.

    None without a limit, and while the attempt is queued.
    """
    limit = attempt.policy.active_deadline_seconds
    if limit is None or attempt.run.admission_time is None:
        return None
    return time_after(parse_time(attempt.run.admission_time), limit - attempt.run.active_seconds)


def heartbeat_deadline(attempt: LiveAttempt) -> datetime | None:
    """Return the deadline of the next report; None until all pods are ready."""
    return _silence_deadline(attempt, attempt.facts.beat_seen_at)


def progress_deadline(attempt: LiveAttempt) -> datetime | None:
    """Return the deadline of the next progress; None until all pods are ready."""
    return _silence_deadline(attempt, attempt.facts.progress_seen_at)


def _silence_deadline(attempt: LiveAttempt, last_seen_at: datetime | None) -> datetime | None:
    if last_seen_at is None or attempt.is_verdict_held:
        return None
    deadline = time_after(last_seen_at, attempt.policy.stall_timeout_seconds)
    return max(deadline, attempt.facts.token_renewal_time or deadline)


def head_deadline(attempt: LiveAttempt) -> datetime | None:
    """Return the deadline of the next report without a reachable head pod, earlier than `heartbeat_deadline`.

    None while the head pod is reachable. Before the first report, a head pod that does not exist has no deadline.
    """
    lost_head, beat_seen_at = attempt.unreachable_head, attempt.facts.beat_seen_at
    if lost_head is not None and attempt.is_verdict_held:
        return None
    if attempt.has_reported and attempt.head is None and beat_seen_at is not None:
        return time_after(beat_seen_at, HEADLESS_SECONDS)
    if lost_head is None or lost_head.unreachable_since is None:
        return None
    silence_start = max(lost_head.unreachable_since, beat_seen_at or lost_head.unreachable_since)
    return time_after(silence_start, UNREACHABLE_SECONDS)


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
