"""What the functions that pickles of arrays name would do."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hindcast.formats.storable import Refused, storable


class Callee(Enum):
    """The functions that pickles of arrays name."""

    FROM_BUFFER = "_frombuffer"
    RECONSTRUCT = "_reconstruct"
    ARRAY = "ndarray"
    DTYPE = "dtype"
    SCALAR = "scalar"
    ENCODE = "encode"
    BYTES = "bytes"


_NUMPY = ("numpy._core", "numpy.core")
_NAMES: Final = {
    **{(f"{core}.numeric", "_frombuffer"): Callee.FROM_BUFFER for core in _NUMPY},
    **{(f"{core}.multiarray", "_reconstruct"): Callee.RECONSTRUCT for core in _NUMPY},
    **{(f"{core}.multiarray", "scalar"): Callee.SCALAR for core in _NUMPY},
    ("numpy", "ndarray"): Callee.ARRAY,
    ("numpy", "dtype"): Callee.DTYPE,
    ("_codecs", "encode"): Callee.ENCODE,
    ("__builtin__", "bytes"): Callee.BYTES,
}
_FINISHED = (np.ndarray, np.generic, tuple, list, dict, str, bytes, bool, int, float)


class Unbuilt:
    """A dtype or an array whose state is still to come, and where it is remembered."""

    def __init__(self, dtype: np.dtype | None = None) -> None:
        self.dtype = dtype
        self.keys: list[int] = []


def callee(module: Any, name: Any) -> Callee:
    """The function of this name.

    Raises:
        Refused: it is not one of those that arrays need.
    """
    known = _NAMES.get((module, name))
    if known is None:
        raise Refused(f"a pickle that calls {f'{module}.{name}'[:80]}: Hindcast never runs code in data")
    return known


def call(function: Any, arguments: Any) -> Any:
    """What calling the function would give.

    Raises:
        Refused: an unknown function, or arguments that do not make an array.
    """
    if function is Callee.DTYPE:
        return Unbuilt(storable(arguments[0]))
    if function is Callee.FROM_BUFFER:
        data, dtype, shape, order = arguments
        return np.frombuffer(data, _dtype(dtype)).reshape(shape, order=order)
    if function is Callee.SCALAR:
        dtype, data = arguments
        return np.frombuffer(data, _dtype(dtype), count=1)[0]
    if function is Callee.RECONSTRUCT and arguments[0] is Callee.ARRAY:
        return Unbuilt()
    if function is Callee.BYTES and arguments == ():
        return b""
    if function is Callee.ENCODE and arguments[1] in ("latin1", "latin-1"):
        return arguments[0].encode("latin-1")
    raise Refused("a pickle with a call that does not make an array")


def ordered(dtype: np.dtype, state: tuple[Any, ...]) -> np.dtype:
    """The dtype in the byte order of its state."""
    if state[2:5] != (None, None, None):
        raise Refused("a pickle with a structured dtype")
    return dtype.newbyteorder(state[1]) if state[1] in ("<", ">") else dtype


def array(_: int, shape: Any, dtype: Any, is_fortran: bool, data: bytes) -> NDArray[Any]:
    """The array with this state; the first number is the version of the state."""
    return np.frombuffer(data, _dtype(dtype)).reshape(shape, order="F" if is_fortran else "C")


def _dtype(value: Any) -> np.dtype:
    dtype = value.dtype if isinstance(value, Unbuilt) else value
    if not isinstance(dtype, np.dtype):
        raise Refused("a pickle of an array without a dtype")
    return dtype


def is_shape(value: tuple[Any, ...]) -> bool:
    """Whether a tuple holds integers only."""
    return all(isinstance(part, int) for part in value)


def finished(value: Any) -> Any:
    """The value, once all of it is arrays, numbers and text in tuples, lists and dicts.

    Raises:
        Refused: something else is in it.
    """
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    for part in parts:
        finished(part)
    if value is not None and not isinstance(value, _FINISHED):
        raise Refused("a pickle of something other than an array")
    return value
