"""Keeping the cache up to date: kopf keeps the watches open, and lists of our own fill and sweep the cache.

No handler changes anything, so kopf writes neither annotations nor finalizers. kopf's indices are not used: while
they fill, each object wakes all others (2,000 objects: 11.8 s of CPU, 0.6 s without), and after `410 Gone` they keep
what is gone.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any, Final

import kopf
import structlog

from hindcast_operator.control.api import Api, ApiError
from hindcast_operator.control.cache import Cache, Key
from hindcast_operator.control.kinds import WATCHED, ObjectKind

log = structlog.get_logger()

OnEvent = Callable[[ObjectKind, str | None, dict[str, Any]], None]
"""Called with the kind, the type of the event (None: found by a list) and the object."""

_END_SECONDS: Final = 3.0
_BACKOFFS: Final = (0.1, 0.2, 0.5, 1, 1, 2, 2, 5, 5)


async def watch(
    served: Collection[ObjectKind],
    namespaces: Collection[str],
    on_event: OnEvent,
    on_watching: Callable[[], None],
) -> None:
    """Watch until cancelled, or until a watch fails for good (its kind was removed, it is forbidden).

    Without namespaces the whole cluster is watched. `on_watching` is called once kopf has started, which takes
    over the signals of the process.

    Raises:
        RuntimeError: the watches ended; start them again.
    """
    tasks = await kopf.spawn_tasks(
        registry=_registry(served, on_event),
        settings=_settings(served),
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        standalone=True,
    )
    on_watching()
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        failures = [task.exception() for task in ended if not task.cancelled()]
        raise RuntimeError(f"the watches ended: {failures}") from next(filter(None, failures), None)
    finally:
        for task in tasks:
            task.cancel()
        _, hung = await asyncio.wait(tasks, timeout=_END_SECONDS)
        if hung:
            log.warning("watches did not stop in time", tasks=sorted(task.get_name() for task in hung))


def _registry(served: Collection[ObjectKind], on_event: OnEvent) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_kubeconfig(**arguments) or kopf.login_with_service_account(**arguments)

    for kind in served:
        _register(registry, kind, on_event)
    return registry


def _register(registry: kopf.OperatorRegistry, kind: ObjectKind, on_event: OnEvent) -> None:
    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)
    async def handle(event: kopf.RawEvent, **_: Any) -> None:
        on_event(kind, event["type"], event["object"])  # type: ignore[arg-type]


def _settings(served: Collection[ObjectKind]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = (
        None  # it would end the process long after a restart of the watches
    )
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = _BACKOFFS
    settings.networking.enforce_retry_after = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 5
    settings.watching.inactivity_timeout = 150  # bookmarks come each minute: a silent connection is dead
    settings.watching.chunk_size = 200
    settings.queueing.idle_timeout = 1.0
    for kind in served:
        if kind.selector:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = kind.selector
    for name in ("kopf", "kopf.objects", "asyncio"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return settings


class _NoDiffs(kopf.DiffBaseStorage):
    """kopf compares each object with an earlier copy for handlers of changes. There are none."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


# -- lists of our own ---------------------------------------------------------------------------------------


async def served_kinds(api: Api) -> frozenset[ObjectKind]:
    """The watched kinds that the API server knows now. Without KubeRay there are no RayJobs."""
    known = {kind for kind in WATCHED if not kind.group}
    for root in {kind.root for kind in WATCHED if kind.group}:
        try:
            found = (await api.call("GET", root)).get("resources") or ()
        except ApiError as error:
            if error.code != 404:
                raise
            continue
        plurals = {resource["name"] for resource in found}
        known |= {kind for kind in WATCHED if kind.root == root and kind.plural in plurals}
    return frozenset(known)


async def resync(
    api: Api, cache: Cache, kind: ObjectKind, namespaces: Collection[str], *, metadata_only: bool
) -> set[Key]:
    """Take out of the cache the objects of a kind that are gone, and put in those that are there.

    Args:
        metadata_only: only take out: a watch that had to start over does not report deletions.

    Returns the resources that it concerns.
    """
    # Objects that arrive while the lists are read may be missing from them.
    before = cache.keys_with_uids(kind)
    found: set[str] = set()
    concerned: set[Key] = set()
    for namespace in namespaces or (None,):
        async for item in api.pages(kind, namespace, metadata_only):
            found.add(item["metadata"]["uid"])
            if not metadata_only:
                concerned |= cache.put(kind, item)
    for key, uid in before:
        if uid not in found:
            concerned |= cache.remove(kind, key.namespace, key.name, uid)
    return concerned
