"""Arrays as pickles, byte for byte what unpickling them takes: the counterpart of the restricted reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_PROTOCOL: Final = b"\x80\x04"  # which every Python since 3.4 reads
# numpy.core.multiarray._reconstruct(numpy.ndarray, (0,), b"b"): names that NumPy 1 and 2 know
_ARRAY: Final = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
_DTYPE: Final = b"cnumpy\ndtype\n"
_ORDERED: Final = b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


def pickled(value: Any) -> bytes:
    """The pickle of arrays of numbers, alone or in dicts (by text) and tuples."""
    return _PROTOCOL + _value(value) + b"."


def _value(value: Any) -> bytes:
    if isinstance(value, Mapping):
        return b"}(" + b"".join(_text(key) + _value(part) for key, part in value.items()) + b"u"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_value, value)) + b"t"
    return _array(value)


def _array(array: NDArray[Any]) -> bytes:
    shape = b"(" + b"".join(b"J" + size.to_bytes(4, "little") for size in array.shape) + b"t"
    return _ARRAY + b"(K\x01" + shape + _dtype(array.dtype) + b"\x89" + _bytes(array.tobytes()) + b"tb"


def _dtype(dtype: np.dtype) -> bytes:
    order, name = dtype.str[0], dtype.str[1:]
    return _DTYPE + _text(name) + b"\x89\x88\x87R(K\x03" + _text(order) + _ORDERED


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def _bytes(data: bytes) -> bytes:
    if len(data) < 1 << 32:
        return b"B" + len(data).to_bytes(4, "little") + data
    return b"\x8e" + len(data).to_bytes(8, "little") + data
