"""All formats that data are read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hindcast.formats.d4rl.format import D4RL
from hindcast.formats.format import Format, is_hidden
from hindcast.formats.media.files import Binary, Images, Text
from hindcast.formats.media.ray_data import RayData
from hindcast.formats.media.tfrecord import TFRecord
from hindcast.formats.minari.format import Minari
from hindcast.formats.sample_batch.format import SampleBatchFormat
from hindcast.formats.tables.csv_table import Csv
from hindcast.formats.tables.json_table import Json
from hindcast.formats.tables.parquet import Parquet
from hindcast.storage.location import Entry, Location

_ALL: Final[tuple[Format, ...]] = (
    Minari(),
    D4RL(),
    Parquet(),
    SampleBatchFormat(),
    Json(),
    Csv(),
    TFRecord(),
    Text(),
    Images(),
    Binary(),
)
FORMATS: Final[dict[str, Format]] = {known.name: known for known in (*_ALL, RayData())}


def detect_format(location: Location) -> Format | None:
    """The first format that recognises a file; None if none does.

    Raises:
        StorageError: it cannot be read.
    """
    return next((known for known in _ALL if known.recognises(location)), None)


def find_locations(entries: Sequence[Entry], format: str = "Auto") -> list[Location]:
    """What is read of a folder's recursive listing, in the listing's order.

    Hidden files are left out. Files that only together are data (Minari's, a folder of images) are one
    place. With "Auto" the format of each place is still to be detected, and it may have none.

    Args:
        entries: what `Location.list(recursive=True)` gave.
        format: as `InputSource.format` names it.

    Raises:
        StorageError: a file cannot be looked into.
    """
    known = FORMATS.get(format, FORMATS[Minari.name])  # with "Auto", Minari's files alone are grouped
    groups = known.groups(entries)
    grouped = {file for group in groups for file in group.files}
    files = [
        entry.location
        for entry in entries
        if entry.is_file and entry.relative_path not in grouped and not is_hidden(entry.relative_path)
    ]
    return sorted([*files, *(group.location for group in groups)], key=lambda place: place.path)
