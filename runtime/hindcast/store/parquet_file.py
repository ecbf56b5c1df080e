"""One Parquet file that is being written, and appears whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.episodes.block import I64
from hindcast.store.atomic import AtomicFile
from hindcast.store.description import index_metadata
from hindcast.store.entries import FileEntry, RowGroup
from hindcast.store.filesystem import Location
from hindcast.store.layout import Encoder


class Group(NamedTuple):
    """Encoded episodes: their rows, and for each its steps, how many rows it has, and how many bytes."""

    table: pa.Table
    length: I64
    rows: I64
    nbytes: I64

    @classmethod
    def concat(cls, groups: Sequence[Group]) -> Group:
        tables, *figures = zip(*groups, strict=True)
        return cls(pa.concat_tables(tables), *(np.concatenate(parts) for parts in figures))

    def slice(self, start: int, stop: int) -> Group:
        """Some of the episodes."""
        first, count = int(self.rows[:start].sum()), int(self.rows[start:stop].sum())
        figures = (figure[start:stop] for figure in (self.length, self.rows, self.nbytes))
        return Group(self.table.slice(first, count), *figures)


class ParquetFile:
    """One file being written."""

    def __init__(self, location: Location, schema: pa.Schema, encoder: Encoder, compression: str) -> None:
        self.rows = 0
        self._name = location.name
        self._schema = schema
        self._has_index = encoder.has_index
        self._groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._sink = _Sink(AtomicFile(location))
        self._metadata: list[pq.FileMetaData] = []
        try:
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                schema,
                compression=compression,
                write_page_checksum=True,
                metadata_collector=self._metadata,
                **encoder.options(schema),
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

    def takes(self, schema: pa.Schema) -> bool:
        """Whether rows of this schema can follow: columns that they lack are empty."""
        return set(schema.names) <= set(self._schema.names)

    def write(self, group: Group, continued: bool) -> None:
        """Add a row group."""
        table = group.table
        for name in set(self._schema.names) - set(table.column_names):
            field = self._schema.field(name)
            table = table.append_column(field, pa.nulls(len(table), field.type))
        table = table.select(self._schema.names).combine_chunks()
        self._writer.write_table(table, row_group_size=len(table))
        self._groups.append((tuple(group.length.tolist()), (0,) if continued else ()))
        self.rows += int(group.rows.sum())

    def finish(self) -> FileEntry:
        """Make the file durable and visible."""
        if self._has_index:
            self._writer.add_key_value_metadata(index_metadata(self._groups))
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
            rows=sum(group.rows for group in groups),
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
