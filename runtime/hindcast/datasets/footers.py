"""Indexing Parquet files that no manifest describes: from their footers and, where it takes that, their rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from hindcast.errors import DataError
from hindcast.formats.data_file import entry_of
from hindcast.formats.entries import FileEntry, RowGroup, Run
from hindcast.formats.layout import CellError, Contents
from hindcast.formats.layouts import DEFAULT, LAYOUTS, layout_of_schema
from hindcast.formats.parquet.opening import damaged, fingerprint, open_parquet
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location


class Indexed(NamedTuple):
    """A data file: where it is, what is known of it, what it holds and how.

    Attributes:
        location: where.
        entry: rows, timesteps, row groups.
        spec: what it holds.
        layout: name of its layout.
        runs: of a file that Hindcast did not write, what each stored episode is.
        unfinished: what to say of the recording that it belongs to, where that is not complete.
    """

    location: Location
    entry: FileEntry
    spec: DataSpec
    layout: str = DEFAULT
    runs: tuple[Run, ...] = ()
    unfinished: str = ""


def index_file(location: Location, relative: str) -> Indexed:
    """Look into one file.

    Its checksum is not of the whole file: it covers the size, both ends and the episodes' lengths.

    Args:
        location: the file.
        relative: its path within the dataset.

    Raises:
        DataError: empty, truncated, not Parquet, of no known layout, or with rows that cannot be read.
    """
    checksum, size = fingerprint(location)
    with open_parquet(location) as file:
        layout = _layout(location, file)
        contents = _contents(location, file, layout)
        found = sum(len(lengths) for lengths in contents.lengths)
        if found != file.metadata.num_rows or len(contents.lengths) != file.num_row_groups:
            reason = f"it has {found} rows, but its footer says {file.metadata.num_rows}"
            raise DataError(damaged(str(location), reason))
        row_groups = [
            RowGroup(
                rows=len(lengths),
                timesteps=int(lengths.sum()),
                bytes=file.metadata.row_group(i).total_byte_size,
                lengths=tuple(lengths.tolist()),
                continued=tuple(np.flatnonzero(continued).tolist()),
            )
            for i, (lengths, continued) in enumerate(zip(contents.lengths, contents.continued, strict=True))
        ]
    for lengths in contents.lengths:
        checksum.update(lengths.tobytes())
    entry = entry_of(relative, size, checksum.hexdigest(), row_groups)
    return Indexed(location, entry, contents.spec, layout, contents.runs)


def describe_file(location: Location) -> tuple[DataSpec, str]:
    """What one file that Hindcast wrote holds, and its layout.

    Raises:
        DataError: as `index_file`.
    """
    with open_parquet(location) as file:
        layout = _layout(location, file)
        return _contents(location, file, layout).spec, layout


def _layout(location: Location, file: pq.ParquetFile) -> str:
    try:
        return layout_of_schema(file.schema_arrow)
    except DataError as error:
        raise type(error)(f"{location}: {error}") from error


def _contents(location: Location, file: pq.ParquetFile, layout: str) -> Contents:
    try:
        return LAYOUTS[layout].contents(file)
    except CellError as error:
        raise error.in_file(str(location), error.row) from error
    except DataError as error:
        raise type(error)(f"{location}: {error}") from error
