"""Confidence intervals of estimates: jackknife, bootstrap, and Student's interval of a mean."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Interval = tuple[float, float]


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
    value: float, contributions: F64, level: float, margin: float = 0.0
) -> Interval | None:
    """Return Student's interval with the jackknife variance (Efron, Stein 1981).

    Args:
        value: the estimate.
        contributions: `[N]` the estimate minus the estimate from all other episodes, for each episode.
        level: confidence level.
        margin: width to add on each side.

    Returns:
        The interval; None if a contribution is not finite, which means that one episode has all the weight.
    """
    squares = np.square(contributions)
    total = float(squares.sum())
    if not np.isfinite(total):
        return None
    if total == 0.0:
        return value - margin, value + margin
    # A few squares may make up most of the variance, which is then as uncertain as a sum of (Σd²)² / Σd⁴ equal squares.
    # This number is halved, because episodes of still larger weight may not have been recorded.
    degrees_of_freedom = total**2 / float(np.square(squares).sum()) / 2
    error = np.sqrt(total * (1 - 1 / len(squares)))
    return student_interval(value, float(error), level, max(1, int(degrees_of_freedom)), margin)


def student_interval(
    value: float, error: float, level: float, degrees_of_freedom: int, margin: float = 0.0
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


def t_quantile(probability: float, degrees_of_freedom: int) -> float:
    """Return a quantile of Student's distribution: a series in the normal quantile (Abramowitz and Stegun, 26.7.5).

    Exact for 1 and 2 degrees of freedom; within 1 % from 3 on, for probabilities up to 0.975.
    """
    if degrees_of_freedom == 1:
        return float(np.tan(np.pi * (probability - 0.5)))
    if degrees_of_freedom == 2:
        return float((2 * probability - 1) * np.sqrt(2 / (4 * probability * (1 - probability))))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees_of_freedom ** (power + 1) for power, term in enumerate(terms))


def t_probability(t: float, degrees_of_freedom: int) -> float:
    """Return the probability that Student's variable is below `t` (Abramowitz and Stegun, 26.7.8).

    Exact for 1 and 2 degrees of freedom; within 0.01 from 3 on.
    """
    if degrees_of_freedom == 1:
        return 0.5 + float(np.arctan(t)) / np.pi
    if degrees_of_freedom == 2:
        return 0.5 + t / (2 * float(np.sqrt(2 + t**2)))
    scale = np.sqrt(1 + t**2 / (2 * degrees_of_freedom))
    return NormalDist().cdf(float(t * (1 - 1 / (4 * degrees_of_freedom)) / scale))
