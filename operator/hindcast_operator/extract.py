"""Extraction of facts from objects as the API server returns them."""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, get_args

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

# Every container that is about to start has one of these; any other reason means that something prevents the start.
_NORMAL_WAIT_REASONS: Final = frozenset({"ContainerCreating", "PodInitializing"})
_DISRUPTION_REASONS: Final = frozenset({"NodeShutdown", "Preempting", "Shutdown", "Terminated"})
"""`status.reason` of pods that end because their node shuts down, or because more important pods take their place."""
_POOLS: Final = get_args(Pool)


def owner_uid(raw: Raw) -> str | None:
    """Return the uid of an object's controller, or None if it has no controller."""
    for owner in raw["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner["uid"])
    return None


def _is_deleting(raw: Raw) -> bool:
    return "deletionTimestamp" in raw["metadata"]


def ray_job_facts(raw: Raw) -> RayJobFacts:
    """Extract the facts of a RayJob."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    return RayJobFacts(
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=owner_uid(raw),
        is_deleting=_is_deleting(raw),
        created_at=parse_time(metadata["creationTimestamp"]),
        is_suspended=bool(spec.get("suspend", False)),
        job_status=status.get("jobStatus") or "",
        deployment_status=status.get("jobDeploymentStatus") or "",
        reason=status.get("reason") or "",
        message=(status.get("message") or "")[:1000],
        started_at=parse_optional_time(status.get("startTime")),
        ended_at=parse_optional_time(status.get("endTime")),
        deadlines={name: spec[name] for name in DEADLINE_FIELDS if name in spec},
    )


def ray_cluster_facts(raw: Raw) -> RayClusterFacts:
    """Extract the facts of a RayCluster."""
    status = raw.get("status") or {}
    failure = find_condition(status, "ReplicaFailure")
    has_failed = failure.get("status") == "True"
    return RayClusterFacts(
        name=raw["metadata"]["name"],
        replica_failure=failure.get("message", "") if has_failed else None,
    )


def config_map_facts(raw: Raw) -> ConfigMapFacts:
    """Extract the facts of an attempt's ConfigMap."""
    metadata, data = raw["metadata"], raw.get("data") or {}
    text = data.get(REPORT_KEY) or ""
    plain = _parse_json(text)
    report, problem = _parse_report(plain)
    beat = hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""
    return ConfigMapFacts(
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=owner_uid(raw),
        is_deleting=_is_deleting(raw),
        intent=data.get(INTENT_KEY) or "",
        report=report,
        report_problem=problem if text else None,
        beat=beat,
        progress=str(plain.get("lastProgressTime") or beat),
    )


def _parse_json(text: str) -> Raw:
    """Return the object in a report's text; an empty one if it contains none."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: brackets are nested too deeply
        return {}
    return plain if isinstance(plain, dict) else {}


def _parse_report(plain: Raw) -> tuple[Report | None, str | None]:
    """Return the report, and if some of it cannot be read, why. A report of another version may have other fields."""
    try:
        return Report.model_validate(plain), None
    except ValidationError as error:
        unreadable_fields = {str(entry["loc"][0]) for entry in error.errors() if entry["loc"]}
    problem = f"{', '.join(sorted(unreadable_fields))} cannot be read"
    try:
        rest = {name: value for name, value in plain.items() if name not in unreadable_fields}
        return Report.model_validate(rest), problem
    except ValidationError:
        return None, problem


def pod_facts(raw: Raw) -> PodFacts:
    """Extract the facts of a pod."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return PodFacts(
        name=metadata["name"],
        pool=_parse_pool(metadata.get("labels", {}).get(POOL_LABEL)),
        created_at=parse_time(metadata["creationTimestamp"]),
        phase=status.get("phase") or "Pending",
        is_ready=find_condition(status, "Ready").get("status") == "True",
        is_deleting=_is_deleting(raw),
        reason=status.get("reason") or "",
        unreachable_since=_unreachable_since(raw),
        scheduled_at=_scheduled_at(status),
        scheduling_failure=_scheduling_failure(status),
        container_wait=next(filter(None, map(_container_wait, containers)), None),
        is_oom_killed=any(map(_is_oom_killed, containers)),
        disrupted_at=_disrupted_at(raw),
    )


def _parse_pool(label: str | None) -> Pool | Literal["submitter"]:
    """Return the pool that a pod's label names. Any other label, or none, means the submitter."""
    return label if label in _POOLS else "submitter"  # type: ignore[return-value]


def _unreachable_since(raw: Raw) -> datetime | None:
    """Return the time since which a pod's node is unreachable, or None if no such time is known.

    The operator has no right to read nodes, so this is derived from the pod alone.
    """
    # The timestamp includes the grace period: a reachable node removes the pod by this time, which may be yet to come.
    if _is_deleting(raw):
        return parse_time(raw["metadata"]["deletionTimestamp"])
    status = raw.get("status") or {}
    ready, containers = find_condition(status, "Ready"), find_condition(status, "ContainersReady")
    # A readiness gate makes `Ready` False too, while the node is reachable.
    if raw.get("spec", {}).get("readinessGates"):
        return None
    # On pods of an unreachable node the node controller sets `Ready` to False, but not `ContainersReady`, which stays
    # as the node last reported it.
    ready_statuses = (ready.get("status"), containers.get("status"))
    is_silent = status.get("phase") == "Running" and ready_statuses == ("False", "True")
    return parse_optional_time(ready.get("lastTransitionTime")) if is_silent else None


def _scheduled_at(status: Raw) -> datetime | None:
    pod_scheduled = find_condition(status, "PodScheduled")
    is_scheduled = pod_scheduled.get("status") == "True"
    return parse_optional_time(pod_scheduled.get("lastTransitionTime")) if is_scheduled else None


def _scheduling_failure(status: Raw) -> str | None:
    pod_scheduled = find_condition(status, "PodScheduled")
    if pod_scheduled.get("reason") != "Unschedulable":
        return None
    return str(pod_scheduled.get("message") or "no node fits")


def _container_wait(container: Raw) -> tuple[str, str] | None:
    """Return reason and message if something prevents the start of the container, else None."""
    wait_state = (container.get("state") or {}).get("waiting") or {}
    reason = wait_state.get("reason")
    return None if not reason or reason in _NORMAL_WAIT_REASONS else (reason, wait_state.get("message") or "")


def _disrupted_at(raw: Raw) -> datetime | None:
    status = raw.get("status") or {}
    target, ready = find_condition(status, "DisruptionTarget"), find_condition(status, "Ready")
    # The kubelet also sets it when the pod uses too much memory or disk; `reason` is then Evicted.
    is_target = target.get("status") == "True" and status.get("reason") != "Evicted"
    if not is_target and status.get("reason") not in _DISRUPTION_REASONS:
        return None
    change = target if is_target else ready
    return parse_time(change.get("lastTransitionTime") or raw["metadata"]["creationTimestamp"])


def _is_oom_killed(container: Raw) -> bool:
    states = (container.get("lastState") or {}, container.get("state") or {})
    return any((state.get("terminated") or {}).get("reason") == "OOMKilled" for state in states)


def find_condition(status: Mapping[str, Any], type_: str) -> Mapping[str, Any]:
    """Return the condition of a type, or an empty mapping if there is no such condition."""
    return next((entry for entry in status.get("conditions") or () if entry.get("type") == type_), {})
