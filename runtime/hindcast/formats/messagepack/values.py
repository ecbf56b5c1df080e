"""NumPy values in MessagePack, byte for byte as the package msgpack-numpy writes them.

An array is the map `{nd: true, type: "<f4", kind: "", shape: [4], data: …}`, a NumPy scalar `{nd: false, type, data}`,
all keys binary. In that format object arrays are pickles; they are refused, like all extension types.
"""

from __future__ import annotations

from typing import Any, Never

import msgpack
import numpy as np
from numpy.typing import NDArray

from hindcast.formats.dtypes import RefusedValueError, parse_dtype
from hindcast.formatting import describe_type


def pack(value: Any, *, is_strict: bool = False) -> bytes:
    """Pack plain values, arrays and NumPy scalars, or maps, lists and tuples of these, as MessagePack.

    Args:
        value: the value.
        is_strict: whether to refuse tuples, which would be unpacked as lists.

    Raises:
        TypeError: the value contains another type.
        RefusedValueError: the value contains an array of objects or structures.
    """
    return bytes(msgpack.packb(value, default=_encode_numpy, strict_types=is_strict))


def unpack(data: bytes | memoryview) -> Any:
    """Unpack a value: the inverse of `pack`; tuples become lists.

    Raises:
        RefusedValueError: the data contain an object array, a structured array or an extension type.
        ValueError: the data are not MessagePack.
    """
    return msgpack.unpackb(data, object_hook=restore, ext_hook=refuse_ext, strict_map_key=False)


def restore(value: dict[Any, Any]) -> Any:
    """Return the array or scalar that a map represents; other maps are returned unchanged.

    Raises:
        RefusedValueError: the map represents an object array or a structured array, or is inconsistent.
    """
    if b"nd" in value:
        return _decode_array(value) if value[b"nd"] else _decode_array({**value, b"shape": []})[()]
    if b"complex" in value:
        return _decode_complex(value.get(b"data"))
    return value


def refuse_ext(code: int, data: bytes) -> Never:
    """Refuse an extension type; for msgpack's argument `ext_hook`."""
    raise RefusedValueError(
        f"a MessagePack extension of type {code} with {len(data)} bytes, which episodes never have"
    )


def _encode_numpy(value: Any) -> dict[bytes, Any]:
    if isinstance(value, np.ndarray):
        parse_dtype(value.dtype.str)
        return {
            b"nd": True,
            b"type": value.dtype.str,
            b"kind": b"",
            b"shape": list(value.shape),
            b"data": value.tobytes(),
        }
    if isinstance(value, np.bool_ | np.number):
        return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}
    if isinstance(value, complex):
        return {b"complex": True, b"data": repr(value)}
    raise TypeError(f"{describe_type(value)} cannot be packed")


def _decode_array(value: dict[Any, Any]) -> NDArray[Any]:
    dtype = parse_dtype(value.get(b"type"), value.get(b"kind", b""))
    shape, data = value.get(b"shape"), value.get(b"data")
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise RefusedValueError(f"an array of the shape {shape!r}")
    if not isinstance(data, bytes) or len(data) != dtype.itemsize * np.prod(shape, dtype=object):
        data_size = len(data) if isinstance(data, bytes) else type(data).__name__
        raise RefusedValueError(f"an array of {dtype} {shape} with {data_size} bytes")
    return np.frombuffer(data, dtype).reshape(shape)


def _decode_complex(text: Any) -> complex:
    try:
        return complex(text)
    except (TypeError, ValueError) as error:
        raise RefusedValueError(f"a complex number written as {text!r}") from error
