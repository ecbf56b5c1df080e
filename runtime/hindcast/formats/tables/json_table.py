"""The format "JSON": one object per line, or one array of objects; plain or gzip."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from hindcast.errors import DataError
from hindcast.formats.format import NoRowsError, ReadOptions, has_suffix
from hindcast.formats.layout import CellError
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.decoding import locate_errors
from hindcast.formats.tables.json_lines import (
    JSON_SUFFIXES,
    build_table,
    choose_parser,
    garbage_collector_pause,
    parse_lines,
    require_object,
)
from hindcast.formats.tables.read_options import check_options, declared_column_types
from hindcast.formats.tables.recorded_spec import recorded_column_types
from hindcast.formats.tables.text_files import BOM, Span, is_gzip, open_text, read_head
from hindcast.formats.tables.text_tables import TextExtent, TextTables, info_column_names
from hindcast.storage.location import Location

_CHUNK_ROWS: Final = 1 << 15
_HEAD_BYTES: Final = 4096
_DOCUMENT: Final = re.compile(rb'\s*\{\s*"[^"]*"\s*:\s*\[\s*\{')  # begins with a list of objects under a key
_FIRST_OBJECT_BYTES: Final = 1 << 20


class Json(TextTables):
    """JSON files, plain or gzip."""

    name = "JSON"
    title = "JSON (plain or gzip)"
    ray_methods = ("read_json",)
    read_option_names = ("column_types",)

    def recognises(self, location: Location) -> bool:
        """See `Format.recognises`: by the suffix and the first character; an empty file is recognised."""
        if not has_suffix(location.name, JSON_SUFFIXES, may_be_gzip=True):
            return False
        return _read_first_character(location) in (b"{", b"[", b"")

    def inspect(self, location: Location, spec: DataSpec, options: ReadOptions) -> TextExtent:  # noqa: ARG002
        """See `TextTables.inspect`."""
        check_options(self.name, options.options, self.read_option_names)
        return TextExtent(None, 0, None, recorded_column_types(spec), spec.leaves)

    def is_unsplittable(self, location: Location) -> bool:
        """See `TextTables.is_unsplittable`."""
        return is_gzip(location) or _is_array(location)

    def read_chunks(self, location: Location, options: ReadOptions) -> Iterator[tuple[Span, Any]]:
        """See `TextTables.read_chunks`. From a file with one array, it yields lists of objects."""
        if not _is_array(location):
            yield from super().read_chunks(location, options)
            return
        rows = _read_array(location)
        for first_row in range(0, len(rows), _CHUNK_ROWS):
            chunk = rows[first_row : first_row + _CHUNK_ROWS]
            yield Span(0, 0, first_row, len(chunk)), chunk

    def first_column_names(self, location: Location, spec: DataSpec, options: ReadOptions) -> Sequence[str]:  # noqa: ARG002
        """See `TextTables.first_column_names`: the keys of the first object, unless it is very long."""
        text = (
            read_head(location, _FIRST_OBJECT_BYTES)
            .removeprefix(BOM)
            .decode(errors="replace")
            .lstrip()
            .removeprefix("[")
        )
        try:
            first_object, _ = json.JSONDecoder().raw_decode(text.lstrip())
        except (ValueError, RecursionError):
            return ()
        if not isinstance(first_object, dict):
            return ()
        return list(_unwrap_rows(first_object)[0]) if _is_array(location) else list(first_object)

    def parse(self, data: Any, extent: TextExtent, options: ReadOptions) -> pa.Table:
        """See `TextTables.parse`."""
        with garbage_collector_pause:
            return self._parse(data, extent, options)

    @staticmethod
    def _parse(data: Any, extent: TextExtent, options: ReadOptions) -> pa.Table:
        rows = parse_lines(data) if isinstance(data, bytes) else data
        # pandas.DataFrame.to_json writes such a file by default. (An object with lists is a row with a whole episode.)
        if len(rows) == 1 and len(rows[0]) > 1 and all(map(_is_column, rows[0].values())):
            raise CellError(
                0, "it holds columns, not rows: write one object for each row (pandas: orient='records')"
            )
        return build_table(rows, extent.types, info_column_names(options), declared_column_types(options))


def _is_column(value: Any) -> bool:
    """Return whether a value may be a whole column: an object with row numbers as keys."""
    return isinstance(value, dict) and bool(value) and all(map(str.isdigit, value))


def _is_array(location: Location) -> bool:
    """Return whether the file is one list of objects, or one object with such a list alone (`{"episodes": [{…`)."""
    if _read_first_character(location) == b"[":
        return True
    if _DOCUMENT.match(read_head(location, _HEAD_BYTES).removeprefix(BOM)) is None:
        return False
    with open_text(location) as stream:
        data = bytes(stream.read()).removeprefix(BOM)
    try:
        return len(choose_parser(data)(data)) == 1
    except (ValueError, RecursionError):  # objects on lines
        return False


def _unwrap_rows(document: Any) -> Any:
    """Return the rows of a document: a list, the list of objects that an object holds alone, or one object."""
    if not isinstance(document, dict):
        return document
    values = list(document.values())
    if len(values) == 1 and isinstance(values[0], list) and values[0] and isinstance(values[0][0], dict):
        return values[0]
    return [document]


def _read_first_character(location: Location) -> bytes:
    """Return the first character that is not white space; empty if there is none at the beginning of the file."""
    return read_head(location, _HEAD_BYTES).removeprefix(BOM).lstrip()[:1]


def _read_array(location: Location) -> list[dict[str, Any]]:
    with open_text(location) as stream:
        data = bytes(stream.read()).removeprefix(BOM)
    try:
        rows = _unwrap_rows(choose_parser(data)(data))
    except (ValueError, RecursionError) as error:
        raise DataError(f"is not JSON: {error}", path=str(location)) from error
    if not rows:
        raise NoRowsError(location)
    with locate_errors(str(location)):
        return [require_object(value, row) for row, value in enumerate(rows)]
