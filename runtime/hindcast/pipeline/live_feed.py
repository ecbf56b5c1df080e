"""`LiveFeed`: draws from what the policy plays while it is trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, root
from hindcast.pipeline.building import WindowBuilder
from hindcast.pipeline.draws import Draws
from hindcast.pipeline.episode_store import EpisodeStore
from hindcast.pipeline.feeds import State, refuse_other
from hindcast.pipeline.metrics_logger import MetricsLogger
from hindcast.pipeline.sequences import sequences_in
from hindcast.pipeline.share import WHOLE, Share
from hindcast.pipeline.window import Batch, Recipe, WindowData, below


class Play(Protocol):
    """Plays episodes with the policy as it is now."""

    @property
    def width(self) -> int:
        """Episodes that are played side by side."""

    def __call__(self, indices: range, timesteps: int) -> Block:
        """The episodes of these indices, from which their ids and seeds follow.

        Args:
            indices: of episodes.
            timesteps: played before.
        """

    def close(self) -> None:
        """Close the environments; the next episodes open new ones."""


_PER_EPISODE: Final = ("length", "t_started", "terminated", "truncated")


@dataclass(frozen=True)
class Live:
    """A source of what the policy plays.

    Attributes:
        name: in checkpoints and messages.
        play: plays episodes.
        updates: gives the updates made so far, of the whole training.
        weight: share of batches relative to other sources' weights.
        timesteps_per_update: timesteps to be played for each update.
        warmup: timesteps to be played besides, from the first.
        capacity: most timesteps that are kept; the oldest episodes leave, whole.
        capacity_bytes: most bytes of the columns that are needed; None for no such bound.
        metrics: what the user's callbacks log of episodes.
    """

    name: str
    play: Play
    updates: Callable[[], int]
    weight: float = 1.0
    timesteps_per_update: float = 1.0
    warmup: int = 1000
    capacity: int = 100_000
    capacity_bytes: int | None = None
    metrics: MetricsLogger = field(default_factory=MetricsLogger)


class LiveFeed:
    """A `Feed` of draws from episodes that are played as updates are made.

    The next episodes are played where fewer timesteps have been than are due. When that is follows from the updates,
    and what is drawn from the seed and its number: with a `play` whose episodes follow from the policy and their index,
    so does every batch. Of several learners each plays the same episodes, with the same weights, and gathers its part
    of a batch. A checkpoint holds the episodes.

    Args:
        live: what is played, and how much of it is kept.
        recipe: how episodes become batches; its needs say whether they are drawn by priority, else it is uniformly.
        batch_size: items in a batch.
        seed: of the draws.

    Attributes:
        timesteps_played: in all.
    """

    epoch_size = 0
    """A pass is over recorded data."""

    def __init__(self, live: Live, recipe: Recipe, batch_size: int, seed: int) -> None:
        self.batch_size = batch_size
        needs = recipe.needs
        alpha = needs.alpha if needs.sampling == "prioritized" else None
        paces = [live.timesteps_per_update, live.warmup, live.play.width]
        self._order = [seed, alpha, *paces, live.capacity, live.capacity_bytes]
        self._live = live
        self._recipe = recipe
        self._store = EpisodeStore(live.capacity, live.capacity_bytes)
        self._draws = Draws(needs, seed, 0, recipe.device)
        self._built: WindowData | None = None
        self._items = np.empty(0, dtype=np.int64)
        self._played = 0
        self.timesteps_played = 0
        self._returns: list[float] = []
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
        due = max(1.0, live.warmup + live.timesteps_per_update * live.updates())
        while self.timesteps_played < due:
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
            "playedSteps": self.timesteps_played,
            "returns": self._returns,
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
        self._built = None
        tensors = tensors or {}
        names = state["episodes"]
        blocks = [_block_of(names, tensors)] if names else []
        self._store.replace(blocks, int(state["evicted"]))
        self._items = np.concatenate([np.empty(0, np.int64), *(self._items_of(block) for block in blocks)])
        self._draws.load(int(state["cursor"]), int(self._items.sum()), below("priorities/", tensors))
        self._played, self.timesteps_played = int(state["played"]), int(state["playedSteps"])
        self._returns = list(state["returns"])

    def returns(self) -> list[float]:
        """Of the episodes played since this was last asked; a checkpoint holds those that are not asked for yet."""
        found, self._returns = self._returns, []
        return found

    def metrics(self) -> dict[str, float]:
        """See `Feed`; what was played counts neither as seen nor for coverage, and there are no epochs.

        Raises:
            DataError: a priority was NaN or infinite.
        """
        self._draws.check()
        return {"epoch": 0.0, "timesteps_seen": 0.0, "coverage": 0.0, "data_wait_seconds": self._waited}

    def close(self) -> None:
        """See `Feed`."""
        self._built = None
        self._live.play.close()

    def _play(self) -> None:
        started = time.perf_counter()
        live, kept = self._live, self._recipe.needs.kept
        block = live.play(range(self._played, self._played + live.play.width), self.timesteps_played)
        self._returns += np.add.reduceat(block.columns[Columns.REWARDS], block.start).tolist()
        block = block.without_details().with_columns(
            {name: column for name, column in block.columns.items() if root(name) in kept}
        )
        self._played += block.num_episodes
        self.timesteps_played += block.num_steps
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
    numbers: dict[str, Any] = {name: tensors[name].numpy() for name in _PER_EPISODE}
    return Block(columns=columns, eps_id=np.array(eps_id, dtype=object), **numbers)
