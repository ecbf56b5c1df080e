"""What text formats share: pieces that end where records end, and types that hold for all of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hindcast.episodes.columns import Columns, obs_leaf, root
from hindcast.errors import DataError
from hindcast.formats.format import Format, Piece, ReadOptions
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.formats.tables import text_files
from hindcast.formats.tables.decoding import TableReader, decode_rows, locate_errors
from hindcast.formats.tables.filters import add_keys
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

Types = Mapping[str, pa.DataType]


class TextExtent(NamedTuple):
    """Where a piece is, and what is known about its file.

    Attributes:
        span: None for a file that is read completely, from its first byte.
        header: number of header records before the first row.
        names: the columns of a file in several pieces; None for the piece's own columns.
        types: known before the piece is parsed.
        leaves: what Hindcast wrote about the file.
        delimiter: of CSV.
        first: of a file in several pieces, the one that determines the types of its columns.
        known: what the first one says, once this process has parsed it: one list for all pieces.
    """

    span: Span | None
    num_header_records: int
    names: tuple[str, ...] | None
    types: Types
    leaves: Mapping[str, Leaf]
    delimiter: str = ","
    first_span: Span | None = None
    first_extent: list[TextExtent] = []


class TextTables(Format):
    """What text formats share."""

    @abstractmethod
    def parse(self, data: Any, stretch: TextExtent, options: ReadOptions) -> pa.Table:
        """Records of `blocks` as a table, with the names and types that the stretch knows; without the header.

        Raises:
            CellError: what is wrong in a record.
        """

    @abstractmethod
    def inspect(self, location: Location, spec: DataSpec, options: ReadOptions) -> TextExtent:
        """What holds for the whole file: see `Stretch`; its `span` is None."""

    def first_column_names(self, location: Location, options: ReadOptions) -> Sequence[str]:
        """The columns of the first record; empty if finding them takes reading much."""
        return self.inspect(location, DataSpec(), options).names or ()

    def quote_character(self, options: ReadOptions) -> bytes | None:  # noqa: ARG002
        """The quote character: line ends between two of them are text."""
        return None

    def is_unsplittable(self, location: Location) -> bool:
        """Whether a file cannot be split."""
        return is_gzip(location)

    def read_chunks(self, location: Location, options: ReadOptions) -> Iterator[tuple[Span, Any]]:
        """All of a file that cannot be split, in parts."""
        return read_chunks(location, self.quote_character(options))

    def pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `Format.pieces`."""
        size = location.info().size
        if not size:
            raise DataError(f"{location} is empty (0 bytes): delete it, or leave it out of the paths")
        begin = self.inspect(location, read_recorded_spec(location, self.name), options)
        if size <= text_files.CHUNK_BYTES or self.is_unsplittable(location):
            return [Piece(location, size, begin)]
        # Pieces are parsed side by side. Only reading all that comes before one says where its records begin (a line
        # end may be quoted) and how many there were, so the bytes of such a file are read twice, and parsed once.
        spans = [span for span, _ in read_chunks(location, self.quote_character(options))]
        if len(spans) < 2:
            return [Piece(location, size, begin)]
        begin = begin._replace(first_span=spans[0], first_extent=[])
        return [Piece(location, span.stop - span.start, begin._replace(span=span)) for span in spans]

    def describe(self, location: Location) -> DataSpec:
        """See `Format.describe`: what the manifest in its folder says."""
        spec = read_recorded_spec(location, self.name)
        return replace(spec, leaves={}, normalized_actions=bool(spec.leaves) and spec.normalized_actions)

    def notes(self, location: Location, options: ReadOptions) -> tuple[str, ...]:
        """See `Format.notes`: also that text has no types."""
        names, leaves = (
            self.first_column_names(location, options),
            read_recorded_spec(location, self.name).leaves,
        )
        with locate_errors(str(location)):
            notes = plan_columns(names, options, find_empty_leaves(leaves)).notes if names else ()
        if leaves:
            return notes
        return (
            *notes,
            f"{self.name} has no types: read as int64, and as float64 where there is a decimal point",
        )

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows]:
        """See `Format.read`."""
        location, stretch = piece.location, piece.extent
        for table, plan, first in self._tables(location, stretch, options):
            reader = TableReader(str(location), plan, DataSpec(dict(stretch.leaves)), options)
            rows = decode_rows(add_keys(table, options), first, reader)
            if rows is not None:
                yield _with_empty(rows, stretch.leaves, options)

    def _tables(
        self, location: Location, stretch: TextExtent, options: ReadOptions
    ) -> Iterator[tuple[pa.Table, TablePlan, int]]:
        """The piece's tables, each with the number of its first row; the file's first one determines the types."""
        blocks: Iterable[tuple[Span, Any]] = self.read_chunks(location, options)
        if stretch.span is not None:
            blocks = [(stretch.span, read_span(location, stretch.span))]
        if stretch.span != stretch.first_span:
            if not stretch.first_extent:
                next(self._tables(location, stretch._replace(span=stretch.first_span), options), None)
            if stretch.first_extent:
                stretch = stretch.first_extent[0]
        is_empty = True
        for span, data in blocks:
            header = stretch.num_header_records if span.first_record == 0 else 0
            first, count = span.first_record + header - stretch.num_header_records, span.num_records - header
            if count < 1:
                continue
            with locate_errors(str(location), range(first, first + count)):
                table = self.parse(data, stretch._replace(num_header_records=header), options)
                if len(table) != count:
                    raise DataError(
                        f"found {plural(len(table), 'record')} in {plural(count, 'line')} from row {first} on: "
                        "expected one per line"
                    )
                plan = _plan(stretch.names or table.column_names, table, options, stretch.leaves)
                table = _with_declared_types(table, plan, options)
            stretch = _with_types(stretch, table)
            if stretch.first_span is not None and not stretch.first_extent:
                stretch.first_extent.append(stretch._replace(first_extent=[]))
            yield table, plan, first
            is_empty = False
        if is_empty and stretch.span is None and not self.is_unsplittable(location):
            raise DataError(f"{location} holds no rows: delete it, or leave it out of the paths")


def _with_types(stretch: TextExtent, table: pa.Table) -> TextExtent:
    """The stretch of a file whose first rows are known."""
    types = {field.name: field.type for field in table.schema if not pa.types.is_null(field.type)}
    return stretch._replace(
        names=stretch.names or tuple(table.column_names), types={**types, **stretch.types}
    )


def _with_empty(rows: Rows, leaves: Mapping[str, Leaf], options: ReadOptions) -> Rows:
    """The rows with the leaves that contain no numbers, which text may not store."""
    empty = {
        name: np.zeros((len(rows), *leaf.shape), dtype=leaf.dtype)
        for name, leaf in find_empty_leaves(leaves).items()
        if name not in rows.columns
        and (options.columns is None or {obs_leaf(name), obs_leaf(root(name))} & {*options.columns})
    }
    return replace(rows, columns={**rows.columns, **empty}) if empty else rows


def _plan(
    names: Sequence[str], table: pa.Table, options: ReadOptions, leaves: Mapping[str, Leaf]
) -> TablePlan:
    """What to read of a table.

    Raises:
        DataError: as `plan_of`; or a column that the first piece of the file does not have.
    """
    new = [name for name in table.column_names if name not in names]
    odd = [name for name in new if name not in info_column_names(options)]
    if odd:
        raise DataError(
            f"it has the column {odd[0]!r} only in some rows: the first ones have {format_names(names)}"
        )
    return plan_columns([*names, *new], options, find_empty_leaves(leaves))


def info_column_names(options: ReadOptions) -> tuple[str, ...]:
    """The columns that may be infos."""
    named = options.schema.get(Columns.INFOS, (Columns.INFOS, *ALIASES[Columns.INFOS]))
    return (named,) if isinstance(named, str) else tuple(named)


def _with_declared_types(table: pa.Table, plan: TablePlan, options: ReadOptions) -> pa.Table:
    """The table with the types that `column_types` gives, and with rewards as floats, whatever they look like."""
    declared = dict(declared_column_types(options))
    rewards = plan.sources.get(Columns.REWARDS)
    for name in rewards.columns if rewards is not None else ():
        if name in table.column_names and pa.types.is_integer(element_type(table.schema.field(name).type)):
            declared.setdefault(name, pa.float64())
    for name, number in declared.items():
        if name not in table.column_names:
            raise DataError(
                f"it has no column {name!r}, which `column_types` names: {suggest_name(name, table.column_names)}"
            )
        kind = replace_element_type(table.schema.field(name).type, number)
        try:
            table = table.set_column(table.column_names.index(name), name, table.column(name).cast(kind))
        except pa.ArrowException as error:
            raise DataError(f"{name!r} cannot be made {number}, as `column_types` says: {error}") from error
    return table
