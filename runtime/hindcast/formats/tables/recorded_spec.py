"""The specs of Hindcast's own text files, stored in the manifest or in commits, and their Arrow types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from hindcast.episodes.columns import Columns, leaves_of, next_leaf
from hindcast.errors import DataError
from hindcast.formats.columns.steps import nest
from hindcast.formats.dataset_folder.commits import read_exported_manifest
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.storage.location import Location


def read_recorded_spec(location: Location, layout: str) -> DataSpec:
    """Read the spec of a file from the recording in its folder; empty if no recording with this layout lists the file.

    Raises:
        DataError: the manifest cannot be read, or lists the file with another size.
    """
    manifest = read_exported_manifest(location.parent(), location.name)
    if manifest is None or manifest.layout != layout:
        return DataSpec()
    entry = next((file for file in manifest.files if file.path == location.name), None)
    if entry is None:
        return DataSpec()
    size = location.info().size
    if size != entry.bytes:
        raise DataError(
            f"has {size} bytes, but was recorded with {entry.bytes}: copy it again or record again",
            path=str(location),
        )
    return manifest.data_spec


def leaf_type(leaf: Leaf) -> pa.DataType:
    """Return the type of a leaf's elements in text files.

    Complex numbers are pairs of floats. float16 is read as float32; `cast_to_spec` converts it.
    """
    if leaf.dtype is None:
        return pa.string()
    if leaf.dtype.kind == "c":
        return pa.from_numpy_dtype(np.dtype(f"f{leaf.dtype.itemsize // 2}"))
    return pa.float32() if leaf.dtype == np.float16 else pa.from_numpy_dtype(leaf.dtype.newbyteorder("="))


def element_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type of the elements of nested lists; other types are returned unchanged."""
    return (
        element_type(arrow_type.value_type)
        if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)
        else arrow_type
    )


def replace_element_type(arrow_type: pa.DataType, number_type: pa.DataType) -> pa.DataType:
    """Replace the type of the elements of nested lists: `list<int64>` and float64 give `list<double>`."""
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return pa.list_(replace_element_type(arrow_type.value_type, number_type))
    return number_type


def recorded_column_types(spec: DataSpec) -> dict[str, pa.DataType]:
    """Return column -> Arrow type for the columns of a JSON file that Hindcast wrote, except infos."""
    leaves = {name: _column_type(leaf) for name, leaf in spec.leaves.items() if leaf.kind != "json"}
    leaves |= {next_leaf(name): leaves[name] for name in leaves_of(Columns.OBS, leaves)}
    return {name: _struct_type(node) for name, node in nest(leaves).items()}


def find_empty_leaves(leaves: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Find the leaves with a size of 0 in their shape, for which CSV has no column, and their next observations."""
    empty_leaves = {name: leaf for name, leaf in leaves.items() if 0 in leaf.shape}
    return empty_leaves | {
        next_leaf(name): empty_leaves[name] for name in leaves_of(Columns.OBS, empty_leaves)
    }


def _column_type(leaf: Leaf) -> pa.DataType:
    column_type = leaf_type(leaf)
    depth = len(leaf.shape) + (leaf.dtype is not None and leaf.dtype.kind == "c")
    for _ in range(depth):
        column_type = pa.list_(column_type)
    return column_type


def _struct_type(node: Any) -> pa.DataType:
    if isinstance(node, pa.DataType):
        return node
    return pa.struct([pa.field(name, _struct_type(child)) for name, child in node.items()])
