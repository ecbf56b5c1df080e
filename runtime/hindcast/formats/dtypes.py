"""Dtypes that are safe to read from files that Hindcast did not write."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

_SAFE_DTYPE = re.compile(r"[<>|=]?(?:[biufc]\d{1,2}|U\d{1,6})\Z")
_OBJECT_DTYPE = re.compile(r"[<>|=]?O")


class RefusedValueError(Exception):
    """A value that is refused because reading it could run code, or because it is malformed."""


def parse_dtype(dtype: Any, kind: Any = b"") -> np.dtype:
    """Return the dtype that a type string names.

    Args:
        dtype: such as "<f4".
        kind: field of msgpack-numpy; not empty for dtypes that NumPy does not define.

    Raises:
        RefusedValueError: objects, structures, dates and other dtypes without a fixed binary form.
    """
    if kind == b"O" or (isinstance(dtype, str) and _OBJECT_DTYPE.match(dtype)):
        raise RefusedValueError("an object array, which is a pickle: Hindcast never unpickles data")
    if kind != b"" or not isinstance(dtype, str) or not _SAFE_DTYPE.match(dtype):
        raise RefusedValueError(
            f"an array of the dtype {dtype!r}: allowed are booleans, integers, floats and text"
        )
    try:
        return np.dtype(dtype)
    except TypeError as error:
        raise RefusedValueError(f"an array of the dtype {dtype!r}, which does not exist") from error
