"""A proxy between the operator and the API server that breaks what an API server may break, seeded.

It speaks HTTP to the operator and HTTPS to the API server, and hands tokens through. Leases are left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator

import aiohttp
from aiohttp import web

ERRORS = {
    409: ("Conflict", "the object has been modified"),
    410: ("Expired", "too old resource version"),
    429: ("TooManyRequests", "too many requests"),
    500: ("InternalError", "etcdserver: leader changed"),
}


class ChaosProxy:
    """Breaks a share of all calls. `broken` counts what was done, by word."""

    def __init__(self, server: str, ca_file: str, share: float, seed: int) -> None:
        self._server = server
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._share = share
        self._random = random.Random(seed)
        self.broken: Counter[str] = Counter()
        self.url = ""
        self._blind_until = 0.0

    def blind(self, seconds: float) -> None:
        """Cut all watches, and those that begin within this time; then say that they are too old."""
        self._blind_until = time.monotonic() + seconds

    @contextlib.contextmanager
    def serving(self) -> Iterator[ChaosProxy]:
        """Serve in the background."""
        started = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), daemon=True)
        thread.start()
        assert started.wait(10)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(20)

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            started.set()
            await self._stop.wait()
            await runner.cleanup()
        await asyncio.sleep(0.25)  # TLS connections take a moment to close

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        harmless = "/leases" in request.path
        if request.query.get("watch") == "true":
            return await self._watch(request)
        if not harmless and self._random.random() < self._share:
            if request.method in {"GET", "HEAD"} or self._random.random() < 0.5:
                return self._error(request)
            self.broken["answer lost"] += 1
            await self._forward(request)
            assert request.transport is not None
            request.transport.close()
            return web.Response(status=500)
        status, headers, body = await self._forward(request)
        return web.Response(status=status, headers=headers, body=body)

    def _error(self, request: web.Request) -> web.Response:
        own = [409] if request.method != "GET" else [410] if "limit" in request.query else []
        code = self._random.choice([*own, 429, 500])
        self.broken[str(code)] += 1
        reason, message = ERRORS[code]
        body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
        return web.json_response(body, status=code)

    async def _forward(self, request: web.Request) -> tuple[int, dict[str, str], bytes]:
        async with self._session.request(
            request.method,
            self._server + request.path_qs,
            headers=_headers(request),
            data=await request.read() or None,
        ) as answer:
            kept = {
                name: answer.headers[name]
                for name in ("Content-Type", "Content-Encoding")
                if name in answer.headers
            }
            return answer.status, kept, await answer.read()

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        """A watch that is cut after a moment, in mid-line now and then, or told that it is too old."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        end = time.monotonic() + self._random.uniform(0.5, 4.0)
        with contextlib.suppress(ConnectionError, RuntimeError):  # either side has gone
            await self._hand_through(request, response, end)
        self.broken["watch cut"] += 1
        blind = self._is_blind()
        if blind:
            await asyncio.sleep(self._blind_until - time.monotonic())
        if blind or self._random.random() < 0.3:
            self.broken["watch too old"] += 1
            status = {
                "kind": "Status",
                "code": 410,
                "reason": "Expired",
                "message": "too old resource version",
            }
            with contextlib.suppress(ConnectionError):
                await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        return response

    async def _hand_through(self, request: web.Request, to: web.StreamResponse, end: float) -> None:
        url = self._server + request.path_qs
        async with self._session.get(url, headers=_headers(request)) as answer:
            while not self._is_blind() and time.monotonic() < end:
                try:
                    part = await asyncio.wait_for(answer.content.readany(), 0.1)
                except TimeoutError:
                    continue
                if not part or self._is_blind():
                    return
                await to.write(part)

    def _is_blind(self) -> bool:
        return time.monotonic() < self._blind_until


def _headers(request: web.Request) -> dict[str, str]:
    return {
        name: request.headers[name]
        for name in ("Authorization", "Content-Type", "Accept", "User-Agent")
        if name in request.headers
    }
