"""Items drawn with replacement, uniformly or by priority: `Draws` says which, `DrawsFeed`s deliver them."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from hindcast.episodes.columns import Columns
from hindcast.errors import DataError, UserCodeError
from hindcast.pipeline.feeds import Feed, State, check_same_position, refuse_priorities
from hindcast.pipeline.loader import Loader
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.priorities import INITIAL_PRIORITY, Priorities
from hindcast.pipeline.rng import Uniforms
from hindcast.pipeline.shard import WHOLE_BATCH, Shard
from hindcast.pipeline.window import Batch, Recipe, WindowData, select_prefix


class Draws:
    """Draws from items 0 to `size` - 1.

    Draw number d depends on the seed, d and, by priority, the priorities at that moment. Each learner draws the whole
    batch and holds all priorities, so several learners draw what one would; the losses' priorities are gathered for
    that.

    Args:
        needs: how items are drawn: by priority, or else uniformly.
        seed: a different seed gives different draws.
        size: number of items; each starts with the priority `FIRST`.
        device: of the draws.

    Attributes:
        size: items now.
        count: draws made.
        unanswered: the items drawn last by priority, `[count]` int64, until they get their priorities.
    """

    def __init__(self, needs: Needs, seed: int, size: int, device: torch.device | None = None) -> None:
        self.size = size
        self.count = 0
        self._needs = needs
        self._device = device
        self._uniforms = Uniforms(seed, "draw")
        self._wrong = torch.zeros((), dtype=torch.bool, device=device)
        self._priorities: Priorities | None = None
        self.pending_items: Tensor | None = None
        if needs.sampling == "prioritized":
            self._priorities = self._without()
            self._priorities.fill(
                torch.full((size,), self._priorities.to_power(INITIAL_PRIORITY), device=device)
            )

    @property
    def priorities(self) -> Priorities:
        """Of the items.

        Raises:
            UserCodeError: items are not drawn by priority.
        """
        if self._priorities is None:
            refuse_priorities()
        return self._priorities

    def next(self, count: int, beta: float | None = None) -> tuple[Tensor, Batch]:
        """The next `count` items, `[count]` int64, and, by priority, their importance `weights`.

        Args:
            beta: of the weights; that of the needs if None.
        """
        uniform = self.uniforms(count)
        if self._priorities is None:
            return (uniform * self.size).long(), {}
        self.pending_items, likelier = self._priorities.draw(uniform)
        beta = self._needs.beta if beta is None else beta
        return self.pending_items, {Columns.WEIGHTS: (likelier**-beta).float()}

    def uniforms(self, count: int) -> Tensor:
        """The numbers of the next `count` draws: `[count]` float64, from 0 to below 1."""
        uniforms = torch.from_numpy(self._uniforms.take(self.count, count))
        self.count += count
        return uniforms.to(self._device, non_blocking=True)  # else every update waits for the GPU

    def prioritise(self, priorities: Tensor) -> None:
        """See `Feed`.

        Raises:
            UserCodeError: items are not drawn by priority, or there is not one for each item.
        """
        own = self.priorities
        assert self.pending_items is not None
        if priorities.shape != self.pending_items.shape:
            raise UserCodeError(
                f"The algorithm's losses give priorities of shape {list(priorities.shape)} for "
                f"{len(self.pending_items)} items; it must be one for each."
            )
        self._wrong |= own.set(self.pending_items, priorities)
        self.pending_items = None

    def replace(self, leaving: int, coming: int) -> None:
        """Drop the first `leaving` items and append `coming` new ones, which get the greatest priority held."""
        if self._priorities is None:
            self.size += coming - leaving
            return
        powers = self.priorities.powers[: self.size]
        first = powers.new_full((1,), self.priorities.to_power(INITIAL_PRIORITY))
        greatest = torch.cat([powers, first]).amax()
        self.set_powers(torch.cat([powers, greatest.expand(coming)])[leaving:])

    def set_powers(self, powers: Tensor) -> None:
        """Draw, by priority, from items of these `powers` from now on, `[size]` float32 (see `Priorities.put`)."""
        self.size, self.pending_items = len(powers), None
        self._priorities = self._without()
        self._priorities.fill(powers)

    def check(self) -> None:
        """Refuse priorities that were NaN or infinite; waits for the device.

        Raises:
            DataError: one was.
        """
        if self._wrong:
            raise DataError(
                "A priority became NaN or infinite: `priorities` of the algorithm's losses must be finite."
            )

    def tensors(self) -> dict[str, Tensor]:
        """The priorities, for a checkpoint."""
        return {} if self._priorities is None else self._priorities.tensors()

    def load(self, count: int, size: int, tensors: Mapping[str, Tensor]) -> None:
        """Resume after `count` draws, with `size` items and the tensors of `tensors`."""
        self.count, self.size, self.pending_items = count, size, None
        if self._priorities is not None:
            self._wrong.zero_()
            self._priorities = self._without()
            self._priorities.load(tensors)

    def _without(self) -> Priorities:
        """A place for each item, none with a priority."""
        return Priorities(max(self.size, 1), self._needs.alpha, self._device)


class DrawsFeed(Feed, ABC):
    """What the feeds of draws share (see `Feed`): the draws, their priorities, and each learner's part of a batch."""

    def __init__(self, recipe: Recipe, batch_size: int, seed: int, size: int) -> None:
        self.batch_size = batch_size
        self._recipe = recipe
        self._draws = Draws(recipe.needs, seed, size, recipe.device)
        self._waited = 0.0

    @property
    def cursor(self) -> int:
        return self._draws.count

    def take(self, count: int, shard: Shard = WHOLE_BATCH) -> Batch:
        """See `Feed`.

        Raises:
            UserCodeError: the previous items, drawn by priority, have not been given their priorities.
        """
        if self._draws.pending_items is not None:
            raise UserCodeError(
                "The algorithm draws by priority, but the losses of the previous batch gave none: set `priorities` of "
                "`Losses`."
            )
        data, own = self._window(), shard.slice_of(count)
        index, columns = self._draws.next(count)
        self._drawn(index)
        return data.gather(index[own]) | {name: column[own] for name, column in columns.items()}

    def prioritise(self, priorities: Tensor) -> None:
        self._draws.prioritise(priorities)

    def tensors(self) -> Batch:
        """See `Feed`: the priorities, and what else the draws depend on.

        Raises:
            DataError: a priority was NaN or infinite.
        """
        self._draws.check()
        held = {f"priorities/{name}": tensor for name, tensor in self._draws.tensors().items()} | self._held()
        return {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in held.items()}

    def metrics(self) -> dict[str, float]:
        """See `Feed`; only draws from a dataset have epochs and coverage.

        Raises:
            DataError: a priority was NaN or infinite.
        """
        self._draws.check()
        return {"epoch": 0.0, "timesteps_seen": 0.0, "coverage": 0.0, "data_wait_seconds": self._waited}

    def _resume(self, state: State, size: int, tensors: Mapping[str, Tensor]) -> None:
        """Draw from `size` items where `state` and `tensors` were saved."""
        self._draws.load(int(state["cursor"]), size, select_prefix("priorities/", tensors))

    @abstractmethod
    def _window(self) -> WindowData:
        """What is drawn from now."""

    @abstractmethod
    def _held(self) -> Batch:
        """Tensors that belong to the position in addition to the priorities."""

    def _drawn(self, index: Tensor) -> None:
        """Called with the items of each batch."""


class ReplayFeed(DrawsFeed):
    """A `Feed` of draws from a whole dataset, which stays on the device."""

    def __init__(self, loader: Loader, batch_size: int) -> None:
        self.epoch_size = loader.order.epoch_size
        self.epoch_timesteps = loader.order.epoch_timesteps
        super().__init__(loader.recipe, batch_size, loader.order.seed, self.epoch_size)
        self._loader = loader
        self._seen = torch.zeros(self.epoch_size, dtype=torch.bool, device=loader.recipe.device)
        self._loaded: WindowData | None = None

    def state(self) -> State:
        return {"cursor": self.cursor, "order": self._digest, "data": self._loader.dataset.digest}

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """See `Feed`. The data are released, since the observation filter may have been restored too."""
        order = "the seed, the sampling, alpha or how items are cut has"
        check_same_position(state, self.state(), self._loader.location, order)
        self.close()
        tensors = tensors or {}
        self._seen.copy_(tensors["seen"])
        self._resume(state, self.epoch_size, tensors)

    def close(self) -> None:
        self._loaded = None

    def _window(self) -> WindowData:
        if self._loaded is None:
            started = time.perf_counter()
            self._loaded = self._loader.load_all(epoch=0)
            self._waited += time.perf_counter() - started
        return self._loaded

    def _held(self) -> Batch:
        return {"seen": self._seen}

    def _drawn(self, index: Tensor) -> None:
        self._seen.index_fill_(0, index, True)

    def metrics(self) -> dict[str, float]:
        coverage = float(self._seen.double().mean())
        return super().metrics() | {
            "epoch": self.cursor / self.epoch_size,
            "timesteps_seen": float(round(coverage * self.epoch_timesteps)),
            "coverage": coverage,
        }

    @cached_property
    def _digest(self) -> str:
        """Identifies the draws: positions of different draws must not be mixed."""
        order, needs = self._loader.order, self._recipe.needs
        alpha = needs.alpha if needs.sampling == "prioritized" else None
        digest = hashlib.blake2b(repr([order.seed, needs.sampling, alpha]).encode(), digest_size=8)
        digest.update(order.unit_items.tobytes())
        return digest.hexdigest()
