"""The layout "Episodes / Arrow" as the writer, the index and the reader use it; arrays and cells are in `cells`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hindcast.episodes.block import I64, Block, Bool
from hindcast.episodes.columns import DETAILS, Columns
from hindcast.errors import DataError
from hindcast.formats.arrow.cells import (
    EPISODE_COLUMNS,
    arrow_schema,
    columns_to_read,
    decode,
    encode,
    episode_bytes,
    spec_of_schema,
)
from hindcast.formats.data_file import Group
from hindcast.formats.layout import CellError, Contents
from hindcast.formats.parquet.file import ParquetEncoder
from hindcast.formats.parquet.fragments import find_continued
from hindcast.formats.spec import DataSpec

_LONGEST = 64 << 20


class ArrowEpisodes:
    """How files of this layout are opened (a `Layout`)."""

    def contents(self, file: pq.ParquetFile) -> Contents:
        """See `Layout.contents`: from the metadata and two small columns."""
        spec = spec_of_schema(file.schema_arrow)
        if spec is None:
            raise DataError("it has no description of its columns")
        length, continued = _lengths(file)
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        cuts = np.cumsum(sizes)[:-1]
        return Contents(
            spec,
            list(np.split(length, cuts)) if sizes else [],
            list(np.split(continued, cuts)) if sizes else [],
        )

    def columns(self, schema: pa.Schema, spec: DataSpec, leaves: Sequence[str]) -> list[str]:
        """See `Layout.columns`; JSON columns and details may be missing."""
        names, there = columns_to_read(leaves), set(schema.names)
        optional = {name for name in leaves if spec.leaves[name].kind == "json"}
        absent = [name for name in names if name not in there and name not in optional]
        if absent:
            raise DataError(f"it has no column {absent[0]!r}, which its dataset has")
        return [name for name in (*names, DETAILS) if name in there]

    def decode(self, table: pa.Table, spec: DataSpec, leaves: Sequence[str]) -> Block:
        """See `Layout.decode`; JSON columns that the file lacks come as empty."""
        for name in leaves:
            if name not in table.column_names and spec.leaves[name].kind == "json":
                empty = pa.array([b""] * len(table), pa.large_binary())
                table = table.append_column(pa.field(name, pa.large_binary(), nullable=False), empty)
        return decode(table, spec, leaves)


class ArrowEncoder(ParquetEncoder):
    """How they are written (an `Encoder`).

    Raises:
        DataError: a model output that has the name of one of the layout's own columns.
    """

    longest = _LONGEST
    has_index = False

    def __init__(self, spec: DataSpec) -> None:
        taken = [name for name in (*EPISODE_COLUMNS, DETAILS) if name in spec.leaves]
        if taken:
            raise DataError(
                f"a model output is named {taken[0]!r}, which this layout uses for another column"
            )
        self._spec = spec
        self._schema = arrow_schema(spec)

    def encode(self, block: Block) -> Group:
        """See `Encoder.encode`; fixed-shape columns are not copied."""
        table = encode(block, self._spec, self._schema)
        return Group(table, block.length, np.ones_like(block.length), self.sizes(block))

    def sizes(self, block: Block) -> I64:
        """See `ParquetEncoder.sizes`."""
        return episode_bytes(block, self._spec)

    def options(self, schema: pa.Schema) -> dict[str, Any]:  # noqa: ARG002
        """See `ParquetEncoder.options`."""
        return {"use_dictionary": False, "write_statistics": ["t_started", "length"]}


def _lengths(file: pq.ParquetFile) -> tuple[I64, Bool]:
    """The rows' lengths, and which rows continue the row before."""
    table = file.read(columns=["length", "t_started"]).select(["length", "t_started"])
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count or not pa.types.is_integer(column.type) or (pc.min(column).as_py() or 0) < 0:
            raise CellError(0, f"{name!r} has a value that is not a count")
    length, t_started = (column.to_numpy() for column in table.columns)
    if not t_started.any():
        return length, np.zeros(len(length), dtype=np.bool_)
    eps_id = file.read(columns=[Columns.EPS_ID]).column(0).to_numpy()
    return length, find_continued(eps_id, t_started, length)
