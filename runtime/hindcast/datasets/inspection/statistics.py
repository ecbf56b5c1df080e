"""Distributions of values, for summaries: of arrays, and of values that arrive in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hindcast.formats.entries import JsonModel

_BINS = 20
_KEPT = 1 << 18

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

    def __init__(self, most: int = _KEPT) -> None:
        self._most = most
        self._parts: list[NDArray[Any]] = []
        self._kept = self._seen = 0
        self._stride = 1

    def add(self, rows: NDArray[Any]) -> None:
        """The next rows; what is kept of them is copied."""
        chosen = rows[-self._seen % self._stride :: self._stride].copy()
        self._seen += len(rows)
        self._parts.append(chosen)
        self._kept += len(chosen)
        while self._kept > self._most:
            self._parts = [np.concatenate(self._parts)[::2].copy()]
            self._kept = len(self._parts[0])
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
        self._kept = ThinnedRows()
        self._count: Any = 0
        self._mean: Any = 0.0
        self._squares: Any = 0.0
        self._low: Any = np.inf
        self._high: Any = -np.inf

    def add(self, values: NDArray[Any]) -> None:
        """The next `[n, D]` values, D the same each time; those that are not finite are left out."""
        if not len(values):
            return
        self._kept.add(values)
        exact = np.asarray(values, dtype=np.float64)
        finite = np.isfinite(exact)
        if not finite.all():
            exact = np.where(finite, exact, 0.0)
        count = finite.sum(axis=0)
        self._low = np.minimum(self._low, np.where(finite, exact, np.inf).min(axis=0))
        self._high = np.maximum(self._high, np.where(finite, exact, -np.inf).max(axis=0))
        mean = exact.sum(axis=0) / np.maximum(count, 1)
        squares = (np.where(finite, exact - mean, 0.0) ** 2).sum(axis=0)
        self._merge(count, mean, squares)

    def distributions(self) -> list[ValueDistribution | None]:
        """`[D]` one for each column; None for one without any finite value."""
        rows = self._kept.rows
        if rows is None:
            return []
        return [
            self._distribution(column, np.asarray(rows[:, column], np.float64))
            for column in range(rows.shape[1])
        ]

    def _distribution(self, column: int, kept: F64) -> ValueDistribution | None:
        kept = kept[np.isfinite(kept)]
        if not len(kept):
            return None
        low, high = float(self._low[column]), float(self._high[column])
        counts, edges = np.histogram(kept, bins=_bin_edges(kept, low, high))
        return ValueDistribution(
            count=int(self._count[column]),
            min=low,
            mean=float(self._mean[column]),
            median=float(np.median(kept)),
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
    if high - low < _BINS and (values == np.round(values)).all() and low == round(low):
        return np.arange(low, high + 2) - 0.5
    if not high > np.nextafter(low, np.inf):
        return np.array([low - 0.5, low + 0.5])
    return np.linspace(low, high, _BINS + 1)
