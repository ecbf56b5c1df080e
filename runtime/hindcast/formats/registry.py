"""All formats that data are read from, and detection of a file's format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hindcast.formats.d4rl.episode_groups import HDF5Episodes
from hindcast.formats.d4rl.format import D4RL
from hindcast.formats.format import Format, is_hidden
from hindcast.formats.media.files import Binary, Images, Text
from hindcast.formats.media.ray_data import RayData
from hindcast.formats.media.tfrecord import TFRecord
from hindcast.formats.minari.format import Minari
from hindcast.formats.sample_batch.format import SampleBatchFormat
from hindcast.formats.tables.arrow_file import ArrowFile
from hindcast.formats.tables.csv_table import Csv
from hindcast.formats.tables.json_table import Json
from hindcast.formats.tables.parquet import Parquet
from hindcast.formatting import natural_sort_key
from hindcast.storage.location import Entry, Location

# Order matters: a format that looks into a file comes before one that accepts its suffix (SampleBatch before JSON).
_DETECTED_FORMATS: Final[tuple[Format, ...]] = (
    Minari(),
    HDF5Episodes(),
    D4RL(),
    Parquet(),
    ArrowFile(),
    SampleBatchFormat(),
    Json(),
    Csv(),
    TFRecord(),
    Text(),
    Images(),
    Binary(),
)
FORMATS: Final[dict[str, Format]] = {
    file_format.name: file_format for file_format in (*_DETECTED_FORMATS, RayData())
}
"""Name -> format. To add a format, add it to `_DETECTED_FORMATS` and run `make crds`: resources, CLI, builder and
the reference page are derived from this registry."""


def detect_format(location: Location) -> Format | None:
    """Return the first format that recognises a file; None if no format does.

    Raises:
        StorageError: the file cannot be read.
    """
    return next((candidate for candidate in _DETECTED_FORMATS if candidate.recognises(location)), None)


def find_locations(entries: Sequence[Entry], format: str = "Auto") -> list[Location]:
    """Return the locations to read from a folder's recursive listing, in natural order (`log-2` before `log-10`).

    Hidden files are left out. Files that are read together (the files of a Minari dataset, the images of a folder) are
    one location. With "Auto", the format of each location is detected later; some locations may then have no format.

    Args:
        entries: result of `Location.list(recursive=True)`.
        format: name of the format, as in `InputSource.format`.

    Raises:
        StorageError: a file cannot be read.
    """
    grouping_format = FORMATS.get(format, FORMATS[Minari.name])  # with "Auto" only Minari's files are grouped
    groups = grouping_format.group_files(entries)
    grouped_files = {file for group in groups for file in group.files}
    files = [
        entry.location
        for entry in entries
        if entry.is_file and entry.relative_path not in grouped_files and not is_hidden(entry.relative_path)
    ]
    return sorted(
        [*files, *(group.location for group in groups)], key=lambda location: natural_sort_key(location.path)
    )
