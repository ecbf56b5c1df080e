"""The driver's log."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hindcast.cluster.log import HEAD_BYTES, TAIL_BYTES, DriverLog, capture_output, make_redactor
from hindcast.storage.location import resolve


@pytest.fixture
def log() -> DriverLog:
    return DriverLog(make_redactor({"MY_TOKEN": "abcdefgh"}))


def test_output_is_shown_and_stored_without_secrets(
    log: DriverLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capture_output(log):
        print("with abc", end="")
        print("defgh in it")
        print("\x1b[36m(worker)\x1b[0m a warning", file=sys.stderr)
        print("not ended", end="")
    log.upload(resolve(tmp_path).child("logs/a.log"))
    assert (tmp_path / "logs/a.log").read_text() == "with *** in it\n(worker) a warning\nnot ended"
    assert capsys.readouterr().out == "with *** in it\n(worker) a warning\n"


def test_user_of_uri_is_hidden_unless_anonymous() -> None:
    redact = make_redactor({})
    assert redact("read s3://key:secret@bucket/a") == "read s3://***@bucket/a"
    assert redact("read s3://anonymous@bucket/a") == "read s3://anonymous@bucket/a"


def test_long_log_keeps_head_and_tail(log: DriverLog, tmp_path: Path) -> None:
    lines = [f"line {number} {'.' * 90}\n" for number in range(40_000)]
    for line in lines:
        log.write(line)
    log.upload(resolve(tmp_path).child("a.log"))
    stored_lines = (tmp_path / "a.log").read_text().splitlines(keepends=True)
    assert (stored_lines[0], stored_lines[-1]) == (lines[0], lines[-1])
    assert (tmp_path / "a.log").stat().st_size <= HEAD_BYTES + TAIL_BYTES + 100
    gap = next(index for index, line in enumerate(stored_lines) if "left out" in line)
    assert stored_lines[gap] == f"… {len(lines) - len(stored_lines) + 1:,} lines left out …\n"
    assert (
        stored_lines[:gap] + stored_lines[gap + 1 :] == lines[:gap] + lines[-(len(stored_lines) - gap - 1) :]
    )


def test_unchanged_log_is_not_uploaded_again(log: DriverLog, tmp_path: Path) -> None:
    file = resolve(tmp_path).child("a.log")
    log.write("one\n")
    log.upload(file)
    file.delete()
    log.upload(file)
    assert not file.exists()
    log.write("two\n")
    log.upload(file)
    assert file.read_bytes() == b"one\ntwo\n"


def test_log_is_uploaded_to_memory_store(log: DriverLog, memory_path: str) -> None:
    log.write("one\n")
    log.upload(resolve(memory_path).child("logs/a.log"))
    assert resolve(memory_path).child("logs/a.log").read_bytes() == b"one\n"
