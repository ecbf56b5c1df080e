"""A preparation: what is read, by which rules, and where the episodes go. It travels to workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from hindcast.datasets.assembly.rules import Rules, refuse_unfinished
from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.prepare.filtering import filtered, selected
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location

PARTITION_BYTES: Final = 32 << 20

Progress = Callable[[int, int], None]
"""Called with how many pieces of the work are done, and of how many."""


@dataclass(frozen=True)
class Part:
    """What is read at once: a piece of a foreign file, or a unit of a dataset that can be opened directly.

    Attributes:
        path: its file.
        nbytes: size in memory, about.
        options: how it is read.
        stored: gives rows that pass the filter, and complete episodes before it.
    """

    path: str
    nbytes: int
    options: ReadOptions
    stored: Callable[[], Iterable[Rows | Block]]

    def read(self) -> Iterator[Rows | Block]:
        """Timesteps that pass the filter, in stored order, or complete episodes.

        Raises:
            DataError: damaged data.
        """
        for found in self.stored():
            if isinstance(found, Rows):
                yield found
            else:
                yield selected(filtered(found, self.options.filter), self.options.columns)


@dataclass(frozen=True)
class Job:
    """A preparation.

    Attributes:
        folder: of the dataset that is made.
        parts: what is read, in stored order.
        rules: how rows become episodes.
        spec: spaces and environment, as far as the data say them; no leaves.
        in_order: the rows of each episode are adjacent, so that partitions are cut from the rows as they are stored.
            Otherwise rows are brought together by their episode's id.
    """

    folder: Location
    parts: Sequence[Part]
    rules: Rules
    spec: DataSpec
    in_order: bool

    @property
    def nbytes(self) -> int:
        """Size of the data in memory, about."""
        return sum(part.nbytes for part in self.parts)

    @cached_property
    def partitions(self) -> int:
        """How many partitions are made, one after another or side by side."""
        if self.in_order:
            return len(self.bounds) - 1
        return max(1, math.ceil(self.nbytes / PARTITION_BYTES))

    @cached_property
    def bounds(self) -> list[int]:
        """Where partitions in stored order begin: first part of each, and the number of parts."""
        bounds, size = [0], 0
        for number, part in enumerate(self.parts):
            if size and size + part.nbytes > PARTITION_BYTES:
                bounds.append(number)
                size = 0
            size += part.nbytes
        return [*bounds, len(self.parts)]

    def read(self, number: int) -> Iterator[Rows | Block]:
        """What a part holds; nothing that is empty."""
        for found in self.parts[number].read():
            if isinstance(found, Block):
                if found.num_episodes:
                    refuse_unfinished(found, self.rules, self.parts[number].path)
                    yield found
            elif len(found):
                if (found.eps_id is not None) != self.rules.is_grouped:
                    raise DataError(
                        f"{found.path} {'has no' if self.rules.is_grouped else 'has the'} column 'eps_id', unlike "
                        f"{self.parts[0].path}: give each as a separate input"
                    )
                yield found

    def scatter(self, number: int) -> Iterator[tuple[int, Steps | Block]]:
        """A part's rows and complete episodes, each with the partition that they go to."""
        for found in self.read(number):
            if isinstance(found, Block):
                yield number % self.partitions, found
            else:
                yield from Steps.of(found, number).split(self.partitions).items()


class FirstLook(NamedTuple):
    """What the first rows of some parts say about all.

    Attributes:
        is_grouped: whether rows say which episode they belong to.
        may_be_in_order: whether the rows of an episode are adjacent, as far as these show.
    """

    is_grouped: bool
    may_be_in_order: bool


def first_look(parts: Sequence[Part]) -> FirstLook:
    """Read until there are rows or episodes."""
    for part in parts:
        for found in part.read():
            if isinstance(found, Rows) and len(found) and found.eps_id is not None:
                return FirstLook(True, Steps.of(found, 0).torn_apart() is None)
            if len(found) if isinstance(found, Rows) else found.num_episodes:
                return FirstLook(False, True)
    return FirstLook(False, True)
