"""Distributions of values, for summaries: of arrays, and of values that arrive in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hindcast.formats.entries import JsonModel

_NUM_BINS = 20
_MAX_ROWS = 1 << 18

F64 = NDArray[np.float64]


class ValueDistribution(JsonModel):
    """How values are spread; values that are not finite are left out.

    Attributes:
        count: how many.
        min: the least.
        mean: the mean.
        median: the median.
        max: the greatest.
        std: population standard deviation.
        edges: `[B + 1]` of the histogram; one bin for each value where few integers occur.
        counts: `[B]` values in each bin; of an even part of them, where there are more than 262,144.
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
    def from_values(cls, values: NDArray[Any]) -> ValueDistribution | None:
        """The distribution of an array's elements; None without any finite one."""
        spread = Spread()
        spread.add(values.reshape(-1, 1))
        return next(iter(spread.distributions()), None)


class ThinnedRows:
    """Rows that arrive in parts; those kept fit a limit: all, or every 2nd, 4th, … of them.

    Args:
        most: rows to keep.
    """

    def __init__(self, max_rows: int = _MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._parts: list[NDArray[Any]] = []
        self._num_kept = self._num_seen = 0
        self._stride = 1

    def add(self, rows: NDArray[Any]) -> None:
        """The next rows; what is kept of them is copied."""
        thinned_rows = rows[-self._num_seen % self._stride :: self._stride].copy()
        self._num_seen += len(rows)
        self._parts.append(thinned_rows)
        self._num_kept += len(thinned_rows)
        while self._num_kept > self._max_rows:
            self._parts = [np.concatenate(self._parts)[::2].copy()]
            self._num_kept = len(self._parts[0])
            self._stride *= 2

    @property
    def rows(self) -> NDArray[Any] | None:
        """Those kept, in order; None before any came."""
        return np.concatenate(self._parts) if self._parts else None


class Spread:
    """Distributions of each column of `[n, D]` values that come in parts.

    Count, extremes, mean and deviation are of all values; median and histogram of a `Thinned` part of them. Means
    and deviations are merged as in Chan, Golub and LeVeque (1983).
    """

    def __init__(self) -> None:
        self._sample = ThinnedRows()
        self._count: Any = 0
        self._mean: Any = 0.0
        self._squares: Any = 0.0
        self._low: Any = np.inf
        self._high: Any = -np.inf

    def add(self, values: NDArray[Any]) -> None:
        """The next `[n, D]` values, D the same each time; those that are not finite are left out."""
        if not len(values):
            return
        self._sample.add(values)
        float_values = np.asarray(values, dtype=np.float64)
        is_finite = np.isfinite(float_values)
        if not is_finite.all():
            float_values = np.where(is_finite, float_values, 0.0)
        count = is_finite.sum(axis=0)
        self._low = np.minimum(self._low, np.where(is_finite, float_values, np.inf).min(axis=0))
        self._high = np.maximum(self._high, np.where(is_finite, float_values, -np.inf).max(axis=0))
        mean = float_values.sum(axis=0) / np.maximum(count, 1)
        squares = (np.where(is_finite, float_values - mean, 0.0) ** 2).sum(axis=0)
        self._merge(count, mean, squares)

    def distributions(self) -> list[ValueDistribution | None]:
        """`[D]` one for each column; None for one without any finite value."""
        rows = self._sample.rows
        if rows is None:
            return []
        return [
            self._distribution(column, np.asarray(rows[:, column], np.float64))
            for column in range(rows.shape[1])
        ]

    def _distribution(self, column: int, sample: F64) -> ValueDistribution | None:
        sample = sample[np.isfinite(sample)]
        if not len(sample):
            return None
        low, high = float(self._low[column]), float(self._high[column])
        counts, edges = np.histogram(sample, bins=_bin_edges(sample, low, high))
        return ValueDistribution(
            count=int(self._count[column]),
            min=low,
            mean=float(self._mean[column]),
            median=float(np.median(sample)),
            max=high,
            std=float(np.sqrt(self._squares[column] / self._count[column])),
            edges=tuple(edges.tolist()),
            counts=tuple(counts.tolist()),
        )

    def _merge(self, count: NDArray[Any], mean: F64, squares: F64) -> None:
        total = np.maximum(self._count + count, 1)
        distance = mean - self._mean
        self._squares = self._squares + squares + distance**2 * self._count * count / total
        self._mean = self._mean + distance * count / total
        self._count = self._count + count


def _bin_edges(values: F64, low: float, high: float) -> F64:
    if high - low < _NUM_BINS and (values == np.round(values)).all() and low == round(low):
        return np.arange(low, high + 2) - 0.5
    if not high > np.nextafter(low, np.inf):
        return np.array([low - 0.5, low + 0.5])
    return np.linspace(low, high, _NUM_BINS + 1)
