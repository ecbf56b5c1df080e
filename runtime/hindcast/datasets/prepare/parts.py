"""The parts in which an input is read. They travel to workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.prepare.filtering import filtered, selected
from hindcast.datasets.units import Unit
from hindcast.episodes.block import Block
from hindcast.formats.format import Piece, ReadOptions
from hindcast.formats.registry import FORMATS
from hindcast.formats.rows import Rows


@dataclass(frozen=True)
class Part(ABC):
    """What is read at once.

    Attributes:
        path: its file.
        nbytes: size in memory, about.
        options: how it is read.
    """

    path: str
    nbytes: int
    options: ReadOptions

    def read(self) -> Iterator[Rows | Block]:
        """Timesteps that pass the filter, in stored order, or complete episodes.

        Raises:
            DataError: damaged data.
        """
        for found in self._stored():
            if isinstance(found, Rows):
                yield found
            else:
                yield selected(filtered(found, self.options.filter), self.options.columns)

    @abstractmethod
    def _stored(self) -> Iterator[Rows | Block]:
        """Rows that pass the filter; episodes before it."""


@dataclass(frozen=True)
class ForeignPart(Part):
    """A piece of a file in one of `FORMATS`."""

    format: str
    piece: Piece

    def _stored(self) -> Iterator[Rows | Block]:
        return FORMATS[self.format].read(self.piece, self.options)


@dataclass(frozen=True)
class StoredPart(Part):
    """A unit of a dataset that can be opened directly."""

    dataset: Dataset
    unit: Unit

    def _stored(self) -> Iterator[Rows | Block]:
        yield self.dataset.read(self.unit)
