"""From a decision to the API server. Every step may be the last one: what is done twice does no harm."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from hindcast.api.attempt import INTENT_KEY
from hindcast.api.base import API_VERSION
from hindcast_operator.control import kinds
from hindcast_operator.control.api import Api, ApiError
from hindcast_operator.control.cache import Cache, Child, Key, Resource
from hindcast_operator.control.kinds import Kind
from hindcast_operator.control.notes import Notes
from hindcast_operator.control.ownership import owner_of, whose
from hindcast_operator.decision import Action, CreateAttempt, DeleteAttempt, SetIntent
from hindcast_operator.facts import ConfigMapFacts, RayJobFacts
from hindcast_operator.manifests import build

# Answers that trying again at once does not change: a webhook, quota, Pod Security, an invalid object.
_REFUSALS: Final = frozenset({400, 403, 422})


class NotYet(Exception):
    """Something has to happen first that no one needs to be told of; look again soon."""


class _Conflict(Exception):
    """An object that is needed belongs to someone else."""

    def __init__(self, kind: Kind, name: str, owner: str) -> None:
        super().__init__(f"{kind.name}/{name} of {owner}")
        self.kind = kind
        self.name = name


class Actor:
    """Carries out decisions. What it writes is in the cache at once, before a watch tells of it."""

    def __init__(self, api: Api, cache: Cache, notes: Notes, concerns: Callable[[Key], None]) -> None:
        self._api = api
        self._cache = cache
        self._notes = notes
        self._concerns = concerns

    async def write_status(self, resource: Resource, status: Mapping[str, Any]) -> None:
        """Server-side apply of the whole status, on the very version that was observed.

        Raises:
            NotYet: it changed in the meantime; the cache has it as it is now.
        """
        key = resource.key
        manifest = {
            "apiVersion": API_VERSION,
            "kind": key.kind,
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "uid": resource.uid,
                "resourceVersion": str(resource.version),
            },
            "status": status,
        }
        kind = kinds.BY_NAME[key.kind]
        try:
            written = await self._api.apply(
                "write-status", kind, key.namespace, key.name, manifest, subresource="/status"
            )
        except ApiError as error:
            if error.code in {404, 409}:
                await self._refresh(kind, key)
                raise NotYet(error.message) from error
            raise
        for concerned in self._cache.put(kind, written) - {key}:
            self._concerns(concerned)

    async def _refresh(self, kind: Kind, key: Key) -> None:
        """Read what has changed: an answer to an earlier write may have been lost, and a watch may be late."""
        found = await self._api.get(kind, key.namespace, key.name)
        if found is not None:
            self._cache.put(kind, found)

    async def carry_out(self, resource: Resource, action: Action) -> bool:
        """Do it. Returns whether something became known that calls for another look at once.

        Raises:
            NotYet: an object of that name is still being deleted.
            ApiError: no answer, or one that may be another next time.
        """
        match action:
            case CreateAttempt():
                return await self._create(resource, action)
            case DeleteAttempt():
                await self._delete(resource, action)
            case SetIntent():
                await self._set_intent(resource, action)
        return False

    async def _create(self, resource: Resource, action: CreateAttempt) -> bool:
        note = self._notes.get(resource.uid, action.attempt.child)
        if note.waits():
            return False
        try:
            for manifest in build(action.resource, action.attempt):
                await self._ensure(resource, manifest)
        except _Conflict as conflict:
            note.blocker = (conflict.kind, conflict.name)
            return note.failed(conflict=str(conflict), refusal=None)
        except ApiError as error:
            if error.code not in _REFUSALS or "is being terminated" in error.message:
                raise
            return note.failed(conflict=None, refusal=error.message[:1000])
        return note.succeeded()

    async def _ensure(self, resource: Resource, manifest: dict[str, Any]) -> None:
        kind, name = kinds.BY_NAME[manifest["kind"]], manifest["metadata"]["name"]
        namespace = resource.key.namespace
        child = self._cache.child(kind, namespace, name)
        if child is not None and _stands(child, resource):
            return
        try:
            found = await self._api.create(kind, namespace, manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            found = await self._adopt(resource, kind, manifest)
        if kind in kinds.WATCHED:
            self._put_child(kind, found)

    async def _adopt(self, resource: Resource, kind: Kind, manifest: dict[str, Any]) -> dict[str, Any]:
        """The object that has the name already, when it is ours."""
        namespace, name = resource.key.namespace, manifest["metadata"]["name"]
        found = await self._api.get(kind, namespace, name)
        if found is None:
            raise NotYet(f"{kind.name} {name} has just gone")
        match whose(found, resource):
            case "ours" if kind is kinds.ROLE and found.get("rules") != manifest["rules"]:
                return await self._apply_role(found, manifest, namespace)
            case "ours":
                return found
            case "going":
                raise NotYet(f"{kind.name} {name} is being deleted")
        raise _Conflict(kind, name, owner_of(found))

    async def _apply_role(
        self, found: dict[str, Any], manifest: dict[str, Any], namespace: str
    ) -> dict[str, Any]:
        metadata = manifest["metadata"] | {"uid": found["metadata"]["uid"]}
        return await self._api.apply(
            "apply-role", kinds.ROLE, namespace, metadata["name"], manifest | {"metadata": metadata}
        )

    async def _delete(self, resource: Resource, action: DeleteAttempt) -> None:
        for kind in (kinds.RAY_JOB,) if action.keep_config_map else (kinds.RAY_JOB, kinds.CONFIG_MAP):
            child = self._cache.child(kind, resource.key.namespace, action.child)
            if child is not None and _stands(child, resource):
                await self._api.delete(kind, resource.key.namespace, action.child, child.uid)

    async def _set_intent(self, resource: Resource, action: SetIntent) -> None:
        child = self._cache.child(kinds.CONFIG_MAP, resource.key.namespace, action.child)
        if child is None or not isinstance(child.facts, ConfigMapFacts):
            return
        if child.facts.intent == action.intent or child.facts.owner_uid != resource.uid:
            return
        change = {"metadata": {"uid": child.uid}, "data": {INTENT_KEY: action.intent}}
        try:
            written = await self._api.merge(
                "set-intent", kinds.CONFIG_MAP, resource.key.namespace, action.child, change
            )
        except ApiError as error:
            if error.code in {404, 409}:
                raise NotYet(error.message) from error
            raise
        self._put_child(kinds.CONFIG_MAP, written)

    def _put_child(self, kind: Kind, raw: dict[str, Any]) -> None:
        for concerned in self._cache.put(kind, raw):
            self._concerns(concerned)


def _stands(child: Child, resource: Resource) -> bool:
    """Whether an object is the resource's own and is not being deleted."""
    facts = child.facts
    if not isinstance(facts, RayJobFacts | ConfigMapFacts):
        return False
    return facts.owner_uid == resource.uid and not facts.deleting
