"""`HttpServer`: a `PolicyServer` over HTTP, for an application in another process or language.

Each method is a POST of a JSON document to `/<method>`, with `Authorization: Bearer <token>`. The answer is a JSON
document; for a refused request it is `{"error": …, "type": …}`. The header `Idempotency-Key` identifies a request: if
the request is sent again because its answer was lost, it gets the same answer. `GET /health` requires no token.
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

_IDLE_TIMEOUT_SECONDS: Final = 300.0
_MAX_STORED_ANSWERS: Final = 10_000
# As in Python's own http.client; a client cannot fill the memory with headers.
_MAX_LINE_BYTES: Final = 1 << 16
_MAX_HEADERS: Final = 100
_FIELDS_BY_METHOD: Final[Mapping[str, tuple[set[str], set[str]]]] = {
    "start_episode": (set(), {"episode_id"}),
    "get_action": ({"episode_id", "observation"}, set()),
    "log_action": ({"episode_id", "observation", "action"}, {"action_logp"}),
    "log_returns": ({"episode_id", "reward"}, {"info"}),
    "end_episode": ({"episode_id", "observation"}, {"terminated", "truncated"}),
}
"""Method -> required and optional fields of its document."""
_logger = logging.getLogger("hindcast")

Answer = tuple[int, bytes]
"""HTTP status and JSON document."""


class HttpServer:
    """Serves a policy until it is closed, each connection in its own thread.

    Args:
        policy: server that decides and logs; the caller closes it.
        token: the token that requests must carry.
        host: address to listen at; the default is reachable from this machine only.
        port: port to listen at; 0 chooses a free one.
        max_body_bytes: maximum length of a request; longer ones are refused.

    Attributes:
        host, port: the address at which the server listens.

    Raises:
        StorageError: the server cannot listen at the address.
    """

    def __init__(
        self,
        policy: PolicyServer,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        max_body_bytes: int = 16 << 20,
    ) -> None:
        dispatcher = _Dispatcher(policy, token, max_body_bytes)
        handler = type("Handler", (_Handler,), {"dispatcher": dispatcher})
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
        """Stop accepting requests; running requests may finish."""
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
        """Ignore the error: a client may disconnect at any time."""


class _Handler(BaseHTTPRequestHandler):
    """A connection that stays open for several requests."""

    dispatcher: _Dispatcher
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "hindcast", ""
    disable_nagle_algorithm = True
    wbufsize = -1  # buffered: headers and body are sent together
    timeout = _IDLE_TIMEOUT_SECONDS

    raw_requestline: bytes
    headers: dict[str, str]  # type: ignore[assignment]  # name in lower case -> value

    def parse_request(self) -> bool:
        """Parse the request line and the headers; return False if the request is refused."""
        # The base class's parser, which is made for e-mail, took a fifth of the time of a request.
        self.requestline = str(self.raw_requestline, "iso-8859-1").rstrip()
        self.command, self.path, self.request_version = "", "", self.protocol_version
        words = self.requestline.split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._send(*_make_refusal(400, "this is not an HTTP/1 request"), close=True)
            return False
        self.command, self.path, self.request_version = words
        self.headers = {}
        while (line := self.rfile.readline(_MAX_LINE_BYTES)) not in (b"\r\n", b"\n", b""):
            if not line.endswith(b"\n") or len(self.headers) == _MAX_HEADERS:
                self._send(*_make_refusal(431, "the request's headers are too large"), close=True)
                return False
            name, _, value = line.decode("iso-8859-1").partition(":")
            self.headers[name.strip().lower()] = value.strip()
        is_persistent = self.request_version != "HTTP/1.0"
        self.close_connection = not is_persistent or self.headers.get("connection", "").lower() == "close"
        return self.headers.get("expect", "").lower() != "100-continue" or self.handle_expect_100()

    def do_POST(self) -> None:
        """Call a method of the policy."""
        self._send(*self.dispatcher.post(self.path.strip("/"), self.headers, self._read_body))

    def do_GET(self) -> None:
        """Answer the health check."""
        is_health = self.path.strip("/") == "health"
        answer = (
            _make_answer(200, {"status": "ok"})
            if is_health
            else _make_refusal(404, "GET is for /health only")
        )
        self._send(*answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests carry the token."""

    def _read_body(self, max_bytes: int) -> bytes:
        length = self.headers.get("content-length", "")
        if not length.isdecimal():
            self.close_connection = True
            raise _RequestError(411, "the request has no Content-Length")
        if int(length) > max_bytes:
            self.close_connection = True
            raise _RequestError(413, f"the request has {length} bytes; at most {max_bytes} are allowed")
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


class _RequestError(Exception):
    """A request that is refused, with the HTTP status of the answer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class _Dispatcher:
    """Dispatches requests to the policy and answers repeated requests from a cache."""

    def __init__(self, policy: PolicyServer, token: str, max_body_bytes: int) -> None:
        self._policy = policy
        self._token = token.encode()
        self._max_body_bytes = max_body_bytes
        self._space_structs = {
            "observation": space_struct(policy.policy.observation_space),
            "action": space_struct(policy.policy.action_space),
        }
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._completion_events: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def post(self, method: str, headers: Mapping[str, str], read_body: Callable[[int], bytes]) -> Answer:
        """Answer a POST.

        Args:
            method: the method's name.
            headers: name in lower case -> value.
            read_body: reads the body, given its maximum length in bytes.

        Returns:
            HTTP status and JSON document.
        """
        try:
            # The body is read even if the request will be refused, because the next request follows it.
            data = read_body(self._max_body_bytes)
            request_token = headers.get("authorization", "").removeprefix("Bearer ").encode()
            # In constant time: otherwise the time would reveal how much of a guessed token is right.
            if not hmac.compare_digest(request_token, self._token):
                return _make_refusal(401, "the token is missing or wrong: send Authorization: Bearer <token>")
            if method not in _FIELDS_BY_METHOD:
                return _make_refusal(
                    404, f"unknown method {method!r}: the methods are {', '.join(_FIELDS_BY_METHOD)}"
                )
            return self._call_once(headers.get("idempotency-key"), lambda: self._call(method, data))
        except _RequestError as error:
            return _make_refusal(error.status, str(error))

    def _call_once(self, key: str | None, call: Callable[[], Answer]) -> Answer:
        """Return the answer to a request. Requests with the same key are executed once; None stands for no key."""
        if key is None:
            return call()
        with self._lock:
            completion_event = self._completion_events.get(key)
            if completion_event is None:
                if key in self._answers:
                    return self._answers[key]
                self._completion_events[key] = threading.Event()
        # The client has sent the request again after its connection broke, and the first request is still running.
        if completion_event is not None:
            completion_event.wait()
            return self._answers.get(key) or _make_refusal(503, "the request failed: send it again")
        try:
            answer = call()
            with self._lock:
                self._answers[key] = answer
                while len(self._answers) > _MAX_STORED_ANSWERS:
                    self._answers.popitem(last=False)
            return answer
        finally:
            with self._lock:
                self._completion_events.pop(key).set()

    def _call(self, method: str, data: bytes) -> Answer:
        """Execute a request and return the answer, which describes an error of the method."""
        arguments = self._parse_arguments(method, data)
        try:
            result = getattr(self._policy, method)(**arguments)
        except UnknownEpisode as error:
            return _make_refusal(404, str(error), "UnknownEpisode")
        except DataError as error:
            return _make_refusal(400, str(error))
        except UserError as error:  # storage failed, or the log is closed
            return _make_refusal(503, str(error), type(error).__name__)
        except Exception:
            _logger.exception("%s failed", method)
            return _make_refusal(
                500, f"{method} failed because of a bug in Hindcast: see the server's log", "Defect"
            )
        result_name = {"start_episode": "episode_id", "get_action": "action"}.get(method)
        return _make_answer(200, {result_name: to_json_values(result)} if result_name else {})

    def _parse_arguments(self, method: str, data: bytes) -> dict[str, Any]:
        try:
            document = orjson.loads(data or b"{}")
        except orjson.JSONDecodeError as error:
            raise _RequestError(400, f"the request is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise _RequestError(400, f"the request is {type(document).__name__}, expected an object")
        required_fields, optional_fields = _FIELDS_BY_METHOD[method]
        if missing_fields := required_fields - document.keys():
            raise _RequestError(400, f"{method} requires {', '.join(sorted(missing_fields))}")
        if unknown_fields := document.keys() - required_fields - optional_fields:
            field_names = ", ".join(sorted(required_fields | optional_fields))
            raise _RequestError(
                400, f"{method} has no {', '.join(sorted(unknown_fields))}: its fields are {field_names}"
            )
        id_ = document.get("episode_id")
        if not isinstance(id_, str) and (id_ is not None or "episode_id" in required_fields):
            raise _RequestError(400, f"episode_id is {id_!r}, expected text")
        try:
            return {
                name: restore_tuples(value, self._space_structs.get(name)) for name, value in document.items()
            }
        except (KeyError, TypeError, ValueError) as error:
            raise _RequestError(
                400, f"{method}: a value does not have the structure of its space: {error!r}"
            ) from error


def _make_answer(status: int, document: Mapping[str, Any]) -> Answer:
    return status, json.dumps(document).encode()


def _make_refusal(status: int, sentence: str, error_type: str = "DataError") -> Answer:
    return _make_answer(status, {"error": sentence, "type": error_type})
