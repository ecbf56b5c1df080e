"""What the writer writes to: a file being written, and the encoded episodes that go into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from hindcast.episodes.block import I64
from hindcast.formats.entries import FileEntry, RowGroup


class Group(NamedTuple):
    """Encoded episodes: their rows, and for each its steps, how many rows it has, and how many bytes."""

    table: pa.Table
    length: I64
    rows: I64
    nbytes: I64

    @classmethod
    def concat(cls, groups: Sequence[Group]) -> Group:
        tables, *arrays = zip(*groups, strict=True)
        return cls(pa.concat_tables(tables), *(np.concatenate(parts) for parts in arrays))

    def slice(self, start: int, stop: int) -> Group:
        """Some of the episodes."""
        first, count = int(self.rows[:start].sum()), int(self.rows[start:stop].sum())
        arrays = (array[start:stop] for array in (self.length, self.rows, self.nbytes))
        return Group(self.table.slice(first, count), *arrays)


class DataFile(Protocol):
    """A file that appears under its name complete or not at all.

    Attributes:
        rows: written so far.
        size: bytes written so far.
        groups: row groups written so far.
    """

    rows: int

    @property
    def size(self) -> int: ...

    @property
    def groups(self) -> int: ...

    def takes(self, schema: pa.Schema) -> bool:
        """Whether rows of this schema can follow."""
        ...

    def write(self, group: Group, continued: bool) -> None:
        """Add a row group; `continued` says that its first row continues the episode before.

        Raises:
            StorageError: with path and reason.
        """
        ...

    def finish(self) -> FileEntry:
        """Make the file durable and visible.

        Raises:
            StorageError: with path and reason; the file is not there then.
        """
        ...

    def abort(self) -> None:
        """Remove it."""
        ...


def entry_of(name: str, size: int, checksum: str, groups: Sequence[RowGroup]) -> FileEntry:
    """What is known of a finished file."""
    return FileEntry(
        path=name,
        rows=sum(group.rows for group in groups),
        timesteps=sum(group.timesteps for group in groups),
        bytes=size,
        checksum=checksum,
        row_groups=tuple(groups),
    )
