"""Lists of our own, beside the watches: what is served, what exists, and what is gone without a word."""

from collections.abc import Collection

from hindcast_operator.control.api import Api, ApiError
from hindcast_operator.control.cache import Cache, Key
from hindcast_operator.control.kinds import WATCHED, Kind


async def served(api: Api) -> frozenset[Kind]:
    """The watched kinds that the API server knows now. Without KubeRay there are no RayJobs."""
    known = {kind for kind in WATCHED if not kind.group}
    for root in {kind.root for kind in WATCHED if kind.group}:
        try:
            found = (await api.read(root)).get("resources") or ()
        except ApiError as error:
            if error.code != 404:
                raise
            continue
        plurals = {resource["name"] for resource in found}
        known |= {kind for kind in WATCHED if kind.root == root and kind.plural in plurals}
    return frozenset(known)


async def fill(api: Api, cache: Cache, kind: Kind, namespaces: Collection[str]) -> set[Key]:
    """Put all objects of a kind into the cache and take out those that are gone.

    Returns the resources that it concerns.
    """
    return await _compare(api, cache, kind, namespaces, metadata_only=False)


async def sweep(api: Api, cache: Cache, kind: Kind, namespaces: Collection[str]) -> set[Key]:
    """Take out of the cache what is gone: a watch that had to begin anew does not tell.

    Returns the resources that it concerns.
    """
    return await _compare(api, cache, kind, namespaces, metadata_only=True)


async def _compare(
    api: Api, cache: Cache, kind: Kind, namespaces: Collection[str], metadata_only: bool
) -> set[Key]:
    # What comes while the lists are read is not theirs to judge.
    before = list(cache.known(kind))
    found: set[str] = set()
    concerned: set[Key] = set()
    for namespace in namespaces or (None,):
        async for item in api.pages(kind, namespace, metadata_only):
            found.add(item["metadata"]["uid"])
            if not metadata_only:
                concerned |= cache.put(kind, item)
    for place, uid in before:
        if uid not in found:
            concerned |= cache.remove(kind, place.namespace, place.name, uid)
    return concerned
