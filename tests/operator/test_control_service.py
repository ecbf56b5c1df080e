"""The service: what goes wrong in one namespace stays there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from hindcast_operator.control import kinds, service
from hindcast_operator.control.service import Operator, OperatorOptions
from hindcast_operator.defaults import Defaults

SLEEP = asyncio.sleep


class OddServer:
    """An API server with an object without a uid in the first lists of the namespace `odd`, of one purpose."""

    def __init__(self, failing_part: str) -> None:
        self.failing_part = failing_part
        self.num_odd = 0

    def server_time(self) -> datetime:
        return datetime(2026, 11, 21, tzinfo=UTC)

    async def call(self, *_: Any) -> dict[str, Any]:
        return {"resources": [{"name": kind.plural} for kind in kinds.WATCHED_KINDS]}

    async def list_all(
        self, kind: Any, namespace: str, metadata_only: bool, *_: Any
    ) -> AsyncIterator[dict[str, Any]]:
        part = "sweep" if metadata_only else "fill"
        if namespace == "odd" and part == self.failing_part and self.num_odd < 3:
            self.num_odd += 1
            yield {"metadata": {"name": "x", "namespace": "odd"}}


@pytest.mark.parametrize("failing_part", ["fill", "watch", "sweep"])
def test_failure_in_one_namespace_leaves_others_and_is_retried(
    failing_part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a KeyError while one namespace was read ended the operator for all."""
    server: Any = OddServer(failing_part)
    num_watches = {"odd": 0, "team": 0}
    expected = {"odd": 4 if failing_part == "watch" else 1, "team": 1}

    async def watch(_: Any, namespace: str, *__: Any) -> None:
        num_watches[namespace] += 1
        if failing_part == "watch" and namespace == "odd" and server.num_odd < 3:
            server.num_odd += 1
            raise KeyError("uid")
        await asyncio.Event().wait()

    async def serve() -> None:
        operator = Operator(server, OperatorOptions(Defaults(), namespaces=("odd", "team")))
        task = asyncio.create_task(operator.run())
        while not task.done() and (server.num_odd < 3 or num_watches != expected):
            await SLEEP(0)
        assert not task.done() and not operator.unserved_namespaces
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()

    monkeypatch.setattr(service, "watch", watch)
    monkeypatch.setattr(service, "_SWEEP_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(asyncio, "sleep", lambda _: SLEEP(0))
    asyncio.run(asyncio.wait_for(serve(), 20))
