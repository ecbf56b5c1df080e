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
from hindcast.formats.tables.decoding import TableReader, rows_of, sentences
from hindcast.formats.tables.filters import keyed
from hindcast.formats.tables.naming import ALIASES, TablePlan, listed, nearest, plan_of
from hindcast.formats.tables.read_options import column_types_of
from hindcast.formats.tables.text_files import Span, blocks_of, is_compressed, text_of
from hindcast.formats.tables.written import element_of, empty_leaves, with_element, written_spec
from hindcast.formatting import plural
from hindcast.storage.location import Location

Types = Mapping[str, pa.DataType]


class Stretch(NamedTuple):
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
    header: int
    names: tuple[str, ...] | None
    types: Types
    leaves: Mapping[str, Leaf]
    delimiter: str = ","
    first: Span | None = None
    known: list[Stretch] = []


class TextTables(Format):
    """What text formats share."""

    @abstractmethod
    def parse(self, data: Any, stretch: Stretch, options: ReadOptions) -> pa.Table:
        """Records of `blocks` as a table, with the names and types that the stretch knows; without the header.

        Raises:
            CellError: what is wrong in a record.
        """

    @abstractmethod
    def begin(self, location: Location, spec: DataSpec, options: ReadOptions) -> Stretch:
        """What holds for the whole file: see `Stretch`; its `span` is None."""

    def first_names(self, location: Location, options: ReadOptions) -> Sequence[str]:
        """The columns of the first record; empty if finding them takes reading much."""
        return self.begin(location, DataSpec(), options).names or ()

    def quote(self, options: ReadOptions) -> bytes | None:  # noqa: ARG002
        """The quote character: line ends between two of them are text."""
        return None

    def is_whole(self, location: Location) -> bool:
        """Whether a file cannot be split."""
        return is_compressed(location)

    def blocks(self, location: Location, options: ReadOptions) -> Iterator[tuple[Span, Any]]:
        """All of a file that cannot be split, in parts."""
        return blocks_of(location, self.quote(options))

    def pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `Format.pieces`."""
        size = location.info().size
        if not size:
            raise DataError(f"{location} is empty (0 bytes): delete it, or leave it out of the paths")
        begin = self.begin(location, written_spec(location, self.name), options)
        if size <= text_files.PIECE or self.is_whole(location):
            return [Piece(location, size, begin)]
        # Pieces are parsed side by side. Only reading all that comes before one says where its records begin (a line
        # end may be quoted) and how many there were, so the bytes of such a file are read twice, and parsed once.
        spans = [span for span, _ in blocks_of(location, self.quote(options))]
        if len(spans) < 2:
            return [Piece(location, size, begin)]
        begin = begin._replace(first=spans[0], known=[])
        return [Piece(location, span.stop - span.start, begin._replace(span=span)) for span in spans]

    def describe(self, location: Location) -> DataSpec:
        """See `Format.describe`: what the manifest in its folder says."""
        spec = written_spec(location, self.name)
        return replace(spec, leaves={}, normalized_actions=bool(spec.leaves) and spec.normalized_actions)

    def notes(self, location: Location, options: ReadOptions) -> tuple[str, ...]:
        """See `Format.notes`: also that text has no types."""
        names, leaves = self.first_names(location, options), written_spec(location, self.name).leaves
        with sentences(str(location)):
            notes = plan_of(names, options, empty_leaves(leaves)).notes if names else ()
        if leaves:
            return notes
        return (
            *notes,
            f"{self.name} has no types: read as int64, and as float64 where there is a decimal point",
        )

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows]:
        """See `Format.read`."""
        location, stretch = piece.location, piece.stretch
        for table, plan, first in self._tables(location, stretch, options):
            reader = TableReader(str(location), plan, DataSpec(dict(stretch.leaves)), options)
            rows = rows_of(keyed(table, options), first, reader)
            if rows is not None:
                yield _with_empty(rows, stretch.leaves, options)

    def _tables(
        self, location: Location, stretch: Stretch, options: ReadOptions
    ) -> Iterator[tuple[pa.Table, TablePlan, int]]:
        """The piece's tables, each with the number of its first row; the file's first one determines the types."""
        blocks: Iterable[tuple[Span, Any]] = self.blocks(location, options)
        if stretch.span is not None:
            blocks = [(stretch.span, text_of(location, stretch.span))]
        if stretch.span != stretch.first:
            if not stretch.known:
                next(self._tables(location, stretch._replace(span=stretch.first), options), None)
            if stretch.known:
                stretch = stretch.known[0]
        is_empty = True
        for span, data in blocks:
            header = stretch.header if span.first == 0 else 0
            first, count = span.first + header - stretch.header, span.records - header
            if count < 1:
                continue
            with sentences(str(location), range(first, first + count)):
                table = self.parse(data, stretch._replace(header=header), options)
                if len(table) != count:
                    raise DataError(
                        f"found {plural(len(table), 'record')} in {plural(count, 'line')} from row {first} on: "
                        "expected one per line"
                    )
                plan = _plan(stretch.names or table.column_names, table, options, stretch.leaves)
                table = _with_declared_types(table, plan, options)
            stretch = _with_types(stretch, table)
            if stretch.first is not None and not stretch.known:
                stretch.known.append(stretch._replace(known=[]))
            yield table, plan, first
            is_empty = False
        if is_empty and stretch.span is None and not self.is_whole(location):
            raise DataError(f"{location} holds no rows: delete it, or leave it out of the paths")


def _with_types(stretch: Stretch, table: pa.Table) -> Stretch:
    """The stretch of a file whose first rows are known."""
    types = {field.name: field.type for field in table.schema if not pa.types.is_null(field.type)}
    return stretch._replace(
        names=stretch.names or tuple(table.column_names), types={**types, **stretch.types}
    )


def _with_empty(rows: Rows, leaves: Mapping[str, Leaf], options: ReadOptions) -> Rows:
    """The rows with the leaves that contain no numbers, which text may not store."""
    empty = {
        name: np.zeros((len(rows), *leaf.shape), dtype=leaf.dtype)
        for name, leaf in empty_leaves(leaves).items()
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
    odd = [name for name in new if name not in info_names(options)]
    if odd:
        raise DataError(
            f"it has the column {odd[0]!r} only in some rows: the first ones have {listed(names)}"
        )
    return plan_of([*names, *new], options, empty_leaves(leaves))


def info_names(options: ReadOptions) -> tuple[str, ...]:
    """The columns that may be infos."""
    named = options.schema.get(Columns.INFOS, (Columns.INFOS, *ALIASES[Columns.INFOS]))
    return (named,) if isinstance(named, str) else tuple(named)


def _with_declared_types(table: pa.Table, plan: TablePlan, options: ReadOptions) -> pa.Table:
    """The table with the types that `column_types` gives, and with rewards as floats, whatever they look like."""
    declared = dict(column_types_of(options))
    rewards = plan.sources.get(Columns.REWARDS)
    for name in rewards.columns if rewards is not None else ():
        if name in table.column_names and pa.types.is_integer(element_of(table.schema.field(name).type)):
            declared.setdefault(name, pa.float64())
    for name, number in declared.items():
        if name not in table.column_names:
            raise DataError(
                f"it has no column {name!r}, which `column_types` names: {nearest(name, table.column_names)}"
            )
        kind = with_element(table.schema.field(name).type, number)
        try:
            table = table.set_column(table.column_names.index(name), name, table.column(name).cast(kind))
        except pa.ArrowException as error:
            raise DataError(f"{name!r} cannot be made {number}, as `column_types` says: {error}") from error
    return table
