"""Fixtures: feeds over the fake dataset, and the fake dataset in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pipeline_fakes import (
    ACTION_SPACE,
    ALL_COLUMNS,
    FEED_CLASSES,
    OBSERVATION_SPACE,
    FakeDataset,
    make_loader,
)

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.formats.spec import DataSpec
from hindcast.pipeline.lane_feed import LaneFeed
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.targets import Targets
from hindcast.pipeline.window import Recipe
from hindcast.storage.location import resolve

MakeFeed = Callable[..., LaneFeed]


@pytest.fixture
def make_feed() -> Iterator[MakeFeed]:
    """`make_feed(feed_kind, dataset, batch_size=…, …)`; the feeds are closed after the test."""
    feeds: list[LaneFeed] = []

    def make(
        feed_kind: str,
        dataset: FakeDataset,
        *,
        batch_size: int = 10,
        recipe: Recipe | None = None,
        targets: Targets | None = None,
        prelearn: Any = None,
        **order_options: Any,
    ) -> LaneFeed:
        if recipe is None:
            recipe = Recipe(Needs(ALL_COLUMNS, targets=targets is not None))
        feeds.append(
            FEED_CLASSES[feed_kind](
                make_loader(dataset, recipe, prelearn, **order_options), batch_size, targets
            )
        )
        return feeds[-1]

    yield make
    for feed in feeds:
        feed.close()


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., Dataset]:
    """`make_dataset(units, name=…)` writes the fake dataset to a folder, one file per unit, and opens it."""

    def make(units: Sequence[Sequence[int]], name: str = "data") -> Dataset:
        fake = FakeDataset(units)
        spec = DataSpec.from_block(fake.blocks[0], OBSERVATION_SPACE, ACTION_SPACE)
        for index, block in enumerate(fake.blocks):
            with BlockWriter(resolve(tmp_path / name), spec, f"part-{index}") as writer:
                writer.write(block)
        return open_dataset(tmp_path / name)

    return make
