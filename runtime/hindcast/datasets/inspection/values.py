"""What is kept of a leaf while a dataset is read: its range, its spread, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast import formatting
from hindcast.datasets.inspection.problems import Kind, Problem, Severity
from hindcast.datasets.inspection.statistics import Spread, Thinned
from hindcast.datasets.validate import (
    Place,
    Where,
    all_finite,
    describe_space,
    must_be_finite,
    outside_space,
    place_of,
)
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, root

MAX_DIMENSIONS = 64
MAX_VALUES = 10_000
_OBSERVATIONS = 1 << 17
_STEPS_TO_JUDGE = 20
_JUDGED = (Columns.OBS, Columns.ACTIONS)


class Leaf:
    """One leaf of numbers.

    Args:
        name: of the leaf.
        space: of the leaf, where known.
    """

    def __init__(self, name: str, space: gym.Space | None) -> None:
        self.name = name
        self.space = space
        self.rows = self.zeros = 0
        self.low: NDArray[Any] | None = None
        self.high: NDArray[Any] | None = None
        self.shown: NDArray[np.int64] = np.zeros(0, np.int64)
        self.values: Counter[int] = Counter()
        self.spread = Spread()
        self.kept = Thinned(_OBSERVATIONS)
        self._wrong: dict[Kind, _Wrong] = {}

    def add(self, block: Block, where: Where) -> None:
        """The leaf's column of the next block."""
        column = block.columns[self.name]
        if not len(column):
            return
        self._look_for_faults(block, column, where)
        flat = column.reshape(len(column), -1)
        if flat.dtype.kind == "c":
            return
        self._widen(flat)
        self.rows += len(column)
        chosen = flat[:, self.shown]
        if root(self.name) == Columns.OBS:
            self.kept.add(chosen)
        else:
            self.spread.add(chosen)
            self.zeros += int((~flat.any(axis=1)).sum())
        if _is_count(column) and len(self.values) <= MAX_VALUES:
            self.values.update(_counted(column))

    @property
    def bounds(self) -> tuple[Any, Any] | None:
        """Least and greatest value of all dimensions; None before any."""
        return None if self.low is None or not self.low.size else (self.low.min(), self.high.max())  # type: ignore[union-attr]

    @property
    def constant(self) -> NDArray[np.int64]:
        """The dimensions that never change."""
        if self.low is None or self.rows <= _STEPS_TO_JUDGE:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.low == self.high)

    def problems(self) -> Iterator[Problem]:
        """Wrong values, and dimensions that never change."""
        for wrong in self._wrong.values():
            yield wrong.problem
        constant = self.constant
        if not len(constant) or root(self.name) not in _JUDGED or self.low is None:
            return
        of, which = len(self.low), formatting.few(constant.tolist(), 8)
        severity: Severity = "warning" if len(constant) == of else "info"
        what = (
            f"{self.name!r} never changes: it is {self.low[0]} in all {formatting.plural(self.rows, 'row')} looked at"
            if of == 1
            else f"{self.name!r} never changes in {len(constant)} of {of} dimensions ({which})"
        )
        yield Problem(severity=severity, kind="constant", message=what)

    def _widen(self, flat: NDArray[Any]) -> None:
        if flat.dtype.kind == "f" and not all_finite(flat):
            low = np.where(np.isnan(flat), np.inf, flat).min(axis=0)
            high = np.where(np.isnan(flat), -np.inf, flat).max(axis=0)
        else:
            low, high = flat.min(axis=0), flat.max(axis=0)
        if self.low is None or self.high is None:
            self.low, self.high = low, high
            count = min(flat.shape[1], MAX_DIMENSIONS)
            self.shown = np.linspace(0, flat.shape[1] - 1, count).round().astype(np.int64)
        else:
            self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)

    def _look_for_faults(self, block: Block, column: NDArray[Any], where: Where) -> None:
        if must_be_finite(self.name) and column.dtype.kind in "fc" and not all_finite(column):
            self._note("not-finite", block, ~np.isfinite(column), where)
        outside = outside_space(column, self.space) if column.dtype.kind != "c" else None
        if outside is not None:
            self._note("outside-space", block, outside, where)

    def _note(self, kind: Kind, block: Block, mask: NDArray[np.bool_], where: Where) -> None:
        if not mask.any():
            return
        if kind not in self._wrong:
            index = np.unravel_index(int(np.argmax(mask)), mask.shape)
            value = block.columns[self.name][index]
            self._wrong[kind] = _Wrong(
                self, kind, str(value), place_of(block, self.name, int(index[0]), where)
            )
        self._wrong[kind].rows += int(mask.reshape(len(mask), -1).any(axis=1).sum())


class _Wrong:
    """Values of a leaf that are wrong in one way: the first, and how many rows have any."""

    def __init__(self, leaf: Leaf, kind: Kind, found: str, place: Place) -> None:
        self.rows = 0
        self._leaf, self._kind, self._found, self._place = leaf, kind, found, place

    @property
    def problem(self) -> Problem:
        name, expected = self._leaf.name, "a finite number"
        if self._kind == "outside-space":
            expected = describe_space(self._leaf.space)
        message = f"{self._place}: {name!r} has {self._found}, expected {expected}"
        if self.rows > 1:
            message += f"; and {formatting.plural(self.rows - 1, 'more row')}"
        if self._severity == "info":
            message += " (usually recorded before scaling or clipping)"
        return Problem(
            severity=self._severity,
            kind=self._kind,
            message=message,
            path=self._place.path,
            row=self._place.row,
        )

    @property
    def _severity(self) -> Severity:
        """Actions of a Box are recorded as the policy gave them; observations often leave theirs a little."""
        if self._kind == "not-finite" or not isinstance(self._leaf.space, spaces.Box):
            return "error"
        return "info" if root(self._leaf.name) == Columns.ACTIONS else "warning"


def _is_count(column: NDArray[Any]) -> bool:
    return column.ndim == 1 and column.dtype.kind in "biu"


def _counted(column: NDArray[Any]) -> dict[int, int]:
    values, counts = np.unique(column, return_counts=True)
    return dict(zip(values.astype(np.int64).tolist(), counts.tolist(), strict=True))
