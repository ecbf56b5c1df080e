"""The layout "Episodes / MessagePack" as the writer, the index and the reader use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hindcast.episodes.block import I64, Block
from hindcast.episodes.columns import Columns, root
from hindcast.formats.data_file import Group
from hindcast.formats.layout import CellError, Contents
from hindcast.formats.messagepack.decoding import Spaces, decode_states, read_states
from hindcast.formats.messagepack.encoding import StateEncoder
from hindcast.formats.messagepack.index import ITEM, cells_of, decoded_contents
from hindcast.formats.parquet.description import describe, described, read_index
from hindcast.formats.parquet.file import ParquetEncoder
from hindcast.formats.spec import DataSpec, kind_of

MESSAGEPACK_EPISODES: Final = "episodes/messagepack"
_LONGEST = 512 << 20  # RLlib trains on complete episodes only, and Arrow has cells of 2 GiB


class MessagePackEpisodes:
    """How files of this layout are opened (a `Layout`)."""

    def contents(self, file: pq.ParquetFile) -> Contents:
        """See `Layout.contents`: from the footer of our own files, by decoding those of others."""
        description, index = described(file.schema_arrow), read_index(file.metadata.metadata)
        if description is not None and index is not None:
            return Contents(description.spec, *index)
        return decoded_contents(file)

    def columns(self, schema: pa.Schema, spec: DataSpec, leaves: Sequence[str]) -> list[str]:  # noqa: ARG002
        """See `Layout.columns`."""
        return [ITEM]

    def decode(self, table: pa.Table, spec: DataSpec, leaves: Sequence[str]) -> Block:
        """See `Layout.decode`."""
        columns = list(dict.fromkeys(root(leaf) for leaf in leaves))
        states = read_states(cells_of(table), columns)
        block = decode_states(states, columns, _spaces(spec))
        return block.with_columns({name: _checked(block, spec, name) for name in leaves})


class MessagePackEncoder(ParquetEncoder):
    """How they are written (an `Encoder`)."""

    longest = _LONGEST
    has_index = True

    def __init__(self, spec: DataSpec) -> None:
        self._states = StateEncoder(spec)
        self._schema = pa.schema([pa.field(ITEM, pa.binary())], metadata=describe(MESSAGEPACK_EPISODES, spec))

    def encode(self, block: Block) -> Group:
        """See `Encoder.encode`."""
        table = pa.table([pa.array(self._states.pack(block), pa.binary())], schema=self._schema)
        return Group(table, block.length, np.ones_like(block.length), self.sizes(block))

    def sizes(self, block: Block) -> I64:
        """See `ParquetEncoder.sizes`."""
        return self._states.sizes(block)

    def options(self, schema: pa.Schema) -> dict[str, Any]:  # noqa: ARG002
        """See `ParquetEncoder.options`."""
        return {"use_dictionary": False, "write_statistics": False}


def _spaces(spec: DataSpec) -> Spaces:
    return {Columns.OBS: spec.observation_space, Columns.ACTIONS: spec.action_space}


def _checked(block: Block, spec: DataSpec, name: str) -> NDArray[Any]:
    """The leaf's column, checked against the spec; an empty one if there are no timesteps."""
    leaf, column = spec.leaves[name], block.columns.get(name)
    if column is None and not block.num_steps:
        return np.empty((0, *leaf.shape), dtype=leaf.dtype or object)
    if column is None:
        raise CellError(0, f"the episodes have no {name!r}, which the dataset has")
    found = (None, ()) if column.dtype == object else (column.dtype, column.shape[1:])
    if found != (leaf.dtype, leaf.shape):
        raise CellError(0, f"{name!r} is {kind_of(column)}: expected {leaf}")
    return column
