"""How much of the space of observations the data visit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hindcast.datasets.inspection.statistics import F64
from hindcast.datasets.inspection.summary import Coverage

SIDE = 20
_NEGLIGIBLE = 1e-3


def coverage_of(observations: NDArray[Any]) -> Coverage | None:
    """Count `[n, D]` observations in a grid over their first two principal components.

    Where one component has all but a thousandth of the variance, the grid is a row of cells along it.

    Returns:
        None where no dimension changes.
    """
    values = np.asarray(observations, dtype=np.float64)
    values = values[np.isfinite(values).all(axis=1)]
    if not len(values):
        return None
    deviation = values.std(axis=0)
    changing = deviation > 1e-12 * np.maximum(1.0, np.abs(values).max(axis=0))
    if not changing.any():
        return None
    scaled = (values[:, changing] - values[:, changing].mean(axis=0)) / deviation[changing]
    places, explained = _principal(scaled)
    counts = np.histogramdd(places, bins=SIDE)[0].astype(np.int64)
    grid = counts.reshape(SIDE, -1)
    shares = counts.ravel()[counts.ravel() > 0] / counts.sum()
    return Coverage(
        observations=len(values),
        side=SIDE,
        occupied=float((counts > 0).mean()),
        evenness=float(-(shares * np.log(shares)).sum() / np.log(counts.size)),
        explained=explained,
        counts=tuple(tuple(row) for row in grid.tolist()),
    )


def _principal(scaled: F64) -> tuple[F64, float]:
    """`[n, 2]` (`[n, 1]` where one tells all) coordinates along the directions of most variance, and their share."""
    variances, directions = np.linalg.eigh(scaled.T @ scaled / len(scaled))
    count = 1 if len(variances) == 1 or variances[-2] < _NEGLIGIBLE * variances[-1] else 2
    most = directions[:, ::-1][:, :count]
    signs = np.sign(most[np.abs(most).argmax(axis=0), np.arange(most.shape[1])])  # of either, one
    return scaled @ (most * signs), float(variances[::-1][:count].sum() / variances.sum())
