"""Items drawn with replacement, uniformly or by priority: `Draws` chooses them, a `DrawsFeed` delivers them."""

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
from hindcast.pipeline.feeds import Feed, GatherValues, State, check_same_position, refuse_priorities
from hindcast.pipeline.loader import Loader
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.priorities import INITIAL_PRIORITY, Priorities
from hindcast.pipeline.rng import Uniforms
from hindcast.pipeline.shard import WHOLE_BATCH, Shard
from hindcast.pipeline.window import Batch, Recipe, WindowData, select_prefix


class Draws:
    """Random draws from items 0 to `size` - 1, with replacement.

    Draw number d depends on the seed, on d and, if drawn by priority, on the current priorities. Each learner draws the
    whole batch and holds all priorities, so several learners draw the same items as a single learner would. This
    requires that the losses' priorities are gathered from all learners before they are set.

    Args:
        needs: the algorithm's needs, of which `sampling`, `alpha` and `beta` are read.
        seed: a different seed gives different draws.
        size: number of items; each starts with `INITIAL_PRIORITY`.
        device: device of the draws; None is the CPU.

    Attributes:
        size: current number of items.
        num_drawn: number of draws so far.
        pending_items: if items are drawn by priority, those of the last call of `next`, `[count]` int64; None before
            the first call, and after their priorities were set or items were dropped or added.
    """

    def __init__(self, needs: Needs, seed: int, size: int, device: torch.device | None = None) -> None:
        self.size = size
        self.num_drawn = 0
        self._needs = needs
        self._device = device
        self._uniforms = Uniforms(seed, "draw")
        self._has_invalid = torch.zeros((), dtype=torch.bool, device=device)
        self._priorities: Priorities | None = None
        self.pending_items: Tensor | None = None
        if needs.sampling == "prioritized":
            self._priorities = self._empty_priorities()
            self._priorities.fill(
                torch.full((size,), self._priorities.to_power(INITIAL_PRIORITY), device=device)
            )

    @property
    def priorities(self) -> Priorities:
        """The priorities of all items.

        Raises:
            UserCodeError: items are not drawn by priority.
        """
        if self._priorities is None:
            refuse_priorities()
        return self._priorities

    def next(self, count: int, beta: float | None = None) -> tuple[Tensor, Batch]:
        """Draw `count` items.

        Args:
            count: number of items to draw.
            beta: exponent of the weights; `needs.beta` if None.

        Returns:
            The items, `[count]` int64, and the columns that the draws add to the batch: the importance `weights`,
            `[count]` float32, if items are drawn by priority, else none.
        """
        uniform = self.take_uniforms(count)
        if self._priorities is None:
            return (uniform * self.size).long(), {}
        self.pending_items, relative_odds = self._priorities.draw(uniform)
        beta = self._needs.beta if beta is None else beta
        return self.pending_items, {Columns.WEIGHTS: (relative_odds**-beta).float()}

    def take_uniforms(self, count: int) -> Tensor:
        """Advance by `count` draws and return their random numbers, `[count]` float64 in [0, 1)."""
        # NumPy's Philox gives the same numbers on every machine; a generator of the learner's device may not.
        uniforms = torch.from_numpy(self._uniforms.take(self.num_drawn, count))
        self.num_drawn += count
        # A blocking copy would make every update wait for the GPU.
        return uniforms.to(self._device, non_blocking=True)

    def prioritise(self, priorities: Tensor) -> None:
        """See `Feed.prioritise`.

        Raises:
            UserCodeError: items are not drawn by priority, or there is not exactly one priority per item.
        """
        current = self.priorities
        assert self.pending_items is not None
        if priorities.shape != self.pending_items.shape:
            raise UserCodeError(
                f"The algorithm's losses give priorities of shape {list(priorities.shape)} for "
                f"{len(self.pending_items)} items; there must be one priority per item."
            )
        # The flag stays on the device, so that no update waits for it; `check_priorities` reads it when metrics are
        # collected.
        self._has_invalid |= current.set(self.pending_items, priorities)
        self.pending_items = None

    def replace(self, num_dropped: int, num_added: int) -> None:
        """Drop the first `num_dropped` items and append `num_added` new items.

        If items are drawn by priority, the new ones get the maximum of all priorities, those of the dropped items
        included, but at least `INITIAL_PRIORITY`.
        """
        if self._priorities is None:
            self.size += num_added - num_dropped
            return
        powers = self.priorities.powers[: self.size]
        # Schaul et al. 2015, algorithm 1: with the maximum priority, each new item is soon learned from at least once.
        initial_power = powers.new_full((1,), self.priorities.to_power(INITIAL_PRIORITY))
        max_power = torch.cat([powers, initial_power]).amax()
        self.set_powers(torch.cat([powers, max_power.expand(num_added)])[num_dropped:])

    def set_powers(self, powers: Tensor) -> None:
        """Replace all items by items with these powers, `[size]` float32 (see `Priorities.fill`)."""
        self.size, self.pending_items = len(powers), None
        self._priorities = self._empty_priorities()
        self._priorities.fill(powers)

    def check_priorities(self) -> None:
        """Check that no priority since the start or the last `load` was NaN or infinite; waits for the device.

        Raises:
            DataError: a priority was NaN or infinite.
        """
        if self._has_invalid:
            raise DataError(
                "A priority became NaN or infinite: `priorities` of the algorithm's losses must be finite."
            )

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the priorities (not copies), for a checkpoint; none if items are drawn uniformly."""
        return {} if self._priorities is None else self._priorities.tensors()

    def load(self, num_drawn: int, size: int, tensors: Mapping[str, Tensor]) -> None:
        """Resume after `num_drawn` draws, with `size` items and the result of the method `tensors`."""
        self.num_drawn, self.size, self.pending_items = num_drawn, size, None
        if self._priorities is not None:
            self._has_invalid.zero_()
            self._priorities = self._empty_priorities()
            self._priorities.load(tensors)

    def _empty_priorities(self) -> Priorities:
        """Return priorities with an empty slot for each item; with one slot if there are no items yet."""
        return Priorities(max(self.size, 1), self._needs.alpha, self._device)


class DrawsFeed(Feed, ABC):
    """Base class of feeds that draw with replacement: draws, priorities, and each learner's shard of a batch."""

    def __init__(
        self, recipe: Recipe, batch_size: int, seed: int, size: int, shard: Shard = WHOLE_BATCH
    ) -> None:
        self.batch_size = batch_size
        self._shard = shard
        self._recipe = recipe
        self._draws = Draws(recipe.needs, seed, size, recipe.device)
        self._wait_seconds = 0.0

    @property
    def cursor(self) -> int:
        return self._draws.num_drawn

    def take(self, count: int) -> Batch:
        """See `Feed.take`.

        Raises:
            UserCodeError: the previous items, drawn by priority, have not been given their priorities.
        """
        if self._draws.pending_items is not None:
            raise UserCodeError(
                "The algorithm draws by priority, but the losses of the previous batch returned no priorities: set "
                "`priorities` of `Losses`."
            )
        data, rows = self._prepare_window(), self._shard.slice_of(count)
        index, columns = self._draws.next(count)
        self._on_draw(index)
        return data.gather(index[rows]) | {name: column[rows] for name, column in columns.items()}

    def prioritise(self, priorities: Tensor) -> None:
        self._draws.prioritise(priorities)

    def tensors(self) -> Batch:
        """See `Feed.tensors`: the priorities, and all else that the draws depend on.

        Raises:
            DataError: a priority was NaN or infinite.
        """
        self._draws.check_priorities()
        tensors = {
            f"priorities/{name}": tensor for name, tensor in self._draws.tensors().items()
        } | self._extra_tensors()
        return {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}

    def synchronise(self, gather: GatherValues) -> None:
        """Do nothing: every learner has all priorities and data."""

    def metrics(self) -> dict[str, float]:
        """See `Feed.metrics`.

        Subclasses that draw from a dataset replace the zeros of `epoch`, `timesteps_seen` and `coverage`.

        Raises:
            DataError: a priority was NaN or infinite.
        """
        self._draws.check_priorities()
        return {"epoch": 0.0, "timesteps_seen": 0.0, "coverage": 0.0, "data_wait_seconds": self._wait_seconds}

    def _resume(self, state: State, size: int, tensors: Mapping[str, Tensor]) -> None:
        """Resume draws from `size` items at the position of `state` and `tensors`, the arguments of `seek`."""
        self._draws.load(int(state["cursor"]), size, select_prefix("priorities/", tensors))

    @abstractmethod
    def _prepare_window(self) -> WindowData:
        """Return the data that items are drawn from, loaded or played if necessary."""

    @abstractmethod
    def _extra_tensors(self) -> Batch:
        """Return the tensors that belong to the position in addition to the priorities."""

    def _on_draw(self, index: Tensor) -> None:
        """Hook: called with the items of each batch."""


class ReplayFeed(DrawsFeed):
    """A `Feed` that draws from a whole dataset, which stays on the device of every learner."""

    def __init__(self, loader: Loader, batch_size: int, shard: Shard = WHOLE_BATCH) -> None:
        self.epoch_size = loader.order.epoch_size
        self.epoch_timesteps = loader.order.epoch_timesteps
        super().__init__(loader.recipe, batch_size, loader.order.seed, self.epoch_size, shard)
        self._loader = loader
        self._is_drawn = torch.zeros(self.epoch_size, dtype=torch.bool, device=loader.recipe.device)
        self._data: WindowData | None = None

    def state(self) -> State:
        return {"cursor": self.cursor, "order": self._digest, "data": self._loader.dataset.digest}

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """See `Feed.seek`; `tensors` are required."""
        order_subject = (
            "the seed, the algorithm's sampling or alpha, or the division of episodes into items (the length, burn-in "
            "or stride of sequences)"
        )
        check_same_position(state, self.state(), self._loader.location, order_subject)
        # The loaded observations are filtered, and the filter may just have been restored from the same checkpoint.
        self.close()
        assert tensors is not None
        self._is_drawn.copy_(tensors["seen"])
        self._resume(state, self.epoch_size, tensors)

    def close(self) -> None:
        self._data = None

    def _prepare_window(self) -> WindowData:
        if self._data is None:
            start_time = time.perf_counter()
            self._data = self._loader.load_all(epoch=0)
            self._wait_seconds += time.perf_counter() - start_time
        return self._data

    def _extra_tensors(self) -> Batch:
        return {"seen": self._is_drawn}

    def _on_draw(self, index: Tensor) -> None:
        self._is_drawn.index_fill_(0, index, True)

    def metrics(self) -> dict[str, float]:
        coverage = float(self._is_drawn.double().mean())
        return super().metrics() | {
            "epoch": self.cursor / self.epoch_size,
            "timesteps_seen": float(round(coverage * self.epoch_timesteps)),
            "coverage": coverage,
        }

    @cached_property
    def _digest(self) -> str:
        """Digest of the draws: a position only resumes in draws with the same digest."""
        order, needs = self._loader.order, self._recipe.needs
        alpha = needs.alpha if needs.sampling == "prioritized" else None
        digest = hashlib.blake2b(repr([order.seed, needs.sampling, alpha]).encode(), digest_size=8)
        digest.update(order.unit_items.tobytes())
        return digest.hexdigest()
