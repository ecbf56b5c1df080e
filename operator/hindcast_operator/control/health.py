"""The endpoints `/healthz` and `/metrics`."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from hindcast_operator.control import metrics
from hindcast_operator.control.api import Api
from hindcast_operator.control.cache import Cache, Key
from hindcast_operator.control.lease import LeaderLease
from hindcast_operator.control.work_queue import WorkQueue

_STUCK_SECONDS: Final = 300.0
"""If a key has waited for this long, or the API server has been silent for twice as long, a restart may help."""


@dataclass(frozen=True)
class Health:
    """The endpoints, and the parts of the operator that they report on."""

    api: Api
    cache: Cache
    queue: WorkQueue[Key]
    lease: LeaderLease | None

    async def healthz(self, _: web.Request) -> web.Response:
        """Answer 200 if the operator is healthy, also on a standby; 503 if the queue or the API server is stuck."""
        silent_seconds = asyncio.get_running_loop().time() - self.api.last_answer_time
        queue_age = self.queue.age()
        is_healthy = queue_age < _STUCK_SECONDS and silent_seconds < 2 * _STUCK_SECONDS
        body = {
            "leader": self._is_leader(),
            "queueAgeSeconds": round(queue_age, 1),
            "apiSilentSeconds": round(silent_seconds, 1),
        }
        return web.json_response(body, status=200 if is_healthy else 503)

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
    app.add_routes([web.get("/healthz", health.healthz), web.get("/metrics", health.metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield lambda: int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
