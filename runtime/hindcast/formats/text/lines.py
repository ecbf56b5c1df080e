"""Writing lines of text, with cells that are encoded column by column."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes.block import I64
from hindcast.errors import DataError
from hindcast.formats.data_file import DataFile, EncodedEpisodes, RowEncoder
from hindcast.formats.layout import binary_buffers
from hindcast.storage.location import Location

_LINE_SCHEMA: Final = pa.schema([pa.field("line", pa.large_binary(), nullable=False)])


class TextFile(DataFile):
    """A file of lines. Episodes are never split into fragments."""

    def __init__(self, location: Location, header: bytes) -> None:
        super().__init__(location, _LINE_SCHEMA)
        try:
            self._file.write(header)
        except BaseException:
            self._file.abort()
            raise

    def _write_rows(self, group: EncodedEpisodes) -> None:
        for chunk in group.table.column(0).chunks:
            offsets, text = binary_buffers(chunk)
            self._file.write(text[offsets[0] : offsets[-1]])


class TextEncoder(RowEncoder):
    """Base of the encoders of text.

    Attributes:
        header: beginning of each file.
    """

    compressions = ("none",)
    header = b""

    def open(self, location: Location, schema: pa.Schema, compression: str) -> TextFile:  # noqa: ARG002
        """See `RowEncoder.open`."""
        return TextFile(location, self.header)

    def overhead_bytes(self, schema: pa.Schema, groups: int) -> int:  # noqa: ARG002
        """See `RowEncoder.overhead_bytes`."""
        return len(self.header)


def encode_lines(lines: pa.LargeBinaryArray, length: I64, rows: I64) -> EncodedEpisodes:
    """Return lines, with their line ends, as episodes of `length` steps and `rows` lines each."""
    ends = np.cumsum(rows)
    nbytes = np.diff(binary_buffers(lines)[0][np.append(0, ends)])
    return EncodedEpisodes(pa.table([lines], schema=_LINE_SCHEMA), length, rows, nbytes)


NonFiniteTexts = Mapping[str, bytes]
"""Spelling of "nan", "inf" and "-inf"."""


def array_to_json(values: NDArray[Any], non_finite: NonFiniteTexts) -> bytes:
    """Encode an array as JSON; floats have as few digits as reading them back exactly requires."""
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return text
    # orjson writes NaN and infinities as null: put their texts back, in order
    replacements = [non_finite[str(value)] for value in values[~np.isfinite(values)].tolist()]
    return b"".join(chain.from_iterable(zip(text.split(b"null"), [*replacements, b""], strict=True)))


def number_cells(
    values: NDArray[Any], non_finite: NonFiniteTexts, brackets: bool = True
) -> pa.LargeBinaryArray:
    """Return `[S]` the JSON of each row: a number or nested lists; without `brackets` a flat list's numbers."""
    text = np.frombuffer(array_to_json(values, non_finite), np.uint8)[1:-1]
    if values.ndim == 1:
        commas = np.flatnonzero(text == ord(","))
        return _slice_cells(text, np.append(0, commas + 1), np.append(commas, len(text)))
    closing = np.flatnonzero(text == ord("]"))
    brackets_per_row = len(closing) // len(values)
    ends = closing[brackets_per_row - 1 :: brackets_per_row] + 1
    starts = np.append(0, ends[:-1] + 1)
    return _slice_cells(text, starts, ends) if brackets else _slice_cells(text, starts + 1, ends - 1)


def _slice_cells(
    text: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> pa.LargeBinaryArray:
    """Slice a text into parts, which are in order and do not overlap."""
    keep = np.ones(len(text), dtype=np.bool_)
    keep[: starts[0]] = False
    keep[ends[-1] :] = False
    for offset in range(int((starts[1:] - ends[:-1]).max(initial=0))):
        keep[ends[:-1] + offset] = False
    offsets = np.append(0, np.cumsum(ends - starts))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text[keep])]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(starts), buffers)


def single_line_info(text: str) -> bytes:
    """Return the info's JSON without line ends.

    Raises:
        DataError: the info is not JSON.
    """
    try:
        orjson.loads(text)
    except ValueError as error:
        raise DataError(f"an info is not JSON ({error}): {text[:200]!r}") from error
    return text.encode().replace(b"\n", b" ").replace(b"\r", b" ")
