"""Indices of a dataset, as columns in Parquet: `_hindcast/index-<checksum>` has the files and their row groups, and
`_hindcast/episodes-<checksum>` ids, ends and returns of their episodes, which only a selection of episodes reads.

The names change with the content, so that an interrupted writer leaves the indices that the old manifest names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hindcast.errors import DataError
from hindcast.formats.entries import FileEntry, RowGroups, check_path, row_group_columns, row_group_type
from hindcast.storage.location import Location

# without a suffix: other tools read every *.parquet below a folder as data
_INDEX, _EPISODES = "index-", "episodes-"
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
_EPISODE_TYPES: Final = {
    "eps_id": pa.string(),
    "terminated": pa.bool_(),
    "truncated": pa.bool_(),
    "returns": pa.float64(),
}
_EPISODE_SCHEMA: Final = pa.schema(
    [("path", pa.string()), *((name, pa.list_(kind)) for name, kind in _EPISODE_TYPES.items())]
)
_FILES_AT_A_TIME: Final = 1024


class EpisodeIndex(NamedTuple):
    """The index of a dataset's episodes, which is not read yet.

    Attributes:
        folder: `_hindcast` of the dataset.
        checksum: the index's checksum.
    """

    folder: Location
    checksum: str

    def read(self, paths: Sequence[str]) -> pa.Table | None:
        """Read one row for each episode of some files, in their order, with the columns of `EpisodeColumns`.

        Returns:
            The rows; None if another writer has replaced the index.

        Raises:
            DataError: the index is damaged.
            StorageError: the index cannot be read.
        """
        try:
            data = _read(self.folder, _EPISODES, self.checksum)
        except DataError:
            # Checked after the reading: another writer may delete the index at any time.
            if _location(self.folder, _EPISODES, self.checksum).exists():
                raise
            return None
        table = pq.read_table(pa.BufferReader(data))
        rows = {path: row for row, path in enumerate(table["path"].to_pylist())}
        table = table.take([rows[path] for path in paths])
        return pa.table({name: pc.list_flatten(table[name]) for name in _EPISODE_TYPES})


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
    return _write(folder, _INDEX, pa.table(columns, schema=_SCHEMA))


def write_episodes(folder: Location, files: Sequence[FileEntry]) -> str | None:
    """Write an index of episodes to a folder; return its checksum, or None if those of a file are not known.

    Raises:
        StorageError: the index cannot be written.
    """
    columns = [file.episode_columns for file in files if file.episode_columns is not None]
    if len(columns) < len(files):  # an earlier version recorded the file
        return None
    rows = [{"path": file.path, **vars(column)} for file, column in zip(files, columns, strict=True)]
    return _write(folder, _EPISODES, pa.Table.from_pylist(rows, _EPISODE_SCHEMA))


def read_index(folder: Location, checksum: str) -> tuple[FileEntry, ...]:
    """Read the files from the index that has this checksum.

    Raises:
        DataError: there is no such index, or it is damaged.
        ValueError: a file is outside the dataset's folder.
        StorageError: the index cannot be read.
    """
    return tuple(_read_files(_read(folder, _INDEX, checksum)))


def remove_other_indices(folder: Location, checksums: Collection[str | None]) -> None:
    """Delete the indices of earlier manifests: those that have other checksums."""
    names = {
        _location(folder, kind, checksum).name
        for kind in (_INDEX, _EPISODES)
        for checksum in checksums
        if checksum is not None
    }
    for entry in folder.files():
        if entry.relative_path.startswith((_INDEX, _EPISODES)) and entry.relative_path not in names:
            entry.location.delete()


def _location(folder: Location, kind: str, checksum: str) -> Location:
    return folder.child(f"{kind}{checksum[:16]}")


def _write(folder: Location, kind: str, table: pa.Table) -> str:
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, _FILES_AT_A_TIME, compression="zstd")
    data = buffer.getvalue().to_pybytes()
    checksum = hashlib.sha256(data).hexdigest()
    _location(folder, kind, checksum).write_bytes(data)
    return checksum


def _read(folder: Location, kind: str, checksum: str) -> bytes:
    location = _location(folder, kind, checksum)
    data = location.read_bytes()
    if hashlib.sha256(data).hexdigest() != checksum:
        raise DataError("is damaged: copy the dataset again", path=str(location))
    return data


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
