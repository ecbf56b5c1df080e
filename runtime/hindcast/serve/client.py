"""`PolicyClient`: asks a policy that `hindcast serve` serves. It needs NumPy and nothing else of Hindcast's."""

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

_PAUSES_S: Final = (0.0, 0.1, 0.5)
_BROKEN: Final = (http.client.HTTPException, OSError)


class Unreachable(UserError):
    """The server does not answer; what was asked last may be in its log, or not."""


class PolicyClient:
    """The methods of a `PolicyServer` over HTTP, for any number of threads.

    Each thread keeps its own connection. A request whose answer was lost is sent again, and counts once.

    Args:
        address: of the server, `http://host:port`.
        token: which it was started with.
        timeout_s: seconds to wait for an answer.

    Raises:
        SpecError: no such address.
    """

    def __init__(self, address: str, token: str, timeout_s: float = 30.0) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SpecError(f"the address is {address!r}, expected http://host:port")
        self._connection = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._address, self._host, self._port = address, parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._token, self._timeout_s = token, timeout_s
        self._of_thread = threading.local()

    def start_episode(self, episode_id: str | None = None) -> str:
        """Begin an episode; returns its id.

        Raises:
            DataError: an episode of this id runs.
            Unreachable: the server does not answer.
        """
        id_ = episode_id or uuid.uuid4().hex
        return str(self._ask("start_episode", episode_id=id_)["episode_id"])

    def get_action(self, episode_id: str, observation: Any) -> Any:
        """The policy's action, which is in the server's log: a number, an array of int64 or float32, or nested ones.

        Args:
            episode_id: a running episode.
            observation: nested like its space, of numbers, lists or arrays.

        Raises:
            UnknownEpisode: the episode is not running; a restart of the server ends all that were.
            DataError: an observation that does not fit.
            Unreachable: the server does not answer.
        """
        return from_json_values(
            self._ask("get_action", episode_id=episode_id, observation=observation)["action"]
        )

    def log_action(
        self, episode_id: str, observation: Any, action: Any, action_logp: float | None = None
    ) -> None:
        """Log an action that the application chose, with the log-probability that it had.

        Raises:
            UserError: as `get_action`.
        """
        given = {} if action_logp is None else {"action_logp": action_logp}
        self._ask("log_action", episode_id=episode_id, observation=observation, action=action, **given)

    def log_returns(
        self, episode_id: str, reward: SupportsFloat, info: Mapping[str, Any] | None = None
    ) -> None:
        """Log the reward of the last action; rewards of several calls add up.

        Raises:
            UserError: as `get_action`.
        """
        given = {} if info is None else {"info": info}
        self._ask("log_returns", episode_id=episode_id, reward=float(reward), **given)

    def end_episode(
        self, episode_id: str, observation: Any, *, terminated: bool = True, truncated: bool = False
    ) -> None:
        """End an episode, with its last observation.

        Raises:
            UserError: as `get_action`.
        """
        self._ask(
            "end_episode",
            episode_id=episode_id,
            observation=observation,
            terminated=terminated,
            truncated=truncated,
        )

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._of_thread, "connection", None)
        if connection is not None:
            connection.close()
            self._of_thread.connection = None

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: str, **document: Any) -> Any:
        body = json.dumps(document, default=_numbers)
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
            "Idempotency-Key": uuid.uuid4().hex,
        }
        last: Exception | None = None
        for pause in _PAUSES_S:
            time.sleep(pause)
            try:
                return self._answer(method, body, headers)
            except _BROKEN as error:
                self.close()
                last = error
        raise Unreachable(
            f"{self._address} does not answer ({last}): start hindcast serve there, or check the address"
        ) from last

    def _answer(self, method: str, body: str, headers: Mapping[str, str]) -> Any:
        connection = getattr(self._of_thread, "connection", None)
        if connection is None:
            connection = self._connection(self._host, self._port, timeout=self._timeout_s)
            self._of_thread.connection = connection
        connection.request("POST", f"{self._path}/{method}", body, dict(headers))
        response = connection.getresponse()
        try:
            found = json.loads(response.read())
        except ValueError as error:
            raise http.client.HTTPException(f"status {response.status} without a JSON document") from error
        if response.status == 200:
            return found
        sentence = str(found.get("error"))
        if response.status == 401:
            raise SpecError(f"{self._address}: {sentence}")
        if found.get("type") == UnknownEpisode.__name__:
            raise UnknownEpisode(sentence)
        raise (DataError if response.status < 500 else Unreachable)(sentence)


def _numbers(value: Any) -> Any:
    """Arrays and NumPy's numbers as lists and Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r} is neither a number, nor text, nor an array")
