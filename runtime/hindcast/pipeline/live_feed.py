"""`LiveFeed`: draws from the episodes that the policy plays while it is trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, root
from hindcast.pipeline.draws import DrawsFeed
from hindcast.pipeline.episode_store import EpisodeStore
from hindcast.pipeline.feeds import State, check_same_position
from hindcast.pipeline.items import count_items
from hindcast.pipeline.metrics_logger import MetricsLogger
from hindcast.pipeline.window import Batch, Recipe, WindowData
from hindcast.pipeline.window_builder import build_window


class Player(Protocol):
    """Plays episodes with the policy as it is now."""

    @property
    def width(self) -> int:
        """Episodes played in parallel."""

    def __call__(self, indices: range, timesteps: int) -> Block:
        """Play episodes; their ids and seeds depend on their indices.

        Args:
            indices: of the episodes.
            timesteps: played before.
        """

    def close(self) -> None:
        """Close the environments; the next episodes open new ones."""


@dataclass(frozen=True)
class LiveSource:
    """A source of episodes that the policy plays.

    Attributes:
        name: in checkpoints and messages.
        play: plays episodes.
        updates: gives the updates made so far, of the whole training.
        weight: share of batches relative to other sources' weights.
        timesteps_per_update: timesteps to play per update.
        warmup: timesteps to play before the first update.
        capacity: most timesteps kept; the oldest episodes are dropped.
        capacity_bytes: most bytes of the needed columns; None for no such limit.
        metrics: what the user's callbacks log about episodes.
    """

    name: str
    player: Player
    updates: Callable[[], int]
    weight: float = 1.0
    timesteps_per_update: float = 1.0
    warmup: int = 1000
    capacity: int = 100_000
    capacity_bytes: int | None = None
    metrics: MetricsLogger = field(default_factory=MetricsLogger)


class LiveFeed(DrawsFeed):
    """A `Feed` of draws from episodes that are played as updates are made.

    The next episodes are played when fewer timesteps have been played than are due. When that is depends on the number
    of updates alone, and what is drawn on the seed and its number: where episodes depend only on the policy and their
    index, so does every batch. Of several learners each plays the same episodes, with the same weights, and gathers its
    part of a batch. A checkpoint holds the episodes.

    Attributes:
        timesteps_played: in all.
    """

    epoch_size = epoch_timesteps = 0
    """An epoch is a pass over recorded data."""

    def __init__(self, live: LiveSource, recipe: Recipe, batch_size: int, seed: int) -> None:
        super().__init__(recipe, batch_size, seed, 0)
        needs = recipe.needs
        alpha = needs.alpha if needs.sampling == "prioritized" else None
        paces = [live.timesteps_per_update, live.warmup, live.player.width]
        self._order = [seed, alpha, *paces, live.capacity, live.capacity_bytes]
        self._live = live
        self._store = EpisodeStore(live.capacity, live.capacity_bytes)
        self._built: WindowData | None = None
        self._items = np.empty(0, dtype=np.int64)
        self._played = 0
        self.timesteps_played = 0
        self._returns: list[float] = []

    def state(self) -> State:
        blocks = self._store.blocks
        return {
            "cursor": self.cursor,
            "order": self._order,
            "data": self._live.name,
            "played": self._played,
            "playedSteps": self.timesteps_played,
            "returns": self._returns,
            "evicted": self._store.num_evicted,
            "episodes": [name for block in blocks for name in block.eps_id.tolist()],
        }

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        order = "the seed, the sampling, or how much is played and kept has"
        check_same_position(state, self.state(), self._live.name, order)
        self._built = None
        tensors = tensors or {}
        names = np.array(state["episodes"], dtype=object)
        held = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._store.load({**held, "eps_id": names}, int(state["evicted"]))
        lengths = self._store.index.length if len(names) else np.empty(0, np.int64)
        self._items = count_items(lengths, self._recipe.needs)
        self._resume(state, int(self._items.sum()), tensors)
        self._played, self.timesteps_played = int(state["played"]), int(state["playedSteps"])
        self._returns = list(state["returns"])

    def returns(self) -> list[float]:
        """Returns of the episodes played since `count_anew`; a checkpoint holds them."""
        return list(self._returns)

    def reset_returns(self) -> None:
        """Begin an iteration, with no episodes yet."""
        self._returns = []

    def close(self) -> None:
        self._built = None
        self._live.player.close()

    def _held(self) -> Batch:
        return {
            name: torch.from_numpy(each) for name, each in self._store.arrays().items() if name != "eps_id"
        }

    def _window(self) -> WindowData:
        """Play what is due; all episodes kept, laid end to end on the device."""
        live = self._live
        due = max(1.0, live.warmup + live.timesteps_per_update * live.updates())
        while self.timesteps_played < due:
            self._play()
        if self._built is None:
            self._built = build_window(self._store.index.length, self._store.blocks, self._recipe)
        return self._built

    def _play(self) -> None:
        started = time.perf_counter()
        live, needs = self._live, self._recipe.needs
        block = live.player(range(self._played, self._played + live.player.width), self.timesteps_played)
        self._returns += np.add.reduceat(block.columns[Columns.REWARDS], block.start).tolist()
        block = block.without_details().with_columns(
            {name: column for name, column in block.columns.items() if root(name) in needs.window_columns}
        )
        self._played += block.num_episodes
        self.timesteps_played += block.num_steps
        evicted = self._store.num_evicted
        self._store.add(block)
        coming = count_items(block.length, needs)
        leaving = self._store.num_evicted - evicted
        items = np.append(self._items, coming)
        self._draws.replace(int(items[:leaving].sum()), int(coming.sum()))
        self._items = items[leaving:]
        self._built = None
        self._waited += time.perf_counter() - started
