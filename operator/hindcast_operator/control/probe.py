"""Reading events of others, only while an attempt starts and something keeps it: what no status tells.

A quota or Pod Security that refuses the submitter leaves a Job with an event and no pod; a Secret that is missing
from a volume leaves a pod whose containers are being created for ever.
"""

from datetime import datetime
from typing import Final

from hindcast_operator.control.api import Api
from hindcast_operator.control.kinds import CORE_EVENT
from hindcast_operator.control.notes import Note
from hindcast_operator.facts import AttemptFacts

_USUAL_SECONDS: Final = 5.0
"""What starts properly has started by then."""


def starts(attempt: AttemptFacts) -> bool:
    """The attempt's cluster comes up, and nothing was heard of the attempt yet."""
    job = attempt.ray_job
    return (
        job is not None
        and job.deployment_status in {"Initializing", "Running"}
        and not (job.deleting or job.suspended or _heard(attempt))
    )


async def read_events(api: Api, namespace: str, attempt: AttemptFacts, note: Note, now: datetime) -> None:
    """Bring a note up to date: events of the attempt's Job and pods, where these do not come on."""
    note.probed()
    note.submitter_failure = None
    if _submitter_is_missing(attempt, now):
        found = await _events(api, namespace, "Job", "FailedCreate")
        note.submitter_failure = found.get(attempt.child)
    mounting = _without_containers(attempt, now)
    note.mount_failures = {}
    if mounting:
        found = await _events(api, namespace, "Pod", "FailedAttachVolume")
        found |= await _events(api, namespace, "Pod", "FailedMount")
        note.mount_failures = {name: message for name, message in found.items() if name in mounting}


def _submitter_is_missing(attempt: AttemptFacts, now: datetime) -> bool:
    job = attempt.ray_job
    return (
        job is not None
        and job.deployment_status == "Running"
        and _old(job.started or job.created, now)
        and not any(pod.pool == "submitter" for pod in attempt.pods)
    )


def _without_containers(attempt: AttemptFacts, now: datetime) -> set[str]:
    """Pods on a node whose containers do not start, and do not say why."""
    return {
        pod.name
        for pod in attempt.pods
        if pod.phase == "Pending"
        and not (pod.unschedulable or pod.waiting or pod.deleting)
        and _old(pod.created, now)
    }


async def _events(api: Api, namespace: str, kind: str, reason: str) -> dict[str, str]:
    """The latest message of a reason, by the name of the object that it is about."""
    selector = f"involvedObject.kind={kind},reason={reason}"
    query = {"fieldSelector": selector, "limit": "500"}
    found = await api.read(CORE_EVENT.path(namespace), query=query)
    events = sorted(found.get("items") or (), key=lambda event: event.get("lastTimestamp") or "")
    return {event["involvedObject"]["name"]: (event.get("message") or "")[:1000] for event in events}


def _heard(attempt: AttemptFacts) -> bool:
    return attempt.config_map is not None and attempt.config_map.report is not None


def _old(since: datetime, now: datetime) -> bool:
    return (now - since).total_seconds() >= _USUAL_SECONDS
