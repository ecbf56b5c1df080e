"""Reads of the API server into the cache, beside the watches: single objects, and lists of a kind."""

from hindcast_operator import names
from hindcast_operator.control.api import Api, ApiError
from hindcast_operator.control.cache import Cache, Key
from hindcast_operator.control.kinds import WATCHED_KINDS, ObjectKind


async def served_kinds(api: Api) -> frozenset[ObjectKind]:
    """Return the watched kinds that the API server serves now. Without KubeRay it serves no RayJobs."""
    kinds = {kind for kind in WATCHED_KINDS if not kind.group}
    for root in {kind.root for kind in WATCHED_KINDS if kind.group}:
        try:
            api_resources = (await api.call("GET", root)).get("resources") or ()
        except ApiError as error:
            if error.code != 404:
                raise
            continue
        plurals = {resource["name"] for resource in api_resources}
        kinds |= {kind for kind in WATCHED_KINDS if kind.root == root and kind.plural in plurals}
    return frozenset(kinds)


async def refresh(api: Api, cache: Cache, kind: ObjectKind, namespace: str, name: str) -> set[Key]:
    """Read an object into the cache, or remove it from there if it is gone. Return the affected resources."""
    # Before the read: a watch may meanwhile add a new object of the same name.
    entry = cache.entry(kind, namespace, name)
    raw = await api.get(kind, namespace, name)
    if raw is not None:
        return cache.put(kind, raw)
    return set() if entry is None else cache.remove(kind, namespace, name, entry.uid)


async def resync(
    api: Api,
    cache: Cache,
    kind: ObjectKind,
    namespace: str | None,
    *,
    metadata_only: bool = False,
    owner: Key | None = None,
) -> set[Key]:
    """Remove the deleted objects of a kind from the cache, and store the existing ones.

    Args:
        api: the API server.
        cache: the cache to update.
        kind: the kind of objects.
        namespace: the namespace to list; None for the whole cluster.
        metadata_only: list metadata alone: remove deleted objects, whose deletion an interrupted watch does not report,
            and store only objects restored from a backup.
        owner: list only the children of this resource; None lists all objects.

    Returns:
        The affected resources.
    """
    # Before the list is read: the list may lack an object that a watch adds to the cache meanwhile.
    entries = cache.entries(kind, namespace) if owner is None else cache.children(owner)
    old_entries = {entry.key: entry for entry in entries if entry.key.kind == kind.name}
    selector = None if owner is None else f"{names.KIND_LABEL}={owner.kind},{names.NAME_LABEL}={owner.name}"
    listed_uids: set[str] = set()
    affected_keys: set[Key] = set()
    async for item in api.list_all(kind, namespace, metadata_only, selector):
        metadata = item["metadata"]
        listed_uids.add(metadata["uid"])
        old_entry = old_entries.get(Key(kind.name, metadata["namespace"], metadata["name"]))
        # After etcd was restored from a backup, the listed version is lower than the cached one, and the uid differs if
        # the object had been re-created after the backup.
        is_restored = old_entry is not None and int(metadata["resourceVersion"]) < old_entry.version
        raw: dict[str, object] | None = None if metadata_only else item
        if is_restored and metadata_only:
            raw = await api.get(kind, metadata["namespace"], metadata["name"])
        if raw is not None:
            affected_keys |= cache.put(kind, raw, replaces_newer=is_restored)
    for key, entry in old_entries.items():
        if entry.uid not in listed_uids:
            affected_keys |= cache.remove(kind, key.namespace, key.name, entry.uid)
    return affected_keys
