"""Layout "Episodes / Arrow": one Parquet row per episode, one LargeBinary cell per episode and leaf.

A cell of a fixed-shape leaf is the C-order little-endian bytes of `[T, *shape]` (`[T + 1, *shape]` for
observations). The cells of a row group, end to end, are therefore the block's column, and decoding is one `frombuffer`.
A cell of a text or JSON leaf with n strings is `[n + 1]` int64 offsets and the UTF-8 bytes that they point into; an
empty cell means n empty strings. The schema's metadata hold dtypes, shapes and spaces. There is a column of details
only if an episode has details.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hindcast.episodes.block import I64, Block, Bool
from hindcast.episodes.columns import DETAILS, Columns, is_per_observation
from hindcast.episodes.details import NO_DETAILS
from hindcast.errors import DataError
from hindcast.formats.data_file import EncodedEpisodes
from hindcast.formats.layout import CellError, Contents, binary_buffers, first_true, refuse_null
from hindcast.formats.parquet.description import make_description_metadata, read_description
from hindcast.formats.parquet.file import ParquetEncoder
from hindcast.formats.parquet.fragments import find_continued
from hindcast.formats.rows import AGENT_COLUMNS
from hindcast.formats.spec import DataSpec, Leaf

ARROW_EPISODES: Final = "episodes/arrow"
EPISODE_FIELDS = (
    pa.field(Columns.EPS_ID, pa.string(), nullable=False),
    pa.field(Columns.AGENT_ID, pa.string()),
    pa.field(Columns.MODULE_ID, pa.string()),
    pa.field("t_started", pa.int64(), nullable=False),
    pa.field("length", pa.int64(), nullable=False),
    pa.field("terminated", pa.bool_(), nullable=False),
    pa.field("truncated", pa.bool_(), nullable=False),
)
EPISODE_COLUMNS = tuple(field.name for field in EPISODE_FIELDS)
DETAILS_FIELD = pa.field(DETAILS, pa.string())
_ALWAYS_READ_COLUMNS = (Columns.EPS_ID, "t_started", "length", "terminated", "truncated")


class ArrowEpisodes:
    """The `Layout` that opens files of this layout."""

    def read_contents(self, file: pq.ParquetFile) -> Contents:
        """See `Layout.read_contents`; reads the metadata and two small columns."""
        description = read_description(file.schema_arrow)
        assert description is not None  # without it, the file would not have been detected as this layout
        missing_columns = sorted({*description.spec.leaves, *EPISODE_COLUMNS} - set(file.schema_arrow.names))
        if missing_columns:
            raise DataError(f"the columns {missing_columns} are missing")
        length, is_continued = _read_lengths(file)
        ends = np.cumsum(
            [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)], dtype=np.int64
        )
        return Contents(description.spec, np.split(length, ends)[:-1], np.split(is_continued, ends)[:-1])

    def required_columns(self, schema: pa.Schema, spec: DataSpec, leaves: Sequence[str]) -> list[str]:
        """See `Layout.required_columns`. JSON columns and details may be missing."""
        names, stored_columns = [*_ALWAYS_READ_COLUMNS, *leaves], set(schema.names)
        optional_leaves = {name for name in leaves if spec.leaves[name].kind == "json"}
        missing_columns = [
            name for name in names if name not in stored_columns and name not in optional_leaves
        ]
        if missing_columns:
            raise DataError(f"it has no column {missing_columns[0]!r}, which its dataset has")
        return [name for name in (*names, DETAILS) if name in stored_columns]

    def decode(self, table: pa.Table, spec: DataSpec, leaves: Sequence[str]) -> Block:
        """See `Layout.decode`. JSON columns that the table lacks are empty.

        If a column has one chunk, the block's column is a view of it; otherwise it is copied once.
        """
        episode_arrays: dict[str, Any] = {
            name: _column_to_numpy(table, name) for name in _ALWAYS_READ_COLUMNS
        }
        length = episode_arrays["length"]
        if (row := first_true(length < 0)) is not None:
            raise CellError(row, f"length is {length[row]}: expected 0 or more")
        columns: dict[str, NDArray[Any]] = {}
        for name in leaves:
            leaf, counts = spec.leaves[name], length + is_per_observation(name)
            if leaf.kind == "json" and name not in table.column_names:
                columns[name] = np.full(int(counts.sum()), "", dtype=object)
            else:
                columns[name] = _decode_leaf(table.column(name), name, leaf, counts)
        return Block(columns, **episode_arrays, details=_read_details(table))


class ArrowEncoder(ParquetEncoder):
    """The `RowEncoder` that writes files of this layout.

    Raises:
        DataError: a model output has the name of a column of the layout.
    """

    def __init__(self, spec: DataSpec) -> None:
        conflicts = [name for name in (*EPISODE_COLUMNS, DETAILS) if name in spec.leaves]
        if conflicts:
            raise DataError(
                f"a model output is named {conflicts[0]!r}, which this layout uses for another column: "
                "rename it"
            )
        leaves = [pa.field(name, pa.large_binary(), nullable=False) for name in spec.leaves]
        self._spec = spec
        self._schema = pa.schema(
            [*EPISODE_FIELDS, *leaves], metadata=make_description_metadata(ARROW_EPISODES, spec)
        )

    def encode(self, block: Block) -> EncodedEpisodes:
        """See `RowEncoder.encode`. Contiguous fixed-shape columns are not copied; missing JSON gives empty cells."""
        self._spec.check_names(block)
        # the ids of agents and modules are in the details
        columns = dict.fromkeys(AGENT_COLUMNS, pa.nulls(block.num_episodes, pa.string()))
        columns |= {name: getattr(block, name) for name in _ALWAYS_READ_COLUMNS}
        columns |= {name: _encode_leaf(name, block, self._spec) for name in self._spec.leaves}
        table = pa.Table.from_pydict(columns, self._schema)
        if block.details is not None and block.details.any():
            texts = pa.array([text or None for text in block.details], pa.string())
            table = table.append_column(DETAILS_FIELD, texts)
        return EncodedEpisodes(table, block.length, np.ones_like(block.length), self.estimate_bytes(block))

    def estimate_bytes(self, block: Block) -> I64:
        """See `ParquetEncoder.estimate_bytes`. Assumes 64 bytes per text or JSON document."""
        total = np.zeros(block.num_episodes, dtype=np.int64)
        for name, leaf in self._spec.leaves.items():
            if name in block.columns:
                total += (block.length + is_per_observation(name)) * (leaf.itemsize or 64)
        return total

    def writer_options(self, schema: pa.Schema) -> dict[str, Any]:  # noqa: ARG002
        """See `ParquetEncoder.writer_options`."""
        # cells differ, so that dictionaries and statistics would save nothing
        return {
            "use_dictionary": False,
            "write_statistics": ["t_started", "length"],
            # Plain booleans have no length of their own. If a damaged page header, which no checksum covers, says that
            # there are more, Arrow reads beyond the page and returns wrong values.
            "column_encoding": dict.fromkeys(("terminated", "truncated"), "RLE"),
        }


def _read_details(table: pa.Table) -> NDArray[np.object_] | None:
    if DETAILS not in table.column_names:
        return None
    texts = [text or NO_DETAILS for text in table.column(DETAILS).to_pylist()]
    return np.array(texts, dtype=object) if any(texts) else None


def _encode_leaf(name: str, block: Block, spec: DataSpec) -> pa.LargeBinaryArray:
    leaf, counts = spec.leaves[name], block.length + is_per_observation(name)
    if leaf.kind == "json" and (name not in block.columns or not block.columns[name].any()):
        return _make_cells(np.zeros(len(counts) + 1, dtype=np.int64), b"")
    column = spec.require_column(block, name)
    if leaf.dtype is None:
        return _encode_strings(column, counts)
    values = np.ascontiguousarray(column, dtype=leaf.dtype)
    return _make_cells(_offsets_from_sizes(counts * leaf.itemsize), values)


def _make_cells(offsets: I64, values: Any) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _offsets_from_sizes(sizes: I64) -> I64:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64, copy=False)


def _encode_strings(column: NDArray[Any], counts: I64) -> pa.LargeBinaryArray:
    """Encode each episode's strings as a cell of offsets and UTF-8 bytes.

    All strings are converted at once, and the result is sliced by episode.
    """
    offsets, values = binary_buffers(pa.array(column.tolist(), pa.large_string()))
    cells = []
    for first, count in zip(_offsets_from_sizes(counts)[:-1], counts, strict=True):
        cell_offsets = offsets[first : first + count + 1]
        text = values[cell_offsets[0] : cell_offsets[-1]].tobytes()
        cells.append((cell_offsets - cell_offsets[0]).tobytes() + text if text else b"")
    return pa.array(cells, pa.large_binary())


def _decode_leaf(cells: pa.ChunkedArray, name: str, leaf: Leaf, counts: I64) -> NDArray[Any]:
    sizes, values = _cell_bytes(cells, name)
    if leaf.dtype is None:
        return _decode_strings(sizes, values, name, counts)
    if (row := first_true(sizes != counts * leaf.itemsize)) is not None:
        raise CellError(
            row,
            f"{name!r} has {sizes[row]} bytes: expected {counts[row] * leaf.itemsize} ({counts[row]} x "
            f"{leaf})",
        )
    return values.view(leaf.dtype).reshape(int(counts.sum()), *leaf.shape)


def _cell_bytes(cells: pa.ChunkedArray, name: str) -> tuple[I64, NDArray[np.uint8]]:
    """Return the size of each cell, and all cells end to end; a view of Arrow's memory if there is one chunk."""
    if not pa.types.is_large_binary(cells.type):
        raise CellError(0, f"{name!r} is a column of {cells.type}: expected large_binary")
    refuse_null(cells, name, ": expected the bytes of an episode")
    offsets, values = binary_buffers(cells.chunk(0) if cells.num_chunks == 1 else cells.combine_chunks())
    return np.diff(offsets), values[offsets[0] : offsets[-1]]


def _decode_strings(sizes: I64, values: NDArray[np.uint8], name: str, counts: I64) -> NDArray[Any]:
    """Decode the strings of all episodes at once, by joining their offsets and bytes into one Arrow array."""
    cell_starts = _offsets_from_sizes(sizes)
    offsets, texts, end = [np.zeros(1, dtype=np.int64)], [], 0
    for row, count in enumerate(counts):
        cell = values[cell_starts[row] : cell_starts[row + 1]]
        cell_offsets, text = _split_cell(cell, int(count))
        # Arrow's from_buffers checks neither offsets nor UTF-8
        if cell_offsets[0] != 0 or cell_offsets[-1] != len(text) or (np.diff(cell_offsets) < 0).any():
            raise CellError(
                row, f"{name!r} does not hold {count} strings: its offsets do not match its bytes"
            )
        try:
            str(text.data, "utf-8")
        except UnicodeDecodeError as error:
            raise CellError(row, f"{name!r} holds text that is not UTF-8") from error
        offsets.append(cell_offsets[1:] + end)
        texts.append(text)
        end += len(text)
    # without rows, `values` is empty and stands for the texts, because `concatenate` requires an array
    buffers = [pa.py_buffer(np.concatenate(arrays)) for arrays in (offsets, texts or [values])]
    strings = pa.LargeStringArray.from_buffers(int(counts.sum()), *buffers)
    return np.asarray(strings.to_numpy(zero_copy_only=False), dtype=object)


def _split_cell(cell: NDArray[np.uint8], count: int) -> tuple[I64, NDArray[np.uint8]]:
    """Split a cell of `count` strings into offsets and text.

    For a cell that is too short, the offsets are invalid (-1), so that the caller rejects the cell.
    """
    if not len(cell):
        return np.zeros(count + 1, dtype=np.int64), cell
    offset_bytes = 8 * (count + 1)
    if len(cell) < offset_bytes:
        return np.array([-1]), cell
    return cell[:offset_bytes].view("<i8"), cell[offset_bytes:]


def _column_to_numpy(table: pa.Table, name: str) -> NDArray[Any]:
    refuse_null(table.column(name), name)
    return table.column(name).to_numpy()


def _read_lengths(file: pq.ParquetFile) -> tuple[I64, Bool]:
    """Read `[rows]` lengths, and `[rows]` whether a row continues the episode of the row before."""
    # read() returns columns in the file's order: select() restores the order named here
    table = file.read(columns=["length", "t_started"]).select(["length", "t_started"])
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count or not pa.types.is_integer(column.type) or (pc.min(column).as_py() or 0) < 0:
            raise CellError(0, f"{name!r} has a value that is not an integer of 0 or more")
    length, t_started = (column.to_numpy() for column in table.columns)
    if not t_started.any():  # no row continues another one, so the ids need not be read
        return length, np.zeros(len(length), dtype=np.bool_)
    eps_id = file.read(columns=[Columns.EPS_ID]).column(0).to_numpy()
    return length, find_continued(eps_id, t_started, length)
