"""JSON of other tools: documents in which pandas writes a whole data frame, and MongoDB's values of one key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_UNNAMED_INDEX: Final = "index"
"""What pandas calls an index without a name."""


def unwrap_rows(document: Any) -> Sequence[Any] | None:
    """Return the rows of a document; None if it is one row.

    A document is a list of rows, an object that holds such a list alone, or a data frame in an orient of pandas:
    `split`, `table`, `index` or `columns`.
    """
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        return None
    values = list(document.values())
    if document.keys() in ({"columns", "data"}, {"columns", "index", "data"}):
        return _name_cells(document["columns"], document["data"])
    if document.keys() == {"schema", "data"} and isinstance(document["schema"], dict):
        return _read_table(document["schema"], document["data"])
    if len(values) == 1 and isinstance(values[0], list) and values[0] and isinstance(values[0][0], dict):
        return values[0]
    return _read_labelled_cells(document)


def _read_table(schema: Mapping[str, Any], rows: Any) -> list[Any] | None:
    if not isinstance(rows, list):
        return None
    return list(map(_without_index, rows)) if schema.get("primaryKey") == [_UNNAMED_INDEX] else rows


def _read_labelled_cells(document: Mapping[str, Any]) -> Sequence[Any] | None:
    """Return the rows of an object of objects, with the labels of rows (digits) as its keys or as theirs."""
    values = list(document.values())
    if not values or not all(
        isinstance(value, dict) and value.keys() == values[0].keys() for value in values
    ):
        return None
    has_row_labels, has_cell_labels = all(map(str.isdigit, document)), all(map(str.isdigit, values[0]))
    if has_row_labels and not has_cell_labels:
        return values
    if has_cell_labels and values[0] and not has_row_labels and len(values) > 1:
        return [{name: cells[label] for name, cells in document.items()} for label in values[0]]
    return None


def find_duplicate_name(document: Any) -> str | None:
    """Return the first name that two columns of a data frame in the orient `split` have; None if there is none."""
    names = document.get("columns") if isinstance(document, dict) else None
    if not isinstance(names, list):
        return None
    return next((name for i, name in enumerate(names) if isinstance(name, str) and name in names[:i]), None)


def _name_cells(names: Any, rows: Any) -> list[dict[str, Any]] | None:
    """Return rows of named cells; None if the rows are no lists of as many cells as there are names."""
    if not all(isinstance(items, list) for items in (names, rows)) or not all(
        isinstance(name, str) for name in names
    ):
        return None
    if not all(isinstance(row, list) and len(row) == len(names) for row in rows):
        return None
    return [dict(zip(names, row, strict=True)) for row in rows]


def _without_index(row: Any) -> Any:
    if not isinstance(row, dict):
        return row
    return {name: value for name, value in row.items() if name != _UNNAMED_INDEX}


def from_extended_json(value: Any) -> Any:
    """Return a JSON value with plain values in place of MongoDB's: `{"$numberDouble": "0.5"}` becomes 0.5.

    Times become ISO 8601 in UTC. Objects of other kinds (`$binary`, `$regularExpression`) stay as they are.
    """
    if isinstance(value, list):
        return [from_extended_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (key,) = value
        convert = _CONVERTERS.get(key)
        if convert is not None:
            with suppress(ValueError, TypeError, OverflowError):  # then another tool has written the object
                return convert(value[key])
    return {name: from_extended_json(item) for name, item in value.items()}


def _to_number(text: str) -> int | float:
    """Convert `$numberDecimal`. A whole number stays exact: later checks refuse it where a float would round it."""
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else float(text)


def _to_iso_time(date: Any) -> str:
    """Convert `$date`: text, milliseconds since 1970, or these as `{"$numberLong": …}`."""
    milliseconds = from_extended_json(date)
    return milliseconds if isinstance(milliseconds, str) else f"{np.datetime64(milliseconds, 'ms')}Z"


_CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "$oid": str,
    "$uuid": str,
    "$numberInt": int,
    "$numberLong": int,
    "$numberDouble": float,
    "$numberDecimal": _to_number,
    "$date": _to_iso_time,
    "$undefined": lambda _: None,
}
"""MongoDB's key of a value -> its conversion."""
