"""A new run waits for the runners of an earlier run that still write to its folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hindcast.errors import OutputConflict
from hindcast.record import pool
from hindcast.storage.location import resolve


def test_wait_for_runners_ends_with_last_runner(tmp_path: Path) -> None:
    folder = resolve(tmp_path)
    runners = [pool.register_runner(folder), pool.register_runner(folder)]
    waiting_thread = threading.Thread(target=pool.wait_for_runners, args=[folder])
    waiting_thread.start()
    for descriptor in runners:
        waiting_thread.join(0.2)
        assert waiting_thread.is_alive()
        assert descriptor is not None
        os.close(descriptor)
    waiting_thread.join(30)
    assert not waiting_thread.is_alive()


def test_wait_for_runners_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_MAX_WAIT_SECONDS", 0.1)
    descriptor = pool.register_runner(resolve(tmp_path))
    assert descriptor is not None
    with pytest.raises(OutputConflict, match=f"runners of an earlier run still write to {tmp_path}"):
        pool.wait_for_runners(resolve(tmp_path))
    os.close(descriptor)


def test_memory_store_has_no_locks(memory_path: str) -> None:
    assert pool.register_runner(resolve(memory_path)) is None
    pool.wait_for_runners(resolve(memory_path))
