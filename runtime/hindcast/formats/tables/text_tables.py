"""`TextTables`, the base of CSV and JSON: pieces end where records end, and have the same types of columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.episodes.columns import Columns, obs_leaf, root
from hindcast.errors import DataError
from hindcast.formats.format import HEAD_ROWS, Format, NoRowsError, Piece, ReadOptions
from hindcast.formats.layout import CellError, bisect_first_invalid
from hindcast.formats.lossless import find_rounded_row
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.formats.tables import text_files
from hindcast.formats.tables.decoding import TableContext, decode_rows, locate_errors
from hindcast.formats.tables.filters import add_keys
from hindcast.formats.tables.json_lines import rounded_integer_error
from hindcast.formats.tables.naming import ALIASES, TablePlan, format_names, plan_columns, suggest_name
from hindcast.formats.tables.read_options import declared_column_types
from hindcast.formats.tables.recorded_spec import (
    element_type,
    find_empty_leaves,
    read_recorded_spec,
    replace_element_type,
)
from hindcast.formats.tables.text_files import Span, is_gzip, read_chunks, read_span
from hindcast.formatting import plural
from hindcast.storage.location import Location

_MAX_HEADER_ONLY_BYTES = 4096
"""Size up to which a file is read in advance to learn whether it has rows."""

Types = Mapping[str, pa.DataType]


class TextExtent(NamedTuple):
    """The position of a piece, and the properties of its file.

    Attributes:
        span: records of the piece; None for a file that is read completely.
        num_header_records: number of header records before the first row.
        names: names of the columns; None until the first records are parsed.
        types: types of columns that are known before the piece is parsed.
        leaves: leaves that Hindcast recorded for the file; empty if Hindcast did not write it.
        delimiter: delimiter of CSV.
        first_span: span of the first piece, which determines the columns' types; None in a file of one piece.
        first_extent: a list that all pieces of the file share. Once this process has parsed the first piece, it
            holds one item: that piece's extent, with the names and types of the columns.
    """

    span: Span | None
    num_header_records: int
    names: tuple[str, ...] | None
    types: Types
    leaves: Mapping[str, Leaf]
    delimiter: str = ","
    first_span: Span | None = None
    first_extent: list[TextExtent] = []  # never changed: `list_pieces` sets a new list


class TextTables(Format):
    """Base of the text formats."""

    @abstractmethod
    def parse(self, data: Any, extent: TextExtent, options: ReadOptions) -> pa.Table:
        """Parse records into a table with the extent's names and types.

        Args:
            data: records of a chunk, as `read_chunks` yields them; records of the header do not become rows.
            extent: extent of the piece, with the number of header records in `data`.
            options: options of the user.

        Raises:
            CellError: a record is invalid.
        """

    @abstractmethod
    def inspect(self, location: Location, spec: DataSpec, options: ReadOptions) -> TextExtent:
        """Return the extent of the whole file, with `span` None.

        Args:
            location: the file.
            spec: spec that Hindcast recorded for the file; empty if Hindcast did not write it.
            options: options of the user.

        Raises:
            DataError: an option is invalid, or a column is missing.
        """

    def first_column_names(self, location: Location, spec: DataSpec, options: ReadOptions) -> Sequence[str]:
        """Return the names of the first record's columns; empty if the beginning of the file does not show them.

        See `inspect` for the arguments and errors.
        """
        return self.inspect(location, spec, options).names or ()

    def quote_character(self, options: ReadOptions) -> bytes | None:  # noqa: ARG002
        """Return the quote character; line ends between two quotes are text."""
        return None

    def is_unsplittable(self, location: Location) -> bool:
        """Return whether the file must be one piece."""
        return is_gzip(location)

    def read_chunks(self, location: Location, options: ReadOptions) -> Iterator[tuple[Span, Any]]:
        """Read a whole file in chunks, each with its span."""
        return read_chunks(location, self.quote_character(options))

    def list_pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `Format.list_pieces`."""
        size = location.info().size
        extent = self._inspect_rows(location, size, options)
        if size <= text_files.CHUNK_BYTES or self.is_unsplittable(location):
            return [Piece(location, size, extent)]
        # Pieces are parsed in parallel. A piece's first record and its index follow only from all bytes before it (a
        # line end may be quoted), so such a file is read twice, but parsed once.
        spans = [span for span, _ in read_chunks(location, self.quote_character(options))]
        if len(spans) < 2:
            return [Piece(location, size, extent)]
        extent = extent._replace(first_span=spans[0], first_extent=[])
        return [Piece(location, span.stop - span.start, extent._replace(span=span)) for span in spans]

    def _inspect_rows(self, location: Location, size: int, options: ReadOptions) -> TextExtent:
        """Return the extent of the whole file, of `size` bytes; see `inspect`.

        Raises:
            NoRowsError: the file is empty, or short and without rows.
        """
        if not size:
            raise NoRowsError(location)
        extent = self.inspect(location, read_recorded_spec(location, self.name), options)
        if size <= _MAX_HEADER_ONLY_BYTES:
            num_records = sum(span.num_records for span, _ in self.read_chunks(location, options))
            if num_records <= extent.num_header_records:
                raise NoRowsError(location)
        return extent

    def describe(self, location: Location) -> DataSpec:
        """See `Format.describe`: the spaces and the environment in the folder's manifest."""
        spec = read_recorded_spec(location, self.name)
        return replace(spec, leaves={}, normalized_actions=bool(spec.leaves) and spec.normalized_actions)

    def list_notes(self, location: Location, options: ReadOptions) -> tuple[str, ...]:
        """See `Format.list_notes`: one of the notes is that text has no types."""
        spec = read_recorded_spec(location, self.name)
        names = self.first_column_names(location, spec, options)
        with locate_errors(str(location)):
            notes = plan_columns(names, options, find_empty_leaves(spec.leaves)).notes if names else ()
        if spec.leaves:
            return notes
        return (
            *notes,
            f"{self.name} has no types: numbers are read as int64, or as float64 if there is a decimal point",
        )

    def read_head(self, location: Location, options: ReadOptions) -> pa.Table | None:
        """See `Format.read_head`."""
        options = replace(options, schema={}, columns=(), filter=())  # then no column is required
        extent = self._inspect_rows(location, location.info().size, options)
        for table, _, _ in self._iter_tables(location, extent, options):
            return add_keys(table.slice(0, HEAD_ROWS), options)
        return None

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows]:
        """See `Format.read`."""
        location, extent = piece.location, piece.extent
        for table, plan, first_row in self._iter_tables(location, extent, options):
            context = TableContext(str(location), plan, DataSpec(dict(extent.leaves)), options)
            rows = decode_rows(add_keys(table, options), first_row, context)
            if rows is not None:
                yield _add_empty_leaves(rows, extent.leaves, options)

    def _iter_tables(
        self, location: Location, extent: TextExtent, options: ReadOptions
    ) -> Iterator[tuple[pa.Table, TablePlan, int]]:
        """Yield the piece's tables, each with its plan and the index of its first row in the file."""
        chunks: Iterable[tuple[Span, Any]] = self.read_chunks(location, options)
        if extent.span is not None:
            chunks = [(extent.span, read_span(location, extent.span))]
        if extent.span != extent.first_span:
            # a worker may get a later piece first; it then parses the first piece, which fills `first_extent`
            if not extent.first_extent:
                next(self._iter_tables(location, extent._replace(span=extent.first_span), options), None)
            if extent.first_extent:
                extent = extent.first_extent[0]
        for span, data in chunks:
            num_header_records = extent.num_header_records if span.first_record == 0 else 0
            first_row = span.first_record + num_header_records - extent.num_header_records
            num_rows = span.num_records - num_header_records
            if num_rows < 1:
                continue
            with locate_errors(str(location), range(first_row, first_row + num_rows)):
                table = self.parse(data, extent._replace(num_header_records=num_header_records), options)
                if len(table) != num_rows:
                    raise DataError(
                        f"found {plural(len(table), 'record')} in {plural(num_rows, 'line')} from row {first_row} on: "
                        "expected one per line"
                    )
                plan = _plan_table(extent.names or table.column_names, table, options, extent.leaves)
                table = _cast_to_declared_types(table, plan, options)
            extent = _add_types(extent, table)
            if extent.first_span is not None and not extent.first_extent:
                extent.first_extent.append(extent._replace(first_extent=[]))
            yield table, plan, first_row


def _add_types(extent: TextExtent, table: pa.Table) -> TextExtent:
    """Return the extent with the names and types of a table's columns, unless it already has them."""
    types = {field.name: field.type for field in table.schema if not pa.types.is_null(field.type)}
    return extent._replace(names=extent.names or tuple(table.column_names), types={**types, **extent.types})


def _add_empty_leaves(rows: Rows, leaves: Mapping[str, Leaf], options: ReadOptions) -> Rows:
    """Add the requested leaves with a size of 0 in their shape that the file does not store."""
    empty_columns = {
        name: np.zeros((len(rows), *leaf.shape), dtype=leaf.dtype)
        for name, leaf in find_empty_leaves(leaves).items()
        if name not in rows.columns
        and (options.columns is None or {obs_leaf(name), obs_leaf(root(name))} & {*options.columns})
    }
    return replace(rows, columns={**rows.columns, **empty_columns}) if empty_columns else rows


def _plan_table(
    names: Sequence[str], table: pa.Table, options: ReadOptions, leaves: Mapping[str, Leaf]
) -> TablePlan:
    """Plan what to read from a table. The first rows of its file have the columns `names`; only infos may come later.

    Raises:
        DataError: see `plan_columns`; or the table has a column that `names` lacks.
    """
    new_names = [name for name in table.column_names if name not in names]
    extra_names = [name for name in new_names if name not in info_column_names(options)]
    if extra_names:
        raise DataError(
            f"only some rows have the column {extra_names[0]!r}: the first rows have {format_names(names)}"
        )
    return plan_columns([*names, *new_names], options, find_empty_leaves(leaves))


def info_column_names(options: ReadOptions) -> tuple[str, ...]:
    """Return the names of the columns that may hold infos."""
    names = options.schema.get(Columns.INFOS, (Columns.INFOS, *ALIASES[Columns.INFOS]))
    return (names,) if isinstance(names, str) else tuple(names)


def _cast_to_declared_types(table: pa.Table, plan: TablePlan, options: ReadOptions) -> pa.Table:
    """Cast columns to the types in `column_types`, and rewards to floats even if all are integers."""
    declared_types = dict(declared_column_types(options))
    rewards = plan.sources.get(Columns.REWARDS)
    for name in rewards.columns if rewards is not None else ():
        if name in table.column_names and pa.types.is_integer(element_type(table.schema.field(name).type)):
            if name not in declared_types:
                _refuse_rounded_integer(table.column(name), name)
            declared_types.setdefault(name, pa.float64())
    for name, number_type in declared_types.items():
        if name not in table.column_names:
            raise DataError(
                f"it has no column {name!r}, which `column_types` names: {suggest_name(name, table.column_names)}"
            )
        column_type = replace_element_type(table.schema.field(name).type, number_type)
        # Arrow would refuse an integer that float64 holds exactly, beyond 2⁵³
        is_safe = not pa.types.is_floating(number_type)
        try:
            column = table.column(name).cast(column_type, safe=is_safe)
            table = table.set_column(table.column_names.index(name), name, column)
        except pa.ArrowException as error:
            message = f"{name!r} cannot be converted to {number_type}, which `column_types` sets: {error}"
            raise CellError(
                _find_uncastable(table.column(name), column_type, is_safe=is_safe), message
            ) from error
    return table


def _find_uncastable(column: pa.ChunkedArray, column_type: pa.DataType, *, is_safe: bool) -> int:
    """Find the first row that cannot be cast, in a column with such a row."""

    def has_uncastable(stop: int) -> bool:
        try:
            column.slice(0, stop).cast(column_type, safe=is_safe)
        except pa.ArrowException:
            return True
        return False

    return bisect_first_invalid(len(column), has_uncastable)


def _refuse_rounded_integer(column: pa.ChunkedArray, name: str) -> None:
    """Check that float64 holds the integers of a column, or of its lists."""
    values = column
    while pa.types.is_nested(values.type):
        values = pc.list_flatten(values)
    row = find_rounded_row(values.drop_null().to_numpy(), np.dtype(np.float64))
    if row is None:
        return
    number = values.drop_null()[row].as_py()
    rows = enumerate(column.to_pylist())
    raise rounded_integer_error(
        next(row for row, cell in rows if number in _iter_numbers(cell)), name, number
    )


def _iter_numbers(cell: Any) -> Iterator[Any]:
    if isinstance(cell, list):
        for item in cell:
            yield from _iter_numbers(item)
    else:
        yield cell
