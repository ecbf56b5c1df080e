"""`Layout`: decoding the rows of a file into episodes, and the errors for rows that cannot be decoded.

Layouts know nothing of files, commits or manifests. `layouts` finds a layout by its name or by a file's schema, and
the encoder that writes it (a `RowEncoder` of `data_file`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hindcast.episodes.batched import text_as_objects
from hindcast.episodes.block import I64, Block, Bool
from hindcast.errors import DataError
from hindcast.formats.entries import EpisodePart
from hindcast.formats.parquet.opening import damage_message
from hindcast.formats.spec import DataSpec

RowErrorKind = Literal["unreadable", "goes-on"]
LEAVE_OUT_ADVICE: Final = "fix it, or leave out the column with `columns`"


class CellError(Exception):
    """A cell does not hold what it should.

    Attributes:
        row: number of the row in the decoded table.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row

    def with_row(self, row: int) -> CellError:
        """Return the same error with another row number."""
        return CellError(row, str(self))

    def to_row_error(self, path: str, row: int) -> RowError:
        """Return the error for the user, which names the file and the row in it."""
        return RowError(damage_message(path, f"row {row}: {self}"), row)


def first_true(flags: NDArray[np.bool_]) -> int | None:
    """Return the index of the first True; None if there is no True."""
    positions = np.flatnonzero(flags)
    return int(positions[0]) if len(positions) else None


def refuse_null(column: pa.ChunkedArray, name: str, expected: str = "") -> None:
    """Check that a column has no nulls.

    Args:
        expected: end of the message, such as ": expected a number".

    Raises:
        CellError: names the first row with a null.
    """
    if column.null_count and (row := first_true(column.is_null().to_numpy())) is not None:
        raise CellError(row, f"{name!r} is null{expected}")


def require_numbers_or_text(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the array; fixed-width text becomes an object array of `str`.

    Raises:
        CellError: the array holds other objects; `row` is 0.
    """
    if array.dtype.kind not in "biufc" and not all(isinstance(value, str) for value in array.flat):
        raise CellError(0, f"{name!r} holds values that are neither numbers nor text")
    return text_as_objects(array)


class RowError(DataError):
    """An invalid row of a file.

    Attributes:
        row: number in the file; None if the file has no rows.
        kind: "goes-on" if an episode has steps after its end.
    """

    def __init__(self, message: str, row: int | None = None, kind: RowErrorKind = "unreadable") -> None:
        super().__init__(message)
        self.row, self.kind = row, kind


class Contents(NamedTuple):
    """Contents of a file, found by decoding no more than the layout requires.

    Attributes:
        lengths: for each row group, `[rows]` steps of each stored episode or fragment.
        continued: for each row group, `[rows]` whether the row continues the one before.
        episode_parts: the stored episodes, in order, of files that Hindcast did not write; else empty.
    """

    spec: DataSpec
    lengths: list[I64]
    continued: list[Bool]
    episode_parts: tuple[EpisodePart, ...] = ()


def binary_buffers(array: pa.Array) -> tuple[I64, NDArray[np.uint8]]:
    """Return `[n + 1]` offsets of large binary or text, and the bytes that they point into: views of Arrow's memory."""
    _, offsets, values = array.buffers()
    # empty arrays have no buffers: one offset of 0 and no bytes replace them
    return (
        np.frombuffer(offsets or bytes(8), np.int64, count=len(array) + 1, offset=8 * array.offset),
        np.frombuffer(values or b"", np.uint8),
    )


class Layout(Protocol):
    """One way to store episodes in Parquet files that are opened directly: one row per episode or fragment."""

    def read_contents(self, file: pq.ParquetFile) -> Contents:
        """Read the lengths of a file's episodes, and its spec.

        Raises:
            DataError: the metadata cannot be read, or have a newer format.
            CellError: a row cannot be read.
        """
        ...

    def columns(self, schema: pa.Schema, spec: DataSpec, leaves: Sequence[str]) -> list[str]:
        """Return the Parquet columns of a file that decoding these leaves requires.

        Raises:
            DataError: the file lacks a required column.
        """
        ...

    def decode(self, table: pa.Table, spec: DataSpec, leaves: Sequence[str]) -> Block:
        """Decode rows into stored episodes and fragments, one for each row.

        Args:
            table: complete row groups, with the file's `columns`.

        Raises:
            CellError: a row does not fit the spec.
        """
        ...
