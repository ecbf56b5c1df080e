"""The format "Arrow": Arrow's files and streams, as Hugging Face's `save_to_disk`, Feather and pandas write them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from hindcast.errors import DataError
from hindcast.formats.format import HEAD_ROWS, Format, NoRowsError, Piece, ReadOptions, has_suffix
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.decoding import TableContext, decode_rows, locate_errors
from hindcast.formats.tables.filters import add_keys
from hindcast.formats.tables.naming import TablePlan, plan_columns
from hindcast.formats.tables.read_options import check_options
from hindcast.storage.location import Location

_SUFFIXES: Final = (".arrow", ".feather", ".arrows")
_FILE_MAGIC: Final = b"ARROW1"
_TABLE_ROWS: Final = 1 << 16
"""Maximum number of rows that are decoded at once."""


class ArrowFile(Format):
    """Arrow's IPC files and streams, with timesteps or whole episodes as rows."""

    name = "Arrow"
    title = "Arrow (IPC)"

    def recognises(self, location: Location) -> bool:
        """See `Format.recognises`: by the suffix."""
        return has_suffix(location.name, _SUFFIXES)

    def list_pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `Format.list_pieces`: the whole file is one piece."""
        check_options(self.name, options.options, ())
        self._plan(location, options)
        with _open_batches(location) as (_, batches):
            if not any(len(batch) for batch in batches):
                raise NoRowsError(location)
        return [Piece(location, location.info().size or 0)]

    def describe(self, location: Location) -> DataSpec:  # noqa: ARG002
        """See `Format.describe`: the files name neither spaces nor environment."""
        return DataSpec(normalized_actions=False)

    def list_notes(self, location: Location, options: ReadOptions) -> tuple[str, ...]:
        """See `Format.list_notes`."""
        return self._plan(location, options).notes

    def read_head(self, location: Location, options: ReadOptions) -> pa.Table | None:
        """See `Format.read_head`."""
        with _open_batches(location) as (schema, batches):
            table = pa.Table.from_batches(list(itertools.islice(batches, 1)), schema).slice(0, HEAD_ROWS)
            return add_keys(table, options)

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows]:
        """See `Format.read`."""
        plan, first_row = self._plan(piece.location, options), 0
        context = TableContext(str(piece.location), plan, DataSpec(), options)
        with _open_batches(piece.location) as (_, batches):
            for batch in batches:
                for start in range(0, len(batch), _TABLE_ROWS):
                    table = add_keys(pa.Table.from_batches([batch.slice(start, _TABLE_ROWS)]), options)
                    rows = decode_rows(table, first_row + start, context)
                    if rows is not None:
                        yield rows
                first_row += len(batch)

    @staticmethod
    def _plan(location: Location, options: ReadOptions) -> TablePlan:
        with _open_batches(location) as (schema, _), locate_errors(str(location)):
            return plan_columns(schema.names, options)


@contextmanager
def _open_batches(location: Location) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Open a file, and return its schema and its record batches.

    Raises:
        DataError: it is damaged, or is not an Arrow file.
    """
    with location.open_stream() as stream:
        is_file = bytes(stream.read(len(_FILE_MAGIC))) == _FILE_MAGIC
    with location.open() as source:
        try:
            if is_file:
                reader = pa.ipc.open_file(source)
                yield reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                stream_reader = pa.ipc.open_stream(source)
                yield stream_reader.schema, iter(stream_reader)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"is damaged, or is not an Arrow file: {error}", path=str(location)) from error
