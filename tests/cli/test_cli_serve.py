"""`hindcast serve`: what keeps it from starting is a sentence. tests/faults has it serving, and killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from calling import Hindcast

from hindcast import EpisodeWriter
from support import WALK, make_policy


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "policy"
    make_policy(WALK).save(folder)
    return folder


@pytest.fixture
def stopped() -> Iterator[None]:
    """SIGTERM, once the command listens to it; afterwards all is as before."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before, interval = [signal.getsignal(number) for number in numbers], sys.getswitchinterval()

    def stop() -> None:
        while signal.getsignal(signal.SIGTERM) is before[1]:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("stopped")
def test_it_serves_until_it_is_asked_to_stop(tmp_path: Path, checkpoint: Path, hindcast: Hindcast) -> None:
    (tmp_path / "token").write_text("a token\n")
    log, token = tmp_path / "log", tmp_path / "token"
    called = hindcast("serve", checkpoint, "--log", log, "--token-file", token, "--port", 0)
    assert called.code == 0
    assert called.out.startswith("serving at http://127.0.0.1:")
    assert f"logging into {log}" in called.out
    assert "a token" not in called.out + called.err


def test_what_keeps_it_from_starting(tmp_path: Path, checkpoint: Path, hindcast: Hindcast) -> None:
    def refused(sentence: str, code: int, token: str = "token", policy: Path = checkpoint) -> None:
        called = hindcast("serve", policy, "--log", tmp_path / "log", "--token-file", tmp_path / token)
        assert (called.code, called.out) == (code, "")
        assert sentence in called.err
        assert len(called.err.splitlines()) == 1

    refused("cannot be read: No such file or directory", 2)
    (tmp_path / "token").write_text("")
    refused("is empty: write a token into its first line", 2)
    (tmp_path / "token").write_text("a token")
    refused("does not exist: check the path", 3, policy=tmp_path / "nowhere")
    with EpisodeWriter(tmp_path / "log"):
        refused("another process is writing to", 4)
