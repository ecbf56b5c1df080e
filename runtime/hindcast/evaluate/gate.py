"""A sequential test of a policy against the recorded policy; its result may be looked at after any episode.

An episode has the discounted return G within known bounds, scaled to g in 0 to 1, and the weight W, the product of its
ratios π(a|s) / μ(a|s), whose expectation is 1. Then Z = W·g + 1 - g is not negative, and its expectation is 1 + Δ,
where Δ is the gain of the policy in scaled returns. If Δ is at most b, a gambler who stakes the share λ on "Z exceeds
1 + b" has the capital Π (1 + λ·(Z / (1 + b) - 1)), a nonnegative supermartingale: with probability 1 - α it never
reaches 1/α, however often one looks (Ville). The capital is the mean over fixed shares, which needs no tuning.
Exchanging g and 1 - g tests the opposite. Waudby-Smith, Ramdas 2024 (arXiv 2102.09540); for off-policy weights
Waudby-Smith et al. 2022 (arXiv 2210.10768).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import numpy as np

from hindcast.evaluate.intervals import F64

Decision = Literal["promoted", "kept", "undecided"]

_SHARES: Final = np.geomspace(0.002, 0.9, 24)
"""Shares of the capital that the gamblers stake; gains of 0.1 % of the range of returns need the smallest ones."""
_MAX_WEIGHT: Final = 1e200
"""Upper bound of weights, so that capital stays finite. Reducing a weight never causes a wrong decision, only a later
one."""
_MAX_BATCH: Final = 4096
"""Number of episodes whose capitals are in memory at a time."""


@dataclass
class GateTest:
    """The test of one policy, fed with episodes in order.

    Attributes:
        by: gain that the policy must exceed, in units of the return.
        error: probability of a wrong decision, of either kind.
        low, high: bounds of the discounted return.
        episodes: number of episodes so far.
        log_capital: `[2, number of shares]` logarithms of the capitals that bet on and against the policy.
        decision: "promoted" if the gain exceeds `by`, "kept" (the recorded policy is kept) if it does not, "undecided"
            before; final once decided.
    """

    by: float
    error: float
    low: float
    high: float
    episodes: int = 0
    log_capital: F64 = field(default_factory=lambda: np.zeros((2, len(_SHARES))))
    decision: Decision = "undecided"

    def add(self, weights: F64, returns: F64) -> None:
        """Add episodes up to the decision, after which more have no effect.

        Added in several calls, the same episodes lead to the same state, bit for bit.

        Args:
            weights: `[N]` products of the episodes' ratios.
            returns: `[N]` their discounted returns, between `low` and `high`.
        """
        for start in range(0, len(weights), _MAX_BATCH):
            if self.decision == "undecided":
                self._add_batch(weights[start : start + _MAX_BATCH], returns[start : start + _MAX_BATCH])

    def _add_batch(self, weights: F64, returns: F64) -> None:
        weights = np.minimum(weights, _MAX_WEIGHT)
        scale = self.high - self.low
        scaled_returns, gain = (returns - self.low) / scale, self.by / scale
        outcomes = np.stack(  # Z / (1 + b) of the bets on and against the policy, [N, 2]
            [
                (weights * scaled_returns + 1 - scaled_returns) / (1 + gain),
                (weights * (1 - scaled_returns) + scaled_returns) / (1 - gain),
            ],
            1,
        )
        growth = np.log1p(_SHARES * (outcomes[..., None] - 1))
        # Added one after the other, so that a split of the episodes into several calls changes no bit.
        log_capital = np.add.accumulate(np.concatenate([self.log_capital[None], growth]))[1:]
        is_decisive = _log_means(log_capital) >= -math.log(self.error)
        decisive_episodes = np.flatnonzero(is_decisive.any(1))
        last = decisive_episodes[0] if len(decisive_episodes) else len(weights) - 1
        self.episodes += int(last) + 1
        self.log_capital = log_capital[last].copy()
        if len(decisive_episodes):
            self.decision = "promoted" if is_decisive[last, 0] else "kept"

    @property
    def evidence(self) -> float:
        """Mean capital of the gamblers who bet on the policy; the policy is promoted at 1 / `error`."""
        return float(np.exp(min(_log_means(self.log_capital)[0], 700.0)))  # more would overflow

    def to_json(self) -> dict[str, Any]:
        """Return the state, exactly."""
        return {**asdict(self), "log_capital": self.log_capital.tolist()}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> GateTest:
        """Restore a test from the result of `to_json`."""
        return cls(**{**state, "log_capital": np.array(state["log_capital"])})


def _log_means(log_capital: F64) -> F64:
    """Return the logarithms `[..., 2]` of the mean capitals over the shares `[..., 2, number of shares]`."""
    maximum = log_capital.max(-1)
    return np.asarray(maximum + np.log(np.exp(log_capital - maximum[..., None]).mean(-1)))
