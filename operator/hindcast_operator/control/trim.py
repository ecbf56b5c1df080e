"""From objects as the API server has them to the facts that are kept of them."""

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import ValidationError

from hindcast.api.attempt import INTENT_KEY, POOL_LABEL, REPORT_KEY, Pool, Report
from hindcast_operator.facts import (
    ConfigMapFacts,
    ContainerEnd,
    PodFacts,
    RayClusterFacts,
    RayJobFacts,
)

Raw = dict[str, Any]

# Said of every container that will start soon; what holds one up has a word of its own.
_USUAL_WAITS: Final = frozenset({"ContainerCreating", "PodInitializing"})
_POOLS: Final = ("head", "data", "runner", "learner")


def time_of(text: str) -> datetime:
    """A timestamp of the API server."""
    return datetime.fromisoformat(text)


def _time_or_none(text: str | None) -> datetime | None:
    return time_of(text) if text else None


def owner_uid(raw: Raw) -> str | None:
    """The uid of an object's controller; None where it has none."""
    for owner in raw["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner["uid"])
    return None


def _deleting(raw: Raw) -> bool:
    return "deletionTimestamp" in raw["metadata"]


def ray_job(raw: Raw) -> RayJobFacts:
    """What is kept of a RayJob."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    return RayJobFacts(
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=owner_uid(raw),
        deleting=_deleting(raw),
        created=time_of(metadata["creationTimestamp"]),
        suspended=bool(raw.get("spec", {}).get("suspend", False)),
        job_status=status.get("jobStatus") or "",
        deployment_status=status.get("jobDeploymentStatus") or "",
        reason=status.get("reason") or "",
        message=(status.get("message") or "")[:1000],
        started=_time_or_none(status.get("startTime")),
        ended=_time_or_none(status.get("endTime")),
    )


def ray_cluster(raw: Raw) -> RayClusterFacts:
    """What is kept of a RayCluster."""
    status = raw.get("status") or {}
    failure = _condition(status, "ReplicaFailure")
    failed = failure is not None and failure.get("status") == "True"
    return RayClusterFacts(
        name=raw["metadata"]["name"],
        ready=status.get("state") == "ready",
        replica_failure=(failure.get("reason", ""), failure.get("message", ""))
        if failure and failed
        else None,
    )


def config_map(raw: Raw, before: ConfigMapFacts | None, now: datetime) -> ConfigMapFacts:
    """What is kept of an attempt's ConfigMap; `before` tells since when its beat and progress stand still."""
    metadata, data = raw["metadata"], raw.get("data") or {}
    if before is not None and before.uid != metadata["uid"]:
        before = None
    report = _report(data.get(REPORT_KEY))
    known = before.report if before else None
    beats_on = report is not None and (known is None or known.beat != report.beat)
    moves_on = report is not None and (known is None or known.moved != report.moved)
    return ConfigMapFacts(
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=owner_uid(raw),
        deleting=_deleting(raw),
        intent=data.get(INTENT_KEY) or "",
        report=report,
        beat_seen=now if beats_on else (before.beat_seen if before and report else None),
        moved_seen=now if moves_on else (before.moved_seen if before and report else None),
    )


def _report(text: str | None) -> Report | None:
    if not text:
        return None
    try:
        return Report.model_validate_json(text)
    except ValidationError:
        return None


def pod(raw: Raw) -> PodFacts:
    """What is kept of a pod."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    ready = _condition(status, "Ready")
    return PodFacts(
        name=metadata["name"],
        pool=_pool(metadata.get("labels", {}).get(POOL_LABEL)),
        created=time_of(metadata["creationTimestamp"]),
        phase=status.get("phase") or "Pending",
        ready=ready is not None and ready.get("status") == "True",
        deleting=_deleting(raw),
        reason=status.get("reason") or "",
        unreachable_since=_unreachable_since(raw),
        unschedulable=_unschedulable(status),
        waiting=next(filter(None, map(_waiting, containers)), None),
        ends=tuple(end for container in containers for end in _ends(container)),
    )


def _pool(label: str | None) -> Pool | Literal["submitter"]:
    return label if label in _POOLS else "submitter"  # type: ignore[return-value]


def _unreachable_since(raw: Raw) -> datetime | None:
    """Since when a pod's node is silent, as the pod tells it (nodes are not ours to read).

    A node that answers removes a pod by its deletion timestamp. The node controller takes only `Ready` from pods of
    a silent node; their containers were ready when they were last heard of.
    """
    if _deleting(raw):
        return time_of(raw["metadata"]["deletionTimestamp"])
    status = raw.get("status") or {}
    ready, containers = _condition(status, "Ready"), _condition(status, "ContainersReady")
    if ready is None or containers is None or raw.get("spec", {}).get("readinessGates"):
        return None
    silent = status.get("phase") == "Running" and (ready["status"], containers["status"]) == ("False", "True")
    return _time_or_none(ready.get("lastTransitionTime")) if silent else None


def _unschedulable(status: Raw) -> str | None:
    scheduled = _condition(status, "PodScheduled")
    if scheduled is None or scheduled.get("reason") != "Unschedulable":
        return None
    return str(scheduled.get("message") or "no node fits")


def _waiting(container: Raw) -> tuple[str, str] | None:
    waits = (container.get("state") or {}).get("waiting") or {}
    reason = waits.get("reason")
    return None if not reason or reason in _USUAL_WAITS else (reason, waits.get("message") or "")


def _ends(container: Raw) -> list[ContainerEnd]:
    states = (container.get("lastState") or {}, container.get("state") or {})
    return [
        ContainerEnd(container["name"], end.get("reason") or "", int(end.get("exitCode", 0)))
        for end in (state.get("terminated") for state in states)
        if end
    ]


def _condition(status: Raw, kind: str) -> Raw | None:
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), None)
