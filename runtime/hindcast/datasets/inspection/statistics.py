"""Distributions of values for summaries, computed from whole arrays or from values that are added in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hindcast.formats.entries import JsonModel

_NUM_BINS = 20
_MAX_ROWS = 1 << 18
_MAX_WHOLE = float(1 << 52)
"""Absolute value up to which a float can be an integer plus 0.5, as the edges of an integer's bin are."""

F64 = NDArray[np.float64]


class ValueDistribution(JsonModel):
    """The distribution of finite values.

    Attributes:
        count: number of values.
        min: minimum.
        mean: mean.
        median: median.
        max: maximum.
        std: population standard deviation.
        edges: `[B + 1]` edges of the histogram's bins: 20 bins of equal width; one bin for each integer if the values
            are integers in a range of less than 20; one bin if all values are equal.
        counts: `[B]` number of values in each bin, in an evenly spaced sample if there are more than 262,144 values.
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
        """Compute the distribution of an array's elements; return None if no element is finite."""
        columns = ColumnDistributions()
        columns.add(values.reshape(-1, 1))
        return next(iter(columns.compute()), None)


class ThinnedRows:
    """A sample of rows that are added in parts: all rows, or only every 2nd, 4th, … row, to stay within a limit.

    Args:
        max_rows: maximum number of rows to keep.
    """

    def __init__(self, max_rows: int = _MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._parts: list[NDArray[Any]] = []
        self._num_kept = self._num_seen = 0
        self._stride = 1

    def add(self, rows: NDArray[Any]) -> None:
        """Add rows; the rows that are kept are copied."""
        # Rows are kept whose index, over all calls, is a multiple of the stride.
        thinned_rows = rows[-self._num_seen % self._stride :: self._stride].copy()
        self._num_seen += len(rows)
        self._parts.append(thinned_rows)
        self._num_kept += len(thinned_rows)
        while self._num_kept > self._max_rows:
            # Without every second row, the sample is still spread evenly over all rows.
            self._parts = [np.concatenate(self._parts)[::2].copy()]
            self._num_kept = len(self._parts[0])
            self._stride *= 2

    @property
    def rows(self) -> NDArray[Any] | None:
        """The kept rows, in order; None before any row is added."""
        return np.concatenate(self._parts) if self._parts else None


class ColumnDistributions:
    """The distribution of each column of `[n, D]` values that are added in parts.

    Count, extremes, mean and deviation cover all values; median and histogram cover a sample (see `ThinnedRows`).
    """

    def __init__(self) -> None:
        self._sample = ThinnedRows()
        self._count: Any = 0
        self._mean: Any = 0.0
        self._squared_deviations: Any = 0.0
        self._low: Any = np.inf
        self._high: Any = -np.inf

    def add(self, values: NDArray[Any]) -> None:
        """Add `[n, D]` values, with the same D each time; values that are not finite are ignored."""
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
        squared_deviations = (np.where(is_finite, float_values - mean, 0.0) ** 2).sum(axis=0)
        self._merge(count, mean, squared_deviations)

    def compute(self) -> list[ValueDistribution | None]:
        """Compute `[D]` one distribution per column; None for a column without finite values."""
        rows = self._sample.rows
        if rows is None:
            return []
        return [
            self._make_distribution(column, np.asarray(rows[:, column], np.float64))
            for column in range(rows.shape[1])
        ]

    def _make_distribution(self, column: int, sample: F64) -> ValueDistribution | None:
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
            std=float(np.sqrt(self._squared_deviations[column] / self._count[column])),
            edges=tuple(edges.tolist()),
            counts=tuple(counts.tolist()),
        )

    def _merge(self, count: NDArray[Any], mean: F64, squared_deviations: F64) -> None:
        # Means and squared deviations are merged as in Chan, Golub and LeVeque (1983).
        total_count = np.maximum(self._count + count, 1)
        distance = mean - self._mean
        self._squared_deviations = (
            self._squared_deviations + squared_deviations + distance**2 * self._count * count / total_count
        )
        self._mean = self._mean + distance * count / total_count
        self._count = self._count + count


def _bin_edges(values: F64, low: float, high: float) -> F64:
    # Between neighbouring floats there is no room for several bins.
    if not high > np.nextafter(low, np.inf):
        half_width = max(0.5, abs(high) * 2.0**-50)
        return np.array([low - half_width, high + half_width])
    if (
        high - low < _NUM_BINS
        and (values == np.round(values)).all()
        and max(abs(low), abs(high)) < _MAX_WHOLE
    ):
        return np.arange(low, high + 2) - 0.5
    return np.linspace(low / 2, high / 2, _NUM_BINS + 1) * 2  # the distance of two floats may be infinite
