"""A proxy in front of a store that fails requests at a test's request. It is a process of its own, since some clients
hold Python's global lock while they wait for an answer.

    python faulty_proxy.py UPSTREAM_PORT [ADDRESS]     prints its own port; listens on 127.0.0.1 by default

Whole requests and whole answers pass through it; HTTP/1.1 without TLS. `Host` stays as the client wrote it, since
signatures cover it. What Google's store says in other words than S3 is translated: the condition that an object is not
there; its bearer tokens are left out.

A test sends `PUT /faults` with a list of faults; `GET /faults` returns the requests since then.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import struct
import sys
import threading
import time
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

CONTROL = "/faults"
_OF_A_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "expect", "content-length"}


@dataclass
class Fault:
    """A fault of some requests.

    Attributes:
        matching: regular expression for `METHOD path`, without percent-encoding.
        every: applies to every n-th matching request.
        times: applies to this many of those; None for all.
        status: HTTP status of the answer; 0 to pass requests on.
        code: error code of the store in that answer.
        cut: bytes of the answer after which the connection is reset; -1 before the request is passed on.
        delay: seconds before requests are passed on.
    """

    matching: str = ""
    every: int = 1
    times: int | None = None
    status: int = 0
    code: str = "SlowDown"
    cut: int | None = None
    delay: float = 0.0


class Proxy(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, upstream: int, address: str) -> None:
        super().__init__((address, 0), _Handler)
        self.upstream = upstream
        self.asked: list[str] = []
        self._faults: list[Fault] = []
        self._matched: list[int] = []
        self._lock = threading.Lock()

    def begin(self, faults: list[dict[str, object]]) -> None:
        with self._lock:
            self._faults = [Fault(**fault) for fault in faults]
            self._matched = [0] * len(faults)
            self.asked = []

    def fault_for(self, request: str) -> Fault | None:
        with self._lock:
            self.asked.append(request)
            return next(
                (fault for i, fault in enumerate(self._faults) if self._meets(i, fault, request)), None
            )

    def _meets(self, i: int, fault: Fault, request: str) -> bool:
        if not re.search(fault.matching, request):
            return False
        self._matched[i] += 1
        turn, rest = divmod(self._matched[i], fault.every)
        return rest == 0 and (fault.times is None or turn <= fault.times)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no error of the proxy's."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _serve(self) -> None:
        body = self._body()
        if self.path == CONTROL:
            self._control(body)
            return
        fault = self.server.fault_for(f"{self.command} {unquote(self.path)}") or Fault()
        time.sleep(fault.delay)
        if fault.status:
            self._refuse(fault)
            return
        if fault.cut is not None and fault.cut < 0:
            self._reset()
            return
        try:
            status, headers, answer = self._upstream(body)
        except (OSError, http.client.HTTPException):
            self._reset()
            return
        self._answer(status, headers, answer, fault.cut)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _serve  # noqa: N815

    def _control(self, body: bytes) -> None:
        requests = json.dumps(self.server.asked).encode()
        if self.command == "PUT":
            self.server.begin(json.loads(body))
        self._answer(200, [], requests)

    def _refuse(self, fault: Fault) -> None:
        """Send an error that clients of S3, GCS and Azure all understand."""
        headers = [("x-ms-error-code", fault.code)]
        if (
            self.command == "HEAD"
        ):  # Azure's client parses what a header announces, and aborts where nothing comes
            self._answer(fault.status, headers, b"")
            return
        headers.append(("Content-Type", "application/xml"))
        text = (
            f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>said the test</Message></Error>"
        )
        self._answer(fault.status, headers, text.encode())

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            """Trailers."""
        return b"".join(chunks)

    def _upstream(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OF_A_CONNECTION and not value.startswith("Bearer"):
                    connection.putheader(name, value)
            if self.headers.get("x-goog-if-generation-match") == "0":
                connection.putheader("If-None-Match", "*")
            if body or self.command in ("PUT", "POST", "PATCH"):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, cut: int | None = None
    ) -> None:
        self.send_response_only(status)
        length = next((value for name, value in headers if name.lower() == "content-length"), None)
        for name, value in headers:
            if name.lower() not in _OF_A_CONNECTION:
                self.send_header(name, value)
        bodiless = self.command == "HEAD" or status in (204, 304)
        if status != 204:
            self.send_header("Content-Length", length if bodiless and length else str(len(body)))
        self.end_headers()
        if bodiless:
            return
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self._reset()

    def _reset(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


class Faults:
    """The test's side of a proxy."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def begin(self, *faults: Fault) -> list[str]:
        """Set the faults from now on, none by default; return the requests until now."""
        return self._ask("PUT", json.dumps([asdict(fault) for fault in faults]))

    def asked(self) -> list[str]:
        """Return `METHOD path` of all requests since `begin`."""
        return self._ask("GET", "")

    def _ask(self, method: str, body: str) -> list[str]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, CONTROL, body)
            requests: list[str] = json.loads(connection.getresponse().read())
            return requests


if __name__ == "__main__":
    proxy = Proxy(int(sys.argv[1]), *(sys.argv[2:] or ["127.0.0.1"]))
    print(proxy.server_address[1], flush=True)
    proxy.serve_forever()
