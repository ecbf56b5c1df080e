"""Files beside data that hold the same columns in a form that is not read: they are refused, not left out."""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from hindcast.datasets.prepare.source_files import RecognisedFile
from hindcast.datasets.sources import map_in_threads
from hindcast.errors import DataError
from hindcast.formats.tables.csv_table import NUMBER
from hindcast.formats.tables.text_files import read_head
from hindcast.formatting import first_few
from hindcast.storage.location import Location

_HEAD_BYTES: Final = 64 << 10
_MAX_PREAMBLE_LINES: Final = 10
_MIN_COLUMNS: Final = 3  # a line with fewer numbers may be anything
_DELIMITERS: Final = (",", ";", "\t", "|")
_TABLE_SUFFIX: Final = r"\.(csv|tsv|json|jsonl|ndjson)"
_TEXT_NAME: Final = re.compile(rf"{_TABLE_SUFFIX}\b|\.(txt|dat|log)\b|^[^.]*$", re.IGNORECASE)
_COMPRESSED_NAME: Final = re.compile(
    rf"(.*({_TABLE_SUFFIX}|\.parquet))\.(bz2|xz|zst|lz4|zip|7z|br)", re.IGNORECASE
)
# Editors, downloads and interrupted copies leave such files beside the file itself.
_DRAFT_NAME: Final = re.compile(
    r"(~|#|\.(bak|old|orig|tmp|temp|swp|part|partial|crdownload))$", re.IGNORECASE
)


def refuse_misread_files(
    data_files: Sequence[RecognisedFile],
    non_data: Mapping[Location, DataError],
    unknown_files: Sequence[Location],
) -> None:
    """Refuse files that would be left out although most columns of the data are in them.

    Such a file has no header, for example, or another delimiter, encoding or suffix than the other files.

    Args:
        data_files: the files that are read.
        non_data: the other files of a known format, each with the error that reading it would raise.
        unknown_files: the files without a known format.

    Raises:
        DataError: a file would be left out, but holds data.
    """
    paths = {file.location.path for file in data_files}
    for location in unknown_files:
        match = _COMPRESSED_NAME.fullmatch(location.path)
        if match is not None and match[1] not in paths:
            raise _make_error(location, "is compressed, and lies beside data", "decompress it, or use gzip")
    unknown_texts = [
        location
        for location in unknown_files
        if _TEXT_NAME.search(location.name) and not _DRAFT_NAME.search(location.name)
    ]
    candidates = [*non_data, *unknown_texts]
    data_file = data_files[0]
    names = _read_column_names(data_file) if candidates else []
    if not names:
        return
    for location, text in zip(candidates, map_in_threads(_read_text, candidates), strict=True):
        problem = _find_problem(text, names)
        if problem is None:
            continue
        difference, remedy = problem
        if difference:
            difference = f"{difference}, unlike {data_file.location}, which has the same columns"
            raise _make_error(location, difference, remedy)
        if location in non_data:
            error = non_data[location]
            raise error.locate(
                remedy=f"most columns of {data_file.location} are in it: correct it, or move it to another folder if "
                "it is not data"
            )
        description = f"has the columns of {data_file.location}, but no suffix of a known format"
        raise _make_error(location, description, f"rename it to *.{'json' if _is_json(text) else 'csv'}")


def _make_error(location: Location, description: str, remedy: str) -> DataError:
    remedy = f"{remedy}, or move it to another folder if it is not data"
    return DataError(description, path=str(location), remedy=remedy)


def _read_column_names(file: RecognisedFile) -> list[str]:
    """Read the names of a table's columns; empty if the file is no table or cannot be read."""
    try:
        table = file.format.read_head(file.location, file.options)
    except DataError:
        return []
    return [] if table is None else [name for name in table.column_names if name not in file.options.keys]


def _read_text(location: Location) -> str:
    """Read the beginning of a file; empty if it is binary.

    Raises:
        DataError: compressed text is damaged.
    """
    head = read_head(location, _HEAD_BYTES)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return head[: len(head) // 2 * 2].decode("utf-16", "replace")
    if b"\0" in head:
        return ""
    try:
        return head[: head.rfind(b"\n")].decode("utf-8-sig") if b"\n" in head else head.decode("utf-8-sig")
    except UnicodeDecodeError:
        return head.decode("latin-1")


def _is_json(text: str) -> bool:
    return text.lstrip().startswith(("{", "["))


def _find_problem(text: str, names: Sequence[str]) -> tuple[str, str] | None:
    """Describe how a text holds columns, and what to do; None if it does not hold them.

    The description is empty if the text is JSON, or has the usual delimiter and a header in its first line.
    """
    if _is_json(text):
        return ("", "") if _has_most(_first_keys(text), names) else None
    lines = text.splitlines()
    for number, line in enumerate(lines[:_MAX_PREAMBLE_LINES]):
        for delimiter in _DELIMITERS:
            if not _has_most(_split(line, delimiter), names):
                continue
            if number:
                return f"has its header in line {number + 1}", "delete the lines before it"
            if delimiter not in _DELIMITERS[:1]:
                separator = json.dumps(delimiter)
                remedy = f"name it as a separate input with readOptions: {{delimiter: {separator}}}"
                return f"separates its columns by {separator}", remedy
            return "", ""
    for delimiter in _DELIMITERS:
        cells = _split(lines[0], delimiter) if lines else []
        num_numbers = sum(NUMBER.fullmatch(cell) is not None for cell in cells)
        if len(cells) == len(names) >= _MIN_COLUMNS and 2 * num_numbers >= len(cells):
            columns = first_few(list(names), 4)
            remedy = f"name it as a separate input with its names in readOptions.column_names ({columns})"
            return "has no header", remedy
    return None


def _first_keys(text: str) -> Collection[str]:
    """Return the keys of the first object in JSON; none if the text does not contain the whole object."""
    try:
        first_object, _ = json.JSONDecoder().raw_decode(text.lstrip().removeprefix("[").lstrip())
    except (ValueError, RecursionError):
        return ()
    return first_object if isinstance(first_object, dict) else ()


def _split(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _has_most(cells: Collection[str], names: Sequence[str]) -> bool:
    """Return whether more than half of the names are in the cells, in any case."""
    normal_cells = {cell.strip(" #'\"").lower() for cell in cells}
    return 2 * sum(name.lower() in normal_cells for name in names) > len(names)
