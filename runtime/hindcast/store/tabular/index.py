"""What is in files of timesteps that others wrote: read once, and only where their order is beyond doubt.

The rows of an episode must stand together and in order. `t` tells, where it is there; elsewhere each row's next
observation must be the next row's observation, bit for bit, until the episode ends.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.store.entries import Run
from hindcast.store.layout import CellError, Contents
from hindcast.store.spec import DataSpec, Leaf
from hindcast.store.tabular import infos
from hindcast.store.tabular.arrays import Arrays, leaves_of
from hindcast.store.tabular.decoding import ends_of
from hindcast.store.tabular.names import NO_OUTPUTS, of_next
from hindcast.store.unready import NotReadable, OutOfOrder

SORT: Final = "the rows of an episode must stand together and in order: sort them by eps_id and t"
_OWN: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)


def decoded_contents(file: pq.ParquetFile) -> Contents:
    """Everything is read, so that nothing in the file comes as a surprise later.

    Raises:
        DataError: columns that are missing or cannot be read; rows whose order is in doubt; no rows.
        CellError: cells that cannot be read.
    """
    for name, what in (
        (Columns.EPS_ID, "the id of its episode"),
        (Columns.NEXT_OBS, "the observation after it"),
    ):
        if name not in file.schema_arrow.names:
            raise NotReadable(f"it has no column {name!r}, which says for each timestep {what}")
    lengths: list[I64] = []
    runs: list[Run] = []
    spec: DataSpec | None = None
    row = 0
    for i in range(file.num_row_groups):
        table = file.read_row_group(i, use_threads=False)
        if not len(table):
            lengths.append(np.zeros(0, dtype=np.int64))
            continue
        rows = _Rows(table, row)
        lengths.append(rows.lengths)
        runs += rows.runs()
        row += len(table)
        difference = None if spec is None else spec.difference(rows.spec)
        if difference:
            raise DataError(f"row group {i} differs from those before it: {difference}")
        spec = rows.spec if spec is None else spec.merge(rows.spec)
    if spec is None:
        raise DataError("it holds no timesteps")
    return Contents(spec, lengths, [np.zeros(len(own), dtype=np.bool_) for own in lengths], tuple(runs))


class _Rows:
    """The rows of one row group.

    Args:
        table: all of them, all columns.
        first: the file's row that is the first of them.
    """

    def __init__(self, table: pa.Table, first: int) -> None:
        self._first = first
        try:
            self._read(table)
        except CellError as error:
            raise CellError(first + error.row, str(error)) from error
        starts = self._starts()
        self._bounds = starts, np.append(starts[1:], len(table))
        self.lengths = np.diff(np.append(starts, len(table)))

    def runs(self) -> list[Run]:
        """What each episode or part of one is."""
        found = []
        for start, stop in zip(*(bounds.tolist() for bounds in self._bounds), strict=True):
            run = Run(eps_id=str(self._ids[start]), ended=bool(self._ended[stop - 1]))
            if self._t is not None:
                run = run.model_copy(update={"t_started": int(self._t[start])})
            else:
                run = run.model_copy(
                    update={"begins": _digest(self._now, start), "ends": _digest(self._following, stop - 1)}
                )
            found.append(run)
        return found

    def _read(self, table: pa.Table) -> None:
        schema = table.schema
        names = [name for name in _OWN if name in schema.names]
        names += [
            name
            for name in schema.names
            if name not in NO_OUTPUTS and not pa.types.is_null(schema.field(name).type)
        ]
        leaves: dict[str, Arrays] = {
            name: leaves_of(table.column(name), schema.field(name), name)
            for name in (*names, Columns.NEXT_OBS)
        }
        following = leaves.pop(Columns.NEXT_OBS)
        self._now = leaves[Columns.OBS]
        self._following = {name: following.get(of_next(name), np.zeros(0)) for name in self._now}
        for name, column in self._now.items():
            if self._following[name].shape != column.shape or self._following[name].dtype != column.dtype:
                raise DataError(f"{of_next(name)!r} is unlike {name!r}: both must have one dtype and shape")
        found = {name: _leaf(column) for own in leaves.values() for name, column in own.items()}
        if Columns.INFOS in schema.names and infos.are_told(table.column(Columns.INFOS)):
            found[Columns.INFOS] = Leaf(None, (), "json")
        self.spec = DataSpec(found)
        ids = table.column(Columns.EPS_ID)
        if ids.null_count:
            raise CellError(int(np.flatnonzero(ids.is_null().to_numpy())[0]), "eps_id is null")
        self._ids = ids.to_numpy()
        self._t = _timesteps(table) if Columns.T in schema.names else None
        terminated, truncated = ends_of(table)
        self._ended = terminated | truncated

    def _starts(self) -> I64:
        """Rows at which an episode, or a part of one, begins.

        Raises:
            OutOfOrder: rows of one episode that do not follow each other.
        """
        count = len(self._ids)
        begins = np.ones(count, dtype=np.bool_)
        begins[1:] = (self._ids[1:] != self._ids[:-1]).astype(np.bool_) | self._ended[:-1]
        wrong = np.flatnonzero(~begins[1:] & ~self._follows())
        if len(wrong):
            row = int(wrong[0]) + 1
            what = (
                f"t is {self._t[row]} after {self._t[row - 1]}"
                if self._t is not None
                else "the observation is not the next observation of the row before"
            )
            raise OutOfOrder(f"row {self._first + row} (episode {self._ids[row]}): {what}; {SORT}")
        return np.flatnonzero(begins)

    def _follows(self) -> Bool:
        """`[S - 1]` whether a row can be what comes after the row before it."""
        if self._t is not None:
            return np.diff(self._t) == 1
        follows = np.ones(max(0, len(self._ids) - 1), dtype=np.bool_)
        for name, now in self._now.items():
            follows &= _equal_rows(now[1:], self._following[name][:-1])
        return follows


def _equal_rows(one: np.ndarray, other: np.ndarray) -> Bool:
    if one.dtype == object:
        return (one == other).astype(np.bool_)
    if not one.size:
        return np.ones(len(one), dtype=np.bool_)
    flat = [np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8) for rows in (one, other)]
    return (flat[0] == flat[1]).all(axis=1)


def _digest(columns: Arrays, row: int) -> str:
    sha = hashlib.blake2b(digest_size=8)
    for name in sorted(columns):
        value = columns[name][row]
        sha.update(value.encode() if isinstance(value, str) else np.ascontiguousarray(value).tobytes())
    return sha.hexdigest()


def _leaf(column: np.ndarray) -> Leaf:
    return Leaf(None, (), "text") if column.dtype == object else Leaf(column.dtype, column.shape[1:])


def _timesteps(table: pa.Table) -> I64:
    column = table.column(Columns.T)
    if column.null_count or not pa.types.is_integer(column.type):
        raise DataError(f"'t' is a column of {column.type} with {column.null_count} nulls: expected integers")
    return column.to_numpy().astype(np.int64, copy=False)
