"""Lines of text: a file of them that is being written, and their cells, made column by column."""

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

_SCHEMA: Final = pa.schema([pa.field("line", pa.large_binary(), nullable=False)])


class TextFile(DataFile):
    """A file of lines; no episode comes in fragments here."""

    def __init__(self, location: Location, header: bytes) -> None:
        super().__init__(location, _SCHEMA)
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
    """What the encoders of text share.

    Attributes:
        header: the beginning of each file.
    """

    compressions = ("none",)
    header = b""

    def open(self, location: Location, schema: pa.Schema, compression: str) -> TextFile:  # noqa: ARG002
        """See `RowEncoder.open`."""
        return TextFile(location, self.header)

    def overhead_bytes(self, schema: pa.Schema, groups: int) -> int:  # noqa: ARG002
        """See `RowEncoder.overhead`."""
        return len(self.header)


def encode_lines(lines: pa.LargeBinaryArray, length: I64, rows: I64) -> EncodedEpisodes:
    """Lines, line ends included, as a group of episodes that have so many steps and lines each."""
    ends = np.cumsum(rows)
    nbytes = np.diff(binary_buffers(lines)[0][np.append(0, ends)])
    return EncodedEpisodes(pa.table([lines], schema=_SCHEMA), length, rows, nbytes)


NonFiniteWords = Mapping[str, bytes]
"""How "nan", "inf" and "-inf" are spelled."""


def array_to_json(values: NDArray[Any], words: NonFiniteWords) -> bytes:
    """An array as JSON; floats are as short as reading them back exactly allows."""
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return text
    spelled = [words[str(value)] for value in values[~np.isfinite(values)].tolist()]
    return b"".join(chain.from_iterable(zip(text.split(b"null"), [*spelled, b""], strict=True)))


def number_cells(values: NDArray[Any], words: NonFiniteWords, brackets: bool = True) -> pa.LargeBinaryArray:
    """`[S]` the JSON of each row: a number, or nested lists; without `brackets` the numbers of a flat list only."""
    text = np.frombuffer(array_to_json(values, words), np.uint8)[1:-1]
    if values.ndim == 1:
        commas = np.flatnonzero(text == ord(","))
        return _cut(text, np.append(0, commas + 1), np.append(commas, len(text)))
    closing = np.flatnonzero(text == ord("]"))
    in_a_row = len(closing) // len(values)
    ends = closing[in_a_row - 1 :: in_a_row] + 1
    starts = np.append(0, ends[:-1] + 1)
    return _cut(text, starts, ends) if brackets else _cut(text, starts + 1, ends - 1)


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


def single_line_info(text: str) -> bytes:
    """The info's JSON without line ends.

    Raises:
        DataError: it is not JSON.
    """
    try:
        orjson.loads(text)
    except ValueError as error:
        raise DataError(f"an info is not JSON ({error}): {text[:200]!r}") from error
    return text.encode().replace(b"\n", b" ").replace(b"\r", b" ")
