"""Statistics of one leaf, updated while a dataset is read: its range, its distribution, and its invalid values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast import formatting
from hindcast.datasets.inspection.frames import is_image
from hindcast.datasets.inspection.statistics import ColumnDistributions, ThinnedRows
from hindcast.datasets.inspection.summary import DataProblem, ProblemKind, Severity
from hindcast.datasets.validate import Fault, Locator, all_finite, describe_fault, find_faults
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, root
from hindcast.errors import Problem
from hindcast.formats.spec import Leaf

MAX_DIMENSIONS = 64
MAX_DISTINCT_VALUES = 10_000
_MAX_SAMPLED_ROWS = 1 << 17
_TOO_FEW_ROWS = 20
"""Number of rows up to which equal values do not show that a dimension is constant."""
_COLUMNS_CHECKED_FOR_CONSTANTS = (Columns.OBS, Columns.ACTIONS)


class LeafValues:
    """Statistics of one numeric leaf.

    Args:
        name: name of the leaf.
        leaf: shape, dtype and names of its elements.
        space: space of the leaf; None if unknown.

    Attributes:
        num_rows: number of timesteps added; 0 for complex numbers, whose values are only checked.
        num_zeros: number of rows of zeros; not counted for observations.
        low: `[D]` minimum of each dimension; None before the first row.
        high: `[D]` maximum of each dimension; None before the first row.
        num_missing: `[D]` number of timesteps without a value (NaN) of each dimension of an observation.
        shown_dimensions: indices of the dimensions in `distributions` and `sampled_rows`: all, or 64 spread evenly.
        value_counts: value -> number of times that it occurs, of a leaf with one integer or boolean per row; incomplete
            if there are more than `MAX_DISTINCT_VALUES` values.
        distributions: distributions of the shown dimensions; empty for observations.
        sampled_rows: shown dimensions of a sample of the steps' observations; empty for other leaves.
    """

    def __init__(self, name: str, leaf: Leaf, space: gym.Space | None) -> None:
        self.name = name
        self._leaf = leaf
        self.space = space
        self.num_rows = self.num_zeros = 0
        self.low: NDArray[Any] | None = None
        self.high: NDArray[Any] | None = None
        self.num_missing: NDArray[np.int64] = np.zeros(0, np.int64)
        self.shown_dimensions: NDArray[np.int64] = np.zeros(0, np.int64)
        self.value_counts: Counter[int] = Counter()
        self.distributions = ColumnDistributions()
        self.sampled_rows = ThinnedRows(_MAX_SAMPLED_ROWS)
        self._faults: dict[ProblemKind, _FaultSummary] = {}

    def add(self, block: Block, locate: Locator) -> None:
        """Add the leaf's column of the next block."""
        column = block.columns[self.name]
        if not len(column):
            return
        is_observation = root(self.name) == Columns.OBS
        for fault in find_faults(self.name, column, self.space, can_be_missing=is_observation):
            self._record_fault(fault, block, locate)
        flat_values = column.reshape(len(column), -1)
        if flat_values.dtype.kind == "c":
            return
        is_finite = flat_values.dtype.kind != "f" or all_finite(flat_values)
        self._update_range(flat_values, is_finite=is_finite)
        self.num_rows += block.num_steps
        if is_observation:
            if not is_finite:
                self.num_missing += np.isnan(flat_values[block.obs_row]).sum(axis=0)
            # Final observations are left out: those of some data are not recorded.
            shown_values = (
                flat_values[:, self.shown_dimensions]
                if len(self.shown_dimensions) < flat_values.shape[1]
                else flat_values  # saves a copy
            )
            self.sampled_rows.add(np.take(shown_values, block.obs_row, axis=0))
        else:
            self.distributions.add(flat_values[:, self.shown_dimensions])
            self.num_zeros += int((~flat_values.any(axis=1)).sum())
        if column.ndim == 1 and column.dtype.kind in "biu" and len(self.value_counts) <= MAX_DISTINCT_VALUES:
            self.value_counts.update(_count_values(column))

    @property
    def is_image(self) -> bool:
        """True if each value is an image."""
        return root(self.name) == Columns.OBS and is_image(self._leaf.shape)

    @property
    def bounds(self) -> tuple[Any, Any] | None:
        """Minimum and maximum over all dimensions; None before the first row."""
        return None if self.low is None or not self.low.size else (self.low.min(), self.high.max())  # type: ignore[union-attr]

    @property
    def dimension_names(self) -> tuple[str, ...]:
        """Name of each shown dimension: of its column, or else its index."""
        names = self._leaf.names
        return tuple(names[index] if names else str(index) for index in self.shown_dimensions.tolist())

    @property
    def missing_shares(self) -> tuple[float, ...]:
        """Share of the timesteps without a value of each shown dimension."""
        return tuple((self.num_missing[self.shown_dimensions] / max(1, self.num_rows)).tolist())

    @property
    def constant_dimensions(self) -> NDArray[np.int64]:
        """Indices of the dimensions that never change; empty if there are too few rows to know."""
        if self.low is None or self.num_rows <= _TOO_FEW_ROWS:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.low == self.high)

    def problems(self) -> Iterator[DataProblem]:
        """Yield invalid values, and dimensions that never change."""
        for kind, fault in self._faults.items():
            yield self._make_problem(kind, fault)
        if self.num_missing.any():
            yield self._make_missing_problem()
        constant_dimensions = self.constant_dimensions
        if (
            not len(constant_dimensions)
            or root(self.name) not in _COLUMNS_CHECKED_FOR_CONSTANTS
            or self.low is None
        ):
            return
        names = self._leaf.names
        constant_names = [names[index] if names else index for index in constant_dimensions.tolist()]
        num_dimensions = len(self.low)
        dimensions = (
            "values of the image"
            if self.is_image
            else f"dimensions ({formatting.first_few(constant_names, 8)})"
        )
        severity: Severity = "warning" if len(constant_dimensions) == num_dimensions else "info"
        message = (
            f"{self.name!r} never changes: it is {self.low[0]} in all "
            f"{formatting.plural(self.num_rows, 'inspected row')}"
            if num_dimensions == 1
            else f"{self.name!r} never changes in {len(constant_dimensions)} of {num_dimensions} {dimensions}"
        )
        yield DataProblem(severity=severity, kind="constant", message=message)

    def _make_missing_problem(self) -> DataProblem:
        names = self._leaf.element_names(self.name)
        counts = (
            self.num_missing if len(names) == len(self.num_missing) else self.num_missing.max(keepdims=True)
        )
        rows = [
            f"{names[index]} in {formatting.as_percentage(counts[index] / self.num_rows)}"
            for index in np.flatnonzero(counts)
        ]
        message = (
            f"values of {self.name!r} are missing (share of the timesteps): {formatting.first_few(rows, 16)}; "
            "prepare.missing says what replaces them"
        )
        return DataProblem(severity="warning", kind="missing-values", message=message)

    def _update_range(self, flat_values: NDArray[Any], *, is_finite: bool) -> None:
        if is_finite:
            low, high = flat_values.min(axis=0), flat_values.max(axis=0)
        else:
            low = np.where(np.isnan(flat_values), np.inf, flat_values).min(axis=0)
            high = np.where(np.isnan(flat_values), -np.inf, flat_values).max(axis=0)
        if self.low is None or self.high is None:
            self.low, self.high = low, high
            self.num_missing = np.zeros(flat_values.shape[1], np.int64)
            count = min(flat_values.shape[1], MAX_DIMENSIONS)
            self.shown_dimensions = np.linspace(0, flat_values.shape[1] - 1, count).round().astype(np.int64)
        else:
            self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)

    def _record_fault(self, fault: Fault, block: Block, locate: Locator) -> None:
        if fault.kind not in self._faults:
            self._faults[fault.kind] = _FaultSummary(describe_fault(block, self.name, fault, locate))
        self._faults[fault.kind].num_rows += int(fault.mask.reshape(len(fault.mask), -1).any(axis=1).sum())

    def _make_problem(self, kind: ProblemKind, fault: _FaultSummary) -> DataProblem:
        """Make the problem of a kind of fault."""
        severity: Severity = "error"
        # Box actions are usually recorded before scaling and clipping, and observations often exceed their bounds.
        if kind == "outside-space" and isinstance(self.space, spaces.Box):
            severity = "info" if root(self.name) == Columns.ACTIONS else "warning"
        message = str(fault.first)
        if fault.num_rows > 1:
            message += f"; and {formatting.plural(fault.num_rows - 1, 'more row')}"
        if severity == "info":
            message += " (usually recorded before scaling or clipping)"
        return DataProblem(
            severity=severity, kind=kind, message=message, path=fault.first.path, row=fault.first.row
        )


@dataclass
class _FaultSummary:
    """Invalid values of one kind: the location and description of the first, and the number of rows with any."""

    first: Problem
    num_rows: int = 0


def _count_values(column: NDArray[Any]) -> dict[int, int]:
    values, counts = np.unique(column, return_counts=True)
    return dict(zip(values.astype(np.int64).tolist(), counts.tolist(), strict=True))
