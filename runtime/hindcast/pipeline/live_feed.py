"""`LiveFeed`: draws from what the policy plays while it is trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hindcast.episodes.block import Block
from hindcast.episodes.columns import root
from hindcast.pipeline.building import WindowBuilder
from hindcast.pipeline.draws import Draws
from hindcast.pipeline.episode_store import EpisodeStore
from hindcast.pipeline.feeds import State, refuse_other
from hindcast.pipeline.sequences import sequences_in
from hindcast.pipeline.share import WHOLE, Share
from hindcast.pipeline.window import Batch, Recipe, WindowData, below

Play = Callable[[range], Block]
"""Plays the episodes of these indices with the policy as it is now; their ids and seeds follow from the indices."""

_PER_EPISODE: Final = ("length", "t_started", "terminated", "truncated")


@dataclass(frozen=True)
class Live:
    """A source of what the policy plays.

    Attributes:
        name: in checkpoints and messages.
        play: plays episodes.
        weight: share of batches relative to other sources' weights.
        episodes: played before the first item and again after every so many.
        every: items delivered between two plays.
        capacity: most timesteps that are kept; the oldest episodes leave, whole.
        capacity_bytes: most bytes of the columns that are needed.
    """

    name: str
    play: Play
    weight: float = 1.0
    episodes: int = 16
    every: int = 4096
    capacity: int = 100_000
    capacity_bytes: int | None = None


class LiveFeed:
    """A `Feed` of draws from episodes that are played as items are delivered.

    When episodes are played follows from the number of items delivered, and what is drawn from the seed and its number:
    with a `play` whose episodes follow from the policy and their index, so does every batch. Of several learners each
    plays the same episodes, with the same weights, and gathers its part of a batch. A checkpoint holds the episodes.

    Args:
        live: what is played, and how much of it is kept.
        recipe: how episodes become batches; its needs say whether they are drawn by priority, else it is uniformly.
        batch_size: items in a batch.
        seed: of the draws.
    """

    epoch_size = 0
    """A pass is over recorded data."""

    def __init__(self, live: Live, recipe: Recipe, batch_size: int, seed: int) -> None:
        self.batch_size = batch_size
        needs = recipe.needs
        alpha = needs.alpha if needs.sampling == "prioritized" else None
        self._order = [seed, alpha, live.episodes, live.every, live.capacity, live.capacity_bytes]
        self._live = live
        self._recipe = recipe
        self._store = EpisodeStore(live.capacity, live.capacity_bytes)
        self._draws = Draws(needs, seed, 0, recipe.device)
        self._built: WindowData | None = None
        self._items = np.empty(0, dtype=np.int64)
        self._played = 0
        self._played_steps = 0
        self._waited = 0.0

    @property
    def cursor(self) -> int:
        """See `Feed`."""
        return self._draws.count

    def next(self) -> Batch:
        """See `Feed`."""
        return self.take(self.batch_size)

    def take(self, count: int, share: Share = WHOLE) -> Batch:
        """See `Feed`; plays first, where it is time.

        Raises:
            UserCodeError: as of `Draws.next`.
        """
        live = self._live
        while self._played < live.episodes * (1 + self.cursor // live.every):
            self._play()
        index, columns = self._draws.next(count)
        own = share.of(count)
        return self._window().gather(index[own]) | {name: column[own] for name, column in columns.items()}

    def prioritise(self, priorities: Tensor) -> None:
        """See `Feed`."""
        self._draws.prioritise(priorities)

    def state(self) -> State:
        """See `Feed`."""
        blocks = self._store.blocks
        return {
            "cursor": self.cursor,
            "order": self._order,
            "data": self._live.name,
            "played": self._played,
            "playedSteps": self._played_steps,
            "evicted": self._store.evicted,
            "episodes": [name for block in blocks for name in block.eps_id.tolist()],
        }

    def tensors(self) -> Batch:
        """See `Feed`: the episodes that are kept, and priorities.

        Raises:
            DataError: a priority was NaN or infinite.
        """
        self._draws.check()
        held = {f"priorities/{name}": tensor for name, tensor in self._draws.tensors().items()}
        if self._store.blocks:
            block = Block.concat(self._store.blocks)
            held |= {f"columns/{name}": torch.from_numpy(column) for name, column in block.columns.items()}
            held |= {name: torch.from_numpy(getattr(block, name)) for name in _PER_EPISODE}
        return {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in held.items()}

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """See `Feed`."""
        refuse_other(state, self.state(), "the seed, the sampling, or how much is played and kept has")
        self.close()
        tensors = tensors or {}
        names = state["episodes"]
        blocks = [_block_of(names, tensors)] if names else []
        self._store.replace(blocks, int(state["evicted"]))
        self._items = np.concatenate([np.empty(0, np.int64), *(self._items_of(block) for block in blocks)])
        self._draws.load(int(state["cursor"]), int(self._items.sum()), below("priorities/", tensors))
        self._played, self._played_steps = int(state["played"]), int(state["playedSteps"])

    def metrics(self) -> dict[str, float]:
        """See `Feed`; `timesteps_played`, which count neither as seen nor for coverage, and no epochs.

        Raises:
            DataError: a priority was NaN or infinite.
        """
        self._draws.check()
        return {
            "epoch": 0.0,
            "timesteps_seen": 0.0,
            "coverage": 0.0,
            "data_wait_seconds": self._waited,
            "timesteps_played": float(self._played_steps),
        }

    def close(self) -> None:
        """See `Feed`."""
        self._built = None

    def _play(self) -> None:
        started = time.perf_counter()
        live, kept = self._live, self._recipe.needs.kept
        block = live.play(range(self._played, self._played + live.episodes))
        block = block.without_details().with_columns(
            {name: column for name, column in block.columns.items() if root(name) in kept}
        )
        self._played += live.episodes
        self._played_steps += block.num_steps
        evicted = self._store.evicted
        self._store.add(block)
        coming = self._items_of(block)
        leaving = self._store.evicted - evicted
        items = np.append(self._items, coming)
        self._draws.replace(int(items[:leaving].sum()), int(coming.sum()))
        self._items = items[leaving:]
        self._built = None
        self._waited += time.perf_counter() - started

    def _window(self) -> WindowData:
        """All that is kept, laid end to end on the device; built anew after each play."""
        if self._built is None:
            blocks = self._store.blocks
            builder = WindowBuilder(np.concatenate([block.length for block in blocks]), self._recipe)
            for block in blocks:
                builder.add(block)
            self._built = builder.build()
        return self._built

    def _items_of(self, block: Block) -> NDArray[np.int64]:
        """`[N]` items of each episode."""
        needs = self._recipe.needs
        if needs.seq_len is None:
            return block.length
        found = sequences_in(block.length, needs.seq_len, needs.burn_in, needs.stride)
        return np.asarray(found, dtype=np.int64)


def _block_of(eps_id: Sequence[str], tensors: Mapping[str, Tensor]) -> Block:
    columns = {name: tensor.numpy() for name, tensor in below("columns/", tensors).items()}
    numbers = {name: tensors[name].numpy() for name in _PER_EPISODE}
    return Block(columns=columns, eps_id=np.array(eps_id, dtype=object), **numbers)
