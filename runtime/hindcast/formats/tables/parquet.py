"""The format "Parquet": tables with timesteps or whole episodes as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from hindcast.episodes.block import I64
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.formats.columns.infos import clear_repeated_infos
from hindcast.formats.columns.layout import COLUMNS_LAYOUT
from hindcast.formats.format import (
    HEAD_ROWS,
    PIECE_BYTES,
    Format,
    NoRowsError,
    Piece,
    ReadOptions,
    has_suffix,
)
from hindcast.formats.parquet.description import read_description, read_index
from hindcast.formats.parquet.opening import (
    PARQUET_SUFFIXES,
    compute_fingerprint,
    describe_damage,
    open_parquet,
)
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.decoding import TableContext, decode_rows, locate_errors
from hindcast.formats.tables.filters import (
    add_keys,
    add_keys_to_schema,
    build_expression,
    build_key_expression,
)
from hindcast.formats.tables.naming import TablePlan, plan_columns
from hindcast.formats.tables.read_options import check_options
from hindcast.formatting import plural
from hindcast.storage.location import Location

_MAX_TABLE_BYTES: Final = 64 << 20
_MAGIC: Final = b"PAR1"
_RLLIB_COLUMNS: Final = {"eps_id", "obs", "actions", "rewards", "new_obs", "terminateds", "truncateds"}
"""Columns of files of RLlib's recorder, which stores normalised actions."""


class _RowGroupRange(NamedTuple):
    """Row groups that are read together, and the index of their first row in the file."""

    groups: tuple[int, ...]
    first_row: int


class Parquet(Format):
    """Parquet files from any tool, with timesteps or whole episodes as rows."""

    name = "Parquet"
    title = "Parquet"
    ray_methods = ("read_parquet",)

    def recognises(self, location: Location) -> bool:
        """See `Format.recognises`."""
        if has_suffix(location.name, PARQUET_SUFFIXES):
            return True
        with location.open_stream() as stream:
            return bytes(stream.read(4)) == _MAGIC

    def list_pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `Format.list_pieces`; leaves out row groups in which, by their statistics, no row can pass the filter."""
        check_options(self.name, options.options, ())
        compute_fingerprint(location)
        with open_parquet(location) as file:
            _check_file(location, file)
            _plan_file(location, file.schema_arrow, options)
            metadata = file.metadata
            sizes = [metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
            group_rows = [metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            matching_groups = _find_matching_groups(location, file, options)
        if not sum(group_rows):
            raise NoRowsError(location)
        first_rows = np.cumsum([0, *group_rows]).tolist()
        return [
            Piece(location, sum(sizes[i] for i in groups), _RowGroupRange(groups, first_rows[groups[0]]))
            for groups in _group_into_pieces(matching_groups, sizes)
        ]

    def describe(self, location: Location) -> DataSpec:
        """See `Format.describe`: the spaces and the environment, if Hindcast wrote the file.

        Actions count as normalised in files of RLlib's recorder, and in files of Hindcast unless their spec denies it.
        """
        with open_parquet(location) as file:
            spec = _read_spec(location, file.schema_arrow)
            is_recorded = bool(spec.leaves) or set(file.schema_arrow.names) >= _RLLIB_COLUMNS
        return replace(spec, leaves={}, normalized_actions=is_recorded and spec.normalized_actions)

    def list_notes(self, location: Location, options: ReadOptions) -> tuple[str, ...]:
        """See `Format.list_notes`."""
        with open_parquet(location) as file:
            return _plan_file(location, file.schema_arrow, options).notes

    def read_head(self, location: Location, options: ReadOptions) -> pa.Table | None:
        """See `Format.read_head`."""
        with open_parquet(location) as file:
            if read_description(file.schema_arrow) is not None:
                return None
            batch = next(file.iter_batches(HEAD_ROWS, use_threads=False), None)
            table = file.schema_arrow.empty_table() if batch is None else pa.Table.from_batches([batch])
            return add_keys(table, options, file.schema_arrow)

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows]:
        """See `Format.read`. A piece of more than 64 MiB is read in several tables."""
        groups, first_row = piece.extent
        with open_parquet(piece.location) as file:
            schema = file.schema_arrow
            plan = _plan_file(piece.location, schema, options)
            context = TableContext(str(piece.location), plan, _read_spec(piece.location, schema), options)
            names = list(dict.fromkeys([*plan.columns, *(term.column for term in options.filter)]))
            file_columns = [name for name in names if name in schema.names]
            continuations = (
                _read_continuation_rows(file)
                if Columns.INFOS in plan.sources
                else np.zeros(0, dtype=np.int64)
            )
            for table in _read_tables(file, groups, file_columns, piece.nbytes):
                rows = decode_rows(add_keys(table, options, schema), first_row, context)
                first_row += len(table)
                if rows is not None:
                    yield _clear_continuation_infos(rows, continuations)


def _read_continuation_rows(file: pq.ParquetFile) -> I64:
    """Return the indices of the rows at which a fragment continues an episode; empty if the footer has no index."""
    index = read_index(file.metadata.metadata)
    if index is None:
        return np.zeros(0, dtype=np.int64)
    group_lengths, group_continued = index
    lengths, is_continued = np.concatenate(group_lengths), np.concatenate(group_continued)
    return (np.cumsum(lengths) - lengths)[is_continued]


def _clear_continuation_infos(rows: Rows, continuations: I64) -> Rows:
    """Clear the infos that are repeated at the rows at which a fragment continues an episode."""
    if not len(continuations) or Columns.INFOS not in rows.columns:
        return rows
    texts = clear_repeated_infos(rows.columns[Columns.INFOS], np.isin(rows.row, continuations))
    return replace(rows, columns={**rows.columns, Columns.INFOS: texts})


def _read_tables(
    file: pq.ParquetFile, groups: Sequence[int], names: list[str], nbytes: int
) -> Iterator[pa.Table]:
    if nbytes <= _MAX_TABLE_BYTES:
        # read_row_groups() returns columns in the file's order: select() restores the requested one
        yield file.read_row_groups(list(groups), columns=names, use_threads=False).select(names)
        return
    num_rows = sum(file.metadata.row_group(i).num_rows for i in groups)
    batch_rows = max(1, num_rows * PIECE_BYTES // nbytes)
    for batch in file.iter_batches(batch_rows, row_groups=list(groups), columns=names, use_threads=False):
        yield pa.Table.from_batches([batch]).select(names)


def _check_file(location: Location, file: pq.ParquetFile) -> None:
    """Check that rows are timesteps, and that there are as many rows as the footer says."""
    description = read_description(file.schema_arrow)
    if description is not None and description.layout != COLUMNS_LAYOUT:
        raise DataError(
            "holds complete episodes, one per row: leave `format` out, and name tables of timesteps in a "
            "separate input",
            path=str(location),
        )
    metadata = file.metadata
    num_rows = sum(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    if num_rows != metadata.num_rows:
        raise DataError(
            describe_damage(f"{plural(num_rows, 'row')}, but its footer says {metadata.num_rows}"),
            path=str(location),
        )


def _plan_file(location: Location, schema: pa.Schema, options: ReadOptions) -> TablePlan:
    with locate_errors(str(location)):
        return plan_columns(schema.names, options)


def _read_spec(location: Location, schema: pa.Schema) -> DataSpec:
    """Read the spec of a file that Hindcast wrote; empty for other files."""
    with locate_errors(str(location)):
        description = read_description(schema)
    return DataSpec() if description is None else description.spec


def _find_matching_groups(location: Location, file: pq.ParquetFile, options: ReadOptions) -> list[int]:
    schema = add_keys_to_schema(file.schema_arrow, options)
    with locate_errors(str(location)):
        expression = build_expression(options.filter, schema)
    if expression is None:
        return list(range(file.num_row_groups))
    # Arrow's datasets can compare a filter with the statistics of row groups
    fragment = pads.ParquetFileFormat().make_fragment(
        location.open(), partition_expression=build_key_expression(file.schema_arrow, options)
    )
    return [group.id for group in fragment.subset(expression, schema=schema).row_groups]


def _group_into_pieces(groups: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Group adjacent row groups into pieces of about 16 MiB."""
    pieces: list[list[int]] = []
    nbytes = 0
    for group in groups:
        if pieces and pieces[-1][-1] == group - 1 and nbytes + sizes[group] <= PIECE_BYTES:
            pieces[-1].append(group)
            nbytes += sizes[group]
        else:
            pieces.append([group])
            nbytes = sizes[group]
    return [tuple(piece) for piece in pieces]
