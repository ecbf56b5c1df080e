"""A cache of the watched objects: the resources, and the facts about their children that decisions need."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import structlog

from hindcast_operator import extract, names
from hindcast_operator.control import kinds
from hindcast_operator.control.kinds import ObjectKind
from hindcast_operator.facts import ConfigMapFacts, PodFacts, RayClusterFacts, RayJobFacts

log = structlog.get_logger()

Raw = dict[str, Any]
ChildFacts = RayJobFacts | RayClusterFacts | ConfigMapFacts | PodFacts


class Key(NamedTuple):
    """Kind, namespace and name of an object, without its uid.

    The work queue holds keys, so that a re-created resource is never processed at the same time as the old one.
    """

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Resource:
    """A resource as it was last observed.

    Attributes:
        version: the resourceVersion, as a number.
        body: apiVersion, kind, metadata (name, namespace, labels), spec.
        status: `.status` as JSON values; empty if the resource has no status.
    """

    key: Key
    uid: str
    version: int
    generation: int
    is_deleting: bool
    body: Raw
    status: Raw


@dataclass(frozen=True)
class Child:
    """An object of an attempt as it was last observed.

    Attributes:
        version: the resourceVersion, as a number.
        owner: the resource that the object's labels name.
        attempt: name of the attempt's RayJob.
        facts: what decisions need to know about the object.
    """

    key: Key
    uid: str
    version: int
    owner: Key
    attempt: str
    facts: ChildFacts


class Cache:
    """Resources and their children.

    The operator's own writes are added immediately, and a newer version is never replaced by an older one.
    """

    def __init__(self) -> None:
        self.resources: dict[Key, Resource] = {}
        self._children: dict[Key, Child] = {}
        self._children_by_owner: dict[Key, dict[Key, Child]] = {}
        self._referrers_by_target: dict[Key, set[Key]] = {}

    def children(self, owner: Key) -> Iterable[Child]:
        """Return the cached objects with labels that name the resource `owner`."""
        return self._children_by_owner.get(owner, {}).values()

    def child(self, kind: ObjectKind, namespace: str, name: str) -> Child | None:
        """Return a cached object of an attempt, or None."""
        return self._children.get(Key(kind.name, namespace, name))

    def entry(self, kind: ObjectKind, namespace: str, name: str) -> Resource | Child | None:
        """Return a cached object, or None."""
        return self._entries(kind).get(Key(kind.name, namespace, name))

    def put(self, kind: ObjectKind, raw: Raw, *, replaces_newer: bool = False) -> set[Key]:
        """Store a version of an object, unless this version or a newer one is cached. Return the affected resources.

        These are the resource itself and those that refer to it, or the resource of a child if the facts about the
        child have changed. `replaces_newer` stores the version in any case.
        """
        key = Key(kind.name, raw["metadata"]["namespace"], raw["metadata"]["name"])
        previous = self._entries(kind).get(key)
        version = int(raw["metadata"]["resourceVersion"])
        if previous is not None and previous.version >= version and not replaces_newer:
            return set()
        try:
            return (
                self._put_resource(kind, raw) if kind in kinds.RESOURCE_KINDS else self._put_child(kind, raw)
            )
        except Exception:  # an object that cannot be read must not stop the reading of others
            log.exception("object cannot be read; ignored", object=key)
            return set()

    def remove(self, kind: ObjectKind, namespace: str, name: str, uid: str) -> set[Key]:
        """Remove a deleted object, unless the cached one has another uid. Return the affected resources."""
        key, entry = Key(kind.name, namespace, name), self.entry(kind, namespace, name)
        if entry is None or entry.uid != uid:
            return set()
        if isinstance(entry, Child):
            self._drop_child(entry)
            return {entry.owner}
        del self.resources[key]
        self._drop_references(entry)
        return {key} | self._referrers_by_target.get(key, set())

    def remove_all(self, kind: ObjectKind) -> set[Key]:
        """Remove all objects of a kind that no longer exists. Return the affected resources."""
        affected_keys: set[Key] = set()
        for entry in self.entries(kind):
            affected_keys |= self.remove(kind, entry.key.namespace, entry.key.name, entry.uid)
        return affected_keys

    def entries(self, kind: ObjectKind, namespace: str | None = None) -> list[Resource | Child]:
        """Return the cached objects of a kind, in a namespace or everywhere."""
        return [
            entry
            for key, entry in self._entries(kind).items()
            if key.kind == kind.name and namespace in (None, key.namespace)
        ]

    def _entries(self, kind: ObjectKind) -> Mapping[Key, Resource | Child]:
        """Return the mapping that contains the objects of the kind, and also objects of other kinds."""
        return self.resources if kind in kinds.RESOURCE_KINDS else self._children

    def _put_resource(self, kind: ObjectKind, raw: Raw) -> set[Key]:
        metadata = raw["metadata"]
        key = Key(kind.name, metadata["namespace"], metadata["name"])
        version = int(metadata["resourceVersion"])
        previous = self.resources.get(key)
        if previous is not None:
            self._drop_references(previous)
        self.resources[key] = Resource(
            key=key,
            uid=metadata["uid"],
            version=version,
            generation=int(metadata.get("generation", 1)),
            is_deleting="deletionTimestamp" in metadata,
            body={
                "apiVersion": kind.api_version,
                "kind": kind.name,
                "metadata": {
                    "name": metadata["name"],
                    "namespace": metadata["namespace"],
                    "labels": metadata.get("labels") or {},
                },
                "spec": raw.get("spec") or {},
            },
            status=raw.get("status") or {},
        )
        for target in find_references(key, raw.get("spec") or {}):
            self._referrers_by_target.setdefault(target, set()).add(key)
        return {key} | self._referrers_by_target.get(key, set())

    def _put_child(self, kind: ObjectKind, raw: Raw) -> set[Key]:
        metadata = raw["metadata"]
        owner, attempt = _owner_and_attempt(metadata)
        if owner is None:
            return set()
        key = Key(kind.name, metadata["namespace"], metadata["name"])
        version = int(metadata["resourceVersion"])
        child = Child(key, metadata["uid"], version, owner, attempt, _EXTRACTORS[kind](raw))
        previous = self._children.get(key)
        if previous is not None:
            self._drop_child(previous)
        self._children[key] = child
        self._children_by_owner.setdefault(owner, {})[key] = child
        is_unchanged = previous is not None and previous.owner == owner and previous.facts == child.facts
        return set() if is_unchanged else {owner}

    def _drop_child(self, child: Child) -> None:
        del self._children[child.key]
        siblings = self._children_by_owner[child.owner]
        del siblings[child.key]
        if not siblings:
            del self._children_by_owner[child.owner]

    def _drop_references(self, resource: Resource) -> None:
        for target in find_references(resource.key, resource.body["spec"]):
            referrers = self._referrers_by_target.get(target, set())
            referrers.discard(resource.key)
            if not referrers:
                self._referrers_by_target.pop(target, None)


_EXTRACTORS: Final[Mapping[ObjectKind, Callable[[Raw], ChildFacts]]] = {
    kinds.RAY_JOB: extract.ray_job_facts,
    kinds.RAY_CLUSTER: extract.ray_cluster_facts,
    kinds.POD: extract.pod_facts,
    kinds.CONFIG_MAP: extract.config_map_facts,
}


def find_references(key: Key, spec: Raw) -> list[Key]:
    """Return the keys of the resources that a spec refers to."""
    return [Key(kind, key.namespace, name) for kind, name in names.find_references(key.kind, spec)]


def _owner_and_attempt(metadata: Raw) -> tuple[Key | None, str]:
    """Return the resource and the attempt's name that a child's labels give; `(None, "")` if they are not valid."""
    labels = metadata.get("labels") or {}
    try:
        kind, name = labels[names.KIND_LABEL], labels[names.NAME_LABEL]
        revision, attempt = int(labels[names.REVISION_LABEL]), int(labels[names.ATTEMPT_LABEL])
        child = names.child_name(kind, name, revision, attempt)
    except (KeyError, ValueError):
        return None, ""
    return Key(kind, metadata["namespace"], name), child
