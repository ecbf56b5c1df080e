"""The operator's service: elect a leader, watch, reconcile. It exits when it is no longer the leader."""

import asyncio
import math
import os
import random
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from hindcast_operator.control import health, metrics
from hindcast_operator.control.api import Api, ApiError, connect
from hindcast_operator.control.cache import Cache, Key
from hindcast_operator.control.kinds import RAY_JOB, RESOURCE_KINDS, WATCHED_KINDS, ObjectKind
from hindcast_operator.control.lease import LeaderLease, LeaseLost, LeaseOptions
from hindcast_operator.control.reads import resync, served_kinds
from hindcast_operator.control.reconciler import Reconciler, run_workers
from hindcast_operator.control.watch import WatchForbiddenError, watch
from hindcast_operator.control.work_queue import MAX_ACTIVE_PER_GROUP, WorkQueue
from hindcast_operator.defaults import Defaults
from hindcast_operator.times import SteadyClock

log = structlog.get_logger()

_NUM_WORKERS: Final = MAX_ACTIVE_PER_GROUP + 8
_DISCOVERY_INTERVAL_SECONDS: Final = 5.0
_SWEEP_INTERVAL_SECONDS: Final = 300.0
_SETTLE_SECONDS: Final = 3.0
"""A list that kopf reads counts as complete if kopf has delivered no object of it for this long."""
_MAX_RESTART_PAUSE_SECONDS: Final = 10.0
_SHUTDOWN_SECONDS: Final = 5.0


@dataclass(frozen=True)
class OperatorOptions:
    """Options of the service.

    Attributes:
        defaults: the platform's defaults for resources.
        namespaces: the namespaces that the operator serves; empty for the whole cluster.
        lease: the Lease of the leader election; None for no election.
        host: address on which `/healthz`, `/readyz` and `/metrics` are served.
        port: port of this address; 0 lets the system choose one.
        kubeconfig: path of a kubeconfig; None for the cluster in which this pod runs.
    """

    defaults: Defaults
    namespaces: tuple[str, ...] = ()
    lease: LeaseOptions | None = None
    host: str = "0.0.0.0"
    port: int = 8080
    kubeconfig: str | None = None


async def run(options: OperatorOptions) -> None:
    """Run the operator until SIGTERM or SIGINT. If the lease is lost, the process exits with code 1."""
    stop = asyncio.Event()
    async with connect(options.kubeconfig) as api:
        lease = LeaderLease(api, options.lease) if options.lease else None
        operator = Operator(api, options, on_watching=lambda: _handle_signals(stop))
        unserved_namespaces = operator.unserved_namespaces
        endpoints = health.Health(
            api, operator.cache, operator.queue, unserved_namespaces, len(unserved_namespaces), lease
        )
        async with health.serve(endpoints, options.host, options.port) as port:
            log.info("listening", port=port())
            _handle_signals(stop)
            await _run_until(stop, _run_as_leader(operator, lease))
        if lease is not None:
            await lease.release()


async def _run_as_leader(operator: "Operator", lease: LeaderLease | None) -> None:
    if lease is None:
        await operator.run()
        return
    await lease.acquire()
    async with asyncio.TaskGroup() as group:
        group.create_task(_renew_lease(lease))
        group.create_task(operator.run())


async def _renew_lease(lease: LeaderLease) -> None:
    try:
        await lease.renew_forever()
    except LeaseLost as lost:
        # Exit without any clean-up: another replica may be writing by now, so this one must not finish a write.
        log.error("lease lost", why=str(lost))
        os._exit(1)


async def _run_until(stop: asyncio.Event, work: Any) -> None:
    """Run the coroutine `work` until it ends or `stop` is set. Raises the coroutine's exception."""
    task, stop_task = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((task, stop_task), return_when=asyncio.FIRST_COMPLETED)
    stop_task.cancel()
    if task.done():
        task.result()
    log.info("stopping")
    task.cancel()
    await asyncio.wait((task,), timeout=_SHUTDOWN_SECONDS)


def _handle_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)


class Operator:
    """Keeps the cache up to date and the workers running. Each namespace is served by itself."""

    def __init__(
        self, api: Api, options: OperatorOptions, on_watching: Callable[[], None] = lambda: None
    ) -> None:
        self._api = api
        self._namespaces: tuple[str | None, ...] = options.namespaces or (None,)
        self._on_watching = on_watching
        self._served_kinds: frozenset[ObjectKind] = frozenset()
        self._last_list_time = 0.0
        self.unserved_namespaces = set(self._namespaces)
        """The namespaces (None: the whole cluster) without a complete cache."""
        self.cache = Cache()
        self.queue: WorkQueue[Key] = WorkQueue()
        # Deadlines count from timestamps of the API server, so a wrong clock of this machine must not matter.
        clock = SteadyClock(wall=api.server_time)
        self._reconciler = Reconciler(api, self.cache, self.queue, options.defaults, clock)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._serve_forever())
            group.create_task(self._sweep_forever())
            # A resource is queued only once its namespace is in the cache.
            group.create_task(run_workers(self._reconciler, _NUM_WORKERS))

    async def _serve_forever(self) -> None:
        """Serve all namespaces, each in a task. Start again when the API server adds or removes a kind."""
        while True:
            if (served_kinds := await self._discover()) is None:
                await asyncio.sleep(1.0)
                continue
            self._set_served_kinds(served_kinds)
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._serve_namespace(namespace)) for namespace in self._namespaces
                ]
                while await self._discover() in (None, self._served_kinds):
                    await asyncio.sleep(_DISCOVERY_INTERVAL_SECONDS)
                for task in tasks:
                    task.cancel()

    async def _discover(self) -> frozenset[ObjectKind] | None:
        """Return the kinds that the API server serves; None if it does not say."""
        try:
            return await served_kinds(self._api)
        except ApiError as error:
            log.warning(
                "cannot list the kinds that the API server serves; will retry", error=str(error)[:500]
            )
            return None

    def _set_served_kinds(self, served_kinds: frozenset[ObjectKind]) -> None:
        self._served_kinds = served_kinds
        affected_keys: set[Key] = set()
        namespaces_with_kuberay = self._reconciler.observer.namespaces_with_kuberay
        if RAY_JOB not in served_kinds and namespaces_with_kuberay:
            # Before any object is removed: without the kind, a RayJob that is missing was not deleted.
            namespaces_with_kuberay.clear()
            affected_keys |= set(self.cache.resources)
        for kind in set(WATCHED_KINDS) - served_kinds:
            affected_keys |= self.cache.remove_all(kind)
        self._queue_all(affected_keys)

    async def _serve_namespace(self, namespace: str | None) -> None:
        """Fill the cache and watch, until cancelled. Start again when the watches end."""
        pause = 1.0
        while True:
            watch_start_time = math.inf
            try:
                await self._fill_cache(namespace)
                watch_start_time = asyncio.get_running_loop().time()
                await self._watch(namespace)
            except WatchForbiddenError as error:
                log.warning("may not watch; will retry", namespace=namespace, messages=error.messages)
                # Just after its start the API server may refuse what it allows later.
                if pause == _MAX_RESTART_PAUSE_SECONDS:
                    self._set_forbidden(namespace, error.messages)
            except (ApiError, RuntimeError) as error:
                log.warning("cannot watch; will retry", namespace=namespace, error=str(error)[:500])
            except Exception:  # what goes wrong in one namespace must not end the others' watches
                log.exception("cannot watch, by a defect; will retry", namespace=namespace)
            # A long list does not count: the watch after it may be forbidden each time.
            if asyncio.get_running_loop().time() - watch_start_time > _MAX_RESTART_PAUSE_SECONDS:
                pause = 1.0
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _MAX_RESTART_PAUSE_SECONDS)

    async def _watch(self, namespace: str | None) -> None:
        metrics.WATCH_STARTS.inc()
        # A watch that is forbidden ends at once.
        loop = asyncio.get_running_loop()
        recovery = loop.call_later(_MAX_RESTART_PAUSE_SECONDS, self._set_forbidden, namespace, {})
        try:
            await watch(self._served_kinds, namespace, self._on_event, self._on_watching)
        finally:
            recovery.cancel()

    def _set_forbidden(self, namespace: str | None, messages: Mapping[str, str]) -> None:
        """Record the kinds that may not be watched in a namespace, and report them on its resources."""
        if messages == self._reconciler.observer.forbidden_kinds.get(namespace, {}):
            return
        for kind in self._reconciler.observer.forbidden_kinds.pop(namespace, {}):
            metrics.WATCHES_FORBIDDEN.remove(namespace or "*", kind)
        for kind in messages:
            metrics.WATCHES_FORBIDDEN.labels(namespace or "*", kind).set(1)
        if messages:
            self._reconciler.observer.forbidden_kinds[namespace] = messages
        self._queue_resources(namespace)

    async def _fill_cache(self, namespace: str | None) -> None:
        messages: dict[str, str] = {}
        for kind in WATCHED_KINDS:
            if kind not in self._served_kinds:
                continue
            try:
                keys = await resync(self._api, self.cache, kind, namespace)
            except ApiError as error:
                if error.code != 403:
                    raise
                messages[kind.plural] = error.message
                continue
            # Until all kinds are in the cache, resources seem to have no attempts.
            if (
                namespace not in self.unserved_namespaces
                or namespace in self._reconciler.observer.forbidden_kinds
            ):
                self._queue_all(keys)
        if messages:
            raise WatchForbiddenError(messages)
        # Not before the RayJobs are in the cache: the attempts of live runs would seem to be deleted.
        namespaces_with_kuberay = self._reconciler.observer.namespaces_with_kuberay
        is_kuberay_new = RAY_JOB in self._served_kinds and namespace not in namespaces_with_kuberay
        if is_kuberay_new:
            namespaces_with_kuberay.add(namespace)
        if is_kuberay_new or namespace in self.unserved_namespaces:
            self.unserved_namespaces.discard(namespace)
            self._queue_resources(namespace)
        log.info("cache filled", namespace=namespace, resources=len(self.cache.resources))

    def _on_event(self, kind: ObjectKind, event_type: str | None, raw: dict[str, Any]) -> None:
        metadata = raw["metadata"]
        if event_type == "DELETED":
            affected_keys = self.cache.remove(kind, metadata["namespace"], metadata["name"], metadata["uid"])
        else:
            affected_keys = self.cache.put(kind, raw)
        if event_type is None:
            self._last_list_time = asyncio.get_running_loop().time()
        self._queue_all(affected_keys)

    def _queue_resources(self, namespace: str | None) -> None:
        self._queue_all(e.key for kind in RESOURCE_KINDS for e in self.cache.entries(kind, namespace))

    def _queue_all(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.queue.add(key)

    async def _sweep_forever(self) -> None:
        """Look for deleted objects, periodically and after a watch was interrupted and began again with a list."""
        loop = asyncio.get_running_loop()
        last_sweep_time = loop.time()
        while True:
            await asyncio.sleep(1.0)
            list_time = self._last_list_time
            has_settled = list_time > last_sweep_time and loop.time() - list_time > _SETTLE_SECONDS
            if not has_settled and loop.time() - last_sweep_time < _SWEEP_INTERVAL_SECONDS:
                continue
            last_sweep_time = loop.time()
            for namespace in set(self._namespaces) - self.unserved_namespaces:
                try:
                    for kind in self._served_kinds:
                        self._queue_all(
                            await resync(self._api, self.cache, kind, namespace, metadata_only=True)
                        )
                except ApiError as error:
                    log.warning(
                        "cannot look for deleted objects; will retry",
                        namespace=namespace,
                        error=str(error)[:500],
                    )
                except Exception:  # as in `_serve_namespace`
                    log.exception("cannot look for deleted objects, by a defect", namespace=namespace)
