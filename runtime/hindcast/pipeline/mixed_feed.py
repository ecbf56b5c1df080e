"""`MixedFeed`: each batch from one of several sources, by weight."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
from torch import Tensor

from hindcast.pipeline.feeds import Feed, State
from hindcast.pipeline.rng import generator
from hindcast.pipeline.shard import WHOLE_BATCH, Shard
from hindcast.pipeline.window import Batch, select_prefix

_RUN: Final = 1024


class MixedFeed(Feed):
    """The source of batch *b* follows from (seed, b); each source keeps its own order and cursor.

    Of every 1,024 batches each source has its share to one batch: the draws are evenly spaced, and in random order.

    Args:
        sources: each source's feed and weight; its share of batches is its weight over the sum of weights.
        seed: another seed gives another sequence of sources.
        batch_size: items in a batch.
    """

    def __init__(self, sources: Sequence[tuple[Feed, float]], seed: int, batch_size: int) -> None:
        self.batch_size = batch_size
        self.epoch_size = sum(feed.epoch_size for feed, _ in sources)
        self.epoch_timesteps = sum(feed.epoch_timesteps for feed, _ in sources)
        self._feeds = [feed for feed, _ in sources]
        self._bounds = list(accumulate(weight for _, weight in sources))
        self._seed = seed
        self._batches = 0
        self._draws = -1, np.empty(0)

    @property
    def cursor(self) -> int:
        """Items delivered from all sources together."""
        return sum(feed.cursor for feed in self._feeds)

    def take(self, count: int, shard: Shard = WHOLE_BATCH) -> Batch:
        """The next `count` items, all of one source; counts as one batch."""
        batch = self._feeds[self.source_of(self._batches)].take(count, shard)
        self._batches += 1
        return batch

    def prioritise(self, priorities: Tensor) -> None:
        """See `Feed`: those of the source that the last batch came from."""
        self._feeds[self.source_of(self._batches - 1)].prioritise(priorities)

    def source_of(self, batch: int) -> int:
        """Index of the source that batch number `batch` comes from."""
        run, place = divmod(batch, _RUN)
        if self._draws[0] != run:
            random = generator(self._seed, "mix", run)
            self._draws = run, (random.permutation(_RUN) + random.random()) / _RUN
        return bisect_right(self._bounds, self._draws[1][place] * self._bounds[-1])

    def state(self) -> State:
        """See `Feed`: the number of batches, and the position in each source."""
        positions = {str(number): feed.state() for number, feed in enumerate(self._feeds)}
        return {"batches": self._batches, "sources": positions}

    def tensors(self) -> Batch:
        """See `Feed`: `<number of the source>/<name>`."""
        return {
            f"{number}/{name}": tensor
            for number, feed in enumerate(self._feeds)
            for name, tensor in feed.tensors().items()
        }

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        positions = state["sources"].values()  # earlier checkpoints have other keys, in the same order
        for number, (feed, position) in enumerate(zip(self._feeds, positions, strict=True)):
            feed.seek(position, select_prefix(f"{number}/", tensors or {}))
        self._batches = int(state["batches"])

    def metrics(self) -> dict[str, float]:
        """See `Feed`; `epoch` is the number of passes over as many items as all recorded sources have together."""
        parts = [feed.metrics() for feed in self._feeds]
        seen = sum(part["timesteps_seen"] for part in parts)
        recorded = sum(feed.cursor for feed in self._feeds if feed.epoch_size)
        ages = [part["targets_age"] for part in parts if "targets_age" in part]
        return {
            "epoch": recorded / self.epoch_size,
            "timesteps_seen": seen,
            "coverage": seen / self.epoch_timesteps,
            "data_wait_seconds": sum(part["data_wait_seconds"] for part in parts),
            **({"targets_age": max(ages)} if ages else {}),
        }

    def close(self) -> None:
        for feed in self._feeds:
            feed.close()
