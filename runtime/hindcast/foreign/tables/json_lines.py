"""Lines of JSON objects as tables of Arrow.

Arrow reads them columnwise. Where it cannot (NaN written as text, objects of several kinds in one column), the lines
are read one by one, to the same result or to a sentence with the line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.json as pj

from hindcast.episodes.convert import info_to_json
from hindcast.foreign.tables.whole_numbers import first_beyond, may_be_beyond, refusal
from hindcast.store.layout import CellError

_DEEPEST: Final = 64
_NOT_ONE_TYPE: Final = (pa.ArrowException, OverflowError, ValueError, TypeError, AttributeError)
_NO_OBJECT: Final = re.compile(
    rb"\A\s*(?:[^{\s]|\Z)|^[ \t\r]*null", re.MULTILINE
)  # Arrow fails there, or takes it for a row
_TWICE: Final = re.compile(r"Column\(/(.*?)\) was specified twice in row (\d+)")
_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Types = Mapping[str, pa.DataType]


def parse_lines(data: bytes, types: Types, infos: Collection[str] = ()) -> pa.Table:
    """The objects as rows.

    Args:
        data: lines; empty ones count for nothing.
        types: of columns whose type is known already; the others' are found out.
        infos: columns whose values become JSON text, whatever they are.

    Raises:
        CellError: a line that is no object, or a value of another type than those before it.
    """
    _check_text(data)
    if is_deep(data) or _NO_OBJECT.search(data) is not None:
        return _one_by_one(data, types, infos)
    known = {name: kind for name, kind in types.items() if name not in infos}
    try:
        table = read_json(data, known)
    except pa.ArrowException as error:
        twice = _TWICE.search(str(error))
        if twice is not None:
            raise CellError(int(twice[2]), f"its {twice[1]!r} is there twice") from error
        return _one_by_one(data, types, infos)
    table = _without_times(table, data, known)
    for name in infos:
        if name in table.column_names:
            table = _with_infos(table, data, name)
    return table


def refuse_beyond(data: bytes, table: pa.Table, told: Collection[str]) -> None:
    """Make sure that no whole number was made a float because no int64 holds it.

    Raises:
        CellError: one was, of a column whose type is not `told`.
    """
    names = may_be_beyond(table, told)
    for row, line in enumerate(_lines(data) if names else ()):
        values = json.loads(line)
        for name in names:
            found = first_beyond(values.get(name))
            if found is not None:
                raise refusal(row, name, found)


def read_json(data: bytes, types: Types) -> pa.Table:
    """What Arrow makes of it."""
    options = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    schema = pa.schema(list(types.items())) if types else None
    return pj.read_json(
        pa.py_buffer(data), read_options=options, parse_options=pj.ParseOptions(explicit_schema=schema)
    )


def _check_text(data: bytes) -> None:
    if data.isascii():
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        row = len(_lines(data[: error.start] + b"x")) - 1
        raise CellError(row, f"it is not UTF-8 text ({error.reason})") from error


def is_deep(data: bytes) -> bool:
    """Whether lists and objects may stand in each other deeper than data are, so deep that parsers fail."""
    upper = np.frombuffer(data, dtype=np.uint8) | 0x20  # brackets and braces are one then
    brackets = upper[(upper == ord("{")) | (upper == ord("}"))]
    depth = np.cumsum(np.where(brackets == ord("{"), 1, -1), dtype=np.int32)
    return bool(len(depth) and depth.max() > _DEEPEST)


def _without_times(table: pa.Table, data: bytes, types: Types) -> pa.Table:
    """Text that looks like a date is text."""
    times = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    return read_json(data, {**types, **dict.fromkeys(times, pa.string())}) if times else table


def _with_infos(table: pa.Table, data: bytes, name: str) -> pa.Table:
    """The infos as text. Arrow gives all of them the same entries, so that the text is made of the lines."""
    at = table.column_names.index(name)
    kind = table.schema.field(name).type
    if pa.types.is_string(kind):
        return table
    if pa.types.is_null(kind) or (pa.types.is_struct(kind) and not kind.num_fields):
        texts: list[str] = [""] * len(table)
    else:
        texts = [info_text(_object(line, row).get(name), row) for row, line in enumerate(_lines(data))]
    return table.set_column(at, name, pa.array(texts, pa.string()))


def info_text(info: Any, row: int) -> str:
    """An info as JSON text; nothing is empty text."""
    if info is None or info == {}:
        return ""
    if isinstance(info, str):
        return info
    if not isinstance(info, dict):
        raise CellError(row, f"its info is {info!r}: expected an object")
    return info_to_json(info)


def _one_by_one(data: bytes, types: Types, infos: Collection[str]) -> pa.Table:
    rows = [_object(line, row) for row, line in enumerate(_lines(data))]
    names = list(dict.fromkeys([*types, *(name for row in rows for name in row)]))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if name in infos:
            columns[name] = pa.array([info_text(value, i) for i, value in enumerate(values)], pa.string())
        else:
            columns[name] = _column(values, name, types.get(name))
    return pa.table(columns)


def _lines(data: bytes) -> list[bytes]:
    return [line for line in data.split(b"\n") if line.strip()]


def _object(line: bytes, row: int) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        value = _with_nan(line, row, error)
    if not isinstance(value, dict):
        raise CellError(row, f'it is {str(value)[:60]!r}: expected an object, such as {{"obs": …}}')
    if _depth(value) > _DEEPEST:
        raise CellError(row, f"its lists and objects stand in each other more than {_DEEPEST} deep")
    return value


def _with_nan(line: bytes, row: int, error: Exception) -> Any:
    """JSON as Python writes it, with NaN and Infinity; keys that are there twice are refused."""
    if not any(name.encode() in line for name in ("NaN", "Infinity")):
        raise CellError(row, f"it is not JSON: {error}") from error
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as other:
        raise CellError(row, f"it is not JSON: {other}") from other


def _depth(value: Any, above: int = 0) -> int:
    if above > _DEEPEST or not isinstance(value, dict | list):
        return above
    parts = value.values() if isinstance(value, dict) else value
    return max(
        (_depth(part, above + 1) for part in parts if isinstance(part, dict | list)), default=above + 1
    )


def _column(values: list[Any], name: str, kind: pa.DataType | None) -> pa.Array:
    for candidate in (values, _with_numbers(values)):
        try:
            return _array(candidate, kind)
        except _NOT_ONE_TYPE:
            continue
    row = _first_odd(_with_numbers(values), kind)
    shown = json.dumps(values[row])[:60]
    expected = f"expected {kind}" if kind is not None else "the rows before it hold other types"
    raise CellError(
        row,
        f"{name!r} is {shown}: {expected}; say its type under `readOptions: {{column_types: …}}`, or mend it",
    )


def _array(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    """The values as an array, exactly; Arrow itself would cut floats to integers."""
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
    if _has_floats(values):
        return pa.array(values).cast(kind)
    return pa.array(values, kind)


def _has_floats(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_floats, value))
    return isinstance(value, float)


def _with_numbers(value: Any) -> Any:
    """The value with "NaN", "Infinity" and "-Infinity" as the numbers that they stand for."""
    if isinstance(value, list):
        return [_with_numbers(part) for part in value]
    if isinstance(value, dict):
        return {key: _with_numbers(part) for key, part in value.items()}
    return _NUMBERS.get(value, value) if isinstance(value, str) else value


def _first_odd(values: Sequence[Any], kind: pa.DataType | None) -> int:
    """The first row with which the values are no column any more, by halving."""
    good, bad = 0, len(values)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _array(values[:middle], kind)
            good = middle
        except _NOT_ONE_TYPE:
            bad = middle
    return bad - 1
