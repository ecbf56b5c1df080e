"""Blocks to tables: one row per timestep."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes.block import I64, Block
from hindcast.episodes.columns import EMPTY_INFO, SEPARATOR, Columns, leaves_of, per_observation, root
from hindcast.errors import DataError
from hindcast.store.description import describe
from hindcast.store.spec import DataSpec, Leaf
from hindcast.store.tabular.infos import with_reset
from hindcast.store.tabular.names import COLUMNS_LAYOUT, NO_OUTPUTS, of_next

_LONGEST = 64 << 20
_TEXT_BYTES = 64
_ROW_BYTES = 64  # ids, flags, t
_TENSOR: Final = {b"ARROW:extension:name": b"ray.data.arrow_tensor_v2"}

Fields = list[tuple[pa.Field, pa.Array]]


class ColumnsEncoder:
    """An `Encoder`.

    Raises:
        DataError: a model output that has the name of one of the layout's own columns.
    """

    longest = _LONGEST
    has_index = True

    def __init__(self, spec: DataSpec) -> None:
        roots = dict.fromkeys(root(leaf) for leaf in spec.leaves)
        known = {Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS}
        taken = [name for name in roots if name in NO_OUTPUTS - known]
        if taken:
            raise DataError(
                f"a model output is named {taken[0]!r}, which is a column of its own in this layout"
            )
        self._spec = spec
        self._outputs = [name for name in roots if name not in known]
        self._metadata = describe(COLUMNS_LAYOUT, spec)

    def encode(self, block: Block) -> pa.Table:
        """See `Encoder.encode`; the column of infos is there only when any says something."""
        self._check(block)
        steps, columns = block.num_steps, block.columns
        fields: Fields = [
            (pa.field(Columns.EPS_ID, pa.string(), nullable=False), _repeated(block.eps_id, block.length)),
            (pa.field(Columns.AGENT_ID, pa.string()), pa.nulls(steps, pa.string())),
            (pa.field(Columns.MODULE_ID, pa.string()), pa.nulls(steps, pa.string())),
            _flat(Columns.T, np.arange(steps) - np.repeat(block.start - block.t_started, block.length)),
        ]
        obs = leaves_of(Columns.OBS, list(self._spec.leaves))
        fields += self._column(Columns.OBS, {leaf: columns[leaf][block.obs_row] for leaf in obs})
        for name in (Columns.ACTIONS, Columns.REWARDS):
            fields += self._column(name, {leaf: columns[leaf] for leaf in self._leaves(name)})
        following = {of_next(leaf): columns[leaf][block.obs_row + 1] for leaf in obs}
        fields += self._column(Columns.NEXT_OBS, following)
        fields.append(_flat(Columns.TERMINATEDS, block.step_flags(block.terminated)))
        fields.append(_flat(Columns.TRUNCATEDS, block.step_flags(block.truncated)))
        for name in self._outputs:
            fields += self._column(name, {leaf: columns[leaf] for leaf in self._leaves(name)})
        infos = _infos(block)
        if infos is not None:
            fields.append((pa.field(Columns.INFOS, pa.string()), infos))
        schema = pa.schema([field for field, _ in fields], metadata=self._metadata)
        return pa.Table.from_arrays([array for _, array in fields], schema=schema)

    def sizes(self, block: Block) -> I64:
        """See `Encoder.sizes`; observations are there twice."""
        a_row = _ROW_BYTES
        for name, leaf in self._spec.leaves.items():
            size = leaf.itemsize if leaf.dtype is not None else _TEXT_BYTES
            a_row += size * (2 if root(name) == Columns.OBS else 1)
        return block.length * a_row

    def options(self, schema: pa.Schema) -> dict[str, Any]:
        """See `Encoder.options`."""
        there = [name for name in (Columns.EPS_ID, Columns.INFOS) if name in schema.names]
        return {"use_dictionary": there, "write_statistics": [Columns.EPS_ID, Columns.T]}

    def _leaves(self, column: str) -> list[str]:
        return leaves_of(column, list(self._spec.leaves))

    def _column(self, name: str, leaves: dict[str, NDArray[Any]]) -> Fields:
        """The column with all its leaves: an array, or a struct of them; nothing without any."""
        if not leaves:
            return []
        spec_of = self._spec.leaves
        named = {
            leaf: _leaf(leaf, array, spec_of.get(leaf) or spec_of[Columns.OBS + leaf.removeprefix(name)])
            for leaf, array in leaves.items()
        }
        return [named[name] if name in named else _struct(name, named)]

    def _check(self, block: Block) -> None:
        unknown = sorted(block.columns.keys() - self._spec.leaves.keys())
        if unknown:
            raise DataError(
                f"the columns {unknown} are not in the dataset, which has {sorted(self._spec.leaves)}"
            )
        if (block.length == 0).any():
            eps_id = block.eps_id[int(np.argmin(block.length))]
            raise DataError(
                f"episode {eps_id} has no timesteps, so it has no row in Columns: leave it out, or write Episodes"
            )
        for name, leaf in self._spec.leaves.items():
            if leaf.kind != "json" or name in block.columns:
                _check_column(block, name, leaf)


def _check_column(block: Block, name: str, leaf: Leaf) -> None:
    column = block.columns.get(name)
    if column is None:
        raise DataError(f"the column {name!r} is missing: found {sorted(block.columns)}")
    rows = block.num_steps + per_observation(name) * block.num_episodes
    if len(column) != rows:
        raise ValueError(f"{name!r} has {len(column)} rows for {rows} timesteps or observations")
    found = (None, ()) if column.dtype == object else (column.dtype.newbyteorder("<"), column.shape[1:])
    if found != (leaf.dtype, leaf.shape):
        raise DataError(
            f"the column {name!r} is {column.dtype.name} {list(column.shape[1:])}, but {leaf} in the dataset"
        )


def _leaf(name: str, column: NDArray[Any], leaf: Leaf) -> tuple[pa.Field, pa.Array]:
    """Numbers as they are, vectors as lists, arrays of more dimensions as flat lists that Ray knows the shape of."""
    if leaf.dtype is None:
        return pa.field(name, pa.string(), nullable=False), pa.array(column.tolist(), pa.string())
    values = np.ascontiguousarray(column, dtype=leaf.dtype)
    shape = leaf.shape
    if leaf.dtype.kind == "c":  # Arrow has none: pairs of floats
        values, shape = (
            values.view(f"<f{leaf.dtype.itemsize // 2}").reshape(len(values), *shape, 2),
            (*shape, 2),
        )
    if not shape:
        return _flat(name, values)
    flat = pa.array(values.reshape(-1))
    width = int(np.prod(shape, dtype=np.int64))
    offsets = pa.array(np.arange(len(values) + 1, dtype=np.int64) * width)
    metadata = (
        {**_TENSOR, b"ARROW:extension:metadata": json.dumps(shape).encode()} if len(shape) > 1 else None
    )
    array = pa.LargeListArray.from_arrays(offsets, flat)
    return pa.field(name, array.type, metadata=metadata), array


def _flat(name: str, values: NDArray[Any]) -> tuple[pa.Field, pa.Array]:
    array = pa.array(values)
    return pa.field(name, array.type, nullable=False), array


def _struct(name: str, leaves: dict[str, tuple[pa.Field, pa.Array]]) -> tuple[pa.Field, pa.Array]:
    """Leaves as a struct: one field for each part of their names. Tensors in it are flat lists for everybody."""
    parts: dict[str, dict[str, tuple[pa.Field, pa.Array]]] = {}
    for leaf, made in leaves.items():
        part = leaf.removeprefix(f"{name}{SEPARATOR}").split(SEPARATOR, 1)[0]
        parts.setdefault(part, {})[leaf] = made
    fields, arrays = [], []
    for part, own in parts.items():
        path = f"{name}{SEPARATOR}{part}"
        field, array = own[path] if path in own else _struct(path, own)
        fields.append(pa.field(part, array.type, nullable=field.nullable))
        arrays.append(array)
    struct = pa.StructArray.from_arrays(arrays, fields=fields)
    return pa.field(name, struct.type, nullable=False), struct


def _repeated(ids: NDArray[np.object_], times: I64) -> pa.Array:
    return pa.array(ids.tolist(), pa.string()).take(pa.array(np.repeat(np.arange(len(ids)), times)))


def _infos(block: Block) -> pa.Array | None:
    """The info that came with each step's next observation, null where it says nothing; None if none does."""
    texts = block.columns.get(Columns.INFOS)
    if texts is None or not texts.any():
        return None
    texts = np.where(texts == EMPTY_INFO, "", texts)
    cells, firsts = texts[block.obs_row + 1], texts[block.obs_start]
    for i, start in enumerate(block.start.tolist()):
        cells[start] = with_reset(str(firsts[i]), str(cells[start]))
    silent = (cells == "").astype(np.bool_)
    return None if silent.all() else pa.array(cells, pa.string(), mask=silent)
