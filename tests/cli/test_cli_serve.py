"""`hindcast serve`: start, stop and errors. tests/faults tests it under load, and when it is killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_result import Hindcast

from hindcast import EpisodeWriter
from support import WALK, make_policy


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a policy and return its folder."""
    folder = tmp_path_factory.mktemp("served") / "policy"
    make_policy(WALK).save(folder)
    return folder


@pytest.fixture
def stop_signal() -> Iterator[None]:
    """Send SIGTERM as soon as the command handles it; restore handlers and switch interval afterwards."""
    signal_numbers = (signal.SIGINT, signal.SIGTERM)
    handlers_before, interval = (
        [signal.getsignal(number) for number in signal_numbers],
        sys.getswitchinterval(),
    )

    def stop() -> None:
        while signal.getsignal(signal.SIGTERM) is handlers_before[1]:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    yield
    for number, handler in zip(signal_numbers, handlers_before, strict=True):
        signal.signal(number, handler)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("stop_signal")
def test_serve_runs_until_stop_signal(tmp_path: Path, checkpoint: Path, hindcast: Hindcast) -> None:
    (tmp_path / "token").write_text("a token\n")
    log, token = tmp_path / "log", tmp_path / "token"
    result = hindcast("serve", checkpoint, "--log", log, "--token-file", token, "--port", 0)
    assert result.code == 0
    assert result.out.startswith("serving at http://127.0.0.1:")
    assert f"logging to {log}" in result.out
    assert "a token" not in result.out + result.err


def test_serve_with_invalid_options_is_refused(tmp_path: Path, checkpoint: Path, hindcast: Hindcast) -> None:
    def check_refusal(sentence: str, code: int, token: str = "token", policy: Path = checkpoint) -> None:
        result = hindcast("serve", policy, "--log", tmp_path / "log", "--token-file", tmp_path / token)
        assert (result.code, result.out) == (code, "")
        assert sentence in result.err
        assert len(result.err.splitlines()) == 1

    check_refusal("cannot be read: No such file or directory", 2)
    (tmp_path / "token").write_text("")
    check_refusal("has an empty first line: write the token there", 2)
    (tmp_path / "token").write_text("a token")
    check_refusal("does not exist: check the path", 3, policy=tmp_path / "nowhere")
    with EpisodeWriter(tmp_path / "log"):
        check_refusal("another process is writing to", 4)


def test_serve_without_its_extra_names_the_extra(
    tmp_path: Path, hindcast: Hindcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "hindcast.serve.http_server", raising=False)
    (tmp_path / "token").write_text("a token")
    result = hindcast("serve", tmp_path, "--log", tmp_path / "log", "--token-file", tmp_path / "token")
    assert result.code == 1
    assert "requires uvicorn, which is not installed: pip install 'hindcast-rl[serve]'" in result.err
