"""Fixtures: a cache for each test, and small datasets of several units."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from curate_kit import make_block, write_block

from hindcast.datasets.curate import writing
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.merging import merge
from hindcast.datasets.opening import open_dataset

MakeFolders = Callable[..., list[Path]]


@pytest.fixture(autouse=True)
def _separate_cache(cache: Path) -> None:
    """Prepare data in a cache of the test's own."""


@pytest.fixture
def make_folders(tmp_path: Path) -> MakeFolders:
    """Return a function that writes a number of folders with four episodes each."""

    def make(count: int) -> list[Path]:
        return [
            write_block(tmp_path / f"part{i}", make_block([3, 5 + i, 1, 7], first=4 * i))
            for i in range(count)
        ]

    return make


@pytest.fixture
def twenty_episodes(make_folders: MakeFolders) -> Dataset:
    """A dataset of 20 episodes in 5 units."""
    return merge([open_dataset(folder) for folder in make_folders(5)])


@pytest.fixture
def range_per_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `write` divide a dataset into one range per unit."""
    monkeypatch.setattr(writing, "_MIN_RANGE_BYTES", 1)
