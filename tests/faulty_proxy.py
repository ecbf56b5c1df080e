"""An HTTP proxy in front of an object store; tests tell it which requests to fail.

It runs in a separate process, since some clients hold Python's global lock while they wait for an answer:

    python faulty_proxy.py UPSTREAM_PORT [ADDRESS]     prints its port; ADDRESS is 127.0.0.1 by default

It speaks HTTP/1.1 without TLS, and reads a request or answer completely before it passes it on. `Host` is not changed,
since signatures cover it. Requests of Google's clients are translated to S3's: the condition that an object does
not exist gets another header, and bearer tokens are dropped.

A test sends `PUT /faults` with a list of faults; `GET /faults` returns the requests since the last such `PUT`.
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
_CONNECTION_HEADERS = {"connection", "keep-alive", "transfer-encoding", "expect", "content-length"}


@dataclass
class Fault:
    """A fault of some requests.

    Attributes:
        matching: regular expression for `METHOD path`, without percent-encoding.
        every: n, if only every n-th matching request fails.
        times: maximum number of requests that fail; None for no limit.
        status: HTTP status of the answer; 0 to pass requests on.
        code: error code of the store in the answer with this status.
        cut: number of bytes of the answer after which the connection is reset; -1 resets it before the request is
            passed on; None does not reset it.
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
        self.requests: list[str] = []
        self._faults: list[Fault] = []
        self._num_matches: list[int] = []
        self._lock = threading.Lock()

    def set_faults(self, faults: list[dict[str, object]]) -> None:
        """Set the faults from now on, and forget earlier requests."""
        with self._lock:
            self._faults = [Fault(**fault) for fault in faults]
            self._num_matches = [0] * len(faults)
            self.requests = []

    def record_request(self, request: str) -> Fault | None:
        """Add a request to `requests`; return the first fault with which it must fail, or None."""
        with self._lock:
            self.requests.append(request)
            failing = (fault for i, fault in enumerate(self._faults) if self._count_match(i, fault, request))
            return next(failing, None)

    def _count_match(self, i: int, fault: Fault, request: str) -> bool:
        """Count the request if it matches fault number `i`; return True if it must fail."""
        if not re.search(fault.matching, request):
            return False
        self._num_matches[i] += 1
        fault_number, remainder = divmod(self._num_matches[i], fault.every)
        return remainder == 0 and (fault.times is None or fault_number <= fault.times)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _serve(self) -> None:
        body = self._read_body()
        if self.path == CONTROL:
            self._control(body)
            return
        fault = self.server.record_request(f"{self.command} {unquote(self.path)}") or Fault()
        time.sleep(fault.delay)
        if fault.status:
            self._refuse(fault)
            return
        if fault.cut is not None and fault.cut < 0:
            self._reset()
            return
        try:
            status, headers, answer = self._forward(body)
        except (OSError, http.client.HTTPException):
            self._reset()
            return
        self._answer(status, headers, answer, fault.cut)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _serve  # noqa: N815

    def _control(self, body: bytes) -> None:
        requests = json.dumps(self.server.requests).encode()
        if self.command == "PUT":
            self.server.set_faults(json.loads(body))
        self._answer(200, [], requests)

    def _refuse(self, fault: Fault) -> None:
        """Send an error that clients of S3, GCS and Azure all understand."""
        headers = [("x-ms-error-code", fault.code)]
        # Azure's client parses the body that a header announces, and aborts if there is none.
        if self.command == "HEAD":
            self._answer(fault.status, headers, b"")
            return
        headers.append(("Content-Type", "application/xml"))
        text = (
            f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>said the test</Message></Error>"
        )
        self._answer(fault.status, headers, text.encode())

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # skip trailers
        return b"".join(chunks)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _CONNECTION_HEADERS and not value.startswith("Bearer"):
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
            if name.lower() not in _CONNECTION_HEADERS:
                self.send_header(name, value)
        has_no_body = self.command == "HEAD" or status in (204, 304)
        if status != 204:
            self.send_header("Content-Length", length if has_no_body and length else str(len(body)))
        self.end_headers()
        if has_no_body:
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
        """Log nothing."""


class Faults:
    """Controls a proxy from a test."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def set(self, *faults: Fault) -> list[str]:
        """Set the faults from now on, none by default; return the requests since the last call."""
        return self._send("PUT", json.dumps([asdict(fault) for fault in faults]))

    def requests(self) -> list[str]:
        """Return `METHOD path` of all requests since `set`."""
        return self._send("GET", "")

    def _send(self, method: str, body: str) -> list[str]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, CONTROL, body)
            requests: list[str] = json.loads(connection.getresponse().read())
            return requests


if __name__ == "__main__":
    proxy = Proxy(int(sys.argv[1]), *(sys.argv[2:] or ["127.0.0.1"]))
    print(proxy.server_address[1], flush=True)
    proxy.serve_forever()
