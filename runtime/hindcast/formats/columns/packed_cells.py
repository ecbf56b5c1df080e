"""RLlib's compressed cells: base64 of an LZ4 frame of a pickled array."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from hindcast.formats.columns.pickles import ArrayPickle, pickle_arrays
from hindcast.formats.dtypes import RefusedValueError
from hindcast.formats.layout import CellError

PREFIX: Final = "BCJNG"  # base64 of the magic number with which an LZ4 frame begins
_MAX_EXPANSION_FACTOR: Final = 255  # LZ4 decompresses one byte to at most this many
_CONTENT_SIZE_FLAG: Final = 0x08  # in byte 4 of a frame; bytes 6 to 13 are then the size
_CODEC: Final = "lz4"
_MAX_CACHED_LENGTHS: Final = 4_096
_MAX_WRAPPERS: Final = 4  # per length


class _Wrapper(NamedTuple):
    """The bytes before and after the array's bytes in a pickle, and the array's dtype and shape."""

    prefix: bytes
    suffix: bytes
    dtype: np.dtype
    shape: tuple[int, ...]

    def read(self, data: bytes) -> Any:
        """Return the array in a pickle with this wrapper; None for other pickles.

        Args:
            data: a pickle of the length that the wrapper was found for (see `_WRAPPERS`).
        """
        if not (data.startswith(self.prefix) and data.endswith(self.suffix)):
            return None
        start, stop = len(self.prefix), len(data) - len(self.suffix)
        return np.frombuffer(data[start:stop], self.dtype).reshape(self.shape)


_WRAPPERS: Final[dict[int, list[_Wrapper]]] = {}
"""Length of recent pickles -> their wrappers: the next pickle of the same length usually has the same wrapper."""


def is_packed(cells: Sequence[Any]) -> bool:
    """Return whether all cells are packed; False without cells."""
    return bool(cells) and all(isinstance(cell, str) and cell.startswith(PREFIX) for cell in cells)


def pack_cell(value: Any) -> str:
    """Pack an array of numbers, or dicts and tuples of arrays, into a cell."""
    return base64.b64encode(pa.Codec(_CODEC).compress(pickle_arrays(value), asbytes=True)).decode()


def unpack_cells(cells: Iterable[str]) -> list[Any]:
    """Unpack cells of arrays, of numbers, or of tuples, lists and dicts of these.

    Raises:
        CellError: a cell holds something else, or a pickle that calls other functions than those that make arrays; the
            error's `row` is the index of the first such cell.
    """
    return unpickle_cells(map(_decompress, cells))


def unpickle_cells(cells: Iterable[bytes]) -> list[Any]:
    """Unpack cells that are pickles without compression; raises as `unpack_cells` does."""
    values: list[Any] = []
    try:
        for cell in cells:
            values.append(_unpickle(cell))
    except RefusedValueError as error:
        raise CellError(len(values), f"it holds {error}") from error
    return values


def _unpickle(data: bytes) -> Any:
    # comparing with known wrappers doubles the speed of reading packed SampleBatch
    wrappers = _WRAPPERS.get(len(data), [])
    for wrapper in wrappers:
        value = wrapper.read(data)
        if value is not None:
            return value
    pickle = ArrayPickle(data)
    value = pickle.load()
    new_wrapper = _find_wrapper(value, data, pickle.buffers)
    if new_wrapper is not None:
        if len(_WRAPPERS) >= _MAX_CACHED_LENGTHS:
            _WRAPPERS.clear()  # bounds the cache if the data have pickles of many lengths
        _WRAPPERS[len(data)] = [new_wrapper, *wrappers[: _MAX_WRAPPERS - 1]]
    return value


def _find_wrapper(value: Any, data: bytes, buffers: list[tuple[int, int]]) -> _Wrapper | None:
    """Find the wrapper of a pickled array; None if `value` is something else, or its bytes cannot be located.

    They are located if exactly one of the pickle's buffers has the array's size, and holds the array's bytes.

    Args:
        value: the value of the pickle.
        data: the pickle.
        buffers: `ArrayPickle.buffers`.
    """
    if not isinstance(value, np.ndarray) or not value.flags.c_contiguous:
        return None
    spans = [(start, stop) for start, stop in buffers if stop - start == value.nbytes]
    if len(spans) != 1 or data[slice(*spans[0])] != value.tobytes():
        return None
    start, stop = spans[0]
    return _Wrapper(data[:start], data[stop:], value.dtype, value.shape)


def _decompress(cell: str) -> bytes:
    try:
        frame = base64.b64decode(cell, validate=True)
        # a header with the size of the content has 15 bytes
        if len(frame) >= 15 and frame[4] & _CONTENT_SIZE_FLAG:
            size = int.from_bytes(frame[6:14], "little")
            # refuse decompression bombs before memory is allocated
            if size > _MAX_EXPANSION_FACTOR * len(frame):
                raise RefusedValueError(f"an LZ4 frame of {len(frame)} bytes that claims to hold {size}")
            return bytes(pa.Codec(_CODEC).decompress(frame, size, asbytes=True))
        # this frame does not state the size of its content
        with pa.CompressedInputStream(pa.BufferReader(frame), _CODEC) as stream:
            return bytes(stream.read())
    except (binascii.Error, ValueError, OSError, pa.ArrowException) as error:
        raise RefusedValueError(f"text that is not base64 of an LZ4 frame ({error})") from error
