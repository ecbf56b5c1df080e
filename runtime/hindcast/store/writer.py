"""Writes blocks to Parquet files that appear whole or not at all."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.episodes.block import I64, Block
from hindcast.errors import SpecError
from hindcast.store.arrow_layout import arrow_schema, encode, episode_bytes
from hindcast.store.atomic import AtomicFile
from hindcast.store.entries import FileEntry, RowGroup
from hindcast.store.filesystem import Location
from hindcast.store.fragments import split_long
from hindcast.store.spec import DataSpec

MIB = 1 << 20
_COLUMN_OVERHEAD = 256
COMPRESSIONS = ("lz4", "zstd", "none")


class EpisodeWriter:
    """Writes episodes to `<stem>-000.parquet`, `<stem>-001.parquet`, … in a folder.

    Blocks are collected into row groups of whole episodes; a block must not be changed after it was given. An
    episode over 64 MiB becomes adjacent fragments, one row group each. As a context manager it closes at the
    end, and aborts on an exception.

    Args:
        folder: where; made if it is not there.
        spec: what the blocks hold.
        stem: how the file names begin.
        max_rows_per_file: episodes in a file at most (the fragments of a long one count as one); no limit by
            default.
        max_file_bytes: size of a file at most, counted before compression; only a file of one episode may be
            larger.
        row_group_bytes: size in memory that a row group is filled to.
        compression: "lz4", "zstd" or "none".
    """

    def __init__(
        self,
        folder: Location,
        spec: DataSpec,
        stem: str,
        *,
        max_rows_per_file: int | None = None,
        max_file_bytes: int = 128 * MIB,
        row_group_bytes: int = 16 * MIB,
        compression: str = "lz4",
    ) -> None:
        if compression not in COMPRESSIONS:
            raise SpecError(f"compression is {compression!r}: allowed are {', '.join(COMPRESSIONS)}")
        self._folder, self._spec, self._stem = folder, spec, stem
        self._schema = arrow_schema(spec)
        self._max_rows = max_rows_per_file
        self._max_bytes = max_file_bytes
        self._group_bytes = min(row_group_bytes, max(1, max_file_bytes - _overhead(self._schema, groups=1)))
        self._compression = compression
        self._pending: list[pa.Table] = []
        self._pending_bytes: list[I64] = []
        self._file: _ParquetFile | None = None
        self._entries: list[FileEntry] = []

    def write(self, block: Block) -> None:
        """Add episodes.

        Raises:
            DataError: columns that do not fit the spec.
            StorageError: a file could not be written; nothing that this writer wrote is left then.
        """
        try:
            for piece, continued in split_long(block, episode_bytes(block, self._spec)):
                self._add(piece, continued)
        except BaseException:
            self.abort()
            raise

    def close(self) -> tuple[FileEntry, ...]:
        """Write what is collected and finish the last file.

        Returns:
            The files in order; none if no episode was given.

        Raises:
            StorageError: as `write`.
        """
        try:
            self._flush(everything=True)
            self._finish_file()
        except BaseException:
            self.abort()
            raise
        return tuple(self._entries)

    def abort(self) -> None:
        """Give up: remove every file of this writer, finished or not."""
        self._pending, self._pending_bytes = [], []
        if self._file is not None:
            self._file.abort()
            self._file = None
        for entry in self._entries:
            self._folder.child(entry.path).delete()
        self._entries = []

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _add(self, piece: Block, continued: bool) -> None:
        if not piece.num_episodes:
            return
        nbytes = episode_bytes(piece, self._spec)
        table = encode(piece, self._spec, self._schema)
        if continued:
            self._flush(everything=True)
            self._write_group(table, continued=True)
            return
        self._pending.append(table)
        self._pending_bytes.append(nbytes)
        self._flush(everything=False)

    def _flush(self, everything: bool) -> None:
        """Write full row groups of what is collected, or all of it."""
        if not self._pending:
            return
        nbytes = np.concatenate(self._pending_bytes)
        if not everything and nbytes.sum() < self._group_bytes:
            return
        table, start = pa.concat_tables(self._pending), 0
        while start < len(nbytes):
            rows = self._rows_of_group(nbytes[start:])
            is_last = start + rows == len(nbytes)
            if is_last and not everything and nbytes[start:].sum() < self._group_bytes:
                break
            self._write_group(table.slice(start, rows), continued=False)
            start += rows
        self._pending = [table.slice(start)] if start < len(nbytes) else []
        self._pending_bytes = [nbytes[start:]] if start < len(nbytes) else []

    def _rows_of_group(self, nbytes: I64) -> int:
        """How many of the waiting rows the next row group takes."""
        rows = max(1, int(np.searchsorted(np.cumsum(nbytes), self._group_bytes, side="right")))
        if self._max_rows is None:
            return rows
        room = self._max_rows - (self._file.episodes if self._file else 0)
        return min(rows, room if room > 0 else self._max_rows)

    def _write_group(self, table: pa.Table, continued: bool) -> None:
        if self._file is not None and not continued and self._is_full(table.nbytes):
            self._finish_file()
        if self._file is None:
            name = f"{self._stem}-{len(self._entries):03d}.parquet"
            self._file = _ParquetFile(self._folder.child(name), self._schema, self._compression)
        self._file.write(table, continued)

    def _is_full(self, coming: int) -> bool:
        assert self._file is not None
        if self._max_rows is not None and self._file.episodes >= self._max_rows:
            return True
        footer = _overhead(self._schema, self._file.groups + 1)
        return self._file.size + coming + footer > self._max_bytes

    def _finish_file(self) -> None:
        if self._file is None:
            return
        self._entries.append(self._file.finish())
        self._file = None


def _overhead(schema: pa.Schema, groups: int) -> int:
    """Bytes (at most, about) of a file beside its values: the schema, and what describes each column."""
    return 3 * schema.serialize().size + groups * len(schema) * _COLUMN_OVERHEAD


class _ParquetFile:
    """One file being written."""

    def __init__(self, location: Location, schema: pa.Schema, compression: str) -> None:
        self.episodes = 0
        self._name = location.name
        self._groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._sink = _Sink(AtomicFile(location))
        self._metadata: list[pq.FileMetaData] = []
        statistics = ["t_started", "length"]
        try:
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                schema,
                compression=compression,
                use_dictionary=False,
                write_statistics=statistics,
                write_page_checksum=True,
                metadata_collector=self._metadata,
            )
        except BaseException:  # it writes a magic number at once, which a full disk has no room for
            self._sink.alive = False
            self._sink.file.abort()
            raise

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._sink.file.size

    @property
    def groups(self) -> int:
        """Row groups written so far."""
        return len(self._groups)

    def write(self, table: pa.Table, continued: bool) -> None:
        """Add a row group."""
        self._writer.write_table(table.combine_chunks(), row_group_size=len(table))
        self._groups.append((tuple(table.column("length").to_pylist()), (0,) if continued else ()))
        self.episodes += len(table) - continued

    def finish(self) -> FileEntry:
        """Make the file durable and visible."""
        self._writer.close()
        self._sink.file.commit()
        metadata = self._metadata[0]
        groups = tuple(
            RowGroup(
                rows=len(lengths),
                timesteps=sum(lengths),
                bytes=metadata.row_group(i).total_byte_size,
                lengths=lengths,
                continued=continued,
            )
            for i, (lengths, continued) in enumerate(self._groups)
        )
        return FileEntry(
            path=self._name,
            rows=metadata.num_rows,
            timesteps=sum(group.timesteps for group in groups),
            bytes=self.size,
            checksum=self._sink.file.checksum,
            row_groups=groups,
        )

    def abort(self) -> None:
        """Remove it."""
        self._sink.alive = False
        with suppress(Exception):  # a writer whose write failed can only be closed, not closed well
            self._writer.close()
        self._sink.file.abort()


class _Sink:
    """The Python side of the Parquet writer's output.

    The Parquet writer closes itself when it is collected, and writes a footer then; once `alive` is False
    that goes nowhere.
    """

    closed = False

    def __init__(self, file: AtomicFile) -> None:
        self.file = file
        self.alive = True

    def write(self, data: Any) -> int:
        return self.file.write(data) if self.alive else len(data)

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        """The file is finished by `AtomicFile.commit`."""
