"""A dataset whose values are converted to the form of its spaces, such as 2.0 or "2" to 2, and `[S, 1]` to `[S]`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from hindcast.datasets.dataset import Dataset, UnitOrigin, View
from hindcast.datasets.units import Unit
from hindcast.datasets.validate import (
    TEXT_ADVICE,
    Fault,
    Locator,
    describe_fault,
    describe_space,
    fits_space,
    get_leaf_spaces,
)
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError
from hindcast.formats.lossless import fit_shape, is_same_up_to_ones, parse_numbers, to_integers
from hindcast.formats.spec import Leaf


def fit_to_spaces(
    dataset: Dataset, observation_space: gym.Space | None, action_space: gym.Space | None
) -> Dataset:
    """Return the dataset with observations and actions in the form that the spaces require, if no value is lost.

    Leaves that cannot be fitted stay as they are, and so do leaves that were recorded in a space of another kind, such
    as Discrete actions for a Box: `check_spec` refuses them. Reading raises a `DataError` that names a
    value that has no such form, such as 0.5 for an integer.
    """
    spec = dataset.spec
    recorded_spaces = get_leaf_spaces(spec, spec.observation_space, spec.action_space)
    fitted_spaces = {
        name: space
        for name, space in get_leaf_spaces(spec, observation_space, action_space).items()
        if _can_fit(spec.leaves[name], space) and isinstance(recorded_spaces.get(name, space), type(space))
    }
    return FittedView(dataset, fitted_spaces) if fitted_spaces else dataset


def _can_fit(leaf: Leaf, space: gym.Space) -> bool:
    """Return whether a leaf differs from its space only in its form."""
    if isinstance(space, spaces.Text) or fits_space(leaf.dtype, leaf.shape, space) or space.shape is None:
        return False
    return is_same_up_to_ones(leaf.shape, space.shape) and (leaf.dtype is None or leaf.dtype.kind in "biuf")


class FittedView(View):
    """All episodes of a dataset, with some leaves in the form of their spaces.

    Args:
        dataset: the dataset.
        fitted_spaces: leaf -> its space.
    """

    def __init__(self, dataset: Dataset, fitted_spaces: Mapping[str, gym.Space]) -> None:
        self._fitted_spaces = fitted_spaces
        leaves = {
            name: _fitted_leaf(dataset.spec.leaves[name], space) for name, space in fitted_spaces.items()
        }
        origins = [UnitOrigin(dataset, unit, np.arange(len(unit.lengths))) for unit in dataset.units]
        spec = replace(dataset.spec, leaves={**dataset.spec.leaves, **leaves})
        super().__init__(spec, [dataset], origins, dataset.digest)

    def read(self, unit: Unit, columns: Iterable[str] | None = None) -> Block:
        """See `Dataset.read`."""
        block = super().read(unit, columns)
        fitted_columns = {
            name: _fit(block, name, space, partial(self.locate, unit))
            for name, space in self._fitted_spaces.items()
            if name in block.columns
        }
        return block.with_columns({**block.columns, **fitted_columns})


def _fitted_leaf(leaf: Leaf, space: gym.Space) -> Leaf:
    dtype = leaf.dtype
    if not isinstance(space, spaces.Box) and (dtype is None or dtype.kind == "f"):
        dtype = np.dtype(np.int64)
    return Leaf(np.dtype(np.float64) if dtype is None else dtype, space.shape or ()).with_names(leaf.names)


def _fit(block: Block, name: str, space: gym.Space, locate: Locator) -> np.ndarray:
    """Return a leaf's column in the form of its space.

    Raises:
        DataError: a value has no such form; the error names its episode.
    """
    column = fit_shape(block.columns[name], space.shape or ())
    assert column is not None
    values, is_invalid = parse_numbers(column) if isinstance(space, spaces.Box) else to_integers(column)
    if is_invalid.any():
        advice = f"; {TEXT_ADVICE}" if column.dtype == object else ""
        fault = Fault("outside-space", is_invalid, f"{describe_space(space)}{advice}")
        problem = describe_fault(block.with_columns({name: column}), name, fault, locate)
        if column.dtype.kind == "f" and np.isfinite(column[is_invalid]).all():
            field = "spec.actionSpace" if root(name) == Columns.ACTIONS else "spec.observationSpace"
            remedy = f"correct the value, or make its space a Box ({field})"
            problem = replace(problem, remedy=remedy, mentions=(field,))
        raise DataError.of([problem])
    return values
