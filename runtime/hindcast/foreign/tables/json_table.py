"""The format "JSON": one object a line, or one array of objects; gzip or plain."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa

from hindcast.errors import DataError
from hindcast.foreign.format import ReadOptions
from hindcast.foreign.tables.json_lines import parse_lines, refuse_beyond
from hindcast.foreign.tables.read_options import check_options, column_types_of
from hindcast.foreign.tables.text_files import BOM, Span, head_of, is_compressed, opened
from hindcast.foreign.tables.text_tables import Part, TextTables, info_names
from hindcast.foreign.tables.types import column_types
from hindcast.store.filesystem import Location
from hindcast.store.layout import CellError
from hindcast.store.spec import DataSpec

_ENDINGS: Final = (".json", ".jsonl", ".ndjson")
_ROWS_AT_ONCE: Final = 1 << 15
_HEAD: Final = 4096
_FIRST: Final = 1 << 20
_FOR_PYTHON: Final = re.compile(rb"NaN|Infinity|\d{19}")  # what orjson refuses, or may make a float of


class Json(TextTables):
    """A `Format`."""

    name = "JSON"

    def recognises(self, location: Location) -> bool:
        """See `Format.recognises`."""
        if not location.name.removesuffix(".gz").endswith(_ENDINGS):
            return False
        return _begins(location) in (b"{", b"[", b"")

    def begin(self, location: Location, spec: DataSpec, options: ReadOptions) -> Part:
        """See `TextTables.begin`."""
        check_options(self.name, options.options, ("column_types",))
        skip = len(BOM) if head_of(location, len(BOM)) == BOM else 0
        return Part(None, (skip, 0), None, column_types(spec), spec.leaves)

    def is_whole(self, location: Location) -> bool:
        """See `TextTables.is_whole`."""
        return is_compressed(location) or _is_array(location)

    def blocks(self, location: Location, options: ReadOptions) -> Iterator[tuple[Span, bytes]]:
        """See `TextTables.blocks`: an array's objects as lines."""
        if not _is_array(location):
            yield from super().blocks(location, options)
            return
        rows = _array_of(location)
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            lines = [_line(row) for row in rows[first : first + _ROWS_AT_ONCE]]
            yield Span(first + 1, first + 1, first, len(lines)), b"\n".join(lines)

    def first_names(self, location: Location, options: ReadOptions) -> Sequence[str]:  # noqa: ARG002
        """See `TextTables.first_names`: of the first object, where it is short."""
        text = head_of(location, _FIRST).removeprefix(BOM).decode(errors="replace").lstrip().removeprefix("[")
        try:
            first, _ = json.JSONDecoder().raw_decode(text.lstrip())
        except (ValueError, RecursionError):
            return ()
        return list(first) if isinstance(first, dict) else ()

    def parse(self, data: bytes, part: Part, options: ReadOptions) -> pa.Table:
        """See `TextTables.parse`."""
        table = parse_lines(data, part.types, info_names(options))
        if len(table) == 1 and table.num_columns > 1 and all(map(_holds_rows, table.schema.types)):
            raise CellError(
                0, "it holds columns, not rows: write one object for each row (pandas: orient='records')"
            )
        refuse_beyond(data, table, column_types_of(options))
        return table


def _holds_rows(kind: pa.DataType) -> bool:
    """Whether a value may be a whole column: a list, or an object whose names are numbers."""
    if pa.types.is_struct(kind):
        return bool(kind.num_fields) and all(field.name.isdigit() for field in kind.fields)
    return bool(pa.types.is_list(kind))


def _is_array(location: Location) -> bool:
    return _begins(location) == b"["


def _begins(location: Location) -> bytes:
    """The first character."""
    return head_of(location, _HEAD).removeprefix(BOM).lstrip()[:1]


def _array_of(location: Location) -> list[Any]:
    with opened(location) as stream:
        data = bytes(stream.read()).removeprefix(BOM)
    try:
        rows = json.loads(data) if _FOR_PYTHON.search(data) else orjson.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{location} is not JSON: {error}") from error
    if not rows:
        raise DataError(f"{location} holds no rows: delete it, or leave it out of the paths")
    return list(rows)


def _line(row: Any) -> bytes:
    try:
        return orjson.dumps(row)
    except TypeError:  # whole numbers beyond 64 bits
        return json.dumps(row).encode()
