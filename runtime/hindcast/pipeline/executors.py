"""Executors read units and turn them into blocks with a pre-learner (`prelearner.py`), in this process or others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from hindcast.datasets.units import Unit
from hindcast.episodes.block import Block


class UnitInEpoch(NamedTuple):
    """A unit to read in an epoch."""

    unit: Unit
    epoch: int


PreLearn = Callable[[Unit, int], Block]
"""Returns the block of a unit in an epoch."""


class Executor(Protocol):
    """Executes work in this process or others, and delivers its blocks in the order of the work."""

    def stream(self, source: int, work: Iterable[UnitInEpoch], prelearn: PreLearn) -> Iterator[Block]:
        """Yield one block per unit of `work`, in order.

        `work` may be endless: the executor reads ahead as far as it has room. The consumer closes the iterator when it
        needs no more blocks.

        Args:
            source: index of the dataset among the training's sources; the learners of a group share the stream of one
                index.
            work: the units to read.
            prelearn: returns the block of a unit.
        """


class Local(Executor):
    """Reads in the calling thread, one unit at a time and none ahead."""

    def stream(self, source: int, work: Iterable[UnitInEpoch], prelearn: PreLearn) -> Iterator[Block]:  # noqa: ARG002
        for unit, epoch in work:
            yield prelearn(unit, epoch)
