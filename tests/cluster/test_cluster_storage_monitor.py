"""Status of a training's folder of checkpoints, and the thread that observes it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cluster_toys import RecordingChannel, make_attempt

from hindcast.cluster import storage_monitor
from hindcast.cluster.log import DriverLog
from hindcast.cluster.reporting import ReportSender
from hindcast.cluster.storage_monitor import StorageMonitor, read_checkpoint_status
from hindcast.storage.location import Location, resolve
from support import train, training


def test_status_has_latest_checkpoint_with_time(walks: Path, tmp_path: Path) -> None:
    start_time = datetime.now(UTC) - timedelta(seconds=1)
    train(training(tmp_path, walks))
    status = read_checkpoint_status(resolve(tmp_path / "test" / "r1" / "checkpoints"))
    assert status is not None
    assert status.iteration == 3
    assert Path(status.path).is_dir()
    assert status.save_time is not None
    assert start_time.replace(microsecond=0) <= datetime.fromisoformat(status.save_time) <= datetime.now(UTC)


def test_monitor_continues_after_unexpected_error(
    walks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(storage_monitor, "POLL_INTERVAL_SECONDS", 0.01)
    polls: list[Location] = []

    def fail_once(folder: Location) -> None:
        polls.append(folder)
        if len(polls) == 1:
            raise RuntimeError("a bug in a file system")

    monkeypatch.setattr(storage_monitor, "read_lease_holder", fail_once)
    resource = training(tmp_path, walks)
    train(resource)
    channel = RecordingChannel()
    sender = ReportSender(channel)
    monitor = StorageMonitor(resource, make_attempt(resource), DriverLog(str), sender)
    deadline = time.monotonic() + 10
    while len(polls) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    monitor.abandon()
    sender.send_if_due()
    assert channel.last_report.checkpoint is not None
    assert channel.last_report.checkpoint.iteration == 3
    assert "RuntimeError: a bug in a file system" in capsys.readouterr().err


def test_empty_folder_has_no_status(tmp_path: Path) -> None:
    assert read_checkpoint_status(resolve(tmp_path)) is None


def test_status_names_metric_of_best_checkpoint(walks: Path, tmp_path: Path) -> None:
    offline = {"heldOut": 0.4, "interval": 1, "estimates": ["wis"], "explore": True}
    train(training(tmp_path, walks, evaluation={"offline": offline}))
    status = read_checkpoint_status(resolve(tmp_path / "test" / "r1" / "checkpoints"))
    assert status is not None
    assert status.best_path is not None
    assert status.best_estimated_return is not None
    assert status.best_episode_return_mean is None
