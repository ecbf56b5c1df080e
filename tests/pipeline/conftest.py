"""Feeds over the fake dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pipeline_fakes import ACTION_SPACE, KINDS, OBSERVATION_SPACE, FakeDataset, loader_of

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.formats.spec import DataSpec
from hindcast.pipeline.feeds import WindowFeed
from hindcast.pipeline.targets import Targets
from hindcast.pipeline.window import Recipe
from hindcast.storage.location import resolve

MakeFeed = Callable[..., WindowFeed]


@pytest.fixture
def make_feed() -> Iterator[MakeFeed]:
    """`make_feed(kind, dataset, batch_size=…, …)`; the feeds are closed after the test."""
    feeds: list[WindowFeed] = []

    def make(
        kind: str,
        dataset: FakeDataset,
        *,
        batch_size: int = 10,
        recipe: Recipe | None = None,
        targets: Targets | None = None,
        prelearn: Any = None,
        **order: Any,
    ) -> WindowFeed:
        feeds.append(KINDS[kind](loader_of(dataset, recipe, prelearn, **order), batch_size, targets))
        return feeds[-1]

    yield make
    for feed in feeds:
        feed.close()


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., Dataset]:
    """`make_dataset(units, name=…)`: the fake dataset's episodes in a folder, one file a unit, opened."""

    def make(units: Sequence[Sequence[int]], name: str = "data") -> Dataset:
        fake = FakeDataset(units)
        spec = DataSpec.from_block(fake.blocks[0], OBSERVATION_SPACE, ACTION_SPACE)
        for number, block in enumerate(fake.blocks):
            with BlockWriter(resolve(tmp_path / name), spec, f"part-{number}") as writer:
                writer.write(block)
        return open_dataset(tmp_path / name)

    return make
