"""Distributions of sampled values, as they stand in summaries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hindcast.store.entries import Stored

_BINS = 20


class Distribution(Stored):
    """How values are spread; values that are not finite are left out.

    Attributes:
        count: how many.
        min: the least.
        mean: the mean.
        median: the median.
        max: the greatest.
        std: population standard deviation.
        edges: `[B + 1]` of the histogram; one bin for each value where few integers occur.
        counts: `[B]` values in each bin.
    """

    count: int
    min: float
    mean: float
    median: float
    max: float
    std: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: NDArray[Any]) -> Distribution | None:
        """The distribution of an array's elements; None without any finite one."""
        flat = np.asarray(values, dtype=np.float64).ravel()
        finite = flat[np.isfinite(flat)]
        if not len(finite):
            return None
        counts, edges = np.histogram(finite, bins=_bin_edges(finite))
        return cls(
            count=len(finite),
            min=float(finite.min()),
            mean=float(finite.mean()),
            median=float(np.median(finite)),
            max=float(finite.max()),
            std=float(finite.std()),
            edges=tuple(edges.tolist()),
            counts=tuple(counts.tolist()),
        )


def _bin_edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = values.min(), values.max()
    if high - low < _BINS and (values == np.round(values)).all():
        return np.arange(low, high + 2) - 0.5
    if not high > np.nextafter(low, np.inf):
        return np.array([low - 0.5, low + 0.5])
    return np.linspace(low, high, _BINS + 1)
