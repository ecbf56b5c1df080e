"""The format "JSON": one object per line, or one array of objects; plain or gzip."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from hindcast.errors import DataError
from hindcast.formats.format import NoRowsError, ReadOptions, has_suffix
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.decoding import locate_errors
from hindcast.formats.tables.json_documents import find_duplicate_name, from_extended_json, unwrap_rows
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
_DOCUMENT: Final = re.compile(
    rb'\s*\{\s*(?:"[^"]*"\s*:\s*\[\s*\{|"columns"\s*:\s*\[|"schema"\s*:\s*\{\s*"fields"|'
    rb'"[^"]*"\s*:\s*\{\s*"[0-9]+"\s*:|"[0-9]+"\s*:\s*\{)'
)
"""The beginning of one object that may hold all rows: a list of objects under a key, or a data frame of pandas."""
_NO_VALUES: Final = re.compile(rb"[\s\[]*(?:\{\s*\}[\s,]*)*[\s\]]*")
"""Text without a value, such as `{}`, which tools write in place of metadata that they do not have."""
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

    def inspect(self, location: Location, spec: DataSpec, options: ReadOptions) -> TextExtent:
        """See `TextTables.inspect`."""
        check_options(self.name, options.options, self.read_option_names)
        head = read_head(location, _HEAD_BYTES).removeprefix(BOM)
        if len(head) < _HEAD_BYTES and _NO_VALUES.fullmatch(head):
            raise NoRowsError(location)
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
        rows = unwrap_rows(first_object) if _is_array(location) else None
        return list(rows[0] if rows and isinstance(rows[0], dict) else first_object)

    def parse(self, data: Any, extent: TextExtent, options: ReadOptions) -> pa.Table:
        """See `TextTables.parse`."""
        with garbage_collector_pause:
            return self._parse(data, extent, options)

    @staticmethod
    def _parse(data: Any, extent: TextExtent, options: ReadOptions) -> pa.Table:
        rows = parse_lines(data) if isinstance(data, bytes) else data
        return build_table(rows, extent.types, info_column_names(options), declared_column_types(options))


def _is_array(location: Location) -> bool:
    """Return whether the file is one list of objects, or one object that holds all rows (`{"episodes": [{…`)."""
    if _read_first_character(location) == b"[":
        return True
    head = read_head(location, _HEAD_BYTES).removeprefix(BOM)
    if _DOCUMENT.match(head) is None or _has_objects_on_lines(read_head(location, _FIRST_OBJECT_BYTES)):
        return False
    with open_text(location) as stream:
        data = bytes(stream.read()).removeprefix(BOM)
    try:
        document = choose_parser(data)(data)
    except (ValueError, RecursionError):  # objects on lines
        return False
    return unwrap_rows(document) is not None


def _has_objects_on_lines(head: bytes) -> bool:
    """Return whether the first line of a text holds a whole object, and another one begins after it.

    The answer is False for a line longer than the head; then the parser of the whole text finds the second object.
    """
    line, _, rest = head.removeprefix(BOM).lstrip().partition(b"\n")
    try:
        return rest.lstrip().startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _read_first_character(location: Location) -> bytes:
    """Return the first character that is not white space; empty if there is none at the beginning of the file."""
    return read_head(location, _HEAD_BYTES).removeprefix(BOM).lstrip()[:1]


def _read_array(location: Location) -> list[dict[str, Any]]:
    with open_text(location) as stream:
        data = bytes(stream.read()).removeprefix(BOM)
    try:
        document = choose_parser(data)(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"is not JSON: {error}", path=str(location)) from error
    rows = unwrap_rows(document)
    if not rows:
        raise NoRowsError(location)
    duplicate_name = find_duplicate_name(document)
    if duplicate_name is not None:
        raise DataError(f"has two columns {duplicate_name!r}: rename one", path=str(location))
    if all(isinstance(row, list) for row in rows):
        raise DataError(
            "holds rows without the names of their columns, as pandas writes with orient='values'",
            path=str(location),
            remedy="write it again with names, in the order of the columns: "
            f"pd.DataFrame(json.loads(Path({location.name!r}).read_text()), columns=['obs', 'actions', …])"
            ".to_json('steps.json', orient='records', double_precision=15)",
        )
    with locate_errors(str(location)):
        rows = [require_object(value, row) for row, value in enumerate(rows)]
    return [from_extended_json(row) for row in rows] if b'"$' in data else rows
