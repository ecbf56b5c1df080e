"""`LiveFeed` draws from episodes that the policy plays during training."""

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
from hindcast.metrics_logger import MetricsLogger
from hindcast.pipeline.draws import DrawsFeed
from hindcast.pipeline.episode_store import EpisodeStore
from hindcast.pipeline.feeds import State, check_same_position
from hindcast.pipeline.items import count_items
from hindcast.pipeline.loader import build_window
from hindcast.pipeline.shard import WHOLE_BATCH, Shard
from hindcast.pipeline.window import Batch, Recipe, WindowData


class Player(Protocol):
    """Plays episodes with the current policy."""

    @property
    def width(self) -> int:
        """Number of episodes that one call plays."""

    def __call__(self, indices: range, timesteps_played: int) -> Block:
        """Play episodes and return them; their ids and seeds depend on their indices alone.

        Args:
            indices: indices of the episodes.
            timesteps_played: number of timesteps played before these episodes.
        """

    def close(self) -> None:
        """Close the environments; the next episodes open new ones."""


@dataclass(frozen=True)
class LiveSource:
    """A source of episodes that the policy plays.

    Attributes:
        name: name in checkpoints and messages.
        player: plays episodes.
        updates: returns the number of updates of the training so far.
        weight: the source's fraction of batches is its weight over the sum of all sources' weights.
        timesteps_per_update: timesteps to play per update.
        warmup: timesteps to play before the first update.
        capacity: maximum number of timesteps kept; the oldest episodes are dropped.
        capacity_bytes: maximum bytes of the needed columns; None for no limit.
        metrics: logs metrics of the user's callbacks about episodes.
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
    """A `Feed` that draws from episodes which are played between updates.

    The next episodes are played once fewer timesteps have been played than are due. How many are due depends only on
    the number of updates, and a draw only on the seed and its number. So batches are reproducible if an episode is a
    function of the policy and its index. Each of several learners plays the same episodes, with the same weights, and
    gathers its shard of a batch. A checkpoint contains the episodes.

    Args:
        live: the source of the episodes.
        recipe: how batches are made.
        batch_size: items in a batch.
        seed: the run's seed.
        shard: this learner's part of a batch.

    Attributes:
        timesteps_played: total number of timesteps played.
    """

    epoch_size = epoch_timesteps = 0
    """0, since an epoch is a pass over recorded data."""

    def __init__(
        self, live: LiveSource, recipe: Recipe, batch_size: int, seed: int, shard: Shard = WHOLE_BATCH
    ) -> None:
        super().__init__(recipe, batch_size, seed, size=0, shard=shard)
        needs = recipe.needs
        alpha = needs.alpha if needs.sampling == "prioritized" else None
        pace = [live.timesteps_per_update, live.warmup, live.player.width]
        self._order_key = [seed, alpha, *pace, live.capacity, live.capacity_bytes]
        self._live = live
        self._store = EpisodeStore(live.capacity, live.capacity_bytes)
        self._window_data: WindowData | None = None
        self._num_played = 0
        self.timesteps_played = 0
        self._returns: list[float] = []

    def state(self) -> State:
        blocks = self._store.blocks
        return {
            "cursor": self.cursor,
            "order": self._order_key,
            "data": self._live.name,
            "played": self._num_played,
            "playedSteps": self.timesteps_played,
            "returns": self._returns,
            "evicted": self._store.num_evicted,
            "episodes": [eps_id for block in blocks for eps_id in block.eps_id.tolist()],
        }

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        order_subject = (
            "the seed, the algorithm's sampling or alpha, the number of timesteps that are played or kept, or the "
            "number of episodes that are played in parallel"
        )
        check_same_position(state, self.state(), self._live.name, order_subject)
        self._window_data = None
        tensors = tensors or {}
        episode_ids = np.array(state["episodes"], dtype=object)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._store.load({**arrays, "eps_id": episode_ids}, int(state["evicted"]))
        self._resume(state, self._count_items() if len(episode_ids) else 0, tensors)
        self._num_played, self.timesteps_played = int(state["played"]), int(state["playedSteps"])
        self._returns = list(state["returns"])

    def returns(self) -> list[float]:
        """Return the episodes' returns since `reset_returns`; checkpoints contain them."""
        return list(self._returns)

    def reset_returns(self) -> None:
        """Forget the returns, at the start of an iteration."""
        self._returns = []

    def close(self) -> None:
        self._window_data = None
        self._live.player.close()

    def _extra_tensors(self) -> Batch:
        return {
            name: torch.from_numpy(array) for name, array in self._store.arrays().items() if name != "eps_id"
        }

    def _prepare_window(self) -> WindowData:
        """Play the episodes that are due, and return all stored ones, laid end to end on the device."""
        live = self._live
        # At least one timestep, since there is nothing to draw from otherwise.
        due_timesteps = max(1.0, live.warmup + live.timesteps_per_update * live.updates())
        # A function of the number of updates alone, so that a resumed training plays the same episodes.
        while self.timesteps_played < due_timesteps:
            self._play_round()
        if self._window_data is None:
            self._window_data = build_window(self._store.blocks, self._recipe)
        return self._window_data

    def _play_round(self) -> None:
        """Play the next `width` episodes, and add them to the store and to the draws."""
        start_time = time.perf_counter()
        live, needs = self._live, self._recipe.needs
        block = live.player(
            range(self._num_played, self._num_played + live.player.width), self.timesteps_played
        )
        # Computed before columns are dropped, since the algorithm may not need the rewards.
        self._returns += np.add.reduceat(block.columns[Columns.REWARDS], block.start).tolist()
        block = block.without_details().with_columns(
            {name: column for name, column in block.columns.items() if root(name) in needs.window_columns}
        )
        self._num_played += block.num_episodes
        self.timesteps_played += block.num_steps
        self._store.add(block)
        num_added = int(count_items(block.length, needs).sum())
        num_dropped = self._draws.size + num_added - self._count_items()
        self._draws.replace(num_dropped, num_added)
        self._window_data = None
        self._wait_seconds += time.perf_counter() - start_time

    def _count_items(self) -> int:
        """Return the number of items of the stored episodes; there must be at least one episode."""
        return int(count_items(self._store.index.length, self._recipe.needs).sum())
