"""`_hindcast/index-<checksum>`: the files of a dataset and their row groups, as columns in Parquet.

The name changes with the content, so that an interrupted writer leaves the index that the old manifest names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.errors import DataError
from hindcast.formats.entries import FileEntry, RowGroups, check_path, row_group_columns, row_group_type
from hindcast.storage.location import Location

_PREFIX: Final = "index-"  # without a suffix: other tools read every *.parquet below a folder as data
_TYPES: Final = {
    "path": pa.string(),
    "rows": pa.int64(),
    "timesteps": pa.int64(),
    "bytes": pa.int64(),
    "checksum": pa.string(),
    "row_groups": pa.list_(pa.field("element", row_group_type(), nullable=False)),
}
_SCHEMA: Final = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _TYPES.items()])
_NAMES: Final = set(_SCHEMA.names)
_FILES_AT_A_TIME: Final = 1024


def write_index(folder: Location, files: Sequence[FileEntry]) -> str:
    """Write an index to a folder; return its checksum, which `read_index` requires.

    Raises:
        StorageError: the index cannot be written.
    """
    offsets = np.cumsum([0, *(len(file.row_groups) for file in files)])
    columns: dict[str, Any] = {name: [getattr(file, name) for file in files] for name in _SCHEMA.names[:-1]}
    columns["row_groups"] = pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), row_group_columns(files).combine_chunks(), type=_TYPES["row_groups"]
    )
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=_SCHEMA), buffer, _FILES_AT_A_TIME, compression="zstd")
    data = buffer.getvalue().to_pybytes()
    checksum = hashlib.sha256(data).hexdigest()
    _location(folder, checksum).write_bytes(data)
    return checksum


def read_index(folder: Location, checksum: str) -> tuple[FileEntry, ...]:
    """Read the files from the index that has this checksum.

    Raises:
        DataError: there is no such index, or it is damaged.
        ValueError: a file is outside the dataset's folder.
        StorageError: the index cannot be read.
    """
    location = _location(folder, checksum)
    data = location.read_bytes()
    if hashlib.sha256(data).hexdigest() != checksum:
        raise DataError("is damaged: copy the dataset again", path=str(location))
    return tuple(_read_files(data))


def remove_other_indices(folder: Location, checksum: str) -> None:
    """Delete the indices of earlier manifests."""
    name = _location(folder, checksum).name
    for entry in folder.files():
        if entry.relative_path.startswith(_PREFIX) and entry.relative_path != name:
            entry.location.delete()


def _location(folder: Location, checksum: str) -> Location:
    return folder.child(f"{_PREFIX}{checksum[:16]}")


def _read_files(data: bytes) -> Iterator[FileEntry]:
    for batch in pq.ParquetFile(pa.BufferReader(data)).iter_batches(_FILES_AT_A_TIME, use_threads=False):
        row_groups = batch["row_groups"]
        bounds, groups = row_groups.offsets.to_pylist(), row_groups.values
        columns = [batch[name].to_pylist() for name in _SCHEMA.names[:-1]]
        for start, stop, *values in zip(bounds[:-1], bounds[1:], *columns, strict=True):
            fields = dict(zip(_SCHEMA.names, [*values, RowGroups(groups, start, stop)], strict=True))
            check_path(fields["path"])
            # not validated, which would make an object of each row group; all entries share one set of names
            yield FileEntry.model_construct(_NAMES, **fields)
