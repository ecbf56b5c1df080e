"""A format's own options, as a user writes them under `readOptions`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa

from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.tables.naming import suggest_name

_TYPES_OPTION: Final = ("column_types", "columnTypes")
_INTEGERS: Final = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_TYPES: Final = {
    name: pa.type_for_alias(name) for name in ("bool", "string", "float32", "float64", *_INTEGERS)
}


def check_options(form: str, options: Mapping[str, Any], allowed: Collection[str]) -> dict[str, Any]:
    """The options by their names in snake case.

    Raises:
        DataError: one that the format does not have.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        own = re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
        if own not in allowed:
            if not allowed:
                raise DataError(f"{form} takes no read options; got {name!r}")
            raise DataError(f"{form} has no read option {name!r}: {suggest_name(own, allowed)}")
        found[own] = value
    return found


def is_shape(value: Any) -> bool:
    """Whether it is a list of sizes, as JSON or Python have them."""
    return isinstance(value, list | tuple) and all(type(size) is int and size > 0 for size in value)


def declared_column_types(options: ReadOptions) -> dict[str, pa.DataType]:
    """The option `column_types`: from a column of the data to the type of its numbers.

    Raises:
        DataError: a type that there is not.
    """
    given: Any = next((value for name, value in options.options.items() if name in _TYPES_OPTION), {})
    if not isinstance(given, Mapping):
        raise DataError(f"the read option 'column_types' is {given!r}: expected a map from column to type")
    types = {}
    for name, kind in given.items():
        if kind not in _TYPES:
            raise DataError(
                f"`column_types` gives {name!r} the type {kind!r}: {suggest_name(str(kind), _TYPES)}"
            )
        types[str(name)] = _TYPES[kind]
    return types
