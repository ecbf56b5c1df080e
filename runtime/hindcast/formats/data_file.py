"""Bases for writing episodes: `RowEncoder`, which encodes blocks as rows, and `DataFile`, which stores the rows."""

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
    """Episodes, or fragments of episodes, encoded as rows of a table.

    Attributes:
        table: the rows of all episodes.
        length: `[N]` steps of each episode.
        num_rows: `[N]` table rows of each episode: 1, or as many as it has steps.
        nbytes: `[N]` approximate bytes of each episode before compression.
    """

    table: pa.Table
    length: I64
    num_rows: I64
    nbytes: I64

    @classmethod
    def concat(cls, groups: Sequence[EncodedEpisodes]) -> EncodedEpisodes:
        """Concatenate groups of episodes; their tables have the same schema."""
        tables, *arrays = zip(*groups, strict=True)
        return cls(pa.concat_tables(tables), *(np.concatenate(group_arrays) for group_arrays in arrays))

    def slice(self, start: int, stop: int) -> EncodedEpisodes:
        """Return the episodes with the indices `start` to `stop` (exclusive)."""
        first_row, num_rows = int(self.num_rows[:start].sum()), int(self.num_rows[start:stop].sum())
        arrays = (array[start:stop] for array in (self.length, self.num_rows, self.nbytes))
        return EncodedEpisodes(self.table.slice(first_row, num_rows), *arrays)


class DataFile(ABC):
    """A file of rows of one schema. It appears under its name complete or not at all.

    Attributes:
        num_rows: table rows written so far.
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
        """Return whether rows of this schema can be added; columns of the file that the rows lack become null."""
        return set(schema.names) <= set(self._schema.names)

    def write(self, group: EncodedEpisodes, is_continuation: bool) -> None:
        """Add a row group.

        Args:
            group: episodes of the group.
            is_continuation: whether the first one is a fragment that continues the last episode of the previous row
                group.

        Raises:
            StorageError: the file cannot be written.
        """
        self._write_rows(group)
        self.num_rows += int(group.num_rows.sum())
        self._groups.append(
            RowGroup(
                rows=len(group.length),
                timesteps=int(group.length.sum()),
                bytes=int(group.nbytes.sum()),
                lengths=tuple(group.length.tolist()),
                continued=(0,) if is_continuation else (),
            )
        )

    def finish(self) -> FileEntry:
        """Make the file durable and visible under its name; return its entry for a commit.

        Raises:
            StorageError: the file cannot be written; then nothing new appears under its name.
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
        compressions: names of the supported compressions in a resource; the first one is the default.
    """

    suffix: str
    compressions: tuple[str, ...]

    def split(self, block: Block) -> Iterator[tuple[Block, bool]]:
        """Split a block into smaller blocks that are encoded separately, in order.

        An episode that is too long comes in fragments, each of which is a block of its own. This base class splits
        nothing.

        Yields:
            A block, and whether it is a fragment that continues the last episode of the block before.
        """
        yield block, False

    @abstractmethod
    def encode(self, block: Block) -> EncodedEpisodes:
        """Encode the episodes of a block from `split` as rows.

        Raises:
            DataError: the block has other columns than the spec, or a column with another dtype or shape.
        """

    @abstractmethod
    def open(self, location: Location, schema: pa.Schema, compression: str) -> DataFile:
        """Open a new file for rows of this schema.

        Args:
            location: location of the file.
            schema: schema of the rows.
            compression: one of `compressions`.

        Raises:
            StorageError: the file cannot be created.
        """

    @abstractmethod
    def estimate_overhead_bytes(self, schema: pa.Schema, num_row_groups: int) -> int:
        """Return an upper estimate of the bytes that a file with `num_row_groups` has in addition to its rows."""
