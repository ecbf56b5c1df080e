"""Writing episodes: the rows that an encoder makes of blocks, and the file that they go into."""

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
    """Encoded episodes.

    Attributes:
        table: their rows.
        length: `[N]` steps of each episode.
        num_rows: `[N]` rows of each episode.
        nbytes: `[N]` bytes of each episode before compression, about.
    """

    table: pa.Table
    length: I64
    num_rows: I64
    nbytes: I64

    @classmethod
    def concat(cls, groups: Sequence[EncodedEpisodes]) -> EncodedEpisodes:
        tables, *arrays = zip(*groups, strict=True)
        return cls(pa.concat_tables(tables), *(np.concatenate(parts) for parts in arrays))

    def slice(self, start: int, stop: int) -> EncodedEpisodes:
        """Return the episodes `start` to `stop`."""
        first_row, num_rows = int(self.num_rows[:start].sum()), int(self.num_rows[start:stop].sum())
        arrays = (array[start:stop] for array in (self.length, self.num_rows, self.nbytes))
        return EncodedEpisodes(self.table.slice(first_row, num_rows), *arrays)


class DataFile(ABC):
    """A file of rows of one schema. It appears under its name complete or not at all.

    Attributes:
        num_rows: rows written so far.
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
        """Return whether rows of this schema can be added; columns that they lack are empty."""
        return set(schema.names) <= set(self._schema.names)

    def write(self, group: EncodedEpisodes, continued: bool) -> None:
        """Add a row group.

        Args:
            group: its rows.
            continued: whether its first row continues the last episode of the row group before.

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
            StorageError: with path and reason; the file does not exist then.
        """
        self._file.commit()
        return FileEntry.from_row_groups(
            self._file.location.name, self.size, self._file.checksum, self._groups
        )

    def abort(self) -> None:
        """Remove the unfinished file."""
        self._file.abort()

    @abstractmethod
    def _write_rows(self, group: EncodedEpisodes) -> None:
        """Write the rows of a group."""


class RowEncoder(ABC):
    """Encodes blocks of one spec as rows, and opens the files that they go into.

    Attributes:
        suffix: end of the files' names.
        compressions: the supported ones, by their names in a resource; the first is the default.
    """

    suffix: str
    compressions: tuple[str, ...]

    def split(self, block: Block) -> Iterator[tuple[Block, bool]]:
        """Split a block into the parts that are encoded separately, in order.

        An episode that is too long comes in fragments, one in each part. By default nothing is split.

        Yields:
            A part, and whether it continues the last episode of the part before.
        """
        yield block, False

    @abstractmethod
    def encode(self, block: Block) -> EncodedEpisodes:
        """Encode the episodes of a part as rows.

        Raises:
            DataError: a column that the spec does not have, lacks, or has with another dtype or shape.
        """

    @abstractmethod
    def open(self, location: Location, schema: pa.Schema, compression: str) -> DataFile:
        """Open a new file for rows of this schema.

        Raises:
            StorageError: with path and reason.
        """

    @abstractmethod
    def overhead_bytes(self, schema: pa.Schema, groups: int) -> int:
        """Return the bytes of a file with `groups` row groups, without its rows: an upper estimate."""
