"""`HttpServer`: a `PolicyServer` over HTTP, for an application in another process or language.

Each method is a POST of a JSON document to `/<method>`, with `Authorization: Bearer <token>`. The answer is a JSON
document; for a refused request it is `{"error": …, "type": …}`. The header `Idempotency-Key` identifies a request: if
the request is sent again because its answer was lost, it gets the same answer. After the status 503 (nothing was
logged), the repeated request is executed. `GET /health` requires no token.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import socket
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hindcast.episodes.nested import restore_tuples
from hindcast.episodes.spaces import space_struct
from hindcast.errors import DataError, StorageError, UserError
from hindcast.serve.messages import UnknownEpisode, to_json_values
from hindcast.serve.policy_server import PolicyServer
from hindcast.storage.failures import reason_of

_IDLE_TIMEOUT_SECONDS: Final = 300
"""Time for the headers of a request, for its body, and between two requests."""
_CLOSE_TIMEOUT_SECONDS: Final = 30
_MAX_HEADER_BYTES: Final = 1 << 16
_NUM_THREADS: Final = 32
"""Requests that may wait for storage at the same time."""
_MAX_STORED_ANSWERS: Final = 10_000
_LOG_FAILED: Final = 503
"""HTTP status of a request that could not be logged, so it had no effect."""
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
    """Serves a policy until it is closed, in threads of its own. It requires the extra `serve`.

    Args:
        policy_server: decides and logs; the caller closes it.
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
        policy_server: PolicyServer,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        max_body_bytes: int = 16 << 20,
    ) -> None:
        try:
            listener = socket.create_server((host, port))
        except OSError as error:
            raise StorageError(f"cannot listen at {host}:{port}: {reason_of(error)}") from error
        # asyncio sets it only for sockets that name the protocol TCP; without it, a client waits 40 ms for each body.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host, self.port = host, int(listener.getsockname()[1])
        self._dispatcher = _Dispatcher(policy_server, token, max_body_bytes)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._dispatcher.make_app(),
                http=_Connection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level=logging.ERROR,
                access_log=False,  # requests carry the token
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=_IDLE_TIMEOUT_SECONDS,
                timeout_graceful_shutdown=_CLOSE_TIMEOUT_SECONDS,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="hindcast-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop accepting requests, and wait until the running requests are answered, at most 30 seconds."""
        self._server.should_exit = True
        self._thread.join()
        self._dispatcher.close()

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Connection(HttpToolsProtocol):
    """A connection with limits that uvicorn does not set: the size of headers, and the time until they are complete."""

    _reads_headers = True  # also before the first request
    _num_header_bytes = 0  # of headers that are not complete
    _deadline = 0.0  # time of the event loop at which the connection is closed, unless it waits for an answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Limit the time until the first request."""
        super().connection_made(transport)
        self._set_deadline()
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Parse data, and refuse headers that are too large."""
        was_reading_headers = self._reads_headers
        super().data_received(data)
        if was_reading_headers and self._reads_headers and not self.transport.is_closing():
            self._num_header_bytes += len(data)
            if self._num_header_bytes > _MAX_HEADER_BYTES:
                self.send_400_response("The headers of the request are too large.")
        self._start_timer()

    def on_message_begin(self) -> None:
        """Begin to limit the size of the headers and the time until they are complete."""
        super().on_message_begin()
        self._reads_headers, self._num_header_bytes = True, 0
        self._set_deadline()

    def on_headers_complete(self) -> None:
        """Begin the request."""
        self._reads_headers = False
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Limit the time until the next request."""
        super().on_response_complete()
        self._set_deadline()

    def _set_deadline(self) -> None:
        self._deadline = self.loop.time() + self.timeout_keep_alive

    def _start_timer(self) -> None:
        # uvicorn starts this timer after each answer, but ends it at the first byte that arrives. Further bytes do not
        # move the deadline: a client that sends one byte after the other would hold the connection indefinitely.
        is_answered = self.cycle is None or self.cycle.response_complete
        if is_answered and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_at(self._deadline, self.timeout_keep_alive_handler)


class _RequestError(Exception):
    """A request that is refused, with the HTTP status of the answer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class _Dispatcher:
    """Dispatches requests to the policy and answers repeated requests from a cache."""

    def __init__(self, policy_server: PolicyServer, token: str, max_body_bytes: int) -> None:
        self._policy_server = policy_server
        self._token = token.encode()
        self._max_body_bytes = max_body_bytes
        self._space_structs = {
            "observation": space_struct(policy_server.policy.observation_space),
            "action": space_struct(policy_server.policy.action_space),
        }
        self._pool = ThreadPoolExecutor(_NUM_THREADS, "hindcast-http")
        self._answers: OrderedDict[str, asyncio.Future[Answer]] = OrderedDict()

    def make_app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/health", _answer_health_check, methods=["GET"]),
            Route("/{method:path}", self._answer_post, methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _answer_unknown_route})

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False)

    async def _answer_post(self, request: Request) -> Response:
        try:
            self._check_token(request.headers.get("authorization", ""))
            method = request.path_params["method"].strip("/")
            if method not in _FIELDS_BY_METHOD:
                method_names = ", ".join(_FIELDS_BY_METHOD)
                raise _RequestError(404, f"unknown method {method!r}: the methods are {method_names}")
            body = await _read_body(request, self._max_body_bytes)
            return _make_response(await self._call_once(request.headers.get("idempotency-key"), method, body))
        except _RequestError as error:
            return _make_response(_make_refusal(error.status, str(error)))

    def _check_token(self, authorization: str) -> None:
        # In constant time: otherwise the time would reveal how much of a guessed token is right.
        if not hmac.compare_digest(authorization.removeprefix("Bearer ").encode(), self._token):
            raise _RequestError(401, "the token is missing or wrong: send Authorization: Bearer <token>")

    async def _call_once(self, key: str | None, method: str, body: bytes) -> Answer:
        """Return the answer to a request. Requests with the same key are executed once; None stands for no key."""
        if key is None:
            return await asyncio.shield(self._start_call(method, body))
        future = self._answers.get(key)
        if future is None:
            future = self._answers[key] = self._start_call(method, body)
            if len(self._answers) > _MAX_STORED_ANSWERS:
                self._answers.popitem(last=False)
        answer = await asyncio.shield(future)
        status, _ = answer
        if status == _LOG_FAILED and self._answers.get(key) is future:
            del self._answers[key]  # nothing was logged, so a repeated request must be executed
        return answer

    def _start_call(self, method: str, body: bytes) -> asyncio.Future[Answer]:
        """Start to execute a request, and return its future answer."""
        loop = asyncio.get_running_loop()
        # Another thread would add 0.1 ms to each request, and only the end of an episode may write a whole file. A log
        # on an object store is flushed every second, for which every method waits.
        if self._policy_server.log.is_local and method != "end_episode":
            answer = loop.create_future()
            answer.set_result(self._call(method, body))
            return answer
        return loop.run_in_executor(self._pool, self._call, method, body)

    def _call(self, method: str, body: bytes) -> Answer:
        """Execute a request and return the answer, which describes an error of the method."""
        try:
            result = getattr(self._policy_server, method)(**self._parse_arguments(method, body))
        except _RequestError as error:
            return _make_refusal(error.status, str(error))
        except UnknownEpisode as error:
            return _make_refusal(404, str(error), "UnknownEpisode")
        except DataError as error:
            return _make_refusal(400, str(error))
        except UserError as error:  # storage failed, or the log is closed
            return _make_refusal(_LOG_FAILED, str(error), type(error).__name__)
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
            problem = f"it has no part {error}" if isinstance(error, KeyError) else str(error)
            raise _RequestError(
                400, f"{method}: a value does not have the structure of its space: {problem}"
            ) from error


async def _read_body(request: Request, max_bytes: int) -> bytes:
    num_bytes, body = int(request.headers.get("content-length", 0)), bytearray()
    try:
        async with asyncio.timeout(_IDLE_TIMEOUT_SECONDS):
            async for chunk in request.stream():
                body += chunk
                num_bytes = max(num_bytes, len(body))
                if num_bytes > max_bytes:
                    raise _RequestError(
                        413, f"the request has {num_bytes} bytes; at most {max_bytes} are allowed"
                    )
    except (TimeoutError, ClientDisconnect) as error:
        raise _RequestError(408, "the request is incomplete") from error
    return bytes(body)


async def _answer_health_check(_: Request) -> Response:
    return _make_response(_make_answer(200, {"status": "ok"}))


async def _answer_unknown_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _make_response(_make_refusal(error.status_code, "POST to /<method>, or GET /health"))


def _make_response(answer: Answer) -> Response:
    status, body = answer
    return Response(body, status, media_type="application/json")


def _make_answer(status: int, document: Mapping[str, Any]) -> Answer:
    return status, json.dumps(document).encode()


def _make_refusal(status: int, sentence: str, error_type: str = "DataError") -> Answer:
    return _make_answer(status, {"error": sentence, "type": error_type})
