"""One plain sentence: is the policy better than the one that played?"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hindcast import formatting

_SURE = 0.95
_NOTHING = 1e-3

Answer = Literal["better", "worse", "unknown"]


@dataclass(frozen=True)
class Verdict:
    """What the estimates say.

    Attributes:
        answer: "better" or "worse" than the behaviour, where that is at least 0.95 likely; else "unknown".
        probability: that the policy is better; None where nothing can be said.
        by: the estimate that it is taken from; None where there is none.
        sentence: the same in words.
    """

    answer: Answer
    probability: float | None
    by: str | None
    sentence: str


def no_verdict(reason: str) -> Verdict:
    """Nothing can be said."""
    return Verdict("unknown", None, None, f"nothing can be said: {reason}")


def verdict_from_resamples(
    gains: NDArray[np.float64], returns: NDArray[np.float64], by: str, effective: float
) -> Verdict:
    """From what the policy wins over the behaviour in each resample of the episodes.

    Args:
        gains: `[R]` estimate less the behaviour's return, both of the same resample.
        returns: `[R]` the behaviour's; a gain far below their spread is none, but what is left of rounding.
        by: name of the estimate.
        effective: episodes that count, of its weights.
    """
    if not np.isfinite(gains).all():
        return no_verdict("in some resamples all episodes have weight 0")
    gains = np.where(np.abs(gains) <= _NOTHING * returns.std(), 0.0, gains)
    share = float((gains > 0).mean() + 0.5 * (gains == 0).mean())
    return _judged(share, by, formatting.plural(round(effective), "effective episode"))


def verdict_from_model(gain: float, spread: float, by: str, reason: str) -> Verdict:
    """From a model alone.

    Args:
        gain: estimate less the behaviour's return.
        spread: standard deviation of that.
        by: name of the estimate.
        why: why there is no other.
    """
    if not spread > 0:
        return no_verdict("the model has no spread")
    return _judged(NormalDist().cdf(gain / spread), by, f"by the model alone: {reason}")


def _judged(probability: float, by: str, details: str) -> Verdict:
    answer: Answer = "unknown"
    said = f"inconclusive: {_shown(probability)} likely to be better than the behaviour"
    if probability >= _SURE:
        answer, said = "better", f"better than the behaviour: {_shown(probability)} likely"
    elif probability <= 1 - _SURE:
        answer, said = "worse", f"worse than the behaviour: {_shown(1 - probability)} likely"
    return Verdict(answer, probability, by, f"{said}; {details}")


def _shown(probability: float) -> str:
    return "over 0.99" if probability > 0.99 else f"{probability:.2f}"
