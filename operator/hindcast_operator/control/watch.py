"""The watches, which kopf keeps open. The operator's own lists (`reads.py`) fill and sweep the cache.

No handler changes an object, so kopf writes neither annotations nor finalizers. kopf's indices are not used: while
they fill, each object wakes all others (2,000 objects take 11.8 s of CPU, and 0.6 s without indices), and after
`410 Gone` they keep deleted objects.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import kopf
import structlog

from hindcast_operator.control.kinds import ObjectKind

log = structlog.get_logger()

OnEvent = Callable[[ObjectKind, str | None, dict[str, Any]], None]
"""Called with the kind, the type of the event (None for an object from a list) and the object."""

_STOP_SECONDS: Final = 3.0
_BACKOFFS_SECONDS: Final = (0.1, 0.2, 0.5, 1, 1, 2, 2, 5, 5)


class WatchForbiddenError(Exception):
    """The operator has no right to list or watch a namespace's objects of some kinds.

    Attributes:
        messages: plural of each kind -> the API server's message.
    """

    def __init__(self, messages: Mapping[str, str]) -> None:
        super().__init__("; ".join(messages.values()))
        self.messages = messages


async def watch(
    kinds: Collection[ObjectKind],
    namespace: str | None,
    on_event: OnEvent,
    on_watching: Callable[[], None],
) -> None:
    """Watch until cancelled, or until a watch fails permanently (its kind was removed, or it is forbidden).

    Args:
        kinds: the kinds to watch.
        namespace: the namespace to watch; None for the whole cluster.
        on_event: called for each event.
        on_watching: called when kopf has started. kopf has then replaced the process's signal handlers, so the caller
            can set its own handlers again.

    Raises:
        WatchForbiddenError: a watch is forbidden.
        RuntimeError: the watches ended; start them again.
    """
    tasks = await kopf.spawn_tasks(
        registry=_make_registry(kinds, on_event),
        settings=_make_settings(kinds),
        clusterwide=namespace is None,
        namespaces=[namespace] if namespace else [],
        standalone=True,
    )
    on_watching()
    try:
        finished_tasks, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        failures = [task.exception() for task in finished_tasks if not task.cancelled()]
        for failure in failures:
            # kopf does not export the class of this exception.
            if getattr(failure, "status", None) == 403:
                details, message = getattr(failure, "details", None) or {}, getattr(failure, "message", None)
                raise WatchForbiddenError(
                    {details.get("kind", "objects"): message or "forbidden"}
                ) from failure
        raise RuntimeError(f"the watches ended: {failures}") from next(filter(None, failures), None)
    finally:
        for task in tasks:
            task.cancel()
        _, hung_tasks = await asyncio.wait(tasks, timeout=_STOP_SECONDS)
        if hung_tasks:
            log.warning("watches did not stop in time", tasks=sorted(task.get_name() for task in hung_tasks))


def _make_registry(kinds: Collection[ObjectKind], on_event: OnEvent) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_kubeconfig(**arguments) or kopf.login_with_service_account(**arguments)

    for kind in kinds:
        _register(registry, kind, on_event)
    return registry


def _register(registry: kopf.OperatorRegistry, kind: ObjectKind, on_event: OnEvent) -> None:
    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)
    async def handle(event: kopf.RawEvent, **_: Any) -> None:
        on_event(kind, event["type"], event["object"])  # type: ignore[arg-type]


def _make_settings(kinds: Collection[ObjectKind]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    # After this timeout kopf ends the whole process, although the operator has restarted the watches by then.
    settings.process.ultimate_exiting_timeout = None
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = _BACKOFFS_SECONDS
    settings.networking.enforce_retry_after = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 5
    settings.watching.inactivity_timeout = 150  # bookmarks arrive every minute: a silent connection is dead
    settings.watching.chunk_size = 200
    settings.queueing.idle_timeout = 1.0
    for kind in kinds:
        if kind.selector:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = kind.selector
    for name in ("kopf", "kopf.objects", "asyncio"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return settings


class _NoDiffs(kopf.DiffBaseStorage):
    """Storage that stores nothing: kopf needs earlier copies of objects only for change handlers."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None
