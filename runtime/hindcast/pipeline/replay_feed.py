"""`ReplayFeed`: items drawn with replacement from all data, uniformly or by priority."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from hindcast.episodes.columns import Columns
from hindcast.errors import UserCodeError
from hindcast.pipeline.feeds import State, refuse_other, refuse_priorities
from hindcast.pipeline.loader import Loader
from hindcast.pipeline.priorities import FIRST, Priorities
from hindcast.pipeline.rng import Uniforms
from hindcast.pipeline.share import WHOLE, Share
from hindcast.pipeline.window import Batch, WindowData, below


class ReplayFeed:
    """A `Feed` of draws from all data, which stay on the device.

    Draw number d follows from the seed, d and, by priority, the priorities of that moment. Each learner draws the
    whole batch and gathers its own part. All hold all priorities, which the losses' are gathered for: with a part of
    them each, a learner could only draw from its own part, and several would not draw what one draws.

    Args:
        loader: reads the data; its needs say how they are drawn, its order's seed is the draws'.
        batch_size: items in a batch.
    """

    def __init__(self, loader: Loader, batch_size: int) -> None:
        device = loader.recipe.device
        self.batch_size = batch_size
        self.epoch_size = loader.order.epoch_size
        self._loader = loader
        self._needs = loader.recipe.needs
        self._uniforms = Uniforms(loader.order.seed, "draw")
        self._cursor = 0
        self._seen = torch.zeros(self.epoch_size, dtype=torch.bool, device=device)
        self._priorities: Priorities | None = None
        if self._needs.sampling == "prioritized":
            self._priorities = Priorities(self.epoch_size, self._needs.alpha, device)
            self._priorities.fill(slice(0, self.epoch_size), FIRST)
        self._unanswered: Tensor | None = None
        self._loaded: WindowData | None = None
        self._waited = 0.0

    @property
    def cursor(self) -> int:
        """See `Feed`."""
        return self._cursor

    def next(self) -> Batch:
        """See `Feed`."""
        return self.take(self.batch_size)

    def take(self, count: int, share: Share = WHOLE) -> Batch:
        """See `Feed`.

        Raises:
            UserCodeError: the items that were taken before by priority have not been given theirs.
        """
        data, own = self._data, share.of(count)
        index, weights = self._draw(count)
        self._cursor += count
        self._seen.index_fill_(0, index, True)
        return data.gather(index[own]) | {name: column[own] for name, column in weights.items()}

    def prioritise(self, priorities: Tensor) -> None:
        """See `Feed`."""
        if self._priorities is None:
            refuse_priorities()
        assert self._unanswered is not None
        if priorities.shape != self._unanswered.shape:
            raise UserCodeError(
                f"The algorithm's losses give priorities of shape {list(priorities.shape)} for "
                f"{len(self._unanswered)} items; it must be one for each."
            )
        self._priorities.set(self._unanswered, priorities)
        self._unanswered = None

    def state(self) -> State:
        """See `Feed`."""
        return {"cursor": self._cursor, "order": self._digest, "data": self._loader.dataset.digest}

    def tensors(self) -> Batch:
        """See `Feed`: the priorities, and which items were drawn.

        Raises:
            DataError: a priority was NaN or infinite.
        """
        self._check()
        priorities = {} if self._priorities is None else self._priorities.tensors()
        held = {"seen": self._seen} | {f"priorities/{name}": each for name, each in priorities.items()}
        return {name: tensor.to("cpu", copy=True) for name, tensor in held.items()}

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """See `Feed`. The data are let go of, since the observation filter may have been restored too."""
        refuse_other(state, self.state(), "the seed, the sampling, alpha or how items are cut has")
        self.close()
        self._cursor = int(state["cursor"])
        tensors = tensors or {}
        self._seen.copy_(tensors["seen"])
        if self._priorities is not None:
            self._priorities.load(below("priorities/", tensors))

    def metrics(self) -> dict[str, float]:
        """See `Feed`.

        Raises:
            DataError: a priority was NaN or infinite.
        """
        self._check()
        coverage = float(self._seen.double().mean())
        return {
            "epoch": self._cursor / self.epoch_size,
            "timesteps_seen": float(round(coverage * int(self._loader.order.steps.sum()))),
            "coverage": coverage,
            "data_wait_seconds": self._waited,
        }

    def close(self) -> None:
        """See `Feed`."""
        self._loaded = self._unanswered = None

    def _check(self) -> None:
        if self._priorities is not None:
            self._priorities.check()

    def _draw(self, count: int) -> tuple[Tensor, Batch]:
        """`[count]` items, and the columns that come of how they were drawn."""
        uniform = torch.from_numpy(self._uniforms.take(self._cursor, count)).to(self._seen.device)
        if self._priorities is None:
            return (uniform * self.epoch_size).long(), {}
        if self._unanswered is not None:
            raise UserCodeError(
                "The algorithm draws by priority, and the losses of the batch before gave none: set `priorities` of "
                "`Losses`."
            )
        self._unanswered, likelier = self._priorities.draw(uniform)
        return self._unanswered, {Columns.WEIGHTS: (likelier**-self._needs.beta).float()}

    @property
    def _data(self) -> WindowData:
        if self._loaded is None:
            started = time.perf_counter()
            self._loaded = self._loader.everything(epoch=0)
            self._waited += time.perf_counter() - started
        return self._loaded

    @cached_property
    def _digest(self) -> str:
        """Identifies the draws: positions of other ones do not mix."""
        order, needs = self._loader.order, self._needs
        alpha = needs.alpha if needs.sampling == "prioritized" else None
        digest = hashlib.blake2b(repr([order.seed, needs.sampling, alpha]).encode(), digest_size=8)
        digest.update(order.items.tobytes())
        return digest.hexdigest()
