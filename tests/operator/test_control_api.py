"""Calls of the API server: errors that are retried immediately, and errors that are raised."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from hindcast_operator.control import api as api_module
from hindcast_operator.control import kinds
from hindcast_operator.control.api import Api, ApiError
from hindcast_operator.times import SteadyClock

Answer = tuple[int, str] | Exception
"""HTTP status and reason, or an exception that breaks the connection."""

CREATED_ANSWER: Answer = (201, "")


class FakeClient:
    """Returns or raises the answers in order, one for each call."""

    configuration = SimpleNamespace(host="https://server")

    def __init__(self, *answers: Answer, retry_after: str = "", date: str = "") -> None:
        self._answers = list(answers)
        headers = {"Retry-After": retry_after, "Date": date}
        self._headers = {name: value for name, value in headers.items() if value}
        self.methods: list[str] = []

    async def update_params_for_auth(self, *_: Any) -> None:
        """Do nothing: the fake needs no token."""

    async def call_api(self, method: str, *_: Any, **__: Any) -> Any:
        self.methods.append(method)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, reason = answer

        async def read() -> bytes:
            return json.dumps({"reason": reason, "message": "refused"}).encode()

        return SimpleNamespace(status=status, read=read, headers=self._headers)


@pytest.fixture(autouse=True)
def skip_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "_RETRY_PAUSES_SECONDS", (0.0, 0.0, 0.0))


def create_config_map(client: FakeClient) -> None:
    async def run() -> None:
        await Api(client).create(kinds.CONFIG_MAP, "team", {"metadata": {"name": "a"}})

    asyncio.run(run())


@pytest.mark.parametrize(
    "error",
    [
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, ""),
        (409, "Conflict"),
        aiohttp.ServerDisconnectedError(),
    ],
    ids=str,
)
def test_write_with_transient_errors_is_retried(error: Answer) -> None:
    """Otherwise any error among an attempt's five objects would delay the whole reconciliation."""
    client = FakeClient(error, error, error, CREATED_ANSWER)
    create_config_map(client)
    assert client.methods == ["POST"] * 4


@pytest.mark.parametrize("answer", [(403, "Forbidden"), (422, "Invalid"), (409, "AlreadyExists")], ids=str)
def test_refusal_is_raised_without_retry(answer: Answer) -> None:
    client = FakeClient(answer)
    with pytest.raises(ApiError, match="refused") as error_info:
        create_config_map(client)
    assert (error_info.value.code, error_info.value.reason) == answer
    assert len(client.methods) == 1


def test_persistent_error_is_raised_after_four_tries() -> None:
    client = FakeClient(*[(500, "InternalError")] * 4)
    with pytest.raises(ApiError, match="500 InternalError: refused"):
        create_config_map(client)
    assert len(client.methods) == 4


def test_long_retry_after_is_raised_without_retry() -> None:
    client = FakeClient((429, "TooManyRequests"), retry_after="20")
    with pytest.raises(ApiError) as error_info:
        create_config_map(client)
    assert error_info.value.retry_after == 20
    assert len(client.methods) == 1


def test_version_conflict_is_raised_without_retry() -> None:
    """The observed version is outdated: the resource must be observed again first."""

    async def write_status(client: FakeClient) -> None:
        await Api(client).write_status(kinds.RECORDING, "team", "a", 5, {})

    client = FakeClient((409, "Conflict"))
    with pytest.raises(ApiError):
        asyncio.run(write_status(client))
    assert client.methods == ["PATCH"]


def test_time_of_server_is_read_from_answers() -> None:
    """Regression: an operator that started an hour ahead ended new runs by their deadlines, for days."""

    async def run() -> list[datetime]:
        answers = [(200, "")] * 3
        api = Api(FakeClient(*answers, date="Sat, 21 Nov 2026 06:00:00 GMT"))
        clock = SteadyClock(wall=api.server_time)
        await api.call("GET", "/version")
        times = [clock()]
        for date in ("", "yesterday"):
            api._client = FakeClient(*answers, date=date)
            await api.call("GET", "/version")
            times.append(clock())
        return times

    start = datetime(2026, 11, 21, 6, tzinfo=UTC)
    assert all(abs(time - start) < timedelta(minutes=1) for time in asyncio.run(run()))
