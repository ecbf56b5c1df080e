"""Status of a training's folder of checkpoints."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from hindcast.cluster.storage_monitor import read_checkpoint_status
from hindcast.storage.location import resolve
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
