"""What is in files of episodes that others wrote: decoded once, from the first cell to the last."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import spaces

from hindcast.episodes.block import I64, Block
from hindcast.episodes.columns import Columns
from hindcast.episodes.spaces import space_from_state
from hindcast.errors import DataError
from hindcast.formats.entries import Run
from hindcast.formats.layout import CellError, Contents, refuse_null
from hindcast.formats.messagepack.cells import State
from hindcast.formats.messagepack.decoding import columns_of, decode_states, read_states
from hindcast.formats.messagepack.values import unpack
from hindcast.formats.parquet.opening import tables_of
from hindcast.formats.spec import DataSpec
from hindcast.formats.storable import Refused

ITEM: Final = "item"  # RLlib's name for the only column
_WHAT = ("observation space", "action space")


def decoded_contents(file: pq.ParquetFile) -> Contents:
    """Everything is decoded, so that nothing in the file comes as a surprise later.

    Raises:
        DataError: no episode with a timestep.
        CellError: what cannot be decoded, or is unlike the episodes before it.
    """
    index = _Index()
    for i in range(file.num_row_groups):
        found = [index.add(cells_of(table)) for table in tables_of(file, i, [ITEM])]
        index.lengths.append(np.concatenate([np.zeros(0, dtype=np.int64), *found]))
    if index.spec is None:
        raise DataError("it holds no episode with a timestep")
    none = [np.zeros(len(lengths), dtype=np.bool_) for lengths in index.lengths]
    return Contents(index.spec, index.lengths, none, tuple(index.runs))


def is_messagepack(schema: pa.Schema) -> bool:
    """Whether a file without our metadata holds episodes as RLlib records them."""
    if ITEM not in schema.names:
        return False
    kind = schema.field(ITEM).type
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def cells_of(table: pa.Table) -> list[memoryview]:
    """Views of the cells.

    Raises:
        CellError: a null.
    """
    cells: list[memoryview] = []
    refuse_null(table.column(ITEM), ITEM, ": expected an episode")
    for chunk in table.column(ITEM).chunks:
        if not len(chunk):
            continue
        _, offset_buffer, value_buffer = chunk.buffers()
        width = np.int64 if pa.types.is_large_binary(chunk.type) else np.int32
        offsets = np.frombuffer(offset_buffer, width)[chunk.offset : chunk.offset + len(chunk) + 1].tolist()
        values = memoryview(value_buffer if value_buffer is not None else b"").cast("B")
        cells += [values[start:stop] for start, stop in pairwise(offsets)]
    return cells


class _Index:
    """What was found so far."""

    def __init__(self) -> None:
        self.spec: DataSpec | None = None
        self.lengths: list[I64] = []
        self.runs: list[Run] = []
        self._spaces: list[spaces.Space | None] = [None, None]
        self._known: dict[bytes, spaces.Space | None] = {}

    def add(self, cells: list[memoryview]) -> I64:
        """The episodes that come next; their lengths."""
        try:
            block = self._decode(cells)
        except CellError as error:
            raise CellError(len(self.runs) + error.row, str(error)) from error
        ended = block.terminated | block.truncated
        rows = zip(block.eps_id, block.t_started.tolist(), ended.tolist(), strict=True)
        self.runs += [Run(eps_id=eps_id, t_started=start, ended=end) for eps_id, start, end in rows]
        return block.length

    def _decode(self, cells: list[memoryview]) -> Block:
        states = read_states(cells)
        for row, state in enumerate(states):
            self._note_spaces(row, state)
        known = dict(zip((Columns.OBS, Columns.ACTIONS), self._spaces, strict=True))
        block = decode_states(states, columns_of(states), known)
        if block.num_steps:
            self._note_spec(DataSpec.of_block(block, *self._spaces))
        return block

    def _note_spec(self, found: DataSpec) -> None:
        difference = self.spec.difference(found) if self.spec is not None else None
        if difference:
            raise CellError(0, f"its episodes differ from those before it: {difference}")
        self.spec = found if self.spec is None else self.spec.merge(found)

    def _note_spaces(self, row: int, state: State) -> None:
        for i, packed in enumerate(state.spaces):
            if packed not in self._known:
                self._known[packed] = _space(row, packed)
            found, known = self._known[packed], self._spaces[i]
            if known is None:
                self._spaces[i] = found
            elif found is not None and found is not known and found != known:
                raise CellError(
                    row, f"the {_WHAT[i]} of episode {state.eps_id} is {found}, others have {known}"
                )


def _space(row: int, packed: bytes) -> spaces.Space | None:
    """The space; None if there is none, or one that only RLlib has."""
    try:
        state = unpack(packed)
    except (Refused, ValueError) as error:
        raise CellError(row, f"its space cannot be read: {error}") from error
    try:
        return space_from_state(state)
    except (ValueError, AttributeError):
        return None
