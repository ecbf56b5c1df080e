"""Parsing lines of JSON objects, and cells that hold JSON, into Arrow tables.

orjson is used instead of `pyarrow.json`, which converts integers beyond int64 to floats and some texts to dates, gives
all infos the same entries, and crashes on deep nesting. If there are numbers that orjson does not preserve (NaN,
integers beyond 64 bits), Python's parser is used.
"""

from __future__ import annotations

import gc
import json
import math
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.formats.columns.infos import encode_info
from hindcast.formats.layout import CellError, bisect_first_invalid
from hindcast.formats.tables.json_documents import from_extended_json
from hindcast.formats.tables.recorded_spec import element_type
from hindcast.formats.tables.text_files import BOM

_MAX_DEPTH: Final = 64
"""Maximum number of lists and objects within each other; Arrow crashes on deep nesting."""
_INT64_LIMIT: Final = 1 << 63
_EXACT_LIMIT: Final = 1 << 53  # float64 holds all integers up to it
_TYPE_ERRORS: Final = (pa.ArrowException, OverflowError, ValueError, TypeError, AttributeError)
JSON_SUFFIXES: Final = (".json", ".jsonl", ".ndjson")
LONG_INTEGER: Final = re.compile(rb"[\s:,\[-]\d{19}")
"""An integer that may have more than 64 bits."""
_KEY_END: Final = re.compile(rb'"\s*:')
_LINE_ADVICE: Final = "; write one object per line, or all objects as one array"
TYPE_ADVICE: Final = "; set its type under `readOptions: {column_types: …}`, or fix it"
DECLARED_TYPE_ADVICE: Final = ", which `column_types` sets; set another type there, or fix it"
_NON_FINITE_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Types = Mapping[str, pa.DataType]


class _GarbageCollectorPause:
    """A context in which Python's garbage collector is off; several threads may be in it.

    Parsed rows have no reference cycles, but the collector would search them again and again, for half of the time that
    reading takes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_users = 0
        self._should_enable = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._num_users:
                self._should_enable = gc.isenabled()
                gc.disable()
            self._num_users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_users -= 1
            if not self._num_users and self._should_enable:
                gc.enable()


garbage_collector_pause: Final = _GarbageCollectorPause()


def parse_lines(data: bytes) -> list[dict[str, Any]]:
    """Parse the lines that are not empty; each holds an object.

    Raises:
        CellError: a line is not an object, or has a duplicate key; the error's `row` does not count empty lines.
    """
    rows, parse = [], choose_parser(data)
    may_have_blanks = b'" ' in data or b'"\t' in data
    for i, line in enumerate(filter(bytes.strip, data.removeprefix(BOM).split(b"\n"))):
        row = require_object(_parse_json(line, i, parse, _LINE_ADVICE), i)
        # Only Python's parser shows duplicate keys, but it is slow. A line has a duplicate only if it has more ends of
        # keys than the result has keys.
        num_key_ends = _count_key_ends(line) if may_have_blanks else line.count(b'":')
        if num_key_ends > len(row) and num_key_ends > _count_keys(row):
            json.loads(line, object_pairs_hook=partial(_refuse_duplicate_keys, i))
        rows.append(row)
    return [from_extended_json(row) for row in rows] if b'"$' in data else rows


def require_object(value: Any, row: int) -> dict[str, Any]:
    """Return the value of a row, after checking that it is an object.

    Raises:
        CellError: the value is not an object.
    """
    if not isinstance(value, dict):
        raise CellError(row, f'it is {str(value)[:60]!r}: expected an object, such as {{"obs": …}}')
    return value


_PRINTED_VALUE: Final = r"(?:True|False|[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|nan|inf))"
_ARRAY_TOKEN: Final = re.compile(rf"[\[\]]|{_PRINTED_VALUE}")
_PRINTED_ARRAY: Final = re.compile(
    rf"\s*\[(?:[\s\[]|(?:{_PRINTED_VALUE}(?=[\s,\]])|\])(?:\s*,)?)*\]\s*"  # a comma follows a value or an array
)
_VALUE_IN_PARENTHESES: Final = re.compile(rf"\(\s*{_PRINTED_VALUE}\s*\)")
_PRINTED_CALL: Final = re.compile(
    r"\s*(?:[a-z]+\.)?(?:array|tensor)\((.*?\])(?:,\s*\w+=[^\[\]]*)?\)\s*", re.DOTALL
)
_PRINTED_SCALAR: Final = re.compile(r"(?:np|numpy)\.(?:float|int|uint|bool)\d*_?\(([^()]*)\)")
_ELLIPSIS: Final = re.compile(r"(?<=[\s,\[])\.\.\.(?:\s*,|(?=[\s\]]))")
"""What NumPy and PyTorch print in place of most numbers of a large array."""
_PARENTHESES_TO_BRACKETS: Final = str.maketrans("()", "[]")
_JSON_OF_PRINTED_VALUE: Final = {
    "True": "true",
    "False": "false",
    "nan": "NaN",
    "inf": "Infinity",
    "-inf": "-Infinity",
}


def choose_parser(data: bytes) -> Callable[[bytes], Any]:
    """Return a parser that preserves the numbers in `data`: if possible orjson, which is several times as fast."""
    needs_python = b"NaN" in data or b"Infinity" in data or LONG_INTEGER.search(data) is not None
    return json.loads if needs_python else orjson.loads


def build_table(
    rows: Sequence[Mapping[str, Any]],
    types: Types,
    info_columns: Collection[str],
    declared_types: Types,
) -> pa.Table:
    """Build a table from objects.

    Args:
        rows: one object for each row.
        types: known types of columns; other types are inferred.
        info_columns: columns that become JSON text, whatever their type.
        declared_types: types of columns that the user has set. Integers that the type cannot hold exactly become
            floats here, and `TextTables` casts the columns to the type.

    Raises:
        CellError: a column has values of several types or of another type than the known one, an integer is beyond
            int64, lists are nested too deeply, or an info is not a dict.
    """
    columns = {}
    for name in dict.fromkeys(chain(types, chain.from_iterable(rows))):
        values = [row.get(name) for row in rows]
        if name in info_columns:
            columns[name] = pa.array([encode_info(value, i) for i, value in enumerate(values)], pa.string())
        else:
            if name in declared_types:
                is_float = pa.types.is_floating(declared_types[name])
                values = _round_large_integers(values, _EXACT_LIMIT if is_float else _INT64_LIMIT)
            advice = DECLARED_TYPE_ADVICE if name in declared_types else TYPE_ADVICE
            columns[name] = _build_column(values, name, types.get(name), advice)
    return pa.table(columns)


class _ShortenedArrayError(CellError):
    """A cell holds an array of which only the first and last numbers were printed."""


def parse_json_cells(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray | None:
    """Parse text cells if all of them begin like a JSON array or object, or are arrays that NumPy or Python printed.

    Returns:
        The values; None if the cells are other text.

    Raises:
        CellError: a cell is not JSON, or the cells have several types.
    """
    trimmed_cells = pc.utf8_ltrim_whitespace(column)
    is_json = pc.or_(pc.starts_with(trimmed_cells, "["), pc.starts_with(trimmed_cells, "{"))
    if not len(column) or not pc.all(pc.or_(is_json, pc.match_substring(trimmed_cells, "("))).as_py():
        return None
    texts = column.to_pylist()
    try:
        try:
            values = _parse_json_texts(texts)
        except CellError:
            arrays = [array for array in map(_printed_array_to_json, texts) if array is not None]
            if len(arrays) < len(texts):
                _refuse_unreadable_cell(texts, name)
                raise
            values = _parse_json_texts(arrays)
        return pa.chunked_array([_build_column(values, name, None)])
    except CellError as error:
        if not pc.all(is_json).as_py():
            return None
        if isinstance(error, _ShortenedArrayError):
            raise
        raise CellError(error.row, f"{name!r} begins like JSON but cannot be read: {error}") from error


def _parse_json_texts(texts: Sequence[str]) -> list[Any]:
    cells = [text.encode() for text in texts]
    parse = choose_parser(b" ".join(cells))
    return [_parse_json(cell, row, parse) for row, cell in enumerate(cells)]


def _refuse_unreadable_cell(texts: Sequence[str], name: str) -> None:
    """Refuse the first cell that is neither JSON nor a printed array, if there is one."""
    for row, text in enumerate(texts):
        if _printed_array_to_json(text) is not None:
            continue
        if _ELLIPSIS.search(text) and _printed_array_to_json(_ELLIPSIS.sub(" ", text)) is not None:
            raise _ShortenedArrayError(
                row,
                f"{name!r} was shortened when it was printed, as NumPy does with '...', so its numbers are lost: write "
                "it as a list, or print it after np.set_printoptions(threshold=sys.maxsize)",
            )
        _parse_json(text.encode(), row, choose_parser(text.encode()))


def _printed_array_to_json(text: str) -> str | None:
    """Convert a printed array, such as `[ 0.5 -1.  2e-05]`, `array([1])` or `(1, 2)`, to JSON; None for other text."""
    text = _PRINTED_SCALAR.sub(r"\1", text)
    call = _PRINTED_CALL.fullmatch(text)
    text = text if call is None else call[1]
    # An interval such as `(0.0, 5.0]`, or a value in parentheses. A tuple of one value would have a comma.
    if text.count("(") != text.count(")") or _VALUE_IN_PARENTHESES.search(text) is not None:
        return None
    text = text.translate(_PARENTHESES_TO_BRACKETS)
    if _PRINTED_ARRAY.fullmatch(text) is None:
        return None
    tokens: list[str] = []
    for token in _ARRAY_TOKEN.findall(text):
        if tokens and tokens[-1] != "[" and token != "]":
            tokens.append(",")
        is_exact = token in "[]" or token.lstrip("-").isdigit()
        tokens.append(token if is_exact else _JSON_OF_PRINTED_VALUE.get(token) or repr(float(token)))
    return "".join(tokens)


def _parse_json(text: bytes, row: int, parse: Callable[[bytes], Any], advice: str = "") -> Any:
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        raise CellError(row, f"it is not JSON: {error}{advice}") from error


def _count_key_ends(line: bytes) -> int:
    """Count the quotes before a colon: one for each key, and perhaps some within texts."""
    # Few writers put blanks before the colon, and counting is three times as fast as the pattern.
    return len(_KEY_END.findall(line)) if b'" ' in line or b'"\t' in line else line.count(b'":')


def _count_keys(value: Mapping[str, Any]) -> int:
    return len(value) + sum(_count_keys(child) for child in value.values() if isinstance(child, dict))


def _refuse_duplicate_keys(row: int, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for key, value in pairs:
        if key in entries:
            raise CellError(row, f"the key {key!r} occurs twice")
        entries[key] = value
    return entries


def _build_column(
    values: list[Any], name: str, column_type: pa.DataType | None, advice: str = TYPE_ADVICE
) -> pa.Array:
    # texts such as "NaN" become numbers only if the column cannot be built without that
    for convert in (list, _parse_non_finite_texts):
        try:
            array = _build_array(convert(values), column_type)
        except _TYPE_ERRORS:
            continue
        if _is_deeper(array.type, _MAX_DEPTH):
            raise CellError(0, f"the lists and objects of {name!r} are nested more than {_MAX_DEPTH} deep")
        return array
    row = _find_first_mismatch(_parse_non_finite_texts(values), column_type)
    number = find_beyond_int64(values[row])
    if number is not None:
        raise beyond_int64_error(row, name, number)
    number = _find_large_integer(values[row], _EXACT_LIMIT)
    if number is not None:
        raise rounded_integer_error(row, name, number)
    value_text = json.dumps(values[row])[:60]
    if column_type is None:
        conflict = "the rows before it hold other types" if row else "its elements have several types"
        raise CellError(row, f"{name!r} is {value_text}: {conflict}; write one type in all rows")
    raise CellError(row, f"{name!r} is {value_text}: expected {column_type}{advice}")


def _is_deeper(arrow_type: pa.DataType, depth: int) -> bool:
    """Return True if lists and structs are nested more than `depth` deep in the type."""
    if depth < 0:
        return True
    children = (arrow_type.field(i).type for i in range(arrow_type.num_fields))
    return any(_is_deeper(child, depth - 1) for child in children)


def beyond_int64_error(row: int, name: str, number: object) -> CellError:
    """Make the error for an integer beyond int64."""
    text = str(number)
    text = text if len(text) <= 60 else f"{text[:60]}… ({len(text)} characters)"
    return CellError(
        row,
        f"{name!r} is {text}, a whole number that does not fit into int64 and that a float would round: write it as "
        "text, or set float64 for it under `readOptions: {column_types: …}`",
    )


def _build_array(values: Sequence[Any], array_type: pa.DataType | None) -> pa.Array:
    """Build an array without losses; Arrow itself would truncate floats to integers and drop unknown keys."""
    if array_type is None:
        return pa.array(values)
    if pa.types.is_struct(array_type):
        unknown_keys = {key for value in values for key in value or ()} - {
            field.name for field in array_type.fields
        }
        if unknown_keys:
            raise ValueError(f"the key {sorted(unknown_keys)[0]!r} is unknown")
        child_arrays = [
            _build_array([None if value is None else value.get(field.name) for value in values], field.type)
            for field in array_type.fields
        ]
        return pa.StructArray.from_arrays(child_arrays, fields=list(array_type.fields))
    if pa.types.is_integer(element_type(array_type)):
        with suppress(OverflowError):  # integers beyond int64 need no check for truncation
            array = pa.array(values)
            if pa.types.is_floating(element_type(array.type)):
                return array.cast(array_type)
    return pa.array(values, array_type)


def _parse_non_finite_texts(value: Any) -> Any:
    """Replace the texts "NaN", "Infinity" and "-Infinity" in a JSON value by numbers."""
    return _map_leaves(
        value, lambda leaf: _NON_FINITE_NUMBERS.get(leaf, leaf) if isinstance(leaf, str) else leaf
    )


def _round_large_integers(value: Any, limit: int) -> Any:
    """Convert integers beyond a limit in a JSON value to floats."""
    return _map_leaves(value, lambda leaf: leaf if _find_large_integer(leaf, limit) is None else float(leaf))


def _map_leaves(value: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, list):
        return [_map_leaves(child, convert) for child in value]
    if isinstance(value, dict):
        return {key: _map_leaves(child, convert) for key, child in value.items()}
    return convert(value)


def rounded_integer_error(row: int, name: str, number: object) -> CellError:
    """Make the error for an integer that fits into int64 but that float64 rounds, in a column of floats."""
    return CellError(
        row,
        f"{name!r} is {number}, a whole number that a float would round: set float64 for it under `readOptions: "
        "{column_types: …}` if rounding does no harm",
    )


def find_beyond_int64(value: Any) -> int | None:
    """Return the first integer in a JSON value that is beyond int64; None if there is no such integer."""
    return _find_large_integer(value, _INT64_LIMIT)


def _find_large_integer(value: Any, limit: int) -> int | None:
    """Return the first integer in a JSON value that is not in [-limit, limit); None if there is no such integer."""
    if isinstance(value, int):
        return None if -limit <= value < limit else value
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return None
    return next(
        (number for child in value if (number := _find_large_integer(child, limit)) is not None), None
    )


def _find_first_mismatch(values: Sequence[Any], column_type: pa.DataType | None) -> int:
    """Find the first row that cannot be in one array with the rows before it."""

    def has_mismatch(stop: int) -> bool:
        try:
            _build_array(values[:stop], column_type)
        except _TYPE_ERRORS:
            return True
        return False

    return bisect_first_invalid(len(values), has_mismatch)
