"""An attempt that goes on, as it is looked at: its entry, what exists of it, what is wanted."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from hindcast.api.attempt import Report
from hindcast.api.status import Condition, RunStatus
from hindcast_operator.facts import AttemptFacts, ConfigMapFacts, PodFacts, RayJobFacts
from hindcast_operator.planning.diagnosis import Diagnosis
from hindcast_operator.planning.times import after, earliest
from hindcast_operator.planning.wishes import Wishes

UNREACHABLE_SECONDS = 300
"""A pod whose node has not answered this long counts as gone; the output's lease covers that it may not be."""


@dataclass(frozen=True)
class View:
    """An attempt that goes on.

    Attributes:
        uid: of the resource: objects of another one are not the attempt's.
        diagnosis: what keeps its pods from running now.
        cluster: the ClusterReady condition as it stands, which remembers what killed pods that are gone.
    """

    run: RunStatus
    attempt: AttemptFacts
    wishes: Wishes
    uid: str
    diagnosis: Diagnosis | None
    cluster: Condition | None
    now: datetime

    def with_run(self, run: RunStatus) -> "View":
        """The same with a changed entry."""
        return replace(self, run=run)

    @property
    def job(self) -> RayJobFacts | None:
        """Its RayJob, where that is the attempt's own."""
        job = self.attempt.ray_job
        if job is None or job.owner_uid != self.uid:
            return None
        return job if self.run.child_uid in (None, job.uid) else None

    @property
    def config_map(self) -> ConfigMapFacts | None:
        """Its ConfigMap, where that is the attempt's own."""
        return own_config_map(self.attempt, self.uid)

    @property
    def report(self) -> Report | None:
        """What it says of itself."""
        return None if self.config_map is None else self.config_map.report

    @property
    def head(self) -> PodFacts | None:
        """The pod that the driver runs in, while it lives."""
        return next((pod for pod in self.attempt.pods if pod.pool == "head" and is_alive(pod)), None)


def own_config_map(attempt: AttemptFacts, uid: str) -> ConfigMapFacts | None:
    """The attempt's ConfigMap, where the resource of that uid owns it."""
    found = attempt.config_map
    return found if found is not None and found.owner_uid == uid else None


def is_alive(pod: PodFacts) -> bool:
    """Its containers may run."""
    return pod.phase not in ("Succeeded", "Failed") and not pod.deleting


def is_gone(attempt: AttemptFacts, now: datetime) -> bool:
    """No RayJob, and no pod that could still write."""
    return attempt.ray_job is None and all(_is_gone(pod, now) for pod in attempt.pods)


def gone_due(attempts: Iterable[AttemptFacts], now: datetime) -> datetime | None:
    """When the next pod on an unreachable node counts as gone."""
    pods = [pod for attempt in attempts for pod in attempt.pods if not _is_gone(pod, now)]
    return earliest(*(_given_up(pod) for pod in pods))


def _is_gone(pod: PodFacts, now: datetime) -> bool:
    given_up = _given_up(pod)
    return pod.phase in ("Succeeded", "Failed") or (given_up is not None and now >= given_up)


def _given_up(pod: PodFacts) -> datetime | None:
    since = pod.unreachable_since
    return None if since is None else after(since, UNREACHABLE_SECONDS)


def is_over(job: RayJobFacts) -> bool:
    """KubeRay is done with it."""
    return job.deployment_status in ("Complete", "Failed")


def is_queued(job: RayJobFacts) -> bool:
    """Kueue holds it back, or KubeRay has not yet seen that it no longer does."""
    return job.suspended or job.deployment_status in ("Suspending", "Suspended")
