"""What keeps an attempt from starting that no watch reports; lost on a restart, and then found again.

Refused creations are remembered from the answers of the API server. Events of others are read only while an attempt
starts and something delays it: a quota or Pod Security that refuses the submitter leaves a Job with an event and no
pod; a Secret that is missing from a volume leaves a pod whose containers never finish being created.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from hindcast.api.base import GROUP
from hindcast_operator import extract, names
from hindcast_operator.control.api import Api
from hindcast_operator.control.cache import Resource
from hindcast_operator.control.kinds import CORE_EVENT, ObjectKind
from hindcast_operator.facts import AttemptFacts

_FIRST_RETRY: Final = 5.0
_LONGEST_RETRY: Final = 60.0
_EVENT_INTERVALS: Final = (5.0, 10.0, 15.0, 30.0, 60.0)
_USUAL_SECONDS: Final = 5.0
"""What starts properly has started by then."""


@dataclass
class Startup:
    """What is known of one attempt's start.

    Attributes:
        conflict: an object that has a name the attempt needs and is not ours: `Kind/name` and owner.
        blocker: kind and name of that object.
        refusal: why the API server refused one of its objects.
        submitter_failure: why the submitter's Job cannot create its pod.
        mount_failures: by pod, why a volume is not mounted.
        next_creation: when to try the creation again, by the event loop's clock.
        next_events: when to read events again.
    """

    conflict: str | None = None
    blocker: tuple[ObjectKind, str] | None = None
    refusal: str | None = None
    submitter_failure: str | None = None
    mount_failures: dict[str, str] = field(default_factory=dict)
    next_creation: float = 0.0
    next_events: float = 0.0
    _failures: int = 0
    _readings: int = 0

    def is_backing_off(self) -> bool:
        """The creation failed a moment ago; it is not time to try it again."""
        return _now() < self.next_creation

    def record_failure(self, conflict: str | None, refusal: str | None) -> bool:
        """The creation failed. Returns whether that is news."""
        news = (conflict, refusal) != (self.conflict, self.refusal)
        self.conflict, self.refusal = conflict, refusal
        self._failures += 1
        self.next_creation = _now() + min(_FIRST_RETRY * 2.0 ** (self._failures - 1), _LONGEST_RETRY)
        return news

    def record_success(self) -> bool:
        """All objects of the attempt exist. Returns whether that is news."""
        news = self.conflict is not None or self.refusal is not None
        self.conflict = self.refusal = self.blocker = None
        self._failures, self.next_creation = 0, 0.0
        return news

    def should_read_events(self) -> bool:
        """Whether it is time to read events; the first time is a moment after the start was seen."""
        if not self.next_events:
            self.schedule_events()
            return False
        return _now() >= self.next_events

    def schedule_events(self) -> None:
        """Read events again after the next interval."""
        self.next_events = _now() + _EVENT_INTERVALS[min(self._readings, len(_EVENT_INTERVALS) - 1)]
        self._readings += 1


Startups = defaultdict[str, defaultdict[str, Startup]]
"""Startups by uid of the resource and name of the attempt."""


def new_startups() -> Startups:
    """Nothing is known of any attempt: each has a fresh startup."""
    return defaultdict(lambda: defaultdict(Startup))


def _now() -> float:
    return asyncio.get_running_loop().time()


# -- whose an object is that has a name we need -------------------------------------------------------------


def ownership(found: dict[str, Any], resource: Resource) -> Literal["ours", "going", "foreign"]:
    """Whose an object is. One of an earlier resource of the same name is garbage-collected: it is going."""
    if "deletionTimestamp" in found["metadata"]:
        return "going"
    if extract.owner_uid(found) == resource.uid:
        return "ours"
    for owner in found["metadata"].get("ownerReferences") or ():
        group = owner["apiVersion"].partition("/")[0]
        if (group, owner["kind"], owner["name"]) == (GROUP, resource.key.kind, resource.key.name):
            return "going"
    return "foreign"


def describe_owner(found: dict[str, Any]) -> str:
    """Whose an object is, for people."""
    for owner in found["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return f"owned by {owner['kind']}/{owner['name']}"
    managers = [entry.get("manager", "") for entry in found["metadata"].get("managedFields") or ()]
    return f"created by {managers[0]}" if managers and managers[0] != names.MANAGER else "without an owner"


# -- events of others ---------------------------------------------------------------------------------------


def is_starting(attempt: AttemptFacts) -> bool:
    """The attempt's cluster is coming up, and the attempt has not reported yet."""
    job = attempt.ray_job
    reported = attempt.config_map is not None and attempt.config_map.report is not None
    return (
        job is not None
        and job.deployment_status in {"Initializing", "Running"}
        and not (job.deleting or job.suspended or reported)
    )


async def read_events(
    api: Api, namespace: str, attempt: AttemptFacts, startup: Startup, now: datetime
) -> None:
    """Bring a startup up to date: events of the attempt's Job and pods, where these make no progress."""
    startup.schedule_events()
    startup.submitter_failure = None
    if _submitter_is_missing(attempt, now):
        found = await _events(api, namespace, "Job", "FailedCreate")
        startup.submitter_failure = found.get(attempt.child)
    mounting = _without_containers(attempt, now)
    startup.mount_failures = {}
    if mounting:
        found = await _events(api, namespace, "Pod", "FailedAttachVolume")
        found |= await _events(api, namespace, "Pod", "FailedMount")
        startup.mount_failures = {name: message for name, message in found.items() if name in mounting}


def _submitter_is_missing(attempt: AttemptFacts, now: datetime) -> bool:
    job = attempt.ray_job
    return (
        job is not None
        and job.deployment_status == "Running"
        and _overdue(job.started or job.created, now)
        and not any(pod.pool == "submitter" for pod in attempt.pods)
    )


def _without_containers(attempt: AttemptFacts, now: datetime) -> set[str]:
    """Pods on a node whose containers do not start, and do not say why."""
    return {
        pod.name
        for pod in attempt.pods
        if pod.phase == "Pending"
        and not (pod.unschedulable or pod.waiting or pod.deleting)
        and _overdue(pod.created, now)
    }


async def _events(api: Api, namespace: str, kind: str, reason: str) -> dict[str, str]:
    """The latest message of a reason, by the name of the object that it is about."""
    selector = f"involvedObject.kind={kind},reason={reason}"
    query = {"fieldSelector": selector, "limit": "500"}
    found = await api.call("GET", CORE_EVENT.path(namespace), query=query)
    events = sorted(found.get("items") or (), key=lambda event: event.get("lastTimestamp") or "")
    return {event["involvedObject"]["name"]: (event.get("message") or "")[:1000] for event in events}


def _overdue(since: datetime, now: datetime) -> bool:
    return (now - since).total_seconds() >= _USUAL_SECONDS
