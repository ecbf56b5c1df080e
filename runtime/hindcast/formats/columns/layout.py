"""The layout "Columns" as the writer uses it: one row per timestep, for other tools to read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes.block import I64, Block
from hindcast.episodes.columns import SEPARATOR, Columns, root
from hindcast.formats.columns.infos import has_infos_or_details, info_cells
from hindcast.formats.columns.steps import StepLayout, actor_ids, as_numbers, nest
from hindcast.formats.data_file import EncodedEpisodes
from hindcast.formats.parquet.description import description_metadata
from hindcast.formats.parquet.file import ParquetEncoder
from hindcast.formats.spec import DataSpec, Leaf

COLUMNS_LAYOUT: Final = "columns"
_TEXT_BYTES = 64
_ROW_BYTES = 64  # ids, flags, t
_FRAME = 1024  # numbers
_TENSOR: Final = {b"ARROW:extension:name": b"ray.data.arrow_tensor_v2"}

Fields = list[tuple[pa.Field, pa.Array]]


class ColumnsEncoder(ParquetEncoder):
    """A `RowEncoder`.

    Raises:
        DataError: a model output that has the name of one of the layout's own columns.
    """

    def __init__(self, spec: DataSpec) -> None:
        self._spec = spec
        self._steps = StepLayout(spec, "Columns")
        self._metadata = description_metadata(COLUMNS_LAYOUT, spec)

    def split(self, block: Block) -> Iterator[tuple[Block, bool]]:
        """See `RowEncoder.pieces`; the fragments of an episode all have a column of infos, or none has.

        Its details, and the info of its first observation, are in the first fragment only.
        """
        said = block if has_infos_or_details(block) else _silent(block)
        for piece, continued in super().split(said):
            yield (_without_first_info(piece) if continued else piece), continued

    def encode(self, block: Block) -> EncodedEpisodes:
        """See `RowEncoder.encode`; there is a column of infos only in pieces of a block in which any is not empty."""
        arrays = self._steps.arrays(block)
        eps_id = pa.array(block.eps_id, pa.string()).take(pa.array(block.episode_of_step))
        fields: Fields = [
            (pa.field(Columns.EPS_ID, pa.string(), nullable=False), eps_id),
            (pa.field(Columns.AGENT_ID, pa.string()), actor_ids(block, Columns.AGENT_ID).cast(pa.string())),
            (pa.field(Columns.MODULE_ID, pa.string()), actor_ids(block, Columns.MODULE_ID).cast(pa.string())),
        ]
        leaves = {name: _leaf(name, array, self._steps.leaves[name]) for name, array in arrays.items()}
        fields += [_struct(name, part) for name, part in nest(leaves).items()]
        if Columns.INFOS in block.columns or block.details is not None:
            texts = info_cells(block)
            infos = [None] * block.num_steps if texts is None else [text or None for text in texts]
            fields.append((pa.field(Columns.INFOS, pa.string()), pa.array(infos, pa.string())))
        schema = pa.schema([field for field, _ in fields], metadata=self._metadata)
        table = pa.Table.from_arrays([array for _, array in fields], schema=schema)
        return EncodedEpisodes(table, block.length, block.length, self.estimate_bytes(block))

    def estimate_bytes(self, block: Block) -> I64:
        """See `ParquetEncoder.sizes`; observations are there twice."""
        a_row = _ROW_BYTES
        for name, leaf in self._spec.leaves.items():
            size = leaf.itemsize if leaf.dtype is not None else _TEXT_BYTES
            a_row += size * (2 if root(name) == Columns.OBS else 1)
        return block.length * a_row

    def writer_options(self, schema: pa.Schema) -> dict[str, Any]:
        """See `ParquetEncoder.options`."""
        there = [name for name in (Columns.EPS_ID, Columns.INFOS) if name in schema.names]
        return {
            "use_dictionary": there,
            "write_statistics": [Columns.EPS_ID, Columns.T],
            "use_byte_stream_split": _frames_of_small_integers(self._steps.leaves),
        }


def _frames_of_small_integers(leaves: Mapping[str, Leaf]) -> list[str]:
    """The Parquet columns whose numbers are written byte by byte, all first bytes first.

    Parquet stores a small integer in four bytes. Apart from the others, the three empty ones take no room.
    """
    return [
        f"{name.replace(SEPARATOR, '.')}.list.element"
        for name, leaf in leaves.items()
        if leaf.dtype is not None
        and leaf.dtype.kind in "iu"
        and leaf.dtype.itemsize < 4
        and np.prod(leaf.shape, dtype=np.int64) >= _FRAME
    ]


def _without_first_info(fragment: Block) -> Block:
    if Columns.INFOS not in fragment.columns:
        return fragment.without_details()
    texts = fragment.columns[Columns.INFOS].copy()
    texts[fragment.obs_start] = ""
    return fragment.with_columns({**fragment.columns, Columns.INFOS: texts}).without_details()


def _silent(block: Block) -> Block:
    columns = {name: column for name, column in block.columns.items() if name != Columns.INFOS}
    return block.with_columns(columns).without_details()


def _leaf(name: str, column: NDArray[Any], leaf: Leaf) -> tuple[pa.Field, pa.Array]:
    """Numbers as they are, vectors as lists, arrays of more dimensions as flat lists that Ray knows the shape of."""
    if leaf.dtype is None:
        return pa.field(name, pa.string(), nullable=False), pa.array(column.tolist(), pa.string())
    values = as_numbers(column, leaf)
    shape = values.shape[1:]
    if not shape:
        array = pa.array(values)
        return pa.field(name, array.type, nullable=False), array
    flat = pa.array(values.reshape(-1))
    width = int(np.prod(shape, dtype=np.int64))
    offsets = pa.array(np.arange(len(values) + 1, dtype=np.int64) * width)
    metadata = (
        {**_TENSOR, b"ARROW:extension:metadata": json.dumps(shape).encode()} if len(shape) > 1 else None
    )
    array = pa.LargeListArray.from_arrays(offsets, flat)
    return pa.field(name, array.type, metadata=metadata), array


def _struct(name: str, part: Any) -> tuple[pa.Field, pa.Array]:
    """A leaf, or nested leaves as a struct. Tensors in a struct are flat lists for everybody."""
    if isinstance(part, tuple):
        return part
    made = {key: _struct(key, own) for key, own in part.items()}
    fields = [pa.field(key, array.type, nullable=field.nullable) for key, (field, array) in made.items()]
    struct = pa.StructArray.from_arrays([array for _, array in made.values()], fields=fields)
    return pa.field(name, struct.type, nullable=False), struct
