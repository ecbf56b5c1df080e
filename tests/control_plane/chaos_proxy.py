"""A seeded proxy between the operator and the API server that injects the faults of a real API server.

It speaks HTTP to the operator and HTTPS to the API server, and forwards tokens. Leases are not affected.
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
    """Injects faults into a fraction of all calls, and cuts every watch. `fault_counts` counts the faults by kind."""

    def __init__(self, server: str, ca_file: str, fraction: float, seed: int) -> None:
        self._server = server
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._fraction = fraction
        self._random = random.Random(seed)
        self.fault_counts: Counter[str] = Counter()
        self.url = ""
        self._watches_broken_until = 0.0

    def break_watches(self, seconds: float) -> None:
        """Cut all watches that are open or begin within this time, then answer that they are too old."""
        self._watches_broken_until = time.monotonic() + seconds

    @contextlib.contextmanager
    def serve_in_background(self) -> Iterator[ChaosProxy]:
        """Serve in a thread for the duration of the block."""
        is_started = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._serve(is_started)), daemon=True)
        thread.start()
        assert is_started.wait(10)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(20)

    async def _serve(self, is_started: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            is_started.set()
            await self._stop.wait()
            await runner.cleanup()
        await asyncio.sleep(0.25)  # TLS connections take a moment to close

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        is_lease = "/leases" in request.path
        if request.query.get("watch") == "true":
            return await self._watch(request)
        if not is_lease and self._random.random() < self._fraction:
            # Half of the faulty writes are refused. The others are executed, and only their answer is lost.
            if request.method in {"GET", "HEAD"} or self._random.random() < 0.5:
                return self._fail(request)
            self.fault_counts["answer lost"] += 1
            await self._forward(request)
            assert request.transport is not None
            request.transport.close()
            return web.Response(status=500)
        status, headers, body = await self._forward(request)
        return web.Response(status=status, headers=headers, body=body)

    def _fail(self, request: web.Request) -> web.Response:
        # Writes may meet a conflict, and a list in pages may expire.
        specific_codes = [409] if request.method != "GET" else [410] if "limit" in request.query else []
        code = self._random.choice([*specific_codes, 429, 500])
        self.fault_counts[str(code)] += 1
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
            headers = {
                name: answer.headers[name]
                for name in ("Content-Type", "Content-Encoding")
                if name in answer.headers
            }
            return answer.status, headers, await answer.read()

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        """Serve a watch that is cut after a moment, sometimes within a line, or answered as too old."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        end = time.monotonic() + self._random.uniform(0.5, 4.0)
        with contextlib.suppress(ConnectionError, RuntimeError):  # either side has gone
            await self._forward_watch(request, response, end)
        self.fault_counts["watch cut"] += 1
        are_watches_broken = self._are_watches_broken()
        if are_watches_broken:
            await asyncio.sleep(self._watches_broken_until - time.monotonic())
        if are_watches_broken or self._random.random() < 0.3:
            self.fault_counts["watch too old"] += 1
            status = {
                "kind": "Status",
                "code": 410,
                "reason": "Expired",
                "message": "too old resource version",
            }
            with contextlib.suppress(ConnectionError):
                await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        return response

    async def _forward_watch(self, request: web.Request, response: web.StreamResponse, end: float) -> None:
        url = self._server + request.path_qs
        async with self._session.get(url, headers=_headers(request)) as answer:
            while not self._are_watches_broken() and time.monotonic() < end:
                try:
                    chunk = await asyncio.wait_for(answer.content.readany(), 0.1)
                except TimeoutError:
                    continue
                if not chunk or self._are_watches_broken():
                    return
                await response.write(chunk)

    def _are_watches_broken(self) -> bool:
        return time.monotonic() < self._watches_broken_until


def _headers(request: web.Request) -> dict[str, str]:
    return {
        name: request.headers[name]
        for name in ("Authorization", "Content-Type", "Accept", "User-Agent")
        if name in request.headers
    }
