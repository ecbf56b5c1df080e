"""`HttpServer`: a `PolicyServer` over HTTP, for an application in another process or language.

Each method is a POST of a JSON document to `/<method>`, with `Authorization: Bearer <token>`; the answer is a document,
`{"error": …, "type": …}` where the request was refused. `Idempotency-Key` names a request: sent again because its
answer was lost, it gets the answer that it had. `GET /health` needs no token.
"""

from __future__ import annotations

import hmac
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import orjson

from hindcast.episodes.nested import restore_tuples
from hindcast.episodes.spaces import space_struct
from hindcast.errors import DataError, StorageError, UserError
from hindcast.serve.messages import UnknownEpisode, to_json_values
from hindcast.serve.policy_server import PolicyServer
from hindcast.storage.failures import reason_of

_IDLE_S: Final = 300.0
_REMEMBERED: Final = 10_000
_LONGEST_LINE: Final = 1 << 16
_MOST_HEADERS: Final = 100
_FIELDS: Final[Mapping[str, tuple[set[str], set[str]]]] = {
    "start_episode": (set(), {"episode_id"}),
    "get_action": ({"episode_id", "observation"}, set()),
    "log_action": ({"episode_id", "observation", "action"}, {"action_logp"}),
    "log_returns": ({"episode_id", "reward"}, {"info"}),
    "end_episode": ({"episode_id", "observation"}, {"terminated", "truncated"}),
}
"""Method -> what its document must and may hold."""
_logger = logging.getLogger("hindcast")

Answer = tuple[int, bytes]


class HttpServer:
    """Serves until it is closed, each connection in its own thread.

    Args:
        policy: decides and logs; stays the caller's to close.
        token: what requests must carry.
        host: address to listen at; only this machine reaches the default.
        port: 0 takes a free one.
        max_body_bytes: longer requests are refused.

    Attributes:
        host, port: where it listens.

    Raises:
        StorageError: the address cannot be listened at.
    """

    def __init__(
        self,
        policy: PolicyServer,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        max_body_bytes: int = 16 << 20,
    ) -> None:
        answering = _Answering(policy, token, max_body_bytes)
        handler = type("Handler", (_Handler,), {"answering": answering})
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            raise StorageError(f"cannot listen at {host}:{port}: {reason_of(error)}") from error
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="hindcast-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Take no more requests; those under way may end."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is not an error."""


class _Handler(BaseHTTPRequestHandler):
    """One connection, which stays open from request to request."""

    answering: _Answering
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "hindcast", ""
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave together
    timeout = _IDLE_S

    raw_requestline: bytes
    headers: dict[str, str]  # type: ignore[assignment]  # by their names in lower case

    def parse_request(self) -> bool:
        """The request's first line and headers; the base class's parser, made for e-mail, took a fifth of the time."""
        self.requestline = str(self.raw_requestline, "iso-8859-1").rstrip()
        self.command, self.path, self.request_version = "", "", self.protocol_version
        words = self.requestline.split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._send(*_refusal(400, "this is not an HTTP/1 request"), close=True)
            return False
        self.command, self.path, self.request_version = words
        self.headers = {}
        while (line := self.rfile.readline(_LONGEST_LINE)) not in (b"\r\n", b"\n", b""):
            if not line.endswith(b"\n") or len(self.headers) == _MOST_HEADERS:
                self._send(*_refusal(431, "the request's headers are too large"), close=True)
                return False
            name, _, value = line.decode("iso-8859-1").partition(":")
            self.headers[name.strip().lower()] = value.strip()
        stays_open = self.request_version != "HTTP/1.0"
        self.close_connection = not stays_open or self.headers.get("connection", "").lower() == "close"
        return self.headers.get("expect", "").lower() != "100-continue" or self.handle_expect_100()

    def do_POST(self) -> None:
        """A method of the policy."""
        self._send(*self.answering.post(self.path.strip("/"), self.headers, self._body))

    def do_GET(self) -> None:
        """Whether the server is running."""
        is_health = self.path.strip("/") == "health"
        answer = _answer(200, {"status": "ok"}) if is_health else _refusal(404, "GET is for /health only")
        self._send(*answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: they carry the token."""

    def _body(self, most: int) -> bytes:
        length = self.headers.get("content-length", "")
        if not length.isdecimal():
            self.close_connection = True
            raise _Refused(411, "the request has no Content-Length")
        if int(length) > most:
            self.close_connection = True
            raise _Refused(413, f"the request has {length} bytes; at most {most} are allowed")
        return self.rfile.read(int(length))

    def _send(self, status: int, body: bytes, close: bool = False) -> None:
        self.close_connection |= close
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


class _Refused(Exception):
    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class _Answering:
    """The answer to a request."""

    def __init__(self, policy: PolicyServer, token: str, max_body_bytes: int) -> None:
        self._policy = policy
        self._token = token.encode()
        self._most = max_body_bytes
        self._structs = {
            "observation": space_struct(policy.policy.observation_space),
            "action": space_struct(policy.policy.action_space),
        }
        self._answered: OrderedDict[str, Answer] = OrderedDict()
        self._under_way: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def post(self, method: str, headers: Mapping[str, str], body: Callable[[int], bytes]) -> Answer:
        """Status and document."""
        try:
            data = body(self._most)  # read even if refused: the next request follows it
            given = headers.get("authorization", "").removeprefix("Bearer ").encode()
            if not hmac.compare_digest(given, self._token):
                return _refusal(401, "the token is missing or wrong: send Authorization: Bearer <token>")
            if method not in _FIELDS:
                return _refusal(404, f"there is no method {method!r}; the methods are {', '.join(_FIELDS)}")
            return self._once(headers.get("idempotency-key"), lambda: self._call(method, data))
        except _Refused as refused:
            return _refusal(refused.status, str(refused))

    def _once(self, key: str | None, call: Callable[[], Answer]) -> Answer:
        """The answer to a request, made once for each key."""
        if key is None:
            return call()
        with self._lock:
            running = self._under_way.get(key)
            if running is None:
                if key in self._answered:
                    return self._answered[key]
                self._under_way[key] = threading.Event()
        if running is not None:  # its connection broke, and it was sent again meanwhile
            running.wait()
            return self._answered.get(key) or _refusal(503, "the request failed: send it again")
        try:
            answer = call()
            with self._lock:
                self._answered[key] = answer
                while len(self._answered) > _REMEMBERED:
                    self._answered.popitem(last=False)
            return answer
        finally:
            with self._lock:
                self._under_way.pop(key).set()

    def _call(self, method: str, data: bytes) -> Answer:
        arguments = self._arguments(method, data)
        try:
            found = getattr(self._policy, method)(**arguments)
        except UnknownEpisode as error:
            return _refusal(404, str(error), "UnknownEpisode")
        except DataError as error:
            return _refusal(400, str(error))
        except UserError as error:  # storage that fails, a log that is closed
            return _refusal(503, str(error), type(error).__name__)
        except Exception:
            _logger.exception("%s failed", method)
            return _refusal(
                500, f"{method} failed because of a bug in Hindcast: see the server's log", "Defect"
            )
        named = {"start_episode": "episode_id", "get_action": "action"}.get(method)
        return _answer(200, {named: to_json_values(found)} if named else {})

    def _arguments(self, method: str, data: bytes) -> dict[str, Any]:
        try:
            document = orjson.loads(data or b"{}")
        except orjson.JSONDecodeError as error:
            raise _Refused(400, f"the request is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise _Refused(400, f"the request is {type(document).__name__}, expected an object")
        needed, optional = _FIELDS[method]
        if missing := needed - document.keys():
            raise _Refused(400, f"{method} lacks {', '.join(sorted(missing))}")
        if unknown := document.keys() - needed - optional:
            raise _Refused(
                400,
                f"{method} has no {', '.join(sorted(unknown))}: it takes {', '.join(sorted(needed | optional))}",
            )
        id_ = document.get("episode_id")
        if not isinstance(id_, str) and (id_ is not None or "episode_id" in needed):
            raise _Refused(400, f"episode_id is {id_!r}, expected text")
        try:
            return {name: restore_tuples(value, self._structs.get(name)) for name, value in document.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise _Refused(400, f"{method}: a value is not nested like its space: {error!r}") from error


def _answer(status: int, document: Mapping[str, Any]) -> Answer:
    return status, json.dumps(document).encode()


def _refusal(status: int, sentence: str, kind: str = "DataError") -> Answer:
    return _answer(status, {"error": sentence, "type": kind})
