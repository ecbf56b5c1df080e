"""Layout "Episodes / MessagePack": one Parquet row and cell per episode, as RLlib records episodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast.episodes.block import I64, Block
from hindcast.episodes.columns import Columns, root
from hindcast.episodes.spaces import space_from_state
from hindcast.errors import DataError
from hindcast.formats.data_file import EncodedEpisodes
from hindcast.formats.dtypes import RefusedValueError
from hindcast.formats.entries import StoredFragment
from hindcast.formats.layout import CellError, Contents, DifferentCellError, binary_buffers, refuse_null
from hindcast.formats.messagepack.cells import EpisodeState
from hindcast.formats.messagepack.decoding import Spaces, column_names, decode_states, read_states
from hindcast.formats.messagepack.encoding import StateEncoder
from hindcast.formats.messagepack.values import unpack
from hindcast.formats.parquet.description import make_description_metadata, read_description, read_index
from hindcast.formats.parquet.file import ParquetEncoder
from hindcast.formats.parquet.opening import iter_tables
from hindcast.formats.spec import DataSpec, describe_array, infer_leaf

MESSAGEPACK_EPISODES: Final = "episodes/messagepack"
ITEM_COLUMN: Final = "item"  # RLlib's name for the only column
_SPACE_NAMES: Final = {Columns.OBS: "observation space", Columns.ACTIONS: "action space"}


def is_messagepack(schema: pa.Schema) -> bool:
    """Return whether a file without Hindcast's metadata holds episodes as RLlib records them."""
    if ITEM_COLUMN not in schema.names:
        return False
    item_type = schema.field(ITEM_COLUMN).type
    return pa.types.is_binary(item_type) or pa.types.is_large_binary(item_type)


class MessagePackEpisodes:
    """The `Layout` that opens files of this layout."""

    def read_contents(self, file: pq.ParquetFile) -> Contents:
        """See `Layout.read_contents`: reads the footer if Hindcast wrote the file; otherwise decodes all episodes."""
        description, index = read_description(file.schema_arrow), read_index(file.metadata.metadata)
        if description is not None and index is not None:
            return Contents(description.spec, *index)
        return _decode_contents(file)

    def required_columns(self, schema: pa.Schema, spec: DataSpec, leaves: Sequence[str]) -> list[str]:  # noqa: ARG002
        """See `Layout.required_columns`."""
        return [ITEM_COLUMN]

    def decode(self, table: pa.Table, spec: DataSpec, leaves: Sequence[str]) -> Block:
        """See `Layout.decode`."""
        columns = list(dict.fromkeys(root(leaf) for leaf in leaves))
        states = read_states(_cells_of(table), columns)
        block = decode_states(states, columns, _spaces_by_column(spec))
        return block.with_columns({name: _require_leaf(block, spec, name) for name in leaves})


class MessagePackEncoder(ParquetEncoder):
    """The `RowEncoder` that writes files of this layout."""

    max_episode_bytes = 512 << 20  # large: RLlib requires complete episodes; Arrow's cells hold at most 2 GiB
    has_index = True

    def __init__(self, spec: DataSpec) -> None:
        self._states = StateEncoder(spec)
        self._schema = pa.schema(
            [pa.field(ITEM_COLUMN, pa.binary())],
            metadata=make_description_metadata(MESSAGEPACK_EPISODES, spec),
        )

    def encode(self, block: Block) -> EncodedEpisodes:
        """See `RowEncoder.encode`."""
        table = pa.table([pa.array(self._states.pack(block), pa.binary())], schema=self._schema)
        return EncodedEpisodes(table, block.length, np.ones_like(block.length), self.estimate_bytes(block))

    def estimate_bytes(self, block: Block) -> I64:
        """See `ParquetEncoder.estimate_bytes`."""
        return self._states.estimate_bytes(block)

    def writer_options(self, schema: pa.Schema) -> dict[str, Any]:  # noqa: ARG002
        """See `ParquetEncoder.writer_options`."""
        return {"use_dictionary": False, "write_statistics": False}


def _spaces_by_column(spec: DataSpec) -> Spaces:
    return {Columns.OBS: spec.observation_space, Columns.ACTIONS: spec.action_space}


def _require_leaf(block: Block, spec: DataSpec, name: str) -> NDArray[Any]:
    """Return a leaf's column, checked against the spec; without timesteps, a missing column is empty."""
    leaf, column = spec.leaves[name], block.columns.get(name)
    if column is None and not block.num_steps:
        return np.empty((0, *leaf.shape), dtype=leaf.dtype or object)
    if column is None:
        raise CellError(0, f"the episodes have no {name!r}, which the dataset has")
    if leaf.dtype is not None and leaf.is_same_up_to_dtype(infer_leaf(name, column)):
        return column.astype(leaf.dtype, copy=False)
    if not leaf.fits(column):
        raise CellError(0, f"{name!r} is {describe_array(column)}: expected {leaf}")
    return column


def _decode_contents(file: pq.ParquetFile) -> Contents:
    """Decode all episodes, so that later reads cannot fail.

    Raises:
        DataError: no episode has a timestep.
        CellError: an episode cannot be decoded, or its leaves or spaces differ from those of earlier episodes.
    """
    index = _EpisodeIndex()
    for i in range(file.num_row_groups):
        chunk_lengths = [index.add(_cells_of(table)) for table in iter_tables(file, i, [ITEM_COLUMN])]
        index.lengths.append(np.concatenate([np.zeros(0, dtype=np.int64), *chunk_lengths]))
    if index.spec is None:
        raise DataError("it holds no episode with a timestep")
    # which rows continue an episode is found later, from `stored_fragments` and across files
    no_continuations = [np.zeros(len(lengths), dtype=np.bool_) for lengths in index.lengths]
    return Contents(index.spec, index.lengths, no_continuations, tuple(index.stored_fragments))


def _cells_of(table: pa.Table) -> list[memoryview]:
    """Return the cells of a table as views of its memory.

    Raises:
        CellError: a cell is null.
    """
    cells: list[memoryview] = []
    refuse_null(table.column(ITEM_COLUMN), ITEM_COLUMN, ": expected an episode")
    for chunk in table.column(ITEM_COLUMN).cast(pa.large_binary()).chunks:
        offsets, values = binary_buffers(chunk)
        cells += [values.data[start:stop] for start, stop in pairwise(offsets.tolist())]
    return cells


class _EpisodeIndex:
    """Spec, lengths and episodes of the cells added so far.

    Attributes:
        spec: merged spec of the episodes; None until one has a timestep.
        lengths: for each row group, `[rows]` steps of each episode; the caller appends them.
        stored_fragments: description of each episode or fragment.
    """

    def __init__(self) -> None:
        self.spec: DataSpec | None = None
        self.lengths: list[I64] = []
        self.stored_fragments: list[StoredFragment] = []
        self._spaces: dict[str, spaces.Space | None] = dict.fromkeys(_SPACE_NAMES)
        self._space_cache: dict[bytes, spaces.Space | None] = {}

    def add(self, cells: list[memoryview]) -> I64:
        """Add the next episodes; return their lengths."""
        try:
            states = read_states(cells)
            for row, state in enumerate(states):
                self._merge_spaces(row, state)
            block = decode_states(states, column_names(states), self._spaces)
            if block.num_steps:
                self._merge_spec(DataSpec.from_block(block, *self._spaces.values()))
        except CellError as error:
            raise error.with_row(len(self.stored_fragments) + error.row) from error
        has_ended = block.terminated | block.truncated
        rows = zip(block.eps_id, block.t_started.tolist(), has_ended.tolist(), strict=True)
        self.stored_fragments += [
            StoredFragment(eps_id=eps_id, t_started=start, ended=end) for eps_id, start, end in rows
        ]
        return block.length

    def _merge_spec(self, spec: DataSpec) -> None:
        known_spec = spec if self.spec is None else self.spec
        if difference := known_spec.difference(spec, can_widen=True):
            raise DifferentCellError(0, f"its episodes differ from earlier ones: {difference}")
        self.spec = known_spec.merge(spec)

    def _merge_spaces(self, row: int, state: EpisodeState) -> None:
        for column, packed_space in zip(_SPACE_NAMES, state.spaces, strict=True):
            if packed_space not in self._space_cache:
                self._space_cache[packed_space] = _decode_space(row, packed_space)
            space, known_space = self._space_cache[packed_space], self._spaces[column]
            if known_space is None:
                self._spaces[column] = space
            elif space is not None and space is not known_space and space != known_space:
                raise CellError(
                    row,
                    f"the {_SPACE_NAMES[column]} of episode {state.eps_id} is {space}, others have {known_space}",
                )


def _decode_space(row: int, packed_space: bytes) -> spaces.Space | None:
    """Decode a space; None if it is nil, or if Hindcast does not support its type."""
    try:
        state = unpack(packed_space)
    except (RefusedValueError, ValueError) as error:
        raise CellError(row, f"its space cannot be read: {error}") from error
    try:
        return space_from_state(state)
    except (ValueError, AttributeError):
        return None
