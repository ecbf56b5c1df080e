"""Writing the layout "Columns": one row per timestep, for other tools to read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes.block import I64, Block
from hindcast.episodes.columns import SEPARATOR, Columns, root
from hindcast.formats.columns.infos import has_infos_or_details, make_info_cells
from hindcast.formats.columns.steps import StepLayout, nest, read_agent_ids, to_real_numbers
from hindcast.formats.data_file import EncodedEpisodes
from hindcast.formats.parquet.description import make_description_metadata
from hindcast.formats.parquet.file import ParquetEncoder
from hindcast.formats.spec import DataSpec, Leaf

COLUMNS_LAYOUT: Final = "columns"
_TEXT_BYTES = 64  # estimate
_ROW_BYTES = 64  # estimate for ids, flags and t
_MIN_FRAME_NUMBERS = 1024  # leaves with fewer numbers do not count as frames
_TENSOR_METADATA: Final = {b"ARROW:extension:name": b"ray.data.arrow_tensor_v2"}

Fields = list[tuple[pa.Field, pa.Array]]


class ColumnsEncoder(ParquetEncoder):
    """The `RowEncoder` of the layout "Columns".

    Raises:
        DataError: a model output has the name of a column of the layout.
    """

    def __init__(self, spec: DataSpec) -> None:
        self._spec = spec
        self._step_layout = StepLayout(spec, "Columns")
        self._metadata = make_description_metadata(COLUMNS_LAYOUT, spec)

    def split(self, block: Block) -> Iterator[tuple[Block, bool]]:
        """See `RowEncoder.split`. Either all fragments of an episode have a column of infos, or none of them has it.

        The episode's details, and the info of its first observation, are in the first fragment only.
        """
        stored_block = block if has_infos_or_details(block) else _without_infos(block)
        for fragment, is_continuation in super().split(stored_block):
            yield (_without_first_info(fragment) if is_continuation else fragment), is_continuation

    def encode(self, block: Block) -> EncodedEpisodes:
        """See `RowEncoder.encode`. A block with infos or details has a column of infos; `split` removes empty infos."""
        arrays = self._step_layout.make_arrays(block)
        eps_id = pa.array(block.eps_id, pa.string()).take(pa.array(block.episode_of_step))
        fields: Fields = [
            (pa.field(Columns.EPS_ID, pa.string(), nullable=False), eps_id),
            (
                pa.field(Columns.AGENT_ID, pa.string()),
                read_agent_ids(block, Columns.AGENT_ID).cast(pa.string()),
            ),
            (
                pa.field(Columns.MODULE_ID, pa.string()),
                read_agent_ids(block, Columns.MODULE_ID).cast(pa.string()),
            ),
        ]
        leaves = {
            name: _leaf_to_arrow(name, array, self._step_layout.leaves[name])
            for name, array in arrays.items()
        }
        fields += [_node_to_arrow(name, node) for name, node in nest(leaves).items()]
        if Columns.INFOS in block.columns or block.details is not None:
            texts = make_info_cells(block)
            infos = [None] * block.num_steps if texts is None else [text or None for text in texts]
            fields.append((pa.field(Columns.INFOS, pa.string()), pa.array(infos, pa.string())))
        schema = pa.schema([field for field, _ in fields], metadata=self._metadata)
        table = pa.Table.from_arrays([array for _, array in fields], schema=schema)
        return EncodedEpisodes(table, block.length, block.length, self.estimate_bytes(block))

    def estimate_bytes(self, block: Block) -> I64:
        """See `ParquetEncoder.estimate_bytes`. Observations are stored twice, also as next observations."""
        row_bytes = _ROW_BYTES
        for name, leaf in self._spec.leaves.items():
            leaf_bytes = leaf.itemsize if leaf.dtype is not None else _TEXT_BYTES
            row_bytes += leaf_bytes * (2 if root(name) == Columns.OBS else 1)
        return block.length * row_bytes

    def writer_options(self, schema: pa.Schema) -> dict[str, Any]:
        """See `ParquetEncoder.writer_options`."""
        dictionary_columns = [name for name in (Columns.EPS_ID, Columns.INFOS) if name in schema.names]
        return {
            "use_dictionary": dictionary_columns,
            "write_statistics": [Columns.EPS_ID, Columns.T],
            "use_byte_stream_split": _byte_stream_columns(self._step_layout.leaves),
        }


def _byte_stream_columns(leaves: Mapping[str, Leaf]) -> list[str]:
    """Return the Parquet columns to write as byte streams: all first bytes, then all second bytes, and so on.

    These are frames of small integers. Parquet stores a small integer in four bytes, of which three are zero; separate
    streams of zeros take almost no space after compression.
    """
    return [
        f"{name.replace(SEPARATOR, '.')}.list.element"
        for name, leaf in leaves.items()
        if leaf.dtype is not None
        and leaf.dtype.kind in "iu"
        and leaf.dtype.itemsize < 4
        and np.prod(leaf.shape, dtype=np.int64) >= _MIN_FRAME_NUMBERS
    ]


def _without_first_info(fragment: Block) -> Block:
    if Columns.INFOS not in fragment.columns:
        return fragment.without_details()
    texts = fragment.columns[Columns.INFOS].copy()
    texts[fragment.obs_start] = ""
    return fragment.with_columns({**fragment.columns, Columns.INFOS: texts}).without_details()


def _without_infos(block: Block) -> Block:
    columns = {name: column for name, column in block.columns.items() if name != Columns.INFOS}
    return block.with_columns(columns).without_details()


def _leaf_to_arrow(name: str, column: NDArray[Any], leaf: Leaf) -> tuple[pa.Field, pa.Array]:
    """Convert a leaf to an Arrow field and array.

    Vectors become lists. Larger arrays become flat lists; the field's metadata hold the shape, as Ray writes it.
    """
    if leaf.dtype is None:
        return pa.field(name, pa.string(), nullable=False), pa.array(column.tolist(), pa.string())
    values = to_real_numbers(column, leaf)
    shape = values.shape[1:]
    if not shape:
        array = pa.array(values)
        return pa.field(name, array.type, nullable=False), array
    flat_values = pa.array(values.reshape(-1))
    width = int(np.prod(shape, dtype=np.int64))
    offsets = pa.array(np.arange(len(values) + 1, dtype=np.int64) * width)
    metadata = (
        {**_TENSOR_METADATA, b"ARROW:extension:metadata": json.dumps(shape).encode()}
        if len(shape) > 1
        else None
    )
    array = pa.LargeListArray.from_arrays(offsets, flat_values)
    return pa.field(name, array.type, metadata=metadata), array


def _node_to_arrow(name: str, node: Any) -> tuple[pa.Field, pa.Array]:
    """Convert nested leaves to a struct; in a struct, tensors are flat lists without a shape. A leaf stays as it is."""
    if isinstance(node, tuple):
        return node
    children = {key: _node_to_arrow(key, child) for key, child in node.items()}
    fields = [pa.field(key, array.type, nullable=field.nullable) for key, (field, array) in children.items()]
    struct = pa.StructArray.from_arrays([array for _, array in children.values()], fields=fields)
    return pa.field(name, struct.type, nullable=False), struct
