"""Values in JSON: arrays as lists, tuples marked as such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

_TUPLE: Final = "tuple"


def plain(value: Any) -> Any:
    """What JSON can hold; `with_arrays` takes it back."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return {_TUPLE: [plain(part) for part in value]}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value


def with_arrays(value: Any) -> Any:
    """What `plain` was given, with arrays of int64 and float32 in place of lists."""
    if isinstance(value, Mapping):
        if value.keys() == {_TUPLE}:
            return tuple(with_arrays(part) for part in value[_TUPLE])
        return {key: with_arrays(part) for key, part in value.items()}
    if isinstance(value, list):
        array = np.array(value)
        return array.astype(np.float32) if array.dtype.kind == "f" else array
    return value
