"""`RewardScale`: the rewards that an algorithm learns from, as a function of the recorded ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hindcast.api.training import RewardsSpec
from hindcast.models.mean_std import MeanStdFilter


class RewardScale:
    """scale · (r + shift) / n, clipped to ±clip.

    The divisor n is fitted to the data: with `normalize: std` it is the standard deviation of the rewards, with
    `returnRange` the difference between the highest and the lowest return of an episode. Otherwise, and before there
    are data, it is 1.

    Args:
        spec: the options.

    Attributes:
        spec: see above.
    """

    def __init__(self, spec: RewardsSpec) -> None:
        self.spec = spec
        self._rewards = MeanStdFilter(())
        self._lowest_return, self._highest_return = np.inf, -np.inf

    @property
    def factor(self) -> float:
        """Scale / n."""
        if self.spec.normalize == "std":
            return self.spec.scale / float(self._rewards.std)
        spread = self._highest_return - self._lowest_return
        is_fitted = self.spec.normalize == "returnRange" and np.isfinite(spread) and spread > 0
        return self.spec.scale / float(spread) if is_fitted else self.spec.scale

    @property
    def is_linear(self) -> bool:
        """True if a return of changed rewards is `factor` times that of the recorded rewards: no shift, no clipping."""
        return self.spec.shift == 0 and self.spec.clip is None

    def __call__(self, rewards: NDArray[Any]) -> NDArray[np.float32]:
        """Return the changed rewards, float32."""
        values = (rewards.astype(np.float64) + self.spec.shift) * self.factor
        clip = np.inf if self.spec.clip is None else self.spec.clip
        return np.clip(values, -clip, clip).astype(np.float32)

    def update(self, rewards: NDArray[Any], start: NDArray[np.int64]) -> None:
        """Fit n to further episodes.

        Args:
            rewards: `[S]` rewards of their steps.
            start: `[N]` int64, the first step of each episode.
        """
        if len(rewards) == 0:
            return
        self._rewards.update(rewards)
        returns = np.add.reduceat(rewards.astype(np.float64), start)
        self._lowest_return = min(self._lowest_return, float(returns.min()))
        self._highest_return = max(self._highest_return, float(returns.max()))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what is fitted: the statistics of rewards, and `returns`, the lowest and the highest return."""
        return {**self._rewards.state(), "returns": np.array([self._lowest_return, self._highest_return])}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore `state()`."""
        self._rewards.load(state)
        self._lowest_return, self._highest_return = map(float, state["returns"])
