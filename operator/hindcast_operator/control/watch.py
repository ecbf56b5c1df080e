"""kopf's part: it keeps the watches open and hands each event to the cache. Nothing else of it is used.

No handler changes anything, so kopf writes neither annotations nor finalizers. kopf's indices are not used: while
they fill, each object wakes all others (2,000 objects: 11.8 s of CPU, 0.6 s without), and after `410 Gone` they keep
what is gone. The cache is filled and swept by lists of our own.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any, Final

import kopf
import structlog

from hindcast_operator.control.kinds import Kind

log = structlog.get_logger()

Heard = Callable[[Kind, str | None, dict[str, Any]], None]
"""Called with the kind, the type of the event (None: found by a list) and the object."""

_END_SECONDS: Final = 3.0
_BACKOFFS: Final = (0.1, 0.2, 0.5, 1, 1, 2, 2, 5, 5)


async def watch(
    served: Collection[Kind], namespaces: Collection[str], heard: Heard, on_watching: Callable[[], None]
) -> None:
    """Watch until cancelled, or until a watch fails for good (its kind was removed, it is forbidden).

    Without namespaces the whole cluster is watched. `on_watching` is called once kopf has started, which takes
    over the signals of the process.

    Raises:
        RuntimeError: the watches ended; start them again.
    """
    tasks = await kopf.spawn_tasks(
        registry=_registry(served, heard),
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
            log.warning("watches do not end", tasks=sorted(task.get_name() for task in hung))


def _registry(served: Collection[Kind], heard: Heard) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_kubeconfig(**arguments) or kopf.login_with_service_account(**arguments)

    for kind in served:
        _on_event(registry, kind, heard)
    return registry


def _on_event(registry: kopf.OperatorRegistry, kind: Kind, heard: Heard) -> None:
    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)
    async def hear(event: kopf.RawEvent, **_: Any) -> None:
        heard(kind, event["type"], event["object"])  # type: ignore[arg-type]


def _settings(served: Collection[Kind]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None  # it would kill us long after the watches were restarted
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = _BACKOFFS
    settings.networking.enforce_retry_after = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 5
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
