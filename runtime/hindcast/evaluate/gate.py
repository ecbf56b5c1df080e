"""A sequential test of a policy against the recorded policy, which may be looked at after any episode.

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
"""Upper bound of weights, with which capital stays finite; smaller weights only make decisions later."""


@dataclass
class GateTest:
    """The test of one policy, fed with one episode after the other.

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

    def add(self, weight: float, return_: float) -> None:
        """Add an episode; has no effect after the decision.

        Args:
            weight: product of the episode's ratios.
            return_: its discounted return, between `low` and `high`.
        """
        if self.decision != "undecided":
            return
        self.episodes += 1
        weight = min(weight, _MAX_WEIGHT)
        scale = self.high - self.low
        scaled_return, gain = (return_ - self.low) / scale, self.by / scale
        outcomes = np.array(  # Z / (1 + b) of the bets on and against the policy
            [
                (weight * scaled_return + 1 - scaled_return) / (1 + gain),
                (weight * (1 - scaled_return) + scaled_return) / (1 - gain),
            ]
        )
        self.log_capital += np.log1p(_SHARES * (outcomes[:, None] - 1))
        for log_capital, decision in zip(self._log_means(), ("promoted", "kept"), strict=True):
            if log_capital >= -math.log(self.error):
                self.decision = decision  # type: ignore[assignment]
                return

    @property
    def evidence(self) -> float:
        """Mean capital of the gamblers who bet on the policy; the policy is promoted at 1 / `error`."""
        return float(np.exp(min(self._log_means()[0], 700.0)))  # more would overflow

    def to_json(self) -> dict[str, Any]:
        """Return the state, exactly."""
        return {**asdict(self), "log_capital": self.log_capital.tolist()}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> GateTest:
        """Restore a test from the result of `to_json`."""
        return cls(**{**state, "log_capital": np.array(state["log_capital"])})

    def _log_means(self) -> F64:
        """Return the logarithms `[2]` of the mean capitals that bet on and against the policy."""
        maximum = self.log_capital.max(1)
        return np.asarray(maximum + np.log(np.exp(self.log_capital - maximum[:, None]).mean(1)))
