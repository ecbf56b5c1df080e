"""Dtypes that are safe to read from files that Hindcast did not write."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

_SAFE_DTYPE = re.compile(r"[<>|=]?(?:[biufc]\d{1,2}|U\d{1,6})\Z")
_OBJECT_DTYPE = re.compile(r"[<>|=]?O")


class RefusedValueError(Exception):
    """A value that Hindcast refuses to read, because reading it could run code or because the value is malformed.

    The message is a noun phrase, which callers complete: "it holds <message>".
    """


def parse_dtype(type_string: Any, kind: Any = b"") -> np.dtype:
    """Return the dtype that a type string names.

    Args:
        type_string: such as "<f4".
        kind: field `kind` of msgpack-numpy: b"O" for objects, b"V" for structures, empty for other dtypes.

    Raises:
        RefusedValueError: the dtype is not boolean, integer, float, complex or fixed-width text.
    """
    if kind == b"O" or (isinstance(type_string, str) and _OBJECT_DTYPE.match(type_string)):
        raise RefusedValueError("an object array, which is a pickle: Hindcast never unpickles data")
    if kind != b"" or not isinstance(type_string, str) or not _SAFE_DTYPE.match(type_string):
        raise RefusedValueError(
            f"an array of the dtype {type_string!r}: allowed are booleans, integers, floats, complex numbers and text"
        )
    try:
        return np.dtype(type_string)
    except TypeError as error:
        raise RefusedValueError(f"an array of the dtype {type_string!r}, which does not exist") from error
