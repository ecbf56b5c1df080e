"""What a layout is: how rows of a file become episodes again, and what is said of rows that do not.

Layouts know nothing of files, commits or manifests; `layouts` finds one by its name or by a file's schema, and the
encoder that writes it (a `RowEncoder` of `data_file`).
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

Fault = Literal["unreadable", "goes-on"]
LEAVE_OUT_ADVICE: Final = "fix it, or leave out the column with `columns`"


class CellError(Exception):
    """A cell does not hold what it should.

    Attributes:
        row: Parquet row, counted from the start of what was decoded.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row

    def with_row(self, row: int) -> CellError:
        """The same error at another row number."""
        return CellError(row, str(self))

    def to_row_error(self, path: str, row: int) -> RowError:
        """The error for the user, once the file and its row are known."""
        return RowError(damage_message(path, f"row {row}: {self}"), row)


def first_true(flags: NDArray[np.bool_]) -> int | None:
    """The number of the first flag that is set; None if none is."""
    found = np.flatnonzero(flags)
    return int(found[0]) if len(found) else None


def refuse_null(column: pa.ChunkedArray, name: str, expected: str = "") -> None:
    """Make sure that a column has no nulls.

    Args:
        expected: what its cells must hold, such as ": expected a number".

    Raises:
        CellError: with the first row that has one.
    """
    if column.null_count and (row := first_true(column.is_null().to_numpy())) is not None:
        raise CellError(row, f"{name!r} is null{expected}")


def require_numbers_or_text(array: NDArray[Any], name: str) -> NDArray[Any]:
    """The array; text of a fixed width as an object array of `str`.

    Raises:
        CellError: it holds other objects; `row` is 0.
    """
    if array.dtype.kind not in "biufc" and not all(isinstance(value, str) for value in array.flat):
        raise CellError(0, f"{name!r} holds values that are neither numbers nor text")
    return text_as_objects(array)


class RowError(DataError):
    """What is wrong with a row of a file.

    Attributes:
        row: in the file; None if it has no rows.
        kind: "goes-on" if an episode has steps after its end.
    """

    def __init__(self, message: str, row: int | None = None, kind: Fault = "unreadable") -> None:
        super().__init__(message)
        self.row, self.kind = row, kind


class Contents(NamedTuple):
    """What is in a file, found without decoding more of it than its layout needs.

    Attributes:
        lengths: for each row group, `[rows]` steps of each stored episode or fragment.
        continued: for each row group, `[rows]` which of them continue the one before.
        runs: of files that Hindcast did not write, what each stored episode is, in order.
    """

    spec: DataSpec
    lengths: list[I64]
    continued: list[Bool]
    episode_parts: tuple[EpisodePart, ...] = ()


def binary_buffers(array: pa.Array) -> tuple[I64, NDArray[np.uint8]]:
    """`[n + 1]` offsets of large binary or large text, and the bytes that they point into: views of Arrow's memory."""
    _, offsets, values = array.buffers()
    return (
        np.frombuffer(offsets or bytes(8), np.int64, count=len(array) + 1, offset=8 * array.offset),
        np.frombuffer(values or b"", np.uint8),
    )


class Layout(Protocol):
    """One way to store episodes in Parquet files that are opened directly: one row per episode or fragment."""

    def read_contents(self, file: pq.ParquetFile) -> Contents:
        """Look into a file.

        Raises:
            DataError: metadata that cannot be read, or a newer format.
            CellError: a row that cannot be read.
        """
        ...

    def columns(self, schema: pa.Schema, spec: DataSpec, leaves: Sequence[str]) -> list[str]:
        """The Parquet columns of a file that decoding these leaves takes.

        Raises:
            DataError: one that the file lacks, and may not lack.
        """
        ...

    def decode(self, table: pa.Table, spec: DataSpec, leaves: Sequence[str]) -> Block:
        """The rows as stored episodes and fragments, one each.

        Args:
            table: complete row groups, with the file's `columns`.

        Raises:
            CellError: a row that does not fit the spec.
        """
        ...
