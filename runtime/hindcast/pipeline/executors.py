"""Where units are read and pre-learned: an executor turns a stream of work into a stream of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from hindcast.datasets.units import Unit
from hindcast.episodes.block import Block


class UnitInEpoch(NamedTuple):
    """One unit to read in one epoch."""

    unit: Unit
    epoch: int


PreLearn = Callable[[Unit, int], Block]


class Executor(Protocol):
    """Carries out work anywhere, and delivers its blocks in the order of the work."""

    def stream(self, source: int, work: Iterable[UnitInEpoch], prelearn: PreLearn) -> Iterator[Block]:
        """Blocks of `work`, one each, in order.

        `work` may be endless: it is taken as it is needed, as far ahead as suits the executor. The iterator
        is closed when no more blocks are wanted.

        Args:
            source: number of the dataset; learners of one group find the same stream by it.
        """


class Local(Executor):
    """Reads in the thread that asks, one unit at a time: nothing to start, nothing held ahead."""

    def stream(self, source: int, work: Iterable[UnitInEpoch], prelearn: PreLearn) -> Iterator[Block]:  # noqa: ARG002
        for unit, epoch in work:
            yield prelearn(unit, epoch)
