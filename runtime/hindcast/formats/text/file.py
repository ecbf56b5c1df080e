"""One file of text that is being written: a header, and lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from hindcast.episodes.block import I64, Block
from hindcast.formats.data_file import Group, entry_of
from hindcast.formats.entries import FileEntry, RowGroup
from hindcast.storage.atomic import AtomicFile
from hindcast.storage.location import Location

SCHEMA: Final = pa.schema([pa.field("line", pa.large_binary(), nullable=False)])


class TextFile:
    """A `DataFile`."""

    def __init__(self, location: Location, header: bytes) -> None:
        self.rows = 0
        self._groups: list[RowGroup] = []
        self._file = AtomicFile(location)
        try:
            self._file.write(header)
        except BaseException:
            self._file.abort()
            raise

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.size

    @property
    def groups(self) -> int:
        """Row groups written so far."""
        return len(self._groups)

    def takes(self, schema: pa.Schema) -> bool:
        """See `DataFile.takes`."""
        return schema == SCHEMA

    def write(self, group: Group, continued: bool) -> None:
        """Add lines; no episode comes in fragments here."""
        assert not continued
        for chunk in group.table.column(0).chunks:
            offsets = _offsets(chunk)
            self._file.write(memoryview(chunk.buffers()[2])[offsets[0] : offsets[-1]])
        self.rows += int(group.rows.sum())
        self._groups.append(
            RowGroup(
                rows=len(group.length),
                timesteps=int(group.length.sum()),
                bytes=int(group.nbytes.sum()),
                lengths=tuple(group.length.tolist()),
            )
        )

    def finish(self) -> FileEntry:
        """Make the file durable and visible."""
        self._file.commit()
        return entry_of(self._file.location.name, self.size, self._file.checksum, self._groups)

    def abort(self) -> None:
        """Remove it."""
        self._file.abort()


class TextEncoder:
    """What the encoders of text share.

    Attributes:
        header: the beginning of each file.
    """

    suffix: str
    compressions: tuple[str, ...] = ("none",)
    header = b""

    def pieces(self, block: Block) -> Iterator[tuple[Block, bool]]:
        """See `Encoder.pieces`: never cut."""
        yield block, False

    def open(self, location: Location, schema: pa.Schema, compression: str) -> TextFile:  # noqa: ARG002
        """See `Encoder.open`."""
        return TextFile(location, self.header)

    def overhead(self, schema: pa.Schema, groups: int) -> int:  # noqa: ARG002
        """See `Encoder.overhead`."""
        return len(self.header)


def lines_of(lines: pa.LargeBinaryArray, length: I64, rows: I64) -> Group:
    """Lines, line ends included, as a group of episodes that have so many steps and lines each."""
    offsets, ends = _offsets(lines), np.cumsum(rows)
    return Group(pa.table([lines], schema=SCHEMA), length, rows, offsets[ends] - offsets[ends - rows])


def _offsets(lines: pa.LargeBinaryArray) -> I64:
    return np.frombuffer(lines.buffers()[1], np.int64, count=len(lines) + 1, offset=8 * lines.offset)
