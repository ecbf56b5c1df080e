"""Facts, taken from objects as the API server returns them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import ValidationError

from hindcast.api.attempt import INTENT_KEY, POOL_LABEL, REPORT_KEY, Pool, Report
from hindcast_operator.facts import (
    DEADLINE_FIELDS,
    ConfigMapFacts,
    PodFacts,
    RayClusterFacts,
    RayJobFacts,
)
from hindcast_operator.times import parse_optional_time, parse_time

Raw = dict[str, Any]

# Reported of every container that is about to start; other reasons mean that something prevents it.
_USUAL_WAITS: Final = frozenset({"ContainerCreating", "PodInitializing"})
_POOLS: Final = ("head", "data", "runner", "learner")


def owner_uid(raw: Raw) -> str | None:
    """The uid of an object's controller; None where it has none."""
    for owner in raw["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner["uid"])
    return None


def _deleting(raw: Raw) -> bool:
    return "deletionTimestamp" in raw["metadata"]


def ray_job_facts(raw: Raw) -> RayJobFacts:
    """Facts of a RayJob."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    return RayJobFacts(
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=owner_uid(raw),
        deleting=_deleting(raw),
        created=parse_time(metadata["creationTimestamp"]),
        suspended=bool(spec.get("suspend", False)),
        job_status=status.get("jobStatus") or "",
        deployment_status=status.get("jobDeploymentStatus") or "",
        reason=status.get("reason") or "",
        message=(status.get("message") or "")[:1000],
        started=parse_optional_time(status.get("startTime")),
        ended=parse_optional_time(status.get("endTime")),
        deadlines={name: spec[name] for name in DEADLINE_FIELDS if name in spec},
    )


def ray_cluster_facts(raw: Raw) -> RayClusterFacts:
    """Facts of a RayCluster."""
    status = raw.get("status") or {}
    failure = find_condition(status, "ReplicaFailure")
    failed = failure.get("status") == "True"
    return RayClusterFacts(
        name=raw["metadata"]["name"],
        replica_failure=failure.get("message", "") if failed else None,
    )


def config_map_facts(raw: Raw, before: ConfigMapFacts | None, now: datetime) -> ConfigMapFacts:
    """Facts of an attempt's ConfigMap; `before` knows since when its beat and progress have not changed."""
    metadata, data = raw["metadata"], raw.get("data") or {}
    if before is not None and before.uid != metadata["uid"]:
        before = None
    report = _report(data.get(REPORT_KEY))
    known = before.report if before else None
    beats_on = report is not None and (known is None or known.number != report.number)
    moves_on = report is not None and (known is None or known.last_progress_time != report.last_progress_time)
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
    """Facts of a pod."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return PodFacts(
        name=metadata["name"],
        pool=_pool(metadata.get("labels", {}).get(POOL_LABEL)),
        created=parse_time(metadata["creationTimestamp"]),
        phase=status.get("phase") or "Pending",
        ready=find_condition(status, "Ready").get("status") == "True",
        deleting=_deleting(raw),
        reason=status.get("reason") or "",
        unreachable_since=_unreachable_since(raw),
        unschedulable=_unschedulable(status),
        waiting=next(filter(None, map(_waiting, containers)), None),
        out_of_memory=any(map(_is_killed_for_memory, containers)),
    )


def _pool(label: str | None) -> Pool | Literal["submitter"]:
    return label if label in _POOLS else "submitter"  # type: ignore[return-value]


def _unreachable_since(raw: Raw) -> datetime | None:
    """Since when a pod's node is unreachable, as far as the pod shows it (the operator may not read nodes).

    A reachable node removes a pod by its deletion timestamp. On pods of an unreachable node the node controller sets
    only `Ready` to False; their containers were ready when they last reported.
    """
    if _deleting(raw):
        return parse_time(raw["metadata"]["deletionTimestamp"])
    status = raw.get("status") or {}
    ready, containers = find_condition(status, "Ready"), find_condition(status, "ContainersReady")
    if raw.get("spec", {}).get("readinessGates"):
        return None
    are_ready = (ready.get("status"), containers.get("status"))
    silent = status.get("phase") == "Running" and are_ready == ("False", "True")
    return parse_optional_time(ready.get("lastTransitionTime")) if silent else None


def _unschedulable(status: Raw) -> str | None:
    scheduled = find_condition(status, "PodScheduled")
    if scheduled.get("reason") != "Unschedulable":
        return None
    return str(scheduled.get("message") or "no node fits")


def _waiting(container: Raw) -> tuple[str, str] | None:
    waits = (container.get("state") or {}).get("waiting") or {}
    reason = waits.get("reason")
    return None if not reason or reason in _USUAL_WAITS else (reason, waits.get("message") or "")


def _is_killed_for_memory(container: Raw) -> bool:
    states = (container.get("lastState") or {}, container.get("state") or {})
    return any((state.get("terminated") or {}).get("reason") == "OOMKilled" for state in states)


def find_condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of that type; empty where there is none."""
    return next((entry for entry in status.get("conditions") or () if entry.get("type") == kind), {})
