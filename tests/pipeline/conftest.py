"""Feeds over the fake dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pipeline_fakes import KINDS, FakeDataset, loader_of

from hindcast.pipeline.feeds import OnWindow, WindowFeed
from hindcast.pipeline.window import Recipe

MakeFeed = Callable[..., WindowFeed]


@pytest.fixture
def make_feed() -> Iterator[MakeFeed]:
    """`make_feed(kind, dataset, batch_size=…, …)`; the feeds are closed after the test."""
    made: list[WindowFeed] = []

    def make(
        kind: str,
        dataset: FakeDataset,
        *,
        batch_size: int = 10,
        recipe: Recipe | None = None,
        on_window: OnWindow | None = None,
        prelearn: Any = None,
        **order: Any,
    ) -> WindowFeed:
        made.append(KINDS[kind](loader_of(dataset, recipe, prelearn, **order), batch_size, on_window))
        return made[-1]

    yield make
    for feed in made:
        feed.close()
