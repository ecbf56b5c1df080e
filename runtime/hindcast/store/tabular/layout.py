"""The layout "Columns" as the writer, the index and the reader use it: one row per timestep."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.episodes.block import I64, Block
from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError
from hindcast.store.description import described, read_index
from hindcast.store.layout import Contents
from hindcast.store.parquet import Source
from hindcast.store.spec import DataSpec
from hindcast.store.tabular.decoding import AGENTS, decode_rows, flag_columns
from hindcast.store.tabular.encoding import ColumnsEncoder
from hindcast.store.tabular.frames import path_of, read_frames
from hindcast.store.tabular.index import decoded_contents
from hindcast.store.tabular.names import COLUMNS_LAYOUT, of_next


class ColumnsLayout:
    """A `Layout`."""

    name = COLUMNS_LAYOUT

    def encoder(self, spec: DataSpec) -> ColumnsEncoder:
        """See `Layout.encoder`."""
        return ColumnsEncoder(spec)

    def rows(self, length: I64) -> I64:
        """See `Layout.rows`: one for each timestep."""
        return length

    def contents(self, file: pq.ParquetFile) -> Contents:
        """See `Layout.contents`: from the footer of our own files, from the rows of others."""
        description, index = described(file.schema_arrow), read_index(file.metadata.metadata)
        if description is not None and index is not None:
            return Contents(description.spec, *index)
        found = decoded_contents(file)
        return (
            found if description is None else found._replace(spec=_as_described(found.spec, description.spec))
        )

    def columns(self, schema: pa.Schema, spec: DataSpec, leaves: Sequence[str]) -> list[str]:
        """The columns of a file that these leaves take.

        Raises:
            DataError: one that the file lacks.
        """
        there = set(schema.names)
        roots = dict.fromkeys(root(leaf) for leaf in leaves)
        needed = [name for name in roots if name != Columns.INFOS]
        needed += [Columns.EPS_ID, *([Columns.NEXT_OBS] if Columns.OBS in roots else [])]
        absent = [name for name in needed if name not in there]
        if absent:
            raise DataError(f"it has no column {absent[0]!r}, which its dataset has")
        optional = [Columns.T]
        if set(leaves) == spec.leaves.keys():  # the whole episodes, and so their details
            optional += [Columns.INFOS, *(name for name in AGENTS if _says_something(schema, name))]
        elif Columns.INFOS in roots:
            optional.append(Columns.INFOS)
        there_too = [name for name in optional if name in there]
        return list(dict.fromkeys([*needed, *there_too, *flag_columns(schema.names)]))

    def read(
        self, source: Source, row_groups: Sequence[int], lengths: I64, spec: DataSpec, leaves: Sequence[str]
    ) -> Block:
        """See `Layout.read`."""
        columns = self.columns(source.file.schema_arrow, spec, leaves)
        frames = read_frames(source, row_groups, lengths, spec, leaves)
        rest = [part for name in columns for part in _without(name, frames, leaves)]
        return decode_rows(source.rows(row_groups, rest), lengths, spec, leaves, frames)


def is_tabular(schema: pa.Schema) -> bool:
    """Whether a file without our metadata has RLlib's columns."""
    return Columns.OBS in schema.names and bool({Columns.ACTIONS, Columns.REWARDS} & set(schema.names))


def _says_something(schema: pa.Schema, name: str) -> bool:
    return name in schema.names and not pa.types.is_null(schema.field(name).type)


def _without(column: str, frames: Collection[str], leaves: Sequence[str]) -> list[str]:
    """What is left to read of a column: all of it, or the parts that are no frames."""
    if not frames or column not in (Columns.OBS, Columns.NEXT_OBS):
        return [column]
    rest = [leaf for leaf in leaves if root(leaf) == Columns.OBS and leaf not in frames]
    return [path_of(leaf if column == Columns.OBS else of_next(leaf)) for leaf in rest]


def _as_described(found: DataSpec, told: DataSpec) -> DataSpec:
    """What rows hold that another tool rewrote, in the shapes and spaces that the metadata still tell."""
    leaves = {
        name: told.leaves[name]
        if name in told.leaves and told.leaves[name].itemsize == leaf.itemsize
        else leaf
        for name, leaf in found.leaves.items()
    }
    return replace(told, leaves=leaves)
