"""What is in files of timesteps that others wrote: read once, and only where their order is beyond doubt.

The rows of an episode must stand together and in order. `t` tells, where it is there; elsewhere each row's next
observation must be the next row's observation, bit for bit, until the episode ends. What says the order is read first,
and the rest of a row group a few rows at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.store.entries import Run
from hindcast.store.layout import LEAVE_OUT, CellError, Contents
from hindcast.store.parquet import tables_of
from hindcast.store.spec import DataSpec, Leaf
from hindcast.store.tabular import infos
from hindcast.store.tabular.arrays import Arrays, is_list, leaves_of
from hindcast.store.tabular.decoding import ends_of, flag_columns
from hindcast.store.tabular.names import NO_OUTPUTS, of_next
from hindcast.store.unprepared import NotReadable, OutOfOrder

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
    _check_plain(file.schema_arrow)
    orders = list(_orders(file))
    runs: list[Run] = []
    spec: DataSpec | None = None
    for i, order in enumerate(orders):
        values = _Values(order)
        for table in tables_of(file, i):
            values.read(table)
            difference = None if spec is None else spec.difference(values.spec)
            if difference:
                raise DataError(f"row group {i} differs from those before it: {difference}")
            spec = values.spec if spec is None else spec.merge(values.spec)
        runs += values.runs()
    if spec is None:
        raise DataError("it holds no timesteps")
    lengths = [order.lengths for order in orders]
    return Contents(spec, lengths, [np.zeros(len(own), dtype=np.bool_) for own in lengths], tuple(runs))


def _check_plain(schema: pa.Schema) -> None:
    """Make sure that ids are text or whole numbers, and flags no text, which preparing makes of others.

    Raises:
        NotReadable: they are not.
    """
    flags = [name for name in flag_columns(schema.names) if name != Columns.INFOS]
    for name in (Columns.EPS_ID, *flags):
        kind = schema.field(name).type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if not (is_number or (is_text and name == Columns.EPS_ID)):
            raise NotReadable(f"{name!r} is a column of {kind}, which is prepared before it is read")


def _orders(file: pq.ParquetFile) -> Iterator[_Order]:
    names = file.schema_arrow.names
    columns = [Columns.EPS_ID, *([Columns.T] if Columns.T in names else []), *flag_columns(names)]
    row = 0
    for i in range(file.num_row_groups):
        table = file.read_row_group(i, columns=columns, use_threads=False)
        yield _Order(table, row)
        row += len(table)


class _Order:
    """Which rows of a row group are which episode's.

    Args:
        table: the columns that say it.
        first: the file's row that is the first of them.

    Attributes:
        first: see above.
        ids: `[S]` episode ids.
        t: `[S]` timesteps; None where the file does not say them.
        ended: `[S]` whether the episode is over after the row.
        starts: `[N]` rows at which an episode, or a part of one, begins.
        stops: `[N]` the rows after its last.

    Raises:
        CellError: cells that cannot be read.
        OutOfOrder: timesteps of one episode that do not follow each other.
    """

    def __init__(self, table: pa.Table, first: int) -> None:
        self.first = first
        ids = table.column(Columns.EPS_ID)
        if ids.null_count:
            row = first + int(np.flatnonzero(ids.is_null().to_numpy())[0])
            raise CellError(row, "eps_id is null", way_out="give every row the id of its episode")
        self.ids = ids.to_numpy()
        self.t = _timesteps(table) if Columns.T in table.column_names else None
        try:
            terminated, truncated = ends_of(table)
        except CellError as error:
            way_out = "mend it, or name another column by `schema`"
            raise CellError(first + error.row, str(error), way_out=way_out) from error
        self.ended = terminated | truncated
        self._begins = np.ones(len(table), dtype=np.bool_)
        self._begins[1:] = (self.ids[1:] != self.ids[:-1]).astype(np.bool_) | self.ended[:-1]
        self.starts = np.flatnonzero(self._begins)
        self.stops = np.append(self.starts[1:], len(table))[: len(self.starts)]
        if self.t is not None:
            self.check(0, np.append(False, np.diff(self.t) == 1)[: len(table)])

    @property
    def lengths(self) -> I64:
        """`[N]` rows of each."""
        return self.stops - self.starts

    def check(self, row: int, follows: Bool) -> None:
        """Make sure that the rows of an episode follow each other.

        Args:
            row: the first of those that are looked at.
            follows: `[R]` whether each can be what comes after the row before it.
        """
        wrong = np.flatnonzero(~self._begins[row : row + len(follows)] & ~follows)
        if not len(wrong):
            return
        row += int(wrong[0])
        what = (
            f"t is {self.t[row]} after {self.t[row - 1]}"
            if self.t is not None
            else "the observation is not the next observation of the row before"
        )
        raise OutOfOrder(f"row {self.first + row} (episode {self.ids[row]}): {what}; {SORT}")


class _Values:
    """What stands in the rows of a row group, read a few at a time, in order.

    Attributes:
        spec: of the rows that were read last.
    """

    spec: DataSpec

    def __init__(self, order: _Order) -> None:
        self._order = order
        self._row = 0
        self._last: Arrays = {}
        self._begins: dict[int, str] = {}
        self._ends: dict[int, str] = {}

    def read(self, table: pa.Table) -> None:
        """The rows that come next, all columns.

        Raises:
            DataError: columns that are no leaves.
            CellError: cells that cannot be read.
            OutOfOrder: see `_Order.check`.
        """
        try:
            leaves = _leaves(table)
        except CellError as error:
            odd = error.at(self._order.first + self._row + error.row)
            if odd.way_out == LEAVE_OUT:  # preparing reads no more than the columns that are asked for
                raise NotReadable(f"row {odd.row}: {odd}; {LEAVE_OUT}") from error
            raise odd from error
        following = leaves.pop(Columns.NEXT_OBS)
        now = leaves[Columns.OBS]
        following = {name: following.get(of_next(name), np.zeros(0)) for name in now}
        for name, column in now.items():
            if following[name].shape != column.shape or following[name].dtype != column.dtype:
                raise DataError(f"{of_next(name)!r} is unlike {name!r}: both must have one dtype and shape")
        self.spec = _spec(leaves, table)
        if self._order.t is None:
            self._chain(now, following, len(table))
        self._row += len(table)

    def runs(self) -> list[Run]:
        """What each episode or part of one is, once all rows are read."""
        order, found = self._order, []
        for start, stop in zip(order.starts.tolist(), order.stops.tolist(), strict=True):
            run = Run(eps_id=str(order.ids[start]), ended=bool(order.ended[stop - 1]))
            if order.t is not None:
                run = run.model_copy(update={"t_started": int(order.t[start])})
            else:
                run = run.model_copy(update={"begins": self._begins[start], "ends": self._ends[stop - 1]})
            found.append(run)
        return found

    def _chain(self, now: Arrays, following: Arrays, count: int) -> None:
        """Check that rows follow each other by their observations, and keep those at which runs begin and end."""
        follows = np.ones(count, dtype=np.bool_)
        for name, column in now.items():
            before = self._last.get(name, column[:0])
            follows[1 - len(before) :] &= _equal_rows(
                column[1 - len(before) :], np.concatenate([before, following[name][:-1]])
            )
        self._order.check(self._row, follows)
        self._last = {name: column[-1:] for name, column in following.items()}
        for rows, values, digests in (
            (self._order.starts, now, self._begins),
            (self._order.stops - 1, following, self._ends),
        ):
            inside = rows[(rows >= self._row) & (rows < self._row + count)]
            digests.update((row, _digest(values, row - self._row)) for row in inside.tolist())


def _leaves(table: pa.Table) -> dict[str, Arrays]:
    """The leaves of each column that has any."""
    schema = table.schema
    names = [name for name in _OWN if name in schema.names]
    names += [
        name
        for name in schema.names
        if name not in NO_OUTPUTS and not pa.types.is_null(schema.field(name).type)
    ]
    return {name: _leaves_of(table, name) for name in (*names, Columns.NEXT_OBS)}


def _leaves_of(table: pa.Table, name: str) -> Arrays:
    column, field = table.column(name), table.schema.field(name)
    if name == Columns.NEXT_OBS and column.null_count:
        raise NotReadable(f"{name!r} is null in some rows")
    try:
        leaves = leaves_of(column, field, name)
    except CellError as error:
        is_odd = column.null_count or not _may_be_packed(field)
        raise CellError(error.row, str(error), way_out=_way_out(name) if is_odd else "") from error
    except DataError as error:
        raise NotReadable(f"{error}; {LEAVE_OUT}") from error
    if name == Columns.REWARDS and any(leaf.dtype == object for leaf in leaves.values()):
        raise CellError(0, f"{name!r} is text", way_out="make it a column of numbers")
    return leaves


def _may_be_packed(field: pa.Field) -> bool:
    """Whether cells may be RLlib's own, which only damage makes odd."""
    kind = field.type
    is_plain = is_list(kind) or pa.types.is_struct(kind) or pa.types.is_primitive(kind)
    return not is_plain or b"ARROW:extension:name" in (field.metadata or {})


def _way_out(name: str) -> str:
    if name in _OWN:
        return "fill it, or take its episode out of the data"
    return LEAVE_OUT


def _spec(leaves: dict[str, Arrays], table: pa.Table) -> DataSpec:
    found = {name: _leaf(column) for own in leaves.values() for name, column in own.items()}
    if Columns.INFOS in table.column_names and infos.are_told(table.column(Columns.INFOS)):
        found[Columns.INFOS] = Leaf(None, (), "json")
    return DataSpec(found)


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
