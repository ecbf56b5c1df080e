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
_MOST_GROWTH: Final = 255  # what LZ4 can make of a byte
_SIZE_IS_THERE: Final = 0x08
_CODEC: Final = "lz4"
_MOST_LENGTHS: Final = 4_096
_MOST_WRAPPERS: Final = 4


class _Wrapper(NamedTuple):
    """What is around the bytes of an array in its pickle."""

    before: bytes
    after: bytes
    dtype: np.dtype
    shape: tuple[int, ...]

    def read(self, data: bytes) -> Any:
        """The array of a pickle of the same length that differs in the array's bytes only; None for others."""
        if not (data.startswith(self.before) and data.endswith(self.after)):
            return None
        start, stop = len(self.before), len(data) - len(self.after)
        return np.frombuffer(data[start:stop], self.dtype).reshape(self.shape)


_KNOWN: Final[dict[int, list[_Wrapper]]] = {}
"""The pickles of arrays that were read last, by their length: the next one of that length is usually similar."""


def is_packed(cells: Sequence[Any]) -> bool:
    """Whether all cells are packed."""
    return bool(cells) and all(isinstance(cell, str) and cell.startswith(PREFIX) for cell in cells)


def pack_cell(value: Any) -> str:
    """Arrays of numbers, alone or in dicts and tuples, as a cell."""
    return base64.b64encode(pa.Codec(_CODEC).compress(pickle_arrays(value), asbytes=True)).decode()


def unpack_cells(cells: Iterable[str]) -> list[Any]:
    """What cells hold: arrays, numbers, or tuples, lists and dicts of such.

    Raises:
        CellError: with the first cell that holds something else, or calls functions.
    """
    return unpickle_cells(map(_decompressed, cells))


def unpickle_cells(cells: Iterable[bytes]) -> list[Any]:
    """The same for pickles that are not compressed."""
    values: list[Any] = []
    try:
        for cell in cells:
            values.append(_read(cell))
    except RefusedValueError as error:
        raise CellError(len(values), f"it holds {error}") from error
    return values


def _read(data: bytes) -> Any:
    known = _KNOWN.get(len(data), [])
    for similar in known:
        value = similar.read(data)
        if value is not None:
            return value
    pickle = ArrayPickle(data)
    value = pickle.load()
    found = _wrapper_of(value, data, pickle.buffers)
    if found is not None:
        if len(_KNOWN) >= _MOST_LENGTHS:
            _KNOWN.clear()
        _KNOWN[len(data)] = [found, *known[: _MOST_WRAPPERS - 1]]
    return value


def _wrapper_of(value: Any, data: bytes, buffers: list[tuple[int, int]]) -> _Wrapper | None:
    if not isinstance(value, np.ndarray) or not value.flags.c_contiguous:
        return None
    own = [(start, stop) for start, stop in buffers if stop - start == value.nbytes]
    if len(own) != 1 or data[slice(*own[0])] != value.tobytes():
        return None
    start, stop = own[0]
    return _Wrapper(data[:start], data[stop:], value.dtype, value.shape)


def _decompressed(cell: str) -> bytes:
    try:
        frame = base64.b64decode(cell, validate=True)
        if len(frame) >= 15 and frame[4] & _SIZE_IS_THERE:
            size = int.from_bytes(frame[6:14], "little")
            if size > _MOST_GROWTH * len(frame):
                raise RefusedValueError(f"an LZ4 frame of {len(frame)} bytes that claims to hold {size}")
            return bytes(pa.Codec(_CODEC).decompress(frame, size, asbytes=True))
        with pa.CompressedInputStream(pa.BufferReader(frame), _CODEC) as stream:
            return bytes(stream.read())
    except (binascii.Error, ValueError, OSError, pa.ArrowException) as error:
        raise RefusedValueError(f"text that is not base64 of an LZ4 frame ({error})") from error
