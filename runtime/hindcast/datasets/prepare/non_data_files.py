"""Other files in folders of data: files without data are noted, and data of another kind are refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from hindcast import formatting
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.prepare.source_files import (
    RecognisedFile,
    SourceFile,
    find_source_files,
    recognise_formats,
)
from hindcast.datasets.sources import DataFiles, map_in_threads
from hindcast.errors import DataError
from hindcast.formats.format import NoRowsError, has_suffix
from hindcast.formats.registry import FORMATS
from hindcast.formats.tables.json_lines import JSON_SUFFIXES
from hindcast.storage.location import Location

_HEAD_BYTES: Final = 4096
_MAX_SHOWN_CHARACTERS: Final = 40
_TITLES: Final = [data_format.title for data_format in FORMATS.values() if data_format.title]
_SUPPORTED_FORMATS: Final = f"supported are {', '.join(_TITLES[:-1])} and {_TITLES[-1]}"
_ZIP_MAGIC: Final = b"PK\x03\x04"
_WORKBOOK_SUFFIXES: Final = (".xlsx", ".xlsm", ".ods")
# The first bytes of a file, and what to tell its user after "is".
_MAGIC_NUMBERS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: decompress it, or use gzip"),
    (b"BZh", "compressed with bzip2: decompress it, or use gzip"),
    (b"\xfd7zXZ", "compressed with xz: decompress it, or use gzip"),
    (b"ARROW1", "an Arrow file: name it *.arrow, or write it as Parquet"),
    (b"FEA1", "an Arrow file: name it *.arrow, or write it as Parquet"),
    (_ZIP_MAGIC, "a ZIP archive or NumPy's .npz: unpack it, or write its arrays as columns of Parquet"),
    (b"\x93NUMPY", "a NumPy array: write it as a column of Parquet"),
    (b"\x80", "a pickle, which may run code and is not opened: write it as Parquet"),
    (b"Obj\x01", "an Avro file: write it as Parquet"),
    (b"ORC", "an ORC file: write it as Parquet"),
    (b"SQLite format 3", "an SQLite database: write its table as Parquet"),
    (b"\xff\xfe", "UTF-16 text: save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text: save it as UTF-8"),
)
_VIDEO_MAGIC: Final = (b"\x1aE\xdf\xa3", b"RIFF")

_PARQUET_FORMAT: Final = "Parquet"


def check_unopened_files(data_files: DataFiles, name: str, reading: Reading) -> tuple[str, ...]:
    """Check the files in a dataset's folders that were not opened, and return a note on them.

    The result is empty if there are no such files.

    Args:
        data_files: the dataset's files, and the files that were not opened.
        name: name of the data, for messages.
        reading: what to read, and how.

    Raises:
        DataError: a file that was not opened contains timesteps in another format.
        StorageError: the storage fails or denies access.
    """
    if not data_files.unopened_files:
        return ()
    recognised_files, _ = recognise_formats(
        [SourceFile(file, is_named=False) for file in data_files.unopened_files], reading
    )
    non_data = _find_non_data(recognised_files)
    for file in recognised_files:
        if file.location not in non_data and _has_rows(file):
            episode_file = data_files.indexed_files[0].location
            raise DataError(
                f"{name} mixes complete episodes ({episode_file}) and timesteps ({file.location}): keep them in "
                "separate folders, and name each folder as a separate input"
            )
    return (make_non_data_note(data_files.unopened_files),)


def _has_rows(file: RecognisedFile) -> bool:
    try:
        file.format.list_pieces(file.location, file.options)
    except NoRowsError:
        return False
    except DataError:  # it is damaged
        return True
    return True


def split_non_data(
    recognised_files: Sequence[RecognisedFile], named_locations: Collection[Location]
) -> tuple[list[RecognisedFile], dict[Location, DataError]]:
    """Split files into data and non-data, such as a `params.json` next to Parquet tables.

    Parquet files and files that the user named are always data. If no file is data, all files are.

    Args:
        recognised_files: all files with a known format.
        named_locations: the files that the user named.

    Returns:
        The data files, and the other files, each with the error that reading it would raise.
    """
    doubtful_files = [
        file
        for file in recognised_files
        if file.format.name != _PARQUET_FORMAT and file.location not in named_locations
    ]
    non_data = _find_non_data(doubtful_files)
    if len(non_data) == len(recognised_files):
        return list(recognised_files), {}
    return [file for file in recognised_files if file.location not in non_data], non_data


def find_data_files(reading: Reading) -> list[RecognisedFile]:
    """Return the files of a reading that have a known format, without those that are left out as non-data.

    Raises:
        DataError: a path does not exist, or a file cannot be read.
        StorageError: the storage fails or denies access.
    """
    source_files = find_source_files(reading)
    recognised_files, _ = recognise_formats(source_files, reading)
    return split_non_data(recognised_files, [file.location for file in source_files if file.is_named])[0]


def make_non_data_note(files: Collection[Location]) -> str:
    """Make the note on files without timesteps."""
    return make_skipped_note(files, "that is not data" if len(files) == 1 else "that are not data")


def make_skipped_note(files: Collection[Location], description: str) -> str:
    """Make the note on files that are not read; `description` is a clause such as "that are not data"."""
    verb = "was" if len(files) == 1 else "were"
    names = formatting.first_few([file.name for file in files], 3)
    return f"{formatting.plural(len(files), 'file')} {description} {verb} left out: {names}"


def _find_non_data(recognised_files: Sequence[RecognisedFile]) -> dict[Location, DataError]:
    """Return the files that lack columns of timesteps, each with the error of `Format.list_notes`."""

    def find_error(file: RecognisedFile) -> DataError | None:
        # The notes do not matter here; `list_notes` raises if columns are missing.
        try:
            file.format.list_notes(file.location, file.options)
        except DataError as error:
            return error
        return None

    errors = zip(recognised_files, map_in_threads(find_error, recognised_files), strict=True)
    return {file.location: error for file, error in errors if error is not None}


def unknown_format_error(location: Location) -> DataError:
    """Make the error for a file that the user named and whose format is unknown.

    Raises:
        StorageError: the file cannot be read.
    """
    with location.open_stream() as stream:
        head = bytes(stream.read(_HEAD_BYTES))
    return DataError(f"{location} {_describe_content(location, head)}; {_SUPPORTED_FORMATS}")


def _describe_content(location: Location, head: bytes) -> str:
    """Describe a file by its first bytes, as a clause without the subject."""
    if not head:
        return "is empty (0 bytes)"
    if head[4:8] == b"ftyp" or head.startswith(_VIDEO_MAGIC):
        return "is a video: write its frames as images, or as a column of arrays"
    description = next((text for magic, text in _MAGIC_NUMBERS if head.startswith(magic)), None)
    if head.startswith(_ZIP_MAGIC) and has_suffix(location.name, _WORKBOOK_SUFFIXES):
        description = "a workbook of a spreadsheet: save its sheet as CSV in UTF-8"
    if description is not None:
        return f"is {description}"
    line = _first_line(head)
    if line is None:
        return f"begins with {head[:4]!r}, unlike any known format"
    if has_suffix(location.name, JSON_SUFFIXES):
        return f"is text that begins with {line!r}: JSON begins with an object or a list; delete what is before it"
    return "is text of an unknown format: set `format` (such as --format CSV)"


def _first_line(head: bytes) -> str | None:
    """Return the beginning of the first line that is not blank; None if the bytes are not text in UTF-8."""
    # The last character may be cut off, so up to three bytes that cannot be decoded are ignored.
    text = head.decode(errors="ignore")
    is_text = len(head) - len(text.encode()) < 4 and all(
        char.isprintable() or char.isspace() for char in text
    )
    return (text.lstrip().splitlines() or [""])[0][:_MAX_SHOWN_CHARACTERS] if is_text else None
