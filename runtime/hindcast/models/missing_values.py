"""Replacing missing values (NaN) of observations, in recorded episodes and in acting alike. Shape suffix: B = rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hindcast.api.input import MissingRule
from hindcast.api.sentences import nearest
from hindcast.episodes.columns import Columns
from hindcast.episodes.spaces import names_of
from hindcast.errors import DataError, SpecError
from hindcast.formats.spec import Leaf

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
OTHER_NAMES: Final = "*"
"""The name of a rule for all elements that no other rule names."""


class MissingValues:
    """Replaces missing elements of one leaf of the observations.

    Args:
        rules: element's index in the flattened leaf -> what replaces it, see `PrepareSpec.missing`.
        names: names of the leaf's elements, for messages.
        shape: shape of the leaf.

    Attributes:
        has_rule: `[*shape]` True for elements that are replaced.
        is_carried: `[*shape]` True for elements whose last value in the episode is carried forward.
        fills: `[*shape]` float64, what replaces an element that has no earlier value; 0 without a rule.
        indices: `[k]` indices of the elements with a rule in the flattened leaf, ascending.
    """

    def __init__(
        self, rules: Mapping[int, MissingRule], names: Sequence[str], shape: tuple[int, ...]
    ) -> None:
        self._rules = dict(sorted(rules.items()))
        self._names = names
        size = int(np.prod(shape))
        self.indices = np.array(list(self._rules), dtype=np.int64)
        self.has_rule = np.isin(np.arange(size), self.indices).reshape(shape)
        self.is_carried = np.array(
            [self._rules.get(index) == "CarryForward" for index in range(size)], dtype=np.bool_
        ).reshape(shape)
        constants = {index: rule for index, rule in self._rules.items() if not isinstance(rule, str)}
        self.fills: F64 = np.array([constants.get(index, 0.0) for index in range(size)]).reshape(shape)

    @property
    def needs_fit(self) -> bool:
        """True if a rule is fitted to data: Mean, Median, or CarryForward, which begins with the median."""
        return any(isinstance(rule, str) for rule in self._rules.values())

    def fit(self, rows: NDArray[Any]) -> None:
        """Compute the medians and means of the elements' values in `[n, *shape]` rows of the training data.

        Raises:
            DataError: an element has no value in any row.
        """
        values = rows.reshape(len(rows), -1).astype(np.float64, copy=False)
        fills = self.fills.ravel().copy()
        for index, rule in self._rules.items():
            if not isinstance(rule, str):
                continue
            present_values = values[:, index][~np.isnan(values[:, index])]
            if not len(present_values):
                raise DataError(
                    f"{self._names[index]} has no value in the training data, so nothing can replace it: leave it out "
                    "of `schema`, or set a number for it under prepare.missing"
                )
            fills[index] = np.mean(present_values) if rule == "Mean" else np.median(present_values)
        self.fills = fills.reshape(self.fills.shape)

    def fill_episodes(self, rows: NDArray[Any], obs_start: I64) -> NDArray[Any]:
        """Return `[O, *shape]` observations of whole episodes with missing elements replaced.

        Args:
            rows: the observations, episode after episode.
            obs_start: `[N]` the first row of each episode, before which nothing is carried forward.
        """
        is_missing = np.isnan(rows)
        if not is_missing.any():
            return rows
        replacements = np.broadcast_to(self.fills.astype(rows.dtype), rows.shape)
        if self.is_carried.any():
            row_numbers = np.arange(len(rows)).reshape(-1, *[1] * (rows.ndim - 1))
            last_row = np.where(is_missing, 0, row_numbers)
            last_row[obs_start] = row_numbers[obs_start]
            np.maximum.accumulate(last_row, axis=0, out=last_row)
            carried = np.take_along_axis(rows, last_row, axis=0)
            replacements = np.where(self.is_carried & ~np.isnan(carried), carried, replacements)
        return np.where(is_missing & self.has_rule, replacements, rows)

    def flags(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return `[B, k]` 1 where an element with a rule is missing, and 0 elsewhere, in the dtype of the rows."""
        return np.isnan(rows).reshape(len(rows), -1)[:, self.indices].astype(rows.dtype)


class SlotValues:
    """The last values of the carried elements of one leaf in each slot's episode.

    Args:
        missing: the rules.
    """

    def __init__(self, missing: MissingValues) -> None:
        self._missing = missing
        self._last: NDArray[Any] | None = None

    def fill(self, rows: NDArray[Any], is_first: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Return `[B, *shape]` the observations of a step of all slots with missing elements replaced.

        Slots in `is_first` `[B]` begin an episode. If it is None, no slot does, or, in the very first step, all slots.

        Raises:
            ValueError: the number of slots differs from the previous step's, and not all begin an episode.
        """
        # As floats: an application may send integers, which cannot hold the fills.
        rows = rows.astype(np.result_type(rows.dtype, np.float32), copy=False)
        fills = self._missing.fills.astype(rows.dtype)
        last = self._last
        if last is None or (is_first is not None and is_first.all()):
            last = np.broadcast_to(fills, rows.shape)
        elif len(last) != len(rows):
            raise ValueError(
                f"the observations have {len(rows)} slots, but the last step had {len(last)}; begin an episode in "
                "every slot (is_first)"
            )
        elif is_first is not None and is_first.any():
            last = np.where(is_first.reshape(-1, *[1] * (rows.ndim - 1)), fills, last)
        filled = np.where(np.isnan(rows) & self._missing.has_rule, last, rows)
        self._last = np.where(self._missing.is_carried, filled, fills)
        return filled

    def reset(self) -> None:
        """Forget the values of all slots."""
        self._last = None


def resolve_rules(
    rules: Mapping[str, MissingRule], leaves: Mapping[str, gym.Space]
) -> dict[str, MissingValues]:
    """Return the rules by leaf; leaves without a rule are left out.

    Args:
        rules: name -> rule: an element's name (`heart_rate`, `obs[3]`), a leaf (`obs/vitals`, or only `vitals`) for all
            of its elements, or `*` for all elements without another rule.
        leaves: leaf -> space, of the observations.

    Raises:
        SpecError: a name is unknown, or names a leaf that is not a vector of floats.
    """
    remaining = dict(rules)
    other_rule = remaining.pop(OTHER_NAMES, None)
    missing: dict[str, MissingValues] = {}
    known_names: list[str] = []
    for leaf, space in leaves.items():
        if not isinstance(space, gym.spaces.Box) or space.dtype.kind != "f" or len(space.shape) > 1:
            continue
        names = element_names(leaf, space)
        short_name = leaf.removeprefix(f"{Columns.OBS}/")
        known_names += [*names, short_name]
        leaf_rule = remaining.pop(leaf, remaining.pop(short_name, other_rule))
        leaf_rules = {
            index: rule
            for index, name in enumerate(names)
            if (rule := remaining.pop(name, leaf_rule)) is not None
        }
        if leaf_rules:
            missing[leaf] = MissingValues(leaf_rules, names, space.shape)
    if other_rule is not None and not known_names:
        raise SpecError(
            f"has {OTHER_NAMES!r}, but no observation is a vector of floats: leave it out",
            field="spec.input.prepare.missing",
        )
    if remaining:
        name = next(iter(remaining))
        raise SpecError(
            f"names {name!r}, which is no column of numbers in the observations{nearest(name, known_names)}",
            field="spec.input.prepare.missing",
        )
    return missing


def element_names(leaf: str, space: gym.Space) -> tuple[str, ...]:
    """Return a name for each element of a leaf; only the leaf's name if it has more than one axis."""
    return Leaf(space.dtype, space.shape or (), names=names_of(space)).element_names(leaf)
