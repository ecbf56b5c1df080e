"""The parts that a reading is read in. They travel to workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.prepare.filtering import filtered, selected
from hindcast.datasets.units import Unit
from hindcast.episodes.block import Block
from hindcast.formats.format import Piece, ReadOptions
from hindcast.formats.registry import FORMATS
from hindcast.formats.rows import Rows


class Part(Protocol):
    """What is read at once.

    Attributes:
        path: its file.
        nbytes: size in memory, about.
    """

    @property
    def path(self) -> str: ...

    @property
    def nbytes(self) -> int: ...

    def read(self) -> Iterator[Rows | Block]:
        """Timesteps that pass the filter, in stored order, or whole episodes.

        Raises:
            DataError: damaged data.
        """
        ...


@dataclass(frozen=True)
class ForeignPart:
    """A piece of a foreign file."""

    format: str
    piece: Piece
    options: ReadOptions

    @property
    def path(self) -> str:
        """See `Part`."""
        return str(self.piece.location)

    @property
    def nbytes(self) -> int:
        """See `Part`."""
        return self.piece.nbytes

    def read(self) -> Iterator[Rows | Block]:
        """See `Part.read`."""
        for found in FORMATS[self.format].read(self.piece, self.options):
            if isinstance(found, Rows):
                yield found
            else:
                yield selected(filtered(found, self.options.filter), self.options.columns)


@dataclass(frozen=True)
class StoredPart:
    """A unit of a dataset in one of our layouts."""

    dataset: Dataset
    unit: Unit
    options: ReadOptions

    @property
    def path(self) -> str:
        """See `Part`."""
        return self.unit.parts[0].path

    @property
    def nbytes(self) -> int:
        """See `Part`."""
        return self.unit.nbytes

    def read(self) -> Iterator[Rows | Block]:
        """See `Part.read`."""
        block = self.dataset.read(self.unit)
        yield selected(filtered(block, self.options.filter), self.options.columns)
