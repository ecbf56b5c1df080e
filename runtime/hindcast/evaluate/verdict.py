"""States in one sentence whether a policy is better than the one that recorded the data."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hindcast import formatting

_CONFIDENCE = 0.95
_NEGLIGIBLE_GAIN = 1e-3
"""Gain up to which two policies count as equal, in standard deviations of the return."""

Answer = Literal["better", "worse", "unknown"]


@dataclass(frozen=True)
class Verdict:
    """The comparison of a policy with the behaviour.

    Attributes:
        answer: "better" or "worse" than the behaviour, with a probability of at least 0.95; else "unknown".
        probability: probability that the policy is better; None without a usable estimate.
        estimate: name of the estimate that the verdict is based on; None without one.
        sentence: the verdict in words.
    """

    answer: Answer
    probability: float | None
    estimate: str | None
    sentence: str


def no_verdict(reason: str) -> Verdict:
    """Return the verdict "unknown" with a reason."""
    return Verdict("unknown", None, None, f"no verdict: {reason}")


def verdict_from_resamples(
    gains: NDArray[np.float64], returns: NDArray[np.float64], estimate: str, num_effective_episodes: float
) -> Verdict:
    """Return the verdict from the policy's gain over the behaviour in each resample of the episodes.

    Args:
        gains: `[R]` estimate minus the behaviour's return in the same resample.
        returns: `[R]` the behaviour's return in each resample.
        estimate: name of the estimate.
        num_effective_episodes: `estimators.effective_episodes` of the estimate's weights.
    """
    if not np.isfinite(gains).all():
        return no_verdict("in some resamples all episodes have weight 0")
    # Equal policies differ by rounding errors, which must not count as gains.
    gains = np.where(np.abs(gains) <= _NEGLIGIBLE_GAIN * returns.std(), 0.0, gains)
    probability = float((gains > 0).mean() + 0.5 * (gains == 0).mean())
    return _make_verdict(
        probability, estimate, formatting.plural(round(num_effective_episodes), "effective episode")
    )


def verdict_from_model(gain: float, spread: float, estimate: str, reason: str) -> Verdict:
    """Return the verdict from a model alone.

    Args:
        gain: estimate minus the behaviour's return.
        spread: standard deviation of the gain; there is no verdict if it is 0 or NaN.
        estimate: name of the estimate.
        reason: why no estimate by ratios is available.
    """
    if not spread > 0:
        return no_verdict("the values of the model have no spread")
    return _make_verdict(NormalDist().cdf(gain / spread), estimate, remark=f", by the model alone: {reason}")


def _make_verdict(probability: float, estimate: str, details: str = "", remark: str = "") -> Verdict:
    answer: Answer = "unknown"
    claim = f"inconclusive: {_percent(probability)} chance that it is better than the recorded policy"
    notes = [details]
    if probability >= _CONFIDENCE:
        answer, claim = "better", "probably better than the recorded policy"
        notes = [_percent(probability), details]
    elif probability <= 1 - _CONFIDENCE:
        answer, claim = "worse", "probably worse than the recorded policy"
        notes = [_percent(1 - probability), details]
    brackets = "; ".join(filter(None, notes))
    return Verdict(answer, probability, estimate, f"{claim}{f' ({brackets})' if brackets else ''}{remark}")


def _percent(probability: float) -> str:
    return ">99 %" if probability > 0.99 else formatting.as_percentage(probability)
