"""`PolicyClient`: a client of `hindcast serve`. It requires NumPy, but none of Hindcast's extras."""

from __future__ import annotations

import http.client
import json
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final, SupportsFloat
from urllib.parse import urlsplit

from hindcast.errors import DataError, SpecError, UserError
from hindcast.serve.messages import UnknownEpisode, from_json_values

_RETRY_PAUSES_SECONDS: Final = (0.0, 0.1, 0.5)
"""Pause before each of the three tries of a request."""
_CONNECTION_ERRORS: Final = (http.client.HTTPException, OSError)


class Unreachable(UserError):
    """The server does not answer, or has failed. The last request may or may not be in the server's log."""


class PolicyClient:
    """Calls the methods of a `PolicyServer` over HTTP, from any number of threads.

    Each thread keeps its own connection. If an answer is lost, the request is sent again; the server executes it once.

    Args:
        address: the server's address, `http://host:port`.
        token: the token with which the server was started.
        timeout_s: seconds to wait for an answer.

    Raises:
        SpecError: the address is not valid.
    """

    def __init__(self, address: str, token: str, timeout_s: float = 30.0) -> None:
        url = urlsplit(address)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise SpecError(f"the address is {address!r}, expected http://host:port")
        self._connection_class = (
            http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        )
        self._address, self._host, self._port = address, url.hostname, url.port
        self._path = url.path.rstrip("/")
        self._token, self._timeout_s = token, timeout_s
        self._thread_local = threading.local()

    def start_episode(self, episode_id: str | None = None) -> str:
        """Start an episode and return its id.

        Raises:
            DataError: an episode with this id is already running.
            UserError: see `get_action`.
        """
        id_ = episode_id or uuid.uuid4().hex
        return str(self._request("start_episode", episode_id=id_)["episode_id"])

    def get_action(self, episode_id: str, observation: Any) -> Any:
        """Return the policy's action for an observation, after the server has logged the action.

        Args:
            episode_id: a running episode.
            observation: numbers, lists or arrays, nested like the observation space.

        Returns:
            A number, an array of int64 or float32, or a nested structure of these.

        Raises:
            UnknownEpisode: the episode is not running; a restart of the server ends all running episodes.
            DataError: the observation does not fit its space.
            SpecError: the server refuses the token.
            Unreachable: the server does not answer, or cannot write its log.
        """
        return from_json_values(
            self._request("get_action", episode_id=episode_id, observation=observation)["action"]
        )

    def log_action(
        self, episode_id: str, observation: Any, action: Any, action_logp: float | None = None
    ) -> None:
        """Log an action that the application chose; the arguments are those of `PolicyServer.log_action`.

        Raises:
            UserError: as `get_action`.
        """
        optional_fields = {} if action_logp is None else {"action_logp": action_logp}
        self._request(
            "log_action", episode_id=episode_id, observation=observation, action=action, **optional_fields
        )

    def log_returns(
        self, episode_id: str, reward: SupportsFloat, info: Mapping[str, Any] | None = None
    ) -> None:
        """Log the reward of the last action; rewards of several calls add up.

        Raises:
            UserError: as `get_action`.
        """
        optional_fields = {} if info is None else {"info": info}
        self._request("log_returns", episode_id=episode_id, reward=float(reward), **optional_fields)

    def end_episode(
        self, episode_id: str, observation: Any, *, terminated: bool = True, truncated: bool = False
    ) -> None:
        """End an episode; the arguments are those of `EpisodeWriter.end_episode`.

        Raises:
            UserError: as `get_action`.
        """
        self._request(
            "end_episode",
            episode_id=episode_id,
            observation=observation,
            terminated=terminated,
            truncated=truncated,
        )

    def close(self) -> None:
        """Close the calling thread's connection; other threads keep theirs."""
        connection = getattr(self._thread_local, "connection", None)
        if connection is not None:
            connection.close()
            self._thread_local.connection = None

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, method: str, **document: Any) -> Any:
        body = json.dumps(document, default=_to_plain_value)
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
            # The same key for all tries: if only the answer was lost, the server repeats it without acting again.
            "Idempotency-Key": uuid.uuid4().hex,
        }
        last_error: Exception | None = None
        for pause in _RETRY_PAUSES_SECONDS:
            time.sleep(pause)
            try:
                return self._send(method, body, headers)
            except _CONNECTION_ERRORS as error:
                # The open connection may have broken since the last request; the next try opens another connection.
                self.close()
                last_error = error
        raise Unreachable(
            f"{self._address} does not answer ({last_error}): start hindcast serve there, or check the address"
        ) from last_error

    def _send(self, method: str, body: str, headers: Mapping[str, str]) -> Any:
        connection = getattr(self._thread_local, "connection", None)
        if connection is None:
            connection = self._connection_class(self._host, self._port, timeout=self._timeout_s)
            self._thread_local.connection = connection
        connection.request("POST", f"{self._path}/{method}", body, dict(headers))
        response = connection.getresponse()
        try:
            document = json.loads(response.read())
        except ValueError as error:
            raise http.client.HTTPException(f"status {response.status} without a JSON document") from error
        if response.status == 200:
            return document
        message = str(document.get("error"))
        if response.status == 401:
            raise SpecError(f"{self._address}: {message}")
        if document.get("type") == UnknownEpisode.__name__:
            raise UnknownEpisode(message)
        raise (DataError if response.status < 500 else Unreachable)(message)


def _to_plain_value(value: Any) -> Any:
    """Convert an array to a list, or a NumPy number to a Python number, for `json.dumps`."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r} is neither a number, nor text, nor an array")
