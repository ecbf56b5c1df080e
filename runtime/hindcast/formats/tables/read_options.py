"""Checking the options of a format that a user sets under `readOptions`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa

from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.tables.naming import suggest_name

_SEPARATED_NUMBER: Final = re.compile(r"\s*[+-]?\d+(?:\.\d+)*(?:[,' \u00a0\u202f]\d+)+(?:\.\d+)?\s*")
_TYPES_OPTION_NAMES: Final = ("column_types", "columnTypes")
_FLAG_WORDS_OPTIONS: Final = ("true_values", "false_values")
"""Options of pandas and Arrow that no format has."""
_INTEGER_NAMES: Final = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_TYPES_BY_NAME: Final = {
    name: pa.type_for_alias(name) for name in ("bool", "string", "float32", "float64", *_INTEGER_NAMES)
}


def check_options(
    format_name: str, options: Mapping[str, Any], allowed: Collection[str] | None
) -> dict[str, Any]:
    """Check the names of a format's options; return the options with names in snake case.

    Args:
        format_name: name of the format, for messages.
        options: the options of the user.
        allowed: names of the format's options, in snake case; None stands for no options.

    Raises:
        DataError: the format does not have one of the options.
    """
    allowed_names = allowed or ()
    checked_options: dict[str, Any] = {}
    for name, value in options.items():
        snake_name = re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
        if snake_name not in allowed_names:
            if not allowed_names:
                raise DataError(f"has {name!r}, but {format_name} has no options", "readOptions")
            advice = suggest_name(snake_name, allowed_names)
            if snake_name in _FLAG_WORDS_OPTIONS:
                advice = "write flags as true and false, or as 1 and 0, in the file"
            raise DataError(f"has {name!r}, which {format_name} does not have; {advice}", "readOptions")
        checked_options[snake_name] = value
    return checked_options


def separator_advice(text: str, options: ReadOptions) -> str:
    """Return advice if a text is a number with a decimal comma or separators of thousands; otherwise "".

    Args:
        text: the text.
        options: options of the user; an option that is already set is not advised.
    """
    if _SEPARATED_NUMBER.fullmatch(text) is None:
        return ""
    advice, thousands = "", options.options.get("thousands")
    is_point_set = not {"decimal_point", "decimalPoint"}.isdisjoint(options.options)
    if "," in text and thousands != "," and not is_point_set:
        advice += "; if the comma is the decimal point, set readOptions.decimal_point to ','"
    if thousands is None:
        advice += "; if the comma or another character separates thousands, set readOptions.thousands to it (CSV only)"
    return advice


def is_shape(value: Any) -> bool:
    """Return whether a value is a list or tuple of positive sizes."""
    return isinstance(value, list | tuple) and all(type(size) is int and size > 0 for size in value)


def declared_column_types(options: ReadOptions) -> dict[str, pa.DataType]:
    """Return the option `column_types`: source column -> type of its elements; empty if the user did not set it.

    Raises:
        DataError: a type is unknown.
    """
    column_types: Any = next(
        (value for name, value in options.options.items() if name in _TYPES_OPTION_NAMES), {}
    )
    if not isinstance(column_types, Mapping):
        raise DataError(f"readOptions.column_types is {column_types!r}: expected a map from column to type")
    types = {}
    for name, type_name in column_types.items():
        if type_name not in _TYPES_BY_NAME:
            raise DataError(
                f"`column_types` gives {name!r} the type {type_name!r}: {suggest_name(str(type_name), _TYPES_BY_NAME)}"
            )
        types[str(name)] = _TYPES_BY_NAME[type_name]
    return types
