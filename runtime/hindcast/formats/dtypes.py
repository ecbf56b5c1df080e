"""Which values are read from files that Hindcast did not write."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

_STORABLE = re.compile(r"[<>|=]?(?:[biufc]\d{1,2}|U\d{1,6})\Z")
_OBJECT = re.compile(r"[<>|=]?O")


class RefusedValueError(Exception):
    """A value that is not read, because reading it could run code, or that is not a value at all."""


def parse_dtype(dtype: Any, kind: Any = b"") -> np.dtype:
    """The dtype that a type string names.

    Args:
        dtype: such as "<f4".
        kind: msgpack-numpy's; not empty for dtypes that NumPy does not define.

    Raises:
        Refused: objects, structures, dates and other dtypes without a fixed binary form.
    """
    if kind == b"O" or (isinstance(dtype, str) and _OBJECT.match(dtype)):
        raise RefusedValueError("an object array, which is a pickle: Hindcast never unpickles data")
    if kind != b"" or not isinstance(dtype, str) or not _STORABLE.match(dtype):
        raise RefusedValueError(
            f"an array of the dtype {dtype!r}: allowed are booleans, integers, floats and text"
        )
    try:
        return np.dtype(dtype)
    except TypeError as error:
        raise RefusedValueError(f"an array of the dtype {dtype!r}, which does not exist") from error
