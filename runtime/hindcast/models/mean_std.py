"""Running mean and standard deviation of rows; statistics merge without loss (Chan, Golub, LeVeque 1979)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

# As in RLlib's filter, so that policies see the same inputs in both.
CLIP = 10.0
_MIN_STD = 1e-8


class MeanStdFilter:
    """Normalises rows to `(x - mean) / std`, clipped to ±10 (RLlib's `MeanStdFilter`).

    The statistics are float64 and change only by `update`, `merge` and `load`. The variance is that of a sample,
    divided by n - 1.

    Args:
        shape: shape of one row.

    Attributes:
        count: number of rows in the statistics; of each element, `[*shape]`, if some rows lack values (NaN).
        mean: mean of these rows, `[*shape]`; 0 before the first row.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count: int | I64 = 0
        self.mean: F64 = np.zeros(shape)
        self._squares: F64 = np.zeros(shape)  # sum of squared deviations from the mean
        self._refresh()

    @property
    def std(self) -> F64:
        """Sample standard deviation of the rows; 1 before the second row and for constant elements."""
        std = np.sqrt(self._squares / np.maximum(self.count - 1, 1))
        return np.where((std > _MIN_STD) & (np.asarray(self.count) > 1), std, 1.0)

    def __call__(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return `[..., *shape]` normalised rows, float32. The statistics do not change."""
        # float64 rows are shifted in float64: float32 would lose small differences between large values.
        shift = self._mean32 if rows.dtype == np.float32 else self.mean
        normalised_rows = np.asarray((rows - shift).astype(np.float32, copy=False) * self._scale)
        return np.clip(normalised_rows, -CLIP, CLIP, out=normalised_rows)

    def update(self, rows: NDArray[Any]) -> None:
        """Add `[n, *shape]` rows to the statistics; missing values (NaN) do not count."""
        if len(rows) == 0:
            return
        values = rows.astype(np.float64, copy=False)
        mean = values.mean(0)
        if not np.isnan(mean).any():
            self._add(len(values), mean, np.square(values - mean).sum(0))
            return
        is_missing = np.isnan(values)
        count = (~is_missing).sum(0)
        mean = np.where(is_missing, 0.0, values).sum(0) / np.maximum(count, 1)
        self._add(count, mean, np.where(is_missing, 0.0, np.square(values - mean)).sum(0))

    def merge(self, others: Sequence[MeanStdFilter]) -> None:
        """Add the statistics of other filters, as if this filter had seen their rows."""
        for mean_std in others:
            self._add(mean_std.count, mean_std.mean, mean_std._squares)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the statistics: `count` (int64), `mean` and `squares` (float64)."""
        return {
            "count": np.array(self.count, dtype=np.int64),
            "mean": self.mean.copy(),
            "squares": self._squares.copy(),
        }

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore `state()`.

        Raises:
            ValueError: the statistics are of rows of another shape.
        """
        if state["mean"].shape != self.mean.shape or state["squares"].shape != self.mean.shape:
            raise ValueError(f"statistics of rows of shape {state['mean'].shape}, expected {self.mean.shape}")
        self.count = int(state["count"]) if state["count"].ndim == 0 else state["count"].astype(np.int64)
        self.mean = state["mean"].astype(np.float64)
        self._squares = state["squares"].astype(np.float64)
        self._refresh()

    def _add(self, count: int | I64, mean: F64, squares: F64) -> None:
        if not np.any(count):
            return
        total = self.count + count
        delta = mean - self.mean
        # Chan, Golub and LeVeque (1979): exact for any split of the rows, without cancellation.
        divisor = np.maximum(total, 1)  # some elements may have had no value yet
        # For rows of shape [], NumPy's results are scalars, not arrays.
        self._squares = np.asarray(self._squares + squares + delta * delta * (self.count * count / divisor))
        self.mean = np.asarray(self.mean + delta * (count / divisor))
        self.count = total
        self._refresh()

    def _refresh(self) -> None:
        self._mean32 = self.mean.astype(np.float32)
        self._scale = np.asarray(1.0 / self.std, dtype=np.float32)
