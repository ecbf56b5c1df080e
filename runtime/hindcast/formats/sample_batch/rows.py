"""Batches as `Rows`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hindcast.episodes.block import Bool
from hindcast.episodes.columns import Columns, leaves_of, obs_leaf
from hindcast.formats.columns.packed import PREFIX
from hindcast.formats.format import ReadOptions
from hindcast.formats.layout import CellError
from hindcast.formats.rows import Rows
from hindcast.formats.sample_batch.batches import Arrays, Batch, arrays_of, infos_of
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.decoding import as_described, check_next
from hindcast.formats.tables.filters import passing
from hindcast.formats.tables.naming import ROLES, Plan, Source, plan_of
from hindcast.formats.tables.roles import ends_of, timesteps_of

_AGENT: Final = "agent_index"
_PER_SEQUENCE: Final = "seq_lens"  # one for each sequence, and not for each timestep


class Plans:
    """What to read of batches; most have the same columns.

    Args:
        options: what to read.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._known: dict[tuple[str, ...], Plan] = {}

    def of(self, batch: Batch) -> Plan:
        """See `plan_of`."""
        names = tuple(names_of(batch))
        if names not in self._known:
            self._known[names] = plan_of(names, self.options)
        return self._known[names]


def rows_of(batch: Batch, plans: Plans, spec: DataSpec, path: str, line: int) -> tuple[Rows, int]:
    """The batch's timesteps that pass the filter, numbered from 0, and how many it has in all.

    Args:
        batch: of one policy.
        plans: what to read.
        spec: what Hindcast wrote about the file; empty for other files.
        path: the file.
        line: that the batch is in; path and line are the episode's id if the batch has none.

    Raises:
        DataError: columns that are missing, or named wrongly.
        CellError: values that cannot be read, or columns of several lengths.
    """
    plan, options = plans.of(batch), plans.options
    roles = _roles(batch, plan, options)
    columns = _columns(batch, plan, spec)
    _check_lengths(columns, roles)
    terminated, truncated = ends_of(roles, plan)
    rows = Rows(
        columns=columns,
        terminated=terminated,
        truncated=truncated,
        path=path,
        row=np.arange(len(roles)),
        eps_id=_episodes(batch, plan, roles, f"{path}:{line}", terminated | truncated),
        t=timesteps_of(roles, plan),
    )
    _, row = passing(roles, options.filter, 0)
    return (rows if len(row) == len(rows) else rows.take(row)), len(rows)


def names_of(batch: Batch) -> list[str]:
    """The batch's columns that have a value for each timestep."""
    return [name for name in batch.columns if name != _PER_SEQUENCE]


def _columns(batch: Batch, plan: Plan, spec: DataSpec) -> Arrays:
    columns: Arrays = {}
    for name, source in plan.sources.items():
        if name == Columns.INFOS:
            columns[name] = infos_of(batch.columns[source.columns[0]])
        elif name not in ROLES:
            columns.update(as_described(_leaves(batch, name, source), spec))
    for name in leaves_of(Columns.NEXT_OBS, list(columns)):
        columns |= _in_one_dtype(columns, name, obs_leaf(name))
    check_next(columns)
    if Columns.REWARDS in columns and columns[Columns.REWARDS].dtype.kind in "iu":
        columns[Columns.REWARDS] = columns[Columns.REWARDS].astype(np.float64)
    return columns


def _in_one_dtype(columns: Arrays, one: str, other: str) -> Arrays:
    """Two float leaves, both in the smaller dtype if that loses nothing: only a packed one kept its dtype."""
    if other not in columns or {columns[one].dtype.kind, columns[other].dtype.kind} != {"f"}:
        return {}
    pair = {one: columns[one], other: columns[other]}
    smaller = min((array.dtype for array in pair.values()), key=lambda dtype: dtype.itemsize)
    narrowed = {name: array.astype(smaller) for name, array in pair.items()}
    same = all(np.array_equal(array, narrowed[name], equal_nan=True) for name, array in pair.items())
    return narrowed if same else {}


def _leaves(batch: Batch, name: str, source: Source) -> Arrays:
    if source.shape is None:
        return arrays_of(batch.columns[source.columns[0]], name)
    parts = [arrays_of(batch.columns[own], own)[own] for own in source.columns]
    return {name: np.stack(parts, axis=1).reshape(-1, *source.shape)}


def _roles(batch: Batch, plan: Plan, options: ReadOptions) -> pa.Table:
    """Ids, flags and what is compared, one value for each timestep."""
    names = [name for own in ROLES for name in plan.sources.get(own, Source(())).columns]
    compared = [term.column for term in options.filter if term.column in batch.columns]
    columns: dict[str, Any] = {}
    for name in dict.fromkeys([*names, *compared, *([_AGENT] if _AGENT in batch.columns else [])]):
        columns[name] = _role(batch.columns[name], name)
    if plan.end_infos is not None:
        columns[plan.end_infos] = pa.array(infos_of(batch.columns[plan.end_infos]), pa.string())
    if not columns:
        (first, *_) = arrays_of(next(iter(batch.columns.values())), "").values()
        columns[""] = pa.nulls(len(first))
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise CellError(0, f"its columns have several lengths: {lengths}")
    return pa.table(columns)


def _role(value: Any, name: str) -> pa.Array:
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, str) and not first.startswith(PREFIX) and value.count(first) == len(value):
        return pa.repeat(first, len(value))  # the one episode of most lines
    if isinstance(first, bool):
        with suppress(pa.ArrowInvalid):  # other values among them
            return pa.array(value, pa.bool_())
    (array,) = arrays_of(value, name).values()
    return pa.array(array) if array.ndim == 1 else pa.array(array.tolist())


def _check_lengths(columns: Arrays, roles: pa.Table) -> None:
    for name, array in columns.items():
        if len(array) != len(roles):
            raise CellError(
                0,
                f"{name!r} has {len(array)} values for {len(roles)} timesteps: leave it out by `columns`, or fix it",
            )


def _episodes(batch: Batch, plan: Plan, roles: pa.Table, line_id: str, ended: Bool) -> NDArray[np.object_]:
    """`[R]` episode, policy and agent as one id: `7`, `7/2` (another agent than the first), `7/policy/0`."""
    source = plan.sources.get(Columns.EPS_ID)
    if source is None:
        number = np.concatenate([[0], np.cumsum(ended[:-1])]) if len(ended) else np.zeros(0, dtype=np.int64)
        own = _texts(pa.chunked_array([number]), lambda i: f"{line_id}.{i}" if i else line_id)
    else:
        own = _texts(roles.column(source.columns[0]), str)
    if batch.policy is not None:
        own = own + f"/{batch.policy}"
    if _AGENT not in roles.column_names:
        return own if batch.policy is None else own + "/0"
    named = batch.policy is not None
    return own + _texts(roles.column(_AGENT), lambda agent: f"/{agent}" if agent or named else "")


def _texts(column: pa.ChunkedArray, text_of: Callable[[Any], str]) -> NDArray[np.object_]:
    """`[R]` the text of each value, made once for each that is distinct."""
    encoded = pc.dictionary_encode(column.combine_chunks())
    known = np.array([text_of(value) for value in encoded.dictionary.to_pylist()], dtype=object)
    return known[encoded.indices.to_numpy()]
