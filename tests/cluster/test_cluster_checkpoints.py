"""What a training's folder of checkpoints says of itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from hindcast.cluster.storage_monitor import checkpoint_status
from hindcast.storage.location import resolve
from support import train, training


def test_the_latest_checkpoint_with_its_time(walks: Path, tmp_path: Path) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    train(training(tmp_path, walks))
    found = checkpoint_status(resolve(tmp_path / "test" / "r1" / "checkpoints"))
    assert found is not None
    assert found.iteration == 3
    assert Path(found.path).is_dir()
    assert found.save_time is not None
    assert before.replace(microsecond=0) <= datetime.fromisoformat(found.save_time) <= datetime.now(UTC)


def test_an_empty_folder_has_none(tmp_path: Path) -> None:
    assert checkpoint_status(resolve(tmp_path)) is None


def test_what_the_best_one_is_the_best_by(walks: Path, tmp_path: Path) -> None:
    offline = {"heldOut": 0.4, "interval": 1, "estimates": ["wis"], "explore": True}
    train(training(tmp_path, walks, evaluation={"offline": offline}))
    found = checkpoint_status(resolve(tmp_path / "test" / "r1" / "checkpoints"))
    assert found is not None
    assert found.best_path is not None
    assert found.best_estimated_return is not None
    assert found.best_episode_return_mean is None
