"""The endpoints `/healthz`, `/readyz` and `/metrics`."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from hindcast_operator.control import metrics
from hindcast_operator.control.api import Api
from hindcast_operator.control.cache import Cache, Key
from hindcast_operator.control.lease import LeaderLease
from hindcast_operator.control.work_queue import WorkQueue


@dataclass(frozen=True)
class Health:
    """The endpoints, and the parts of the operator that they report on."""

    api: Api
    cache: Cache
    queue: WorkQueue[Key]
    unserved_namespaces: Set[str | None]
    num_namespaces: int
    lease: LeaderLease | None

    async def healthz(self, _: web.Request) -> web.Response:
        """Answer 200 as long as the event loop runs.

        Another answer would restart the pod, which helps neither against load nor against a silent API server.
        """
        silent_seconds = asyncio.get_running_loop().time() - self.api.last_answer_time
        body = {
            "leader": self._is_leader(),
            "queueAgeSeconds": round(self.queue.age(), 1),
            "apiSilentSeconds": round(silent_seconds, 1),
            "unservedNamespaces": sorted(namespace or "*" for namespace in self.unserved_namespaces),
        }
        return web.json_response(body)

    async def readyz(self, _: web.Request) -> web.Response:
        """Answer 200 once a namespace is served, or on a standby; else 503."""
        is_ready = not self._is_leader() or len(self.unserved_namespaces) < self.num_namespaces
        return web.Response(status=200 if is_ready else 503)

    async def metrics(self, _: web.Request) -> web.Response:
        """Answer with all metrics in Prometheus' text format."""
        metrics.QUEUE_DEPTH.set(len(self.queue))
        metrics.QUEUE_AGE.set(self.queue.age())
        metrics.LEADER.set(self._is_leader())
        metrics.OBJECTS.clear()
        states = Counter(
            (key.kind, resource.status.get("state") or "New")
            for key, resource in self.cache.resources.items()
        )
        for (kind, state), count in states.items():
            metrics.OBJECTS.labels(kind, state).set(count)
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _is_leader(self) -> bool:
        return self.lease is None or self.lease.is_leader


@asynccontextmanager
async def serve(health: Health, host: str, port: int) -> AsyncIterator[Callable[[], int]]:
    """Serve the endpoints for the duration of the block.

    Yields:
        A function that returns the port. If `port` is 0, the system chooses a free one.
    """
    app = web.Application()
    endpoints = {"/healthz": health.healthz, "/readyz": health.readyz, "/metrics": health.metrics}
    app.add_routes([web.get(path, handler) for path, handler in endpoints.items()])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield lambda: int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
