"""Lines of JSON objects, and cells that hold JSON, as Arrow's tables.

Parsed by orjson and not by `pyarrow.json`, which needs each answer checked: it makes floats of whole numbers that no
int64 holds and dates of text, gives all infos the same entries, and dies of deep nesting. Numbers that orjson does not
keep (NaN, whole numbers beyond 64 bits) are left to Python's parser.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.formats.columns.infos import encode_info
from hindcast.formats.layout import CellError
from hindcast.formats.tables.recorded_spec import element_type
from hindcast.formats.tables.text_files import BOM

_DEEPEST: Final = 64
INT64_LIMIT: Final = 1 << 63
_NOT_ONE_TYPE: Final = (pa.ArrowException, OverflowError, ValueError, TypeError, AttributeError)
_LONG: Final = re.compile(rb"[\s:,\[-]\d{19}")  # a whole number that may take more than 64 bits
_ONE_A_LINE: Final = "; write one object per line, or all of them as one array"
_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Types = Mapping[str, pa.DataType]


def parse_lines(data: bytes) -> list[dict[str, Any]]:
    """The object of each line that is not empty.

    Raises:
        CellError: a line that is not an object, or has a key twice.
    """
    rows, parse = [], choose_parser(data)
    for number, line in enumerate(line for line in data.removeprefix(BOM).split(b"\n") if line.strip()):
        row = require_object(_parsed(line, number, parse, _ONE_A_LINE), number)
        if (count := line.count(b'":')) > len(row) and count > _num_keys(row):
            json.loads(line, object_pairs_hook=partial(_refuse_twice, number))
        rows.append(row)
    return rows


def require_object(value: Any, row: int) -> dict[str, Any]:
    """The value, which is an object.

    Raises:
        CellError: it is not.
    """
    if not isinstance(value, dict):
        raise CellError(row, f'it is {str(value)[:60]!r}: expected an object, such as {{"obs": …}}')
    return value


def choose_parser(data: bytes) -> Callable[[bytes], Any]:
    """What parses the JSON in `data` exactly: orjson if it can, which is several times as fast."""
    is_for_python = b"NaN" in data or b"Infinity" in data or _LONG.search(data) is not None
    return json.loads if is_for_python else orjson.loads


def build_table(
    rows: Sequence[Mapping[str, Any]], types: Types, infos: Collection[str], declared: Collection[str]
) -> pa.Table:
    """The objects as a table.

    Args:
        rows: one object each.
        types: of columns whose type is known already; other types are inferred.
        infos: columns whose values become JSON text, whatever their type.
        declared: columns for which the user gives a type: whole numbers beyond int64 become floats there.

    Raises:
        CellError: values of several types in one column.
    """
    columns = {}
    for name in dict.fromkeys([*types, *(name for row in rows for name in row)]):
        values = [row.get(name) for row in rows]
        if name in infos:
            columns[name] = pa.array([encode_info(value, i) for i, value in enumerate(values)], pa.string())
        else:
            columns[name] = _column(_rounded(values) if name in declared else values, name, types.get(name))
    return pa.table(columns)


def parse_json_cells(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray | None:
    """The values of text cells that all begin like JSON arrays or objects; None if they do not.

    Raises:
        CellError: they begin like JSON, but are not JSON of one type.
    """
    trimmed = pc.utf8_ltrim_whitespace(column)
    begins = pc.or_(pc.starts_with(trimmed, "["), pc.starts_with(trimmed, "{"))
    if not len(column) or not pc.all(begins).as_py():
        return None
    cells = [cell.encode() for cell in column.to_pylist()]
    parse = choose_parser(b" ".join(cells))
    try:
        values = [_parsed(cell, row, parse) for row, cell in enumerate(cells)]
        return pa.chunked_array([_column(values, name, None)])
    except CellError as error:
        raise CellError(error.row, f"{name!r} begins like JSON, and cannot be read: {error}") from error


def _parsed(text: bytes, row: int, parse: Callable[[bytes], Any], expected: str = "") -> Any:
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        raise CellError(row, f"it is not JSON: {error}{expected}") from error


def _num_keys(value: Mapping[str, Any]) -> int:
    return len(value) + sum(_num_keys(part) for part in value.values() if isinstance(part, dict))


def _refuse_twice(row: int, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise CellError(row, f"its {key!r} occurs twice")
        found[key] = value
    return found


def _column(values: list[Any], name: str, kind: pa.DataType | None) -> pa.Array:
    for change in (list, _with_numbers):
        try:
            array = _array(change(values), kind)
        except _NOT_ONE_TYPE:
            continue
        if str(array.type).count("<") > _DEEPEST:
            raise CellError(0, f"the lists and objects of {name!r} are nested more than {_DEEPEST} deep")
        return array
    row = _first_odd(_with_numbers(values), kind)
    number = find_beyond_int64(values[row])
    if number is not None:
        raise beyond_int64_error(row, name, number)
    shown = json.dumps(values[row])[:60]
    expected = f"expected {kind}" if kind is not None else "the rows before it hold other types"
    raise CellError(
        row,
        f"{name!r} is {shown}: {expected}; say its type under `readOptions: {{column_types: …}}`, or fix it",
    )


def beyond_int64_error(row: int, name: str, number: object) -> CellError:
    """The error for a whole number that does not fit into int64."""
    return CellError(
        row,
        f"{name!r} is {number}, a whole number that does not fit into int64 and that a float would round: write it as "
        "text, or say float64 for it under `readOptions: {column_types: …}`",
    )


def _array(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    """The values as an array, exactly; Arrow itself would cut floats to integers, and leave out unknown keys."""
    if kind is None:
        return pa.array(values)
    if pa.types.is_struct(kind):
        unknown = {key for value in values for key in value or ()} - {field.name for field in kind.fields}
        if unknown:
            raise ValueError(f"there is {sorted(unknown)[0]!r}")
        parts = [
            _array([None if value is None else value.get(field.name) for value in values], field.type)
            for field in kind.fields
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind.fields))
    if pa.types.is_integer(element_type(kind)):
        with suppress(OverflowError):  # of uint64, which only whole numbers need
            found = pa.array(values)
            if pa.types.is_floating(element_type(found.type)):
                return found.cast(kind)
    return pa.array(values, kind)


def _with_numbers(value: Any) -> Any:
    """The value with "NaN", "Infinity" and "-Infinity" as numbers."""
    return _mapped(value, lambda leaf: _NUMBERS.get(leaf, leaf) if isinstance(leaf, str) else leaf)


def _rounded(value: Any) -> Any:
    """The value, with whole numbers that do not fit into int64 as floats."""
    return _mapped(value, lambda leaf: leaf if find_beyond_int64(leaf) is None else float(leaf))


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list):
        return [_mapped(part, change) for part in value]
    if isinstance(value, dict):
        return {key: _mapped(part, change) for key, part in value.items()}
    return change(value)


def find_beyond_int64(value: Any) -> int | None:
    """The first whole number in a JSON value that does not fit into int64."""
    if isinstance(value, int):
        return None if -INT64_LIMIT <= value < INT64_LIMIT else value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for part in parts if (found := find_beyond_int64(part)) is not None), None)


def _first_odd(values: Sequence[Any], kind: pa.DataType | None) -> int:
    """The first row that does not fit into a column with those before it, by bisection."""
    good, bad = 0, len(values)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _array(values[:middle], kind)
            good = middle
        except _NOT_ONE_TYPE:
            bad = middle
    return bad - 1
