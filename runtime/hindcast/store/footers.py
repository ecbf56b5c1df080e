"""Indexing Parquet files that no manifest describes: from their footers and their `length` column."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.store.arrow_layout import spec_of_schema
from hindcast.store.entries import FileEntry, RowGroup
from hindcast.store.filesystem import Location
from hindcast.store.fragments import find_continued
from hindcast.store.spec import DataSpec
from hindcast.store.storage_errors import reason_of, storage_errors

_MAGIC = b"PAR1"
_SAMPLE_BYTES = 64 << 10
_REMEDY = "copy it again from its source, or delete it and record its episodes again"


class Indexed(NamedTuple):
    """A data file: where it is, what is known of it, and what it holds."""

    location: Location
    entry: FileEntry
    spec: DataSpec


def index_file(location: Location, relative: str) -> Indexed:
    """Look into one file of the episode layout.

    Its checksum is not of the whole file: it covers the size, both ends and the episodes' lengths.

    Args:
        location: the file.
        relative: its path within the dataset.

    Raises:
        DataError: empty, truncated, not Parquet, or not of the episode layout.
    """
    checksum, size = _fingerprint(location)
    with open_parquet(location) as file:
        spec = _spec_of(location, file.schema_arrow)
        groups, row_groups = _lengths(file, location), []
        for i, (lengths, continued) in enumerate(groups):
            checksum.update(lengths.tobytes())
            row_groups.append(
                RowGroup(
                    rows=len(lengths),
                    timesteps=int(lengths.sum()),
                    bytes=file.metadata.row_group(i).total_byte_size,
                    lengths=tuple(lengths.tolist()),
                    continued=tuple(np.flatnonzero(continued).tolist()),
                )
            )
    rows = sum(group.rows for group in row_groups)
    if rows != file.metadata.num_rows:
        raise DataError(
            damaged(str(location), f"it has {rows} rows, but its footer says {file.metadata.num_rows}")
        )
    entry = FileEntry(
        path=relative,
        rows=rows,
        timesteps=sum(group.timesteps for group in row_groups),
        bytes=size,
        checksum=checksum.hexdigest(),
        row_groups=tuple(row_groups),
    )
    return Indexed(location, entry, spec)


def spec_of_file(location: Location) -> DataSpec:
    """What one file of the episode layout holds.

    Raises:
        DataError: as `index_file`.
    """
    with open_parquet(location) as file:
        return _spec_of(location, file.schema_arrow)


@contextmanager
def open_parquet(location: Location) -> Iterator[pq.ParquetFile]:
    """The Parquet file at a location; whatever Parquet finds wrong with it becomes a `DataError`."""
    with storage_errors("read", location.uri, location.fs):
        stream = location.fs.open_input_file(location.path)
    with stream:
        try:
            yield pq.ParquetFile(stream, pre_buffer=not location.is_local, page_checksum_verification=True)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(damaged(str(location), reason_of(error))) from error


def damaged(path: str, reason: str) -> str:
    """The sentence for a file that cannot be decoded."""
    return f"{path} is damaged ({reason}): {_REMEDY}"


def _fingerprint(location: Location) -> tuple[hashlib._Hash, int]:
    """A hash of the size and both ends of the file, once they look like Parquet; and the size."""
    with (
        storage_errors("read", location.uri, location.fs),
        location.fs.open_input_file(location.path) as stream,
    ):
        size = stream.size()
        head = stream.read(min(size, _SAMPLE_BYTES))
        stream.seek(max(0, size - _SAMPLE_BYTES))
        tail = stream.read()
    if size == 0:
        raise DataError(f"{location} is empty (0 bytes): delete it and record its episodes again")
    if not head.startswith(_MAGIC):
        raise DataError(
            f"{location} is not a Parquet file: it begins with {head[:4]!r} instead of {_MAGIC!r}"
        )
    if not tail.endswith(_MAGIC):
        raise DataError(
            f"{location} is truncated (it does not end as a Parquet file does, after {size} bytes): {_REMEDY}"
        )
    checksum = hashlib.sha256(str(size).encode())
    checksum.update(head)
    checksum.update(tail)
    return checksum, size


def _spec_of(location: Location, schema: pa.Schema) -> DataSpec:
    try:
        spec = spec_of_schema(schema)
    except DataError as error:
        raise DataError(f"{location}: {error}") from error
    if spec is None:
        raise DataError(
            f"{location} is not a file of episodes that Hindcast wrote: it has the columns {schema.names}, "
            "without their dtypes and shapes in its metadata"
        )
    return spec


def _lengths(file: pq.ParquetFile, location: Location) -> list[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """For each row group the rows' lengths, and which rows go on with the row before."""
    table = file.read(columns=["length", "t_started"]).select(["length", "t_started"])
    for column in table.columns:
        if column.null_count or not pa.types.is_integer(column.type) or (pc.min(column).as_py() or 0) < 0:
            raise DataError(damaged(str(location), "'length' or 't_started' has a value that is no count"))
    length, t_started = (column.to_numpy() for column in table.columns)
    continued = np.zeros(len(length), dtype=np.bool_)
    if t_started.any():
        eps_id = file.read(columns=[Columns.EPS_ID]).column(0).to_numpy()
        continued = find_continued(eps_id, t_started, length)
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    cuts = np.cumsum(sizes)[:-1]
    return list(zip(np.split(length, cuts), np.split(continued, cuts), strict=True)) if sizes else []
