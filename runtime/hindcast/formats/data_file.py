"""What the writer writes: the rows that an encoder makes of episodes, and the file that they go into."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from hindcast.episodes.block import I64, Block
from hindcast.formats.entries import FileEntry, RowGroup
from hindcast.storage.atomic import AtomicFile
from hindcast.storage.location import Location


class EncodedEpisodes(NamedTuple):
    """Encoded episodes: their rows, and for each its steps, how many rows it has, and how many bytes."""

    table: pa.Table
    length: I64
    num_rows: I64
    nbytes: I64

    @classmethod
    def concat(cls, groups: Sequence[EncodedEpisodes]) -> EncodedEpisodes:
        tables, *arrays = zip(*groups, strict=True)
        return cls(pa.concat_tables(tables), *(np.concatenate(parts) for parts in arrays))

    def slice(self, start: int, stop: int) -> EncodedEpisodes:
        """Some of the episodes."""
        first, count = int(self.num_rows[:start].sum()), int(self.num_rows[start:stop].sum())
        arrays = (array[start:stop] for array in (self.length, self.num_rows, self.nbytes))
        return EncodedEpisodes(self.table.slice(first, count), *arrays)


class DataFile(ABC):
    """A file of rows of one schema, which appears under its name complete or not at all.

    Attributes:
        rows: written so far.
    """

    def __init__(self, location: Location, schema: pa.Schema) -> None:
        self.num_rows = 0
        self._schema = schema
        self._file = AtomicFile(location)
        self._groups: list[RowGroup] = []

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.size

    @property
    def num_row_groups(self) -> int:
        """Row groups written so far."""
        return len(self._groups)

    def accepts(self, schema: pa.Schema) -> bool:
        """Whether rows of this schema can follow: columns that they lack are empty."""
        return set(schema.names) <= set(self._schema.names)

    def write(self, group: EncodedEpisodes, continued: bool) -> None:
        """Add a row group; `continued` says that its first row continues the episode before.

        Raises:
            StorageError: with path and reason.
        """
        self._write_rows(group)
        self.num_rows += int(group.num_rows.sum())
        self._groups.append(
            RowGroup(
                rows=len(group.length),
                timesteps=int(group.length.sum()),
                bytes=int(group.nbytes.sum()),
                lengths=tuple(group.length.tolist()),
                continued=(0,) if continued else (),
            )
        )

    def finish(self) -> FileEntry:
        """Make the file durable and visible.

        Raises:
            StorageError: with path and reason; the file is not there then.
        """
        self._file.commit()
        return FileEntry.from_row_groups(
            self._file.location.name, self.size, self._file.checksum, self._groups
        )

    def abort(self) -> None:
        """Remove it."""
        self._file.abort()

    @abstractmethod
    def _write_rows(self, group: EncodedEpisodes) -> None:
        """Write the rows of a group."""


class RowEncoder(ABC):
    """Makes rows of blocks that fit one spec, and the files that they go into.

    Attributes:
        suffix: how the files' names end.
        compressions: those that the files can have, by their names in a resource; the first is the default.
    """

    suffix: str
    compressions: tuple[str, ...]

    def split(self, block: Block) -> Iterator[tuple[Block, bool]]:
        """The block's episodes as they are encoded, in order: one that is too long in fragments, each on its own.

        Here they are never cut.

        Yields:
            A piece, and whether it continues the episode of the piece before.
        """
        yield block, False

    @abstractmethod
    def encode(self, block: Block) -> EncodedEpisodes:
        """A piece's episodes as rows.

        Raises:
            DataError: a column that the spec does not have, lacks, or has with another dtype or shape.
        """

    @abstractmethod
    def open(self, location: Location, schema: pa.Schema, compression: str) -> DataFile:
        """A new file for rows of this schema.

        Raises:
            StorageError: with path and reason.
        """

    @abstractmethod
    def overhead_bytes(self, schema: pa.Schema, groups: int) -> int:
        """Bytes (at most, about) of a file with so many row groups, without its rows."""
