"""Tables of timesteps to blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hindcast.episodes.block import I64, Block, Bool
from hindcast.episodes.columns import Columns, root
from hindcast.episodes.details import to_text
from hindcast.store.layout import CellError
from hindcast.store.spec import DataSpec, Leaf
from hindcast.store.tabular import infos
from hindcast.store.tabular.arrays import Arrays, leaves_of
from hindcast.store.tabular.names import DONES, of_next
from hindcast.store.tabular.time_limits import ends_by_infos

AGENTS: Final = (Columns.AGENT_ID, Columns.MODULE_ID)


class Frames(NamedTuple):
    """A leaf of the observations: `[S, *shape]` before each step, `[E, *shape]` after each episode's last."""

    now: NDArray[Any]
    last: NDArray[Any]


def decode_rows(
    table: pa.Table, lengths: I64, spec: DataSpec, leaves: Sequence[str], frames: Mapping[str, Frames]
) -> Block:
    """Rows of whole episodes, or of parts of them, one after the other.

    Of the next observations only each episode's last one is decoded: the others are its observations.

    Args:
        table: the columns that it takes.
        lengths: rows of each episode or part.
        spec: what the leaves hold.
        leaves: which to decode.
        frames: leaves of observations that were read already.

    Raises:
        CellError: rows that do not belong together, or values that are not what the spec says.
    """
    if lengths.sum() != len(table):
        raise CellError(0, f"there are {len(table)} rows: expected {lengths.sum()}")
    frame = _frame(table, lengths)
    read: dict[str, Arrays] = {}

    def column_of(name: str) -> Arrays:
        if name not in read:
            rows = np.cumsum(lengths) - 1 if name == Columns.NEXT_OBS else None
            read[name] = _column(table, name, rows)
        return read[name]

    columns: dict[str, NDArray[Any]] = {}
    told, details = _infos(table, frame)
    for name in leaves:
        leaf = spec.leaves[name]
        if leaf.kind == "json":
            columns[name] = told
        elif name in frames:
            columns[name] = _observations(*frames[name], frame)
        elif root(name) == Columns.OBS:
            now = _as_spec(column_of(Columns.OBS), name, leaf)
            last = _as_spec(column_of(Columns.NEXT_OBS), of_next(name), leaf)
            columns[name] = _observations(now, last, frame)
        else:
            columns[name] = _as_spec(column_of(root(name)), name, leaf)
    return replace(frame, columns=columns, details=_with_agents(details, table, frame))


def ends_of(table: pa.Table) -> tuple[Bool, Bool]:
    """`[S]` each: where an episode is terminated and where it is truncated; of one flag for both, as the infos say."""
    names = [name for name in (Columns.TERMINATEDS, *DONES) if name in table.column_names]
    none = np.zeros(len(table), dtype=np.bool_)
    terminated = _flags(table, names[0]) if names else none
    if _is_told_by_infos(table.column_names):
        return ends_by_infos(terminated, table.column(Columns.INFOS))
    truncated = _flags(table, Columns.TRUNCATEDS) if Columns.TRUNCATEDS in table.column_names else none
    return terminated, truncated


def flag_columns(names: Sequence[str]) -> list[str]:
    """Of a file's columns those that `ends_of` reads."""
    ended = [name for name in (Columns.TERMINATEDS, *DONES) if name in names][:1]
    if _is_told_by_infos(names):
        return [*ended, Columns.INFOS]
    return [*ended, *([Columns.TRUNCATEDS] if Columns.TRUNCATEDS in names else [])]


def _is_told_by_infos(names: Sequence[str]) -> bool:
    """Whether infos alone can tell a time limit: in recordings with one flag that says that an episode is over."""
    of_both = {Columns.TERMINATEDS, Columns.TRUNCATEDS}
    return Columns.INFOS in names and of_both.isdisjoint(names) and not set(DONES).isdisjoint(names)


def _frame(table: pa.Table, lengths: I64) -> Block:
    """The episodes without their columns, once their rows are found to belong together."""
    ends = np.cumsum(lengths)
    starts = ends - lengths
    inside = np.ones(len(table), dtype=np.bool_)
    inside[starts] = False
    eps_id = _same_id_within(table.column(Columns.EPS_ID), starts, inside)
    t_started = np.zeros(len(lengths), dtype=np.int64)
    if Columns.T in table.column_names:
        t = _integers(table, Columns.T)
        wrong = np.flatnonzero(inside[1:] & (np.diff(t) != 1))
        if len(wrong):
            row = int(wrong[0]) + 1
            raise CellError(row, f"t is {t[row]} after {t[row - 1]}")
        t_started = t[starts]
    terminated, truncated = ends_of(table)
    early = np.flatnonzero((terminated | truncated)[:-1] & inside[1:])
    if len(early):
        row = int(early[0])
        raise CellError(
            row,
            f"episode {eps_id[np.searchsorted(ends, row, side='right')]} ends here, and goes on in the next row: clear "
            "the flag, or give the rows after it an id of their own",
            "goes-on",
        )
    return Block({}, lengths, eps_id, t_started, terminated[ends - 1], truncated[ends - 1])


def _same_id_within(column: pa.ChunkedArray, starts: I64, inside: Bool) -> NDArray[np.object_]:
    ids = column.combine_chunks()
    if ids.null_count:
        raise CellError(
            int(np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False))[0]), "eps_id is null"
        )
    same = pc.equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(inside[1:] & ~same)
    if len(wrong):
        row = int(wrong[0]) + 1
        raise CellError(row, f"eps_id is {ids[row]} within episode {ids[row - 1]}")
    return np.array([str(value) for value in ids.take(pa.array(starts)).to_pylist()], dtype=object)


def _column(table: pa.Table, name: str, rows: I64 | None) -> Arrays:
    """A column's leaves; all rows of it by default."""
    column, field = table.column(name), table.schema.field(name)
    if rows is None:
        return leaves_of(column, field, name)
    try:
        return leaves_of(column.take(pa.array(rows)), field, name)
    except CellError as error:
        raise CellError(int(rows[error.row]), str(error)) from error


def _observations(now: NDArray[Any], last: NDArray[Any], frame: Block) -> NDArray[Any]:
    out = np.empty((frame.num_steps + frame.num_episodes, *now.shape[1:]), dtype=now.dtype)
    out[frame.obs_row] = now
    out[frame.start + frame.length + np.arange(frame.num_episodes)] = last
    return out


def _infos(table: pa.Table, frame: Block) -> tuple[NDArray[np.object_], NDArray[np.object_] | None]:
    if Columns.INFOS not in table.column_names:
        return np.full(frame.num_steps + frame.num_episodes, "", dtype=object), None
    return infos.per_observation(infos.texts_of(table.column(Columns.INFOS)), frame)


def _with_agents(
    details: NDArray[np.object_] | None, table: pa.Table, frame: Block
) -> NDArray[np.object_] | None:
    """The details; of episodes that have none, their rows' agent and module."""
    told = {
        name: table.column(name).take(pa.array(frame.start)).to_pylist()
        for name in AGENTS
        if name in table.column_names and table.column(name).null_count < len(table)
    }
    if not told:
        return details
    texts = [to_text(**dict(zip(told, own, strict=True))) for own in zip(*told.values(), strict=True)]
    if details is not None:
        texts = [str(text) or other for text, other in zip(details, texts, strict=True)]
    return np.array(texts, dtype=object) if any(texts) else None


def _as_spec(leaves: Arrays, name: str, leaf: Leaf) -> NDArray[Any]:
    """The leaf, once it is what the spec says; in the spec's shape, if it is a list of as many numbers."""
    column = leaves.get(name)
    if column is None:
        raise CellError(0, f"there is no {name!r}: found {sorted(leaves)}")
    if leaf.dtype is None and column.dtype == object:
        return column
    if leaf.dtype is not None and leaf.dtype.kind == "c" and column.shape[-1:] == (2,):
        column = np.ascontiguousarray(column).view(f"<c{2 * column.dtype.itemsize}")
    wanted = (len(column), *leaf.shape)
    if column.dtype == leaf.dtype and column.size == np.prod(wanted, dtype=np.int64):
        return column.reshape(wanted)
    kind = "text" if column.dtype == object else f"{column.dtype.name} {list(column.shape[1:])}"
    raise CellError(0, f"{name!r} is {kind}: expected {leaf}")


def _integers(table: pa.Table, name: str) -> I64:
    column = table.column(name)
    if column.null_count or not pa.types.is_integer(column.type):
        raise CellError(
            0, f"{name!r} is a column of {column.type} with {column.null_count} nulls: expected counts"
        )
    return column.to_numpy().astype(np.int64, copy=False)


def _flags(table: pa.Table, name: str) -> Bool:
    column = table.column(name)
    kind = column.type
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise CellError(row, f"{name!r} is null: expected true or false")
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise CellError(0, f"{name!r} is a column of {kind}: expected true or false")
    values = column.to_numpy()
    if not ((values == 0) | (values == 1)).all():
        row = int(np.flatnonzero((values != 0) & (values != 1))[0])
        raise CellError(row, f"{name!r} is {values[row]}: expected true or false")
    return values.astype(np.bool_)
