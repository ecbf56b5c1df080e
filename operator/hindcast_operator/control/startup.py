"""Observations of an attempt that no watch reports: what keeps it from starting, and when it last reported.

A restarted operator makes them again.

Refused creations are recorded from the answers of the API server. Events of other components are read only while an
attempt starts and something delays it. If a quota or Pod Security refuses the submitter's pod, there is a Job with an
event but no pod. If a Secret that a volume needs is missing, there is a pod with containers that are never created.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from hindcast.api.base import GROUP
from hindcast_operator import extract, names
from hindcast_operator.control.api import Api
from hindcast_operator.control.cache import Resource
from hindcast_operator.control.kinds import CORE_EVENT, ObjectKind
from hindcast_operator.facts import AttemptFacts, CreationProblem

_FIRST_RETRY_SECONDS: Final = 5.0
_MAX_RETRY_SECONDS: Final = 60.0
_EVENT_INTERVALS_SECONDS: Final = (5.0, 10.0, 15.0, 30.0, 60.0)
_NORMAL_START_SECONDS: Final = 5.0
"""After this time without a start, the events of a Job or pod are read."""


@dataclass
class AttemptPulse:
    """When this operator first saw the latest heartbeat and the latest progress of an attempt.

    Both outlive reports that are missing or cannot be read. Before the first heartbeat, both are the time at which this
    operator first saw all pods ready; None while they are not.
    """

    beat_seen_at: datetime | None = None
    progress_seen_at: datetime | None = None
    _beat: str = ""
    _progress: str = ""

    def update(self, attempt: AttemptFacts, now: datetime) -> None:
        """Note what the facts about the attempt show at `now`, by a clock without steps."""
        config_map, job = attempt.config_map, attempt.ray_job
        if config_map is not None and config_map.beat not in ("", self._beat):
            self._beat, self.beat_seen_at = config_map.beat, now
            if config_map.progress != self._progress:
                self._progress, self.progress_seen_at = config_map.progress, now
        elif not self._beat:
            is_ready = job is not None and job.deployment_status == "Running" and _are_pods_ready(attempt)
            self.beat_seen_at = self.progress_seen_at = (self.beat_seen_at or now) if is_ready else None


def _are_pods_ready(attempt: AttemptFacts) -> bool:
    return attempt.submitter_failure is None and all(
        pod.is_ready or pod.phase == "Succeeded" for pod in attempt.pods
    )


@dataclass
class Startup:
    """The known problems of one attempt's start.

    Attributes:
        problem: why one of the attempt's objects could not be created.
        blocker: kind and name of a foreign object that has a name the attempt needs.
        submitter_failure: why the submitter's Job cannot create its pod.
        mount_failures: name of a pod -> why its volume is not mounted.
        next_creation_time: when to retry the creation, by the event loop's clock; 0 if it has not failed.
        next_events_time: when to read events, by the event loop's clock; 0 before the first `should_read_events`.
        has_access: the objects that let the attempt report (its ServiceAccount, the Role, the RoleBinding) existed when
            they were last read.
        access_read_at: when they were last read; None if they were not.
        token_renewal_time: see `AttemptFacts`.
        refused_deadlines: deadlines that the API server refused to set on the RayJob; None if it refused none.
        pulse: when this operator last heard from the attempt.
    """

    problem: CreationProblem | None = None
    blocker: tuple[ObjectKind, str] | None = None
    submitter_failure: str | None = None
    mount_failures: dict[str, str] = field(default_factory=dict)
    next_creation_time: float = 0.0
    next_events_time: float = 0.0
    has_access: bool = True
    access_read_at: datetime | None = None
    token_renewal_time: datetime | None = None
    refused_deadlines: Mapping[str, int | None] | None = None
    pulse: AttemptPulse = field(default_factory=AttemptPulse)
    _num_failures: int = 0
    _num_readings: int = 0

    def is_backing_off(self) -> bool:
        """Return True if the creation failed and its retry is not due yet."""
        return _now() < self.next_creation_time

    def record_failure(self, problem: CreationProblem | None) -> bool:
        """Record a failed creation. Return True if the cause is new."""
        self._num_failures += 1
        # A first failure is often over by the next try.
        if problem is not None and problem.reason == "CreationFailing" and self._num_failures == 1:
            problem = None
        is_new = problem != self.problem
        self.problem = problem
        self.next_creation_time = _now() + min(
            _FIRST_RETRY_SECONDS * 2.0 ** (self._num_failures - 1), _MAX_RETRY_SECONDS
        )
        return is_new

    def record_success(self) -> bool:
        """Record that all objects of the attempt exist. Return True if a problem was recorded before."""
        had_problem = self.problem is not None or not self.has_access
        self.problem = self.blocker = None
        self.has_access = True
        self._num_failures, self.next_creation_time = 0, 0.0
        return had_problem

    def should_read_events(self) -> bool:
        """Return True if it is time to read events. The first call returns False and schedules the first reading."""
        # Most attempts start without problems, so their events are never read.
        if not self.next_events_time:
            self.schedule_events()
            return False
        return _now() >= self.next_events_time

    def schedule_events(self) -> None:
        """Schedule the next reading of events."""
        self.next_events_time = (
            _now() + _EVENT_INTERVALS_SECONDS[min(self._num_readings, len(_EVENT_INTERVALS_SECONDS) - 1)]
        )
        self._num_readings += 1


Startups = defaultdict[str, defaultdict[str, Startup]]
"""Startups by the uid of the resource, then by the name of the attempt."""


def new_startups() -> Startups:
    """Return an empty registry, which creates the startup of an attempt at its first use."""
    return defaultdict(lambda: defaultdict(Startup))


def _now() -> float:
    return asyncio.get_running_loop().time()


# -- owners of objects with a name that an attempt needs ----------------------------------------------------


def classify_owner(raw: dict[str, Any], resource: Resource) -> Literal["ours", "deleting", "foreign"]:
    """Return `deleting` if the object is or will be deleted, `ours` if the resource owns it, otherwise `foreign`."""
    if "deletionTimestamp" in raw["metadata"]:
        return "deleting"
    if extract.owner_uid(raw) == resource.uid:
        return "ours"
    # Kubernetes deletes an object whose owner, an earlier resource of the same name, is gone.
    for owner in raw["metadata"].get("ownerReferences") or ():
        group = owner["apiVersion"].partition("/")[0]
        if (group, owner["kind"], owner["name"]) == (GROUP, resource.key.kind, resource.key.name):
            return "deleting"
    return "foreign"


def describe_owner(raw: dict[str, Any]) -> str:
    """Describe the owner of an object for a message: `owned by Kind/name`, `created by kubectl`, `without an owner`."""
    for owner in raw["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return f"owned by {owner['kind']}/{owner['name']}"
    managers = [entry.get("manager", "") for entry in raw["metadata"].get("managedFields") or ()]
    return f"created by {managers[0]}" if managers and managers[0] != names.MANAGER else "without an owner"


# -- events of other components -----------------------------------------------------------------------------


def is_starting(attempt: AttemptFacts) -> bool:
    """Return True if the attempt's cluster is starting and the attempt has not reported yet."""
    job = attempt.ray_job
    has_reported = attempt.config_map is not None and bool(attempt.config_map.beat)
    return (
        job is not None
        and job.deployment_status in {"Initializing", "Running"}
        and not (job.is_deleting or job.is_suspended or has_reported)
    )


async def read_events(
    api: Api, namespace: str, attempt: AttemptFacts, startup: Startup, now: datetime
) -> None:
    """Update a startup from events of a Job and of pods that do not start, and schedule the next reading."""
    startup.schedule_events()
    startup.submitter_failure = None
    if _is_submitter_missing(attempt, now):
        messages = await _event_messages(api, namespace, "Job", "FailedCreate")
        # KubeRay gives the submitter's Job the name of the RayJob.
        startup.submitter_failure = messages.get(attempt.child_name)
    stuck_pods = _pods_without_containers(attempt, now)
    startup.mount_failures = {}
    if stuck_pods:
        messages = await _event_messages(api, namespace, "Pod", "FailedAttachVolume")
        messages |= await _event_messages(api, namespace, "Pod", "FailedMount")
        startup.mount_failures = {name: message for name, message in messages.items() if name in stuck_pods}


def _is_submitter_missing(attempt: AttemptFacts, now: datetime) -> bool:
    job = attempt.ray_job
    return (
        job is not None
        and job.deployment_status == "Running"
        and _is_overdue(job.started_at or job.created_at, now)
        and not any(pod.pool == "submitter" for pod in attempt.pods)
    )


def _pods_without_containers(attempt: AttemptFacts, now: datetime) -> set[str]:
    """Return the names of scheduled pods with containers that do not start and give no reason."""
    return {
        pod.name
        for pod in attempt.pods
        if pod.phase == "Pending"
        and not (pod.scheduling_failure or pod.container_wait or pod.is_deleting)
        and _is_overdue(pod.created_at, now)
    }


async def _event_messages(api: Api, namespace: str, kind: str, reason: str) -> dict[str, str]:
    """Return name of an object of the kind -> message of its latest event with the reason."""
    selector = f"involvedObject.kind={kind},reason={reason}"
    query = {"fieldSelector": selector, "limit": "500"}
    response = await api.call("GET", CORE_EVENT.path(namespace), query=query)
    events = sorted(response.get("items") or (), key=lambda event: event.get("lastTimestamp") or "")
    return {event["involvedObject"]["name"]: (event.get("message") or "")[:1000] for event in events}


def _is_overdue(since: datetime, now: datetime) -> bool:
    return (now - since).total_seconds() >= _NORMAL_START_SECONDS
