"""Execution of decisions on the API server. The operator may stop after any step, so every step can be repeated."""

import hashlib
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from hindcast.api.attempt import INTENT_KEY, Attempt
from hindcast.api.base import API_VERSION
from hindcast_operator import names
from hindcast_operator.control import kinds
from hindcast_operator.control.api import Api, ApiError
from hindcast_operator.control.cache import Cache, Child, Key, Resource
from hindcast_operator.control.kinds import ObjectKind
from hindcast_operator.control.reads import refresh
from hindcast_operator.control.startup import Startups, classify_owner, describe_owner
from hindcast_operator.decision import (
    Action,
    CreateAttempt,
    DeleteAttempt,
    Event,
    RestoreAttempt,
    SetDeadlines,
    SetIntent,
)
from hindcast_operator.facts import ConfigMapFacts, CreationProblem, ObjectFacts
from hindcast_operator.manifests import build, build_reporting
from hindcast_operator.planning import Reason

_INSTANCE: Final = f"{socket.gethostname()}-{os.getpid()}"

log = structlog.get_logger()

# Codes of a refusal that an immediate retry would not change: by a webhook, a quota or Pod Security, or because the
# object is invalid.
_REFUSAL_CODES: Final = frozenset({400, 403, 422})

_UNKNOWN_FIELD: Final = re.compile(r'unknown field "([^"]+)"')
"""A field in the API server's answer under strict validation; it lists all unknown ones."""


class RetryLater(Exception):
    """An action is not possible yet, because something else has to happen first. Not a failure; retry soon."""


class _NameConflict(Exception):
    """An object with a name that the attempt needs has another owner."""

    def __init__(self, kind: ObjectKind, name: str, owner: str) -> None:
        super().__init__(f"{kind.name}/{name} ({owner})")
        self.kind = kind
        self.name = name


class Applier:
    """Executes decisions. Watched objects that it writes are in the cache immediately, before a watch reports them."""

    def __init__(self, api: Api, cache: Cache, startups: Startups, requeue: Callable[[Key], None]) -> None:
        self._api = api
        self._cache = cache
        self._startups = startups
        self._requeue = requeue

    async def write_status(self, resource: Resource, status: Mapping[str, Any]) -> None:
        """Write the whole status, on condition that the resource is still the observed version.

        Raises:
            RetryLater: the resource changed or was deleted in the meantime, which the cache now shows.
            ApiError: the API server refused the write or did not answer.
        """
        key = resource.key
        kind = kinds.KINDS_BY_NAME[key.kind]
        try:
            raw = await self._api.write_status(kind, key.namespace, key.name, resource.version, status)
        except ApiError as error:
            if error.code in {404, 409}:
                # The cached version may be outdated: the answer to an earlier write was lost, or the watch is late.
                affected_keys = await refresh(self._api, self._cache, kind, key.namespace, key.name)
                self._requeue_all(affected_keys - {key})
                raise RetryLater(error.message) from error
            raise
        self._requeue_all(self._cache.put(kind, raw) - {key})

    async def execute(self, resource: Resource, action: Action) -> bool:
        """Execute an action. Return True if its outcome requires another reconciliation immediately.

        Raises:
            RetryLater: an object of the attempt changed, or one with its name is still being deleted.
            ApiError: the API server did not answer, or gave an answer that may change.
        """
        match action:
            case CreateAttempt():
                return await self._create(resource, action.attempt, build(action.resource, action.attempt))
            case RestoreAttempt():
                kind, name = resource.key.kind, resource.key.name
                manifests = build_reporting(kind, name, action.attempt, action.account)
                return await self._create(resource, action.attempt, manifests)
            case DeleteAttempt():
                await self._delete(resource, action)
            case SetIntent():
                await self._set_intent(resource, action)
            case SetDeadlines():
                await self._set_deadlines(resource, action)
        return False

    async def _create(
        self, resource: Resource, attempt: Attempt, manifests: Sequence[dict[str, Any]]
    ) -> bool:
        """Create the missing objects of an attempt. Return True if the cause of a failure is new, or was resolved.

        Nothing happens after a failure until its retry is due.
        """
        startup = self._startups[resource.uid][attempt.ray_job_name]
        if startup.is_backing_off():
            return False
        job = self._cache.child(kinds.RAY_JOB, resource.key.namespace, attempt.ray_job_name)
        has_job = job is not None and _is_current(job, resource)
        try:
            for manifest in manifests:
                await self._ensure_object(resource, manifest, has_job)
        except _NameConflict as conflict:
            startup.blocker = (conflict.kind, conflict.name)
            return startup.record_failure(CreationProblem("NameConflict", str(conflict)))
        except ApiError as error:
            # A namespace that is being deleted answers 403 too, but the user cannot resolve that.
            if error.code in (0, 401, 429) or "is being terminated" in error.message:
                raise
            log.warning(
                "creation rejected", resource=resource.key, attempt=attempt.ray_job_name, error=str(error)
            )
            return startup.record_failure(_creation_problem(error))
        return startup.record_success()

    async def _ensure_object(self, resource: Resource, manifest: dict[str, Any], has_job: bool) -> None:
        """Create an object of an attempt, or update it if it exists.

        An existing RayJob is left as it is, and with it the ConfigMap, which its pods may already have read.
        """
        kind, name = kinds.KINDS_BY_NAME[manifest["kind"]], manifest["metadata"]["name"]
        namespace = resource.key.namespace
        child = self._cache.child(kind, namespace, name)
        exists = child is not None and _is_current(child, resource)
        if exists and has_job:
            return
        raw = await (self._adopt if exists else self._create_or_adopt)(resource, kind, manifest)
        if kind in kinds.WATCHED_KINDS:
            self._put_child(kind, raw)

    async def _create_or_adopt(
        self, resource: Resource, kind: ObjectKind, manifest: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            return await self._api.create(kind, resource.key.namespace, manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            return await self._adopt(resource, kind, manifest)

    async def _adopt(self, resource: Resource, kind: ObjectKind, manifest: dict[str, Any]) -> dict[str, Any]:
        """Return the existing object with the manifest's name if the resource owns it; update it if necessary.

        Raises:
            RetryLater: the object was just deleted or is being deleted.
            _NameConflict: the object has another owner.
        """
        namespace, name = resource.key.namespace, manifest["metadata"]["name"]
        raw = await self._api.get(kind, namespace, name)
        if raw is None:
            raise RetryLater(f"{kind.name} {name} has just been deleted")
        match classify_owner(raw, resource):
            case "ours" if _is_out_of_date(raw, manifest):
                patch = manifest | {"metadata": manifest["metadata"] | {"uid": raw["metadata"]["uid"]}}
                return await self._api.merge(f"apply-{kind.name.lower()}", kind, namespace, name, patch)
            case "ours":
                return raw
            case "deleting":
                raise RetryLater(f"{kind.name} {name} is being deleted")
        raise _NameConflict(kind, name, describe_owner(raw))

    async def _delete(self, resource: Resource, action: DeleteAttempt) -> None:
        config_maps = () if action.keep_config_map else (kinds.CONFIG_MAP,)
        for kind in (kinds.RAY_JOB, *config_maps):
            child = self._cache.child(kind, resource.key.namespace, action.child_name)
            if child is not None and _is_current(child, resource):
                await self._api.delete(kind, resource.key.namespace, action.child_name, child.uid)

    async def _set_intent(self, resource: Resource, action: SetIntent) -> None:
        child = self._cache.child(kinds.CONFIG_MAP, resource.key.namespace, action.child_name)
        if child is None or not isinstance(child.facts, ConfigMapFacts):
            return
        if child.facts.intent == action.intent or child.facts.owner_uid != resource.uid:
            return
        await self._merge("set-intent", kinds.CONFIG_MAP, child, {"data": {INTENT_KEY: action.intent}})

    async def _set_deadlines(self, resource: Resource, action: SetDeadlines) -> None:
        child = self._cache.child(kinds.RAY_JOB, resource.key.namespace, action.child_name)
        startup = self._startups[resource.uid][action.child_name]
        if child is None or not _is_current(child, resource) or startup.refused_deadlines == action.deadlines:
            return
        try:
            await self._merge("set-deadlines", kinds.RAY_JOB, child, {"spec": dict(action.deadlines)})
        except ApiError as error:
            if error.code not in _REFUSAL_CODES:
                raise
            # The run continues with KubeRay's old deadlines, which only back up the operator's own. If one of them ends
            # the RayJob too early, the operator sees that (`_ending_by_kuberay`).
            startup.refused_deadlines = action.deadlines
            log.warning("deadlines rejected", resource=resource.key, error=str(error))
            message = f"RayJob {action.child_name} keeps KubeRay's old deadlines: {error.message}"
            reason = Reason.DEADLINES_REFUSED
            await self.post_event(resource, Event(reason.type, reason.value, message[:1000]))

    async def _merge(self, operation: str, kind: ObjectKind, child: Child, patch: dict[str, Any]) -> None:
        patch = {"metadata": {"uid": child.uid}, **patch}
        try:
            raw = await self._api.merge(operation, kind, child.key.namespace, child.key.name, patch)
        except ApiError as error:
            if error.code in {404, 409}:
                raise RetryLater(error.message) from error
            raise
        self._put_child(kind, raw)

    async def post_event(self, resource: Resource, event: Event) -> None:
        """Post a Kubernetes event. A rejected event is logged and dropped, because nothing depends on events."""
        try:
            await self._api.create(kinds.EVENT, resource.key.namespace, _make_event(resource, event))
        except ApiError as error:
            if error.reason == "AlreadyExists":  # the first try succeeded, but its answer was lost
                return
            log.warning("event rejected", resource=resource.key, reason=event.reason, error=str(error))

    def _put_child(self, kind: ObjectKind, raw: dict[str, Any]) -> None:
        self._requeue_all(self._cache.put(kind, raw))

    def _requeue_all(self, keys: set[Key]) -> None:
        for key in keys:
            self._requeue(key)


def _is_current(child: Child, resource: Resource) -> bool:
    """Return True if the resource owns the RayJob or ConfigMap, and the object is not being deleted."""
    return isinstance(child.facts, ObjectFacts) and child.facts.is_current(resource.uid)


def _creation_problem(error: ApiError) -> CreationProblem:
    if unknown_fields := _UNKNOWN_FIELD.findall(error.message):
        cause = f"{error.message[:500]}; {_unknown_fields_remedy(unknown_fields)}"
        return CreationProblem("CreationRefused", cause)
    reason: Final = "CreationRefused" if error.code in _REFUSAL_CODES else "CreationFailing"
    return CreationProblem(reason, error.message[:1000])


def _unknown_fields_remedy(fields: list[str]) -> str:
    """Return what to do about fields that the CRD of RayJobs does not have."""
    # Each pod template is a field `template` or `submitterPodTemplate`.
    if all("emplate." in field for field in fields):
        return "correct spec.cluster.podOverrides, or upgrade KubeRay's CRDs if they are old"
    return "upgrade KubeRay and its CRDs to 1.5.1 or later"


def _is_out_of_date(raw: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Return True if a Role, RoleBinding or ConfigMap differs from what the attempt needs."""
    if any(raw.get(field) != manifest[field] for field in ("rules", "subjects") if field in manifest):
        return True
    data = raw.get("data") or {}
    return any(data.get(key) != value for key, value in manifest.get("data", {}).items())


def _make_event(resource: Resource, event: Event) -> dict[str, object]:
    now = datetime.now(UTC)
    digest = hashlib.sha256(f"{resource.uid} {now.isoformat()} {event}".encode()).hexdigest()[:12]
    return {
        "apiVersion": kinds.EVENT.api_version,
        "kind": kinds.EVENT.name,
        "metadata": {"name": f"{resource.key.name}.{digest}", "namespace": resource.key.namespace},
        "eventTime": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reportingController": f"hindcast.dev/{names.MANAGER}",
        "reportingInstance": _INSTANCE[:128],
        "action": "Reconcile",
        "type": event.type,
        "reason": event.reason,
        "note": event.message,
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": resource.key.kind,
            "namespace": resource.key.namespace,
            "name": resource.key.name,
            "uid": resource.uid,
        },
    }
