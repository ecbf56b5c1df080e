"""`ReplayFeed`: items drawn with replacement from all data, uniformly or by priority."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from hindcast.pipeline.draws import Draws
from hindcast.pipeline.feeds import State, refuse_other
from hindcast.pipeline.loader import Loader
from hindcast.pipeline.share import WHOLE, Share
from hindcast.pipeline.window import Batch, WindowData, below


class ReplayFeed:
    """A `Feed` of draws from all data, which stay on the device.

    Args:
        loader: reads the data; its needs say how they are drawn, its order's seed is the draws'.
        batch_size: items in a batch.
    """

    def __init__(self, loader: Loader, batch_size: int) -> None:
        device = loader.recipe.device
        self.batch_size = batch_size
        self.epoch_size = loader.order.epoch_size
        self._loader = loader
        self._draws = Draws(loader.recipe.needs, loader.order.seed, self.epoch_size, device)
        self._seen = torch.zeros(self.epoch_size, dtype=torch.bool, device=device)
        self._loaded: WindowData | None = None
        self._waited = 0.0

    @property
    def cursor(self) -> int:
        """See `Feed`."""
        return self._draws.count

    def next(self) -> Batch:
        """See `Feed`."""
        return self.take(self.batch_size)

    def take(self, count: int, share: Share = WHOLE) -> Batch:
        """See `Feed`.

        Raises:
            UserCodeError: the items that were taken before by priority have not been given theirs.
        """
        data, own = self._data, share.of(count)
        index, columns = self._draws.next(count)
        self._seen.index_fill_(0, index, True)
        return data.gather(index[own]) | {name: column[own] for name, column in columns.items()}

    def prioritise(self, priorities: Tensor) -> None:
        """See `Feed`."""
        self._draws.prioritise(priorities)

    def state(self) -> State:
        """See `Feed`."""
        return {"cursor": self.cursor, "order": self._digest, "data": self._loader.dataset.digest}

    def tensors(self) -> Batch:
        """See `Feed`: the priorities, and which items were drawn.

        Raises:
            DataError: a priority was NaN or infinite.
        """
        self._draws.check()
        held = {"seen": self._seen}
        held |= {f"priorities/{name}": tensor for name, tensor in self._draws.tensors().items()}
        return {name: tensor.to("cpu", copy=True) for name, tensor in held.items()}

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """See `Feed`. The data are let go of, since the observation filter may have been restored too."""
        refuse_other(state, self.state(), "the seed, the sampling, alpha or how items are cut has")
        self.close()
        tensors = tensors or {}
        self._seen.copy_(tensors["seen"])
        self._draws.load(int(state["cursor"]), self.epoch_size, below("priorities/", tensors))

    def metrics(self) -> dict[str, float]:
        """See `Feed`.

        Raises:
            DataError: a priority was NaN or infinite.
        """
        self._draws.check()
        coverage = float(self._seen.double().mean())
        return {
            "epoch": self.cursor / self.epoch_size,
            "timesteps_seen": float(round(coverage * int(self._loader.order.steps.sum()))),
            "coverage": coverage,
            "data_wait_seconds": self._waited,
        }

    def close(self) -> None:
        """See `Feed`."""
        self._loaded = None

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
        order, needs = self._loader.order, self._loader.recipe.needs
        alpha = needs.alpha if needs.sampling == "prioritized" else None
        digest = hashlib.blake2b(repr([order.seed, needs.sampling, alpha]).encode(), digest_size=8)
        digest.update(order.items.tobytes())
        return digest.hexdigest()
