"""`ReplayFeed`: items drawn with replacement from a whole dataset, uniformly or by priority."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from hindcast.pipeline.draws import DrawsFeed
from hindcast.pipeline.feeds import State, refuse_other
from hindcast.pipeline.loader import Loader
from hindcast.pipeline.window import Batch, WindowData


class ReplayFeed(DrawsFeed):
    """A `Feed` of draws from a whole dataset, which stays on the device.

    Args:
        loader: reads the data; its needs say how items are drawn, its order's seed seeds the draws.
        batch_size: items in a batch.
    """

    def __init__(self, loader: Loader, batch_size: int) -> None:
        self.epoch_size = loader.order.epoch_size
        super().__init__(loader.recipe, batch_size, loader.order.seed, self.epoch_size)
        self._loader = loader
        self._seen = torch.zeros(self.epoch_size, dtype=torch.bool, device=loader.recipe.device)
        self._loaded: WindowData | None = None

    def state(self) -> State:
        """See `Feed`."""
        return {"cursor": self.cursor, "order": self._digest, "data": self._loader.dataset.digest}

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """See `Feed`. The data are released, since the observation filter may have been restored too."""
        refuse_other(state, self.state(), "the seed, the sampling, alpha or how items are cut has")
        self.close()
        tensors = tensors or {}
        self._seen.copy_(tensors["seen"])
        self._resume(state, self.epoch_size, tensors)

    def close(self) -> None:
        """See `Feed`."""
        self._loaded = None

    def _window(self) -> WindowData:
        if self._loaded is None:
            started = time.perf_counter()
            self._loaded = self._loader.everything(epoch=0)
            self._waited += time.perf_counter() - started
        return self._loaded

    def _held(self) -> Batch:
        return {"seen": self._seen}

    def _drawn(self, index: Tensor) -> None:
        self._seen.index_fill_(0, index, True)

    def metrics(self) -> dict[str, float]:
        """See `Feed`."""
        coverage = float(self._seen.double().mean())
        return super().metrics() | {
            "epoch": self.cursor / self.epoch_size,
            "timesteps_seen": float(round(coverage * int(self._loader.order.steps.sum()))),
            "coverage": coverage,
        }

    @cached_property
    def _digest(self) -> str:
        """Identifies the draws: positions of different draws must not be mixed."""
        order, needs = self._loader.order, self._recipe.needs
        alpha = needs.alpha if needs.sampling == "prioritized" else None
        digest = hashlib.blake2b(repr([order.seed, needs.sampling, alpha]).encode(), digest_size=8)
        digest.update(order.items.tobytes())
        return digest.hexdigest()
