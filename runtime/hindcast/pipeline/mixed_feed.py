"""`MixedFeed` takes each batch from one of several sources, by weight."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
from torch import Tensor

from hindcast.pipeline.feeds import Feed, GatherValues, State
from hindcast.pipeline.rng import generator
from hindcast.pipeline.window import Batch, select_prefix

_CYCLE_BATCHES: Final = 1024


class MixedFeed(Feed):
    """A feed that takes batch *b* from a source chosen by (seed, b); each source has its own order and cursor.

    Of every 1,024 batches each source provides its fraction, to within one batch, in random order.

    Args:
        sources: the feeds and their weights; a source's fraction of batches is its weight over the sum of weights.
        seed: another seed gives another sequence of sources.
        batch_size: items in a batch.
    """

    def __init__(self, sources: Sequence[tuple[Feed, float]], seed: int, batch_size: int) -> None:
        self.batch_size = batch_size
        self.epoch_size = sum(feed.epoch_size for feed, _ in sources)
        self.epoch_timesteps = sum(feed.epoch_timesteps for feed, _ in sources)
        self._feeds = [feed for feed, _ in sources]
        self._cumulative_weights = list(accumulate(weight for _, weight in sources))
        self._seed = seed
        self._num_batches = 0
        self._cached_samples = -1, np.empty(0)  # number of a cycle of batches, and its samples in [0, 1)

    @property
    def cursor(self) -> int:
        """Number of items delivered from all sources together."""
        return sum(feed.cursor for feed in self._feeds)

    def take(self, count: int) -> Batch:
        """See `Feed.take`; all items of a batch are from one source."""
        for feed in self._feeds:
            # Of all sources: otherwise the first batch of each one would wait until its windows are read.
            feed.prefetch()
        batch = self._feeds[self.source_of(self._num_batches)].take(count)
        self._num_batches += 1
        return batch

    def synchronise(self, gather: GatherValues) -> None:
        for feed in self._feeds:
            feed.synchronise(gather)

    def prioritise(self, priorities: Tensor) -> None:
        """See `Feed.prioritise`; applies to the source of the last batch."""
        self._feeds[self.source_of(self._num_batches - 1)].prioritise(priorities)

    def source_of(self, batch: int) -> int:
        """Return the index of the source of batch number `batch`."""
        cycle, offset = divmod(batch, _CYCLE_BATCHES)
        if self._cached_samples[0] != cycle:
            rng = generator(self._seed, "mix", cycle)
            # Stratified: one sample from each of 1,024 equal intervals of [0, 1), all at the same random offset in
            # their intervals, in random order.
            self._cached_samples = cycle, (rng.permutation(_CYCLE_BATCHES) + rng.random()) / _CYCLE_BATCHES
        return bisect_right(
            self._cumulative_weights, self._cached_samples[1][offset] * self._cumulative_weights[-1]
        )

    def state(self) -> State:
        """See `Feed.state`: the number of batches, and the position in each source."""
        positions = {str(index): feed.state() for index, feed in enumerate(self._feeds)}
        return {"batches": self._num_batches, "sources": positions}

    def tensors(self) -> Batch:
        """See `Feed.tensors`; the names are `<index of the source>/<name>`."""
        return {
            f"{index}/{name}": tensor
            for index, feed in enumerate(self._feeds)
            for name, tensor in feed.tensors().items()
        }

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        for index, feed in enumerate(self._feeds):
            feed.seek(state["sources"][str(index)], select_prefix(f"{index}/", tensors or {}))
        self._num_batches = int(state["batches"])

    def metrics(self) -> dict[str, float]:
        """See `Feed.metrics`. `epoch` is the number of items taken from recorded sources over the number in them.

        It and `coverage` are 0 without recorded data.
        """
        metrics = [feed.metrics() for feed in self._feeds]
        timesteps_seen = sum(feed_metrics["timesteps_seen"] for feed_metrics in metrics)
        recorded_items = sum(feed.cursor for feed in self._feeds if feed.epoch_size)
        ages = [feed_metrics["targets_age"] for feed_metrics in metrics if "targets_age" in feed_metrics]
        return {
            "epoch": recorded_items / max(1, self.epoch_size),
            "timesteps_seen": timesteps_seen,
            "coverage": timesteps_seen / max(1, self.epoch_timesteps),
            "data_wait_seconds": sum(feed_metrics["data_wait_seconds"] for feed_metrics in metrics),
            **({"targets_age": max(ages)} if ages else {}),
        }

    def close(self) -> None:
        for feed in self._feeds:
            feed.close()
