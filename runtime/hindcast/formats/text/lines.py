"""Writing lines of text whose cells are encoded column by column."""

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
    """Base of the encoders of text layouts.

    Attributes:
        header: bytes at the beginning of each file.
    """

    compressions = ("none",)
    header = b""

    def open(self, location: Location, schema: pa.Schema, compression: str) -> TextFile:  # noqa: ARG002
        """See `RowEncoder.open`."""
        return TextFile(location, self.header)

    def estimate_overhead_bytes(self, schema: pa.Schema, num_row_groups: int) -> int:  # noqa: ARG002
        """See `RowEncoder.estimate_overhead_bytes`."""
        return len(self.header)


def encode_lines(lines: pa.LargeBinaryArray, length: I64, num_lines: I64) -> EncodedEpisodes:
    """Make encoded episodes from lines.

    Args:
        lines: the lines of all episodes, each with its line end.
        length: `[N]` number of steps of each episode.
        num_lines: `[N]` number of lines of each episode.
    """
    ends = np.cumsum(num_lines)
    nbytes = np.diff(binary_buffers(lines)[0][np.append(0, ends)])
    return EncodedEpisodes(pa.table([lines], schema=_LINE_SCHEMA), length, num_lines, nbytes)


NonFiniteTexts = Mapping[str, bytes]
"""Texts of the numbers that JSON lacks: "nan", "inf" and "-inf" -> text."""


def array_to_json(values: NDArray[Any], non_finite: NonFiniteTexts) -> bytes:
    """Encode an array as JSON. Floats have only the digits that are required to read them back exactly.

    Args:
        values: the array.
        non_finite: texts that replace NaN and infinities.
    """
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return text
    # orjson writes NaN and infinities as null, which are replaced by the texts in order
    replacements = [non_finite[str(value)] for value in values[~np.isfinite(values)].tolist()]
    return b"".join(chain.from_iterable(zip(text.split(b"null"), [*replacements, b""], strict=True)))


def encode_number_cells(
    values: NDArray[Any], non_finite: NonFiniteTexts, has_brackets: bool = True
) -> pa.LargeBinaryArray:
    """Encode the rows of an array as `[S]` cells: a number or nested lists in JSON.

    Args:
        values: numbers `[S, *shape]`.
        non_finite: texts of NaN and infinities.
        has_brackets: whether a cell has the brackets of its list; False requires `[S]` or `[S, n]`.
    """
    if not len(values):
        return pa.array([], pa.large_binary())
    text = np.frombuffer(array_to_json(values, non_finite), np.uint8)[1:-1]
    if values.ndim == 1:
        commas = np.flatnonzero(text == ord(","))
        return _slice_cells(text, np.append(0, commas + 1), np.append(commas, len(text)))
    # all rows have the same number of closing brackets; a row's last bracket ends its cell
    closing_brackets = np.flatnonzero(text == ord("]"))
    brackets_per_row = len(closing_brackets) // len(values)
    ends = closing_brackets[brackets_per_row - 1 :: brackets_per_row] + 1
    starts = np.append(0, ends[:-1] + 1)
    return _slice_cells(text, starts, ends) if has_brackets else _slice_cells(text, starts + 1, ends - 1)


def _slice_cells(
    text: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> pa.LargeBinaryArray:
    """Slice a text into cells, which are in order; between all pairs of adjacent cells lie equally many bytes."""
    is_kept = np.ones(len(text), dtype=np.bool_)
    is_kept[: starts[0]] = False
    is_kept[ends[-1] :] = False
    for offset in range(int((starts[1:] - ends[:-1]).max(initial=0))):
        is_kept[ends[:-1] + offset] = False
    offsets = np.append(0, np.cumsum(ends - starts))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text[is_kept])]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(starts), buffers)


def single_line_info(text: str) -> bytes:
    """Return the JSON of an info without line ends, which in JSON are only white space; spaces replace them.

    Raises:
        DataError: the info is not JSON.
    """
    try:
        orjson.loads(text)
    except ValueError as error:
        raise DataError(f"an info is not JSON ({error}): {text[:200]!r}") from error
    return text.encode().replace(b"\n", b" ").replace(b"\r", b" ")
