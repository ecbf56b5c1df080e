"""The format "SampleBatch": JSON lines of RLlib's old API, with one or several agents, packed or not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes.block import Bool
from hindcast.episodes.columns import Columns, leaves_of, obs_leaf
from hindcast.errors import DataError
from hindcast.formats.columns.packed_cells import is_packed
from hindcast.formats.format import Format, NoRowsError, Piece, ReadOptions, has_suffix
from hindcast.formats.layout import CellError
from hindcast.formats.lossless import to_floats
from hindcast.formats.rows import Rows
from hindcast.formats.sample_batch.batches import (
    BATCH_TYPES,
    Arrays,
    Batch,
    decode_column,
    decode_infos,
    parse_batches,
)
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.formats.tables.decoding import cast_to_spec, fit_next_observations
from hindcast.formats.tables.filters import apply_filter
from hindcast.formats.tables.json_lines import JSON_SUFFIXES
from hindcast.formats.tables.naming import ROLE_COLUMNS, LeafSource, TablePlan, plan_columns
from hindcast.formats.tables.read_options import check_options
from hindcast.formats.tables.recorded_spec import read_recorded_spec
from hindcast.formats.tables.roles import decode_ends, decode_timesteps, to_shared_texts
from hindcast.formats.tables.text_files import read_chunks, read_head
from hindcast.formatting import plural
from hindcast.storage.location import Location

_HEAD_BYTES: Final = 64 << 10
_FIRST_LINE_BYTES: Final = 4 << 20
_TYPE_FIELD: Final = re.compile(rb'"type"\s*:\s*"(?:' + "|".join(BATCH_TYPES).encode() + rb')"')
_AGENT_COLUMN: Final = "agent_index"
_SEQUENCE_LENGTHS: Final = "seq_lens"  # one value for each sequence, not for each timestep


class SampleBatchFormat(Format):
    """Files of RLlib's JSON writer. A file is one piece, because only parsing its lines counts the timesteps."""

    name = "SampleBatch"
    title = "RLlib's SampleBatch"
    ray_methods = ("read_json",)

    def recognises(self, location: Location) -> bool:
        """See `Format.recognises`: by the `type` in the first line."""
        if not has_suffix(location.name, JSON_SUFFIXES, may_be_gzip=True):
            return False
        return _TYPE_FIELD.search(read_head(location, _HEAD_BYTES).split(b"\n", 1)[0]) is not None

    def list_pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `Format.list_pieces`; a piece's extent is the file's recorded leaves, empty for other tools' files."""
        check_options(self.name, options.options, ())
        size = location.info().size
        if not size:
            raise NoRowsError(location)
        # a piece is the whole file: its extent holds the recorded leaves instead of a position
        return [Piece(location, size, dict(read_recorded_spec(location, self.name).leaves))]

    def describe(self, location: Location) -> DataSpec:
        """See `Format.describe`: the spaces and the environment in the folder's manifest."""
        return replace(read_recorded_spec(location, self.name), leaves={})

    def list_notes(self, location: Location, options: ReadOptions) -> tuple[str, ...]:
        """See `Format.list_notes`: the notes follow from the first line; none if it does not end within 4 MiB."""
        head = read_head(location, _FIRST_LINE_BYTES)
        line, end, _ = head.partition(b"\n")
        if not end and len(head) == _FIRST_LINE_BYTES:
            return ()
        try:
            plans = [
                plan_columns(_step_columns(batch), options, may_have_structs=False)
                for batch in parse_batches(line)
            ]
        except CellError as error:
            raise DataError(str(error), path=str(location), row=1, row_name="line") from error
        except DataError as error:
            error.locate(path=str(location), row=1, row_name="line")
            raise
        return tuple(dict.fromkeys(note for plan in plans for note in (*plan.notes, *_flag_notes(plan))))

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows]:
        """See `Format.read`: `Rows.row` counts the timesteps of all lines."""
        location, reader = piece.location, _BatchReader(piece.location, piece.extent, options)
        line_number = 0
        for _, text in read_chunks(location):
            parts: list[Rows] = []
            for line in text.removesuffix(b"\n").split(b"\n"):
                line_number += 1
                if line.strip():
                    parts += reader.read_line(line, line_number)
            for _, group in groupby(parts, key=_concat_key):
                yield Rows.concat(list(group))
        if not reader.num_timesteps:
            raise DataError("holds no timesteps: delete it, or leave it out of the paths", path=str(location))


class _BatchReader:
    """Reads the batches of a file as rows, line by line.

    Args:
        location: the file.
        leaves: leaves that Hindcast recorded for the file; empty if Hindcast did not write it.
        options: options of the user.

    Attributes:
        num_timesteps: number of timesteps read so far, including those that the filter removed.
    """

    def __init__(self, location: Location, leaves: Mapping[str, Leaf], options: ReadOptions) -> None:
        self.num_timesteps = 0
        self._path, self._spec, self._options = str(location), DataSpec(dict(leaves)), options
        # most batches have the same columns
        self._plan_columns = cache(partial(plan_columns, options=options, may_have_structs=False))

    def read_line(self, line: bytes, line_number: int) -> list[Rows]:
        """Read the rows of a line's batches that pass the filter.

        Args:
            line: content of the line.
            line_number: number of the line in the file, from 1.

        Raises:
            DataError: the line is not a batch; a column is missing or misnamed; columns differ in length; a cell
                cannot be read.
        """
        try:
            parts = [
                self._decode_batch(batch, f"{self._path}:{line_number - 1}") for batch in parse_batches(line)
            ]
        except CellError as error:
            raise DataError(str(error), path=self._path, row=line_number, row_name="line") from error
        except DataError as error:
            error.locate(path=self._path, row=line_number, row_name="line")
            raise
        return [rows for rows in parts if len(rows)]

    def _decode_batch(self, batch: Batch, line_id: str) -> Rows:
        plan = self._plan_columns(_step_columns(batch))
        role_table = _make_role_table(batch, plan, self._options)
        columns = _decode_columns(batch, plan, self._spec)
        _check_lengths(columns, role_table)
        terminated, truncated, is_obs_only = decode_ends(role_table, plan)
        first_row, self.num_timesteps = self.num_timesteps, self.num_timesteps + len(role_table)
        rows = Rows(
            columns=columns,
            terminated=terminated,
            truncated=truncated,
            next_missing=np.zeros(len(role_table), dtype=np.bool_),
            path=self._path,
            row=np.arange(first_row, self.num_timesteps),
            eps_id=_make_episode_ids(batch, plan, role_table, line_id, terminated | truncated),
            t=decode_timesteps(role_table, plan),
            is_obs_only=is_obs_only,
        )
        _, row = apply_filter(role_table, self._options.filter, 0)
        return rows if len(row) == len(rows) else rows.take(row)


def _step_columns(batch: Batch) -> tuple[str, ...]:
    """Return the names of the batch's columns that have one value for each timestep."""
    return tuple(name for name in batch.columns if name != _SEQUENCE_LENGTHS)


def _flag_notes(plan: TablePlan) -> tuple[str, ...]:
    if {Columns.TERMINATEDS, Columns.TRUNCATEDS} & plan.sources.keys():
        return ()
    return (
        "no column marks the ends of episodes: Hindcast reads episodes as unfinished, RLlib as terminated",
    )


def _concat_key(part: Rows) -> Any:
    """Return a key that is equal for parts that can be concatenated."""
    return (
        part.t is None,
        tuple(sorted((name, array.dtype.str, array.shape[1:]) for name, array in part.columns.items())),
    )


def _decode_columns(batch: Batch, plan: TablePlan, spec: DataSpec) -> Arrays:
    columns: Arrays = {}
    for name, source in plan.sources.items():
        if name == Columns.INFOS:
            columns[name] = decode_infos(batch.columns[source.columns[0]])
        elif name not in ROLE_COLUMNS:
            columns.update(cast_to_spec(_decode_leaves(batch, name, source), spec))
    for name in leaves_of(Columns.NEXT_OBS, columns):
        columns |= _narrow_to_common_dtype(columns, name, obs_leaf(name))
    columns = fit_next_observations(columns)
    if Columns.REWARDS in columns:
        columns[Columns.REWARDS] = to_floats(columns[Columns.REWARDS], Columns.REWARDS)
    return columns


def _narrow_to_common_dtype(columns: Arrays, leaf: str, other_leaf: str) -> Arrays:
    """Return two float leaves in the smaller of their dtypes if that loses no precision; otherwise an empty dict."""
    if other_leaf not in columns or {columns[leaf].dtype.kind, columns[other_leaf].dtype.kind} != {"f"}:
        return {}
    # RLlib writes floats as float64; only packed columns keep their dtype
    pair = {leaf: columns[leaf], other_leaf: columns[other_leaf]}
    smaller_dtype = min((array.dtype for array in pair.values()), key=lambda dtype: dtype.itemsize)
    narrow_columns = {name: array.astype(smaller_dtype) for name, array in pair.items()}
    is_exact = all(
        np.array_equal(array, narrow_columns[name], equal_nan=True) for name, array in pair.items()
    )
    return narrow_columns if is_exact else {}


def _decode_leaves(batch: Batch, name: str, source: LeafSource) -> Arrays:
    if source.shape is None:
        return decode_column(batch.columns[source.columns[0]], name)
    parts = [decode_column(batch.columns[column], column)[column] for column in source.columns]
    return {name: np.stack(parts, axis=1).reshape(-1, *source.shape)}


def _make_role_table(batch: Batch, plan: TablePlan, options: ReadOptions) -> pa.Table:
    """Make a table of ids, flags and the filter's columns, with one row for each timestep."""
    names = [name for role in ROLE_COLUMNS for name in plan.sources.get(role, LeafSource(())).columns]
    names += [term.column for term in options.filter if term.column in batch.columns]
    if plan.last_column is not None:
        names.append(plan.last_column)
    if _AGENT_COLUMN in batch.columns:
        names.append(_AGENT_COLUMN)
    columns: dict[str, Any] = {
        name: _make_role_array(batch.columns[name], name) for name in dict.fromkeys(names)
    }
    if plan.end_infos is not None:
        columns[plan.end_infos] = pa.array(decode_infos(batch.columns[plan.end_infos]), pa.string())
    if not columns:  # the table still needs a column, which defines its number of rows
        name, source = next(iter(plan.sources.items()))
        (first_array, *_) = _decode_leaves(batch, name, source).values()
        columns[""] = pa.nulls(len(first_array))
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise CellError(0, f"its columns differ in length: {lengths}")
    return pa.table(columns)


def _make_role_array(value: Any, name: str) -> pa.Array:
    if isinstance(value, list) and not is_packed(value):
        with suppress(pa.ArrowException, OverflowError):  # values of several types, or beyond int64
            return pa.array(value)
    (array,) = decode_column(value, name).values()
    return pa.array(array) if array.ndim == 1 else pa.array(array.tolist())


def _check_lengths(columns: Arrays, role_table: pa.Table) -> None:
    for name, array in columns.items():
        if len(array) != len(role_table):
            raise CellError(
                0,
                f"{name!r} has {plural(len(array), 'value')} for {plural(len(role_table), 'timestep')}: leave it "
                "out with `columns`, or fix it",
            )


def _make_episode_ids(
    batch: Batch, plan: TablePlan, role_table: pa.Table, line_id: str, is_end: Bool
) -> NDArray[np.object_]:
    """Return `[R]` ids that join episode, policy and agent: `episode[/policy][/agent]`.

    Examples: `7` (agent 0), `7/2` (agent 2), `7/policy/0` (agent 0, in a batch of several policies). Without a column
    of ids, the line's first episode has the id `line_id` (the path, and the index of the line from 0), and the
    following episodes, which begin after the ends in `is_end`, have `<line_id>.1`, `<line_id>.2`, …
    """
    source = plan.sources.get(Columns.EPS_ID)
    if source is None:
        episode_index = (
            np.concatenate([[0], np.cumsum(is_end[:-1])]) if len(is_end) else np.zeros(0, dtype=np.int64)
        )
        ids = to_shared_texts(pa.chunked_array([episode_index]), lambda i: f"{line_id}.{i}" if i else line_id)
    else:
        ids = to_shared_texts(role_table.column(source.columns[0]), str)
    if batch.policy is not None:
        ids = ids + f"/{batch.policy}"
    if _AGENT_COLUMN not in role_table.column_names:
        return ids if batch.policy is None else ids + "/0"
    has_policy = batch.policy is not None
    return ids + to_shared_texts(
        role_table.column(_AGENT_COLUMN), lambda agent: f"/{agent}" if agent or has_policy else ""
    )
