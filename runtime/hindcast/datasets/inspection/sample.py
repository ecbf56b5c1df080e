"""Reading a part of a dataset that is spread evenly over it, one unit at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.inspection.ends import Ends
from hindcast.datasets.inspection.summary import Problem, problem_of
from hindcast.datasets.inspection.values import Leaf
from hindcast.datasets.units import Unit
from hindcast.datasets.validate import check_spec, leaf_spaces_of
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, leaves_of, root
from hindcast.errors import DataError
from hindcast.formats.arrow.layout import ARROW_EPISODES

SAMPLE_STEPS = 1_000_000
_SAMPLE_BYTES = 1 << 30
_LEAST_UNITS = 8
_MOST_HEADS = 2_000
_LOOKED_AT = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.ACTION_LOGP)

Progress = Callable[[int, int], None]
"""Called with how many units are done, and how many there are."""


def sample_units(units: Sequence[Unit], sample_limit: int | None) -> list[Unit]:
    """Units spread evenly over the dataset.

    Args:
        units: of the dataset.
        sample_limit: about how many steps they have together; all units if None. They are of 1 GiB at most, and
            eight at least.
    """
    if sample_limit is None or not units:
        return list(units)
    steps, nbytes = sum(int(unit.lengths.sum()) for unit in units), sum(unit.nbytes for unit in units)
    share = min(1.0, sample_limit / max(1, steps), _SAMPLE_BYTES / max(1, nbytes))
    count = min(len(units), max(_LEAST_UNITS, int(len(units) * share)))
    chosen = np.linspace(0, len(units) - 1, count).round().astype(int)
    return [units[i] for i in chosen]


class Sample:
    """What is kept of the units read.

    Args:
        dataset: what is looked at.
        sample_limit: about how many steps to read; all if None. The ids and ends of episodes are read of all units
            if that costs little, that is, if they are separate columns.
        progress: called after each unit.
    """

    def __init__(self, dataset: Dataset, sample_limit: int | None, progress: Progress | None = None) -> None:
        self.dataset = dataset
        self.ends = Ends()
        self.problems: list[Problem] = []
        self.returns: list[NDArray[np.float64]] = []
        self.episodes = self.steps = self.rewarded = 0
        spaces = self._leaf_spaces()
        arrays = [name for name, leaf in dataset.spec.leaves.items() if leaf.dtype is not None]
        self.leaves = {name: Leaf(name, spaces.get(name)) for name in arrays if root(name) in _LOOKED_AT}
        self._columns = list(self.leaves) if sample_limit is not None else None
        self._read(sample_limit, progress)

    def _read(self, sample_limit: int | None, progress: Progress | None) -> None:
        chosen = {unit.id for unit in sample_units(self.dataset.units, sample_limit)}
        only_heads = self.dataset.layouts == (ARROW_EPISODES,) and len(self.dataset.units) <= _MOST_HEADS
        for done, unit in enumerate(self.dataset.units):
            if unit.id in chosen:
                self._add(unit)
            elif only_heads:
                self._add_heads(unit)
            if progress is not None:
                progress(done + 1, len(self.dataset.units))

    def _add(self, unit: Unit) -> None:
        block = self._block(unit, self._columns)
        if block is None:
            return
        where = partial(self.dataset.locate, unit)
        self.episodes += block.num_episodes
        self.steps += block.num_steps
        self.ends.add(block, where)
        for leaf in self.leaves.values():
            leaf.add(block, where)
        rewards = block.columns.get(Columns.REWARDS)
        if rewards is not None and rewards.ndim == 1:
            self.returns.append(_sums(rewards, block))
            self.rewarded += int((_sums(rewards != 0, block) > 0).sum())

    def _add_heads(self, unit: Unit) -> None:
        block = self._block(unit, [])
        if block is not None:
            self.ends.add(block, partial(self.dataset.locate, unit))

    def _block(self, unit: Unit, columns: Sequence[str] | None) -> Block | None:
        try:
            return self.dataset.read(unit, columns)
        except DataError as error:
            found = list(self.dataset.unreadable(unit, columns)) or [(unit.parts[0].path, error)]
            known = {problem.path for problem in self.problems}
            self.problems += [problem_of(path, fault) for path, fault in found if path not in known]
            return None

    def _leaf_spaces(self) -> dict:
        spec = self.dataset.spec
        spaces = (
            spec.observation_space if leaves_of(Columns.OBS, list(spec.leaves)) else None,
            spec.action_space if leaves_of(Columns.ACTIONS, list(spec.leaves)) else None,
        )
        try:
            check_spec(spec, *spaces, "the dataset")
        except DataError as error:
            self.problems.append(Problem(severity="error", kind="other-space", message=str(error)))
            return {}
        return leaf_spaces_of(spec, *spaces)


def _sums(values: NDArray, block: Block) -> NDArray[np.float64]:
    """`[N]` the sum of each episode's values."""
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    return sums[block.start + block.length] - sums[block.start]
