"""Confidence intervals of estimates: jackknife, bootstrap, and Student's interval of a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Interval = tuple[float, float]

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(64)
"""Nodes and weights of the quadrature of Student's density."""


class Variance(NamedTuple):
    """Variance of an estimate, and the degrees of freedom with which it is known."""

    value: float
    degrees_of_freedom: float


def total_variance(parts: Sequence[Variance]) -> Variance:
    """Add variances of independent causes; the degrees of freedom are those of Welch and Satterthwaite (1946).

    Args:
        parts: at least one variance above 0.
    """
    value = sum(part.value for part in parts)
    return Variance(value, value**2 / sum(part.value**2 / part.degrees_of_freedom for part in parts))


def resample_counts(num_episodes: int, num_resamples: int, seed: int) -> F64:
    """Return how often each resample contains each episode, `[1 + num_resamples, num_episodes]`.

    The first row is the original, all ones; in all other rows, episodes are drawn with replacement.
    """
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(
        num_episodes, np.full(num_episodes, 1.0 / num_episodes), size=num_resamples
    )
    return np.concatenate([np.ones((1, num_episodes)), counts])


def interval_of_mean(values: F64, level: float = 0.9, num_resamples: int = 1000, seed: int = 0) -> Interval:
    """Return the bootstrap interval of the mean of `[N]` values; NaN if a value is not finite."""
    means = resample_counts(len(values), num_resamples, seed)[1:] @ values / len(values)
    return percentile_interval(means, level) or (np.nan, np.nan)


def interquartile_mean(values: F64) -> float:
    """Return the mean of the middle half of `[N]` values (Agarwal et al. 2021, arXiv 2108.13264).

    A quarter of the values, rounded down, is left out at each end.
    """
    num_trimmed = len(values) // 4
    return float(np.sort(values)[num_trimmed : len(values) - num_trimmed].mean())


def percentile_interval(values: F64, level: float) -> Interval | None:
    """Return the interval of the middle share `level` of resampled values `[R]`; None if any is not finite."""
    if not np.isfinite(values).all():
        return None
    low, high = np.quantile(values, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def jackknife_interval(
    value: float,
    contributions: F64,
    level: float,
    margin: float = 0.0,
    other_variances: Sequence[Variance] = (),
) -> Interval | None:
    """Return Student's interval with the jackknife variance (Efron, Stein 1981).

    Args:
        value: the estimate.
        contributions: `[N]` the estimate minus the estimate from all other episodes, for each episode.
        level: confidence level.
        margin: width to add on each side.
        other_variances: variances of the estimate that do not come from its sum over episodes.

    Returns:
        The interval; None if a contribution is not finite, which means that one episode has all the weight.
    """
    squares = np.square(contributions)
    total = float(squares.sum())
    if not np.isfinite(total):
        return None
    variances = list(other_variances)
    if total > 0.0:
        # A few squares may make up most of the variance, which is then as uncertain as a sum of (Σd²)² / Σd⁴ equal
        # squares. This number is halved, because episodes of still larger weight may not have been recorded.
        degrees_of_freedom = total**2 / float(np.square(squares).sum()) / 2
        variances.append(Variance(total * (1 - 1 / len(squares)), max(1, int(degrees_of_freedom))))
    if not any(variance.value for variance in variances):
        return value - margin, value + margin
    error = total_variance(variances)
    return student_interval(value, math.sqrt(error.value), level, error.degrees_of_freedom, margin)


def student_interval(
    value: float, error: float, level: float, degrees_of_freedom: float, margin: float = 0.0
) -> Interval | None:
    """Return Student's interval of a mean.

    Args:
        value: the mean.
        error: standard error of the mean.
        level: confidence level.
        degrees_of_freedom: degrees of freedom of the standard error.
        margin: width to add on each side.

    Returns:
        The interval; None without a degree of freedom, such as for the mean of a single value.
    """
    if degrees_of_freedom < 1:
        return None
    half_width = t_quantile((1.0 + level) / 2.0, degrees_of_freedom) * error + margin
    return value - half_width, value + half_width


def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Return the quantile of Student's distribution for a probability from 0.5 to below 1; see `t_probability`."""
    # In the angle of `t_probability`, the quantile lies in a bounded range for all degrees of freedom.
    low, high = 0.0, math.pi / 2
    for _ in range(50):
        middle = (low + high) / 2
        is_below = (
            t_probability(math.sqrt(degrees_of_freedom) * math.tan(middle), degrees_of_freedom) < probability
        )
        low, high = (middle, high) if is_below else (low, middle)
    return math.sqrt(degrees_of_freedom) * math.tan(low)


def t_probability(t: float, degrees_of_freedom: float) -> float:
    """Return the probability that Student's variable is below `t`, for real degrees of freedom from 1.

    With t = sqrt(f)·tan(θ), the density of f degrees of freedom is proportional to cos(θ)^(f - 1).
    """
    angle = math.atan(abs(t) / math.sqrt(degrees_of_freedom))
    # The density is negligible beyond 12 standard deviations.
    angle = min(angle, 12 / math.sqrt(degrees_of_freedom))
    density = np.cos(angle * (_NODES + 1) / 2) ** (degrees_of_freedom - 1)
    gamma_ratio = math.exp(math.lgamma((degrees_of_freedom + 1) / 2) - math.lgamma(degrees_of_freedom / 2))
    half = min(0.5, angle / 2 * float(_NODE_WEIGHTS @ density) * gamma_ratio / math.sqrt(math.pi))
    return 0.5 + math.copysign(half, t)
