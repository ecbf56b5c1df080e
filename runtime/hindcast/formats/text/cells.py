"""Columns as text, converted column by column rather than row by row."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.errors import DataError


class Words(NamedTuple):
    """How NaN and infinities are spelled."""

    nan: bytes
    infinity: bytes
    minus_infinity: bytes


def json_of(values: NDArray[Any], words: Words) -> bytes:
    """An array as JSON; floats are as short as reading them back exactly allows."""
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    odd = values[~np.isfinite(values)] if values.dtype.kind == "f" else values[:0].reshape(-1)
    if not len(odd):
        return text
    spelled = [_spelled(value, words) for value in odd.tolist()]
    return b"".join(chain.from_iterable(zip(text.split(b"null"), [*spelled, b""], strict=True)))


def number_cells(values: NDArray[Any], words: Words) -> pa.LargeBinaryArray:
    """`[S]` the JSON of each row: a number, or nested lists."""
    text = np.frombuffer(json_of(values, words), np.uint8)[1:-1]
    if values.ndim == 1:
        commas = np.flatnonzero(text == ord(","))
        return _cut(text, np.append(0, commas + 1), np.append(commas, len(text)))
    closing = np.flatnonzero(text == ord("]"))
    brackets = len(closing) // len(values)
    ends = closing[brackets - 1 :: brackets] + 1
    return _cut(text, np.append(0, ends[:-1] + 1), ends)


def flat_cells(values: NDArray[Any], words: Words) -> pa.LargeBinaryArray:
    """`[S]` the numbers of each row, with commas between them."""
    if values.ndim == 1:
        return number_cells(values, words)
    text = np.frombuffer(json_of(values.reshape(len(values), -1), words), np.uint8)
    ends = np.flatnonzero(text == ord("]"))[:-1]
    return _cut(text, np.append(2, ends[:-1] + 3), ends)


def repeated(texts: list[bytes], block: Block) -> pa.LargeBinaryArray:
    """`[S]` the text of each step's episode."""
    return pa.array(texts, pa.large_binary()).take(pa.array(block.episode_of_step))


def _cut(text: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.LargeBinaryArray:
    """The parts of a text, which are in order and do not overlap."""
    keep = np.ones(len(text), dtype=np.bool_)
    keep[: starts[0]] = False
    keep[ends[-1] :] = False
    for offset in range(int((starts[1:] - ends[:-1]).max(initial=0))):
        keep[ends[:-1] + offset] = False
    offsets = np.append(0, np.cumsum(ends - starts))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text[keep])]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(starts), buffers)


def _spelled(value: float, words: Words) -> bytes:
    if np.isnan(value):
        return words.nan
    return words.infinity if value > 0 else words.minus_infinity


def info_json(text: str) -> bytes:
    """The info's JSON without line ends.

    Raises:
        DataError: it is not JSON.
    """
    try:
        orjson.loads(text)
    except ValueError as error:
        raise DataError(f"an info is not JSON ({error}): {text[:200]!r}") from error
    return text.encode().replace(b"\n", b" ").replace(b"\r", b" ")
