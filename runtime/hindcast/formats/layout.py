"""`Layout`, which decodes the rows of a file into episodes, and the errors for rows that cannot be decoded.

Layouts know nothing of files, commits or manifests. The module `layouts` finds a layout by its name or by a file's
schema, and makes the encoder that writes it (a `RowEncoder` of the module `data_file`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hindcast.episodes.batched import text_as_objects
from hindcast.episodes.block import I64, Block, Bool
from hindcast.errors import DataError
from hindcast.formats.entries import StoredFragment
from hindcast.formats.parquet.opening import describe_damage
from hindcast.formats.spec import DataSpec

RowErrorKind = Literal["unreadable", "goes-on"]
LEAVE_OUT_ADVICE: Final = "fix it, or leave out the column with `columns`"


class CellError(Exception):
    """A cell that cannot be decoded.

    Attributes:
        row: index of the cell's row in the decoded table.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row

    def with_row(self, row: int) -> CellError:
        """Return the same error for another row."""
        return CellError(row, str(self))

    def to_row_error(self, path: str, row: int) -> RowError:
        """Return the error for the user, which names the file and `row`, the index of the row in it."""
        return RowError(describe_damage(str(self)), path=path, row=row)


class DifferentCellError(CellError):
    """A cell that can be decoded, but differs from others in its columns, shapes or kinds."""

    def with_row(self, row: int) -> CellError:
        """See `CellError.with_row`."""
        return DifferentCellError(row, str(self))

    def to_row_error(self, path: str, row: int) -> RowError:
        """See `CellError.to_row_error`."""
        return RowError(str(self), path=path, row=row, remedy="keep such episodes in a dataset of their own")


def first_true(flags: NDArray[np.bool_]) -> int | None:
    """Return the index of the first True; None if there is no True."""
    positions = np.flatnonzero(flags)
    return int(positions[0]) if len(positions) else None


def bisect_first_invalid(num_rows: int, has_invalid: Callable[[int], bool]) -> int:
    """Return the index of the first invalid row of `num_rows`, at least one of which is invalid.

    Args:
        num_rows: the number of rows.
        has_invalid: returns whether one of the first `stop` rows is invalid.
    """
    return bisect_left(range(1, num_rows), True, key=has_invalid)


def refuse_null(column: pa.ChunkedArray, name: str, expected: str = "") -> None:
    """Check that a column has no nulls.

    Args:
        column: the column.
        name: its name, for the message.
        expected: end of the message, such as ": expected a number".

    Raises:
        CellError: a cell is null; its `row` is the first such row.
    """
    if column.null_count and (row := first_true(column.is_null().to_numpy())) is not None:
        raise CellError(row, f"{name!r} is null{expected}")


def require_numbers_or_text(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the array; fixed-width text becomes an object array of `str`.

    Raises:
        CellError: the array holds other objects; the error's `row` is 0, since the row is not looked up.
    """
    if array.dtype.kind not in "biufc" and not all(isinstance(value, str) for value in array.flat):
        raise CellError(0, f"{name!r} holds values that are neither numbers nor text")
    return text_as_objects(array)


class RowError(DataError):
    """An invalid row of a file.

    Attributes:
        kind: "goes-on" if an episode has steps after its end, else "unreadable".
    """

    def __init__(self, what: str = "", kind: RowErrorKind = "unreadable", **place: Any) -> None:
        super().__init__(what, **place)
        self.kind = kind


class Contents(NamedTuple):
    """Contents of a file, found by decoding no more than the layout requires.

    Attributes:
        spec: leaves, spaces and environment of the file.
        lengths: for each row group, `[rows]` steps of each stored episode or fragment.
        continued: for each row group, `[rows]` whether a row continues the episode of the row before; all False for a
            file that Hindcast did not write.
        stored_fragments: description of each row, in order, if Hindcast did not write the file; else empty.
    """

    spec: DataSpec
    lengths: list[I64]
    continued: list[Bool]
    stored_fragments: tuple[StoredFragment, ...] = ()


def binary_buffers(array: pa.Array) -> tuple[I64, NDArray[np.uint8]]:
    """Return `[n + 1]` offsets of n large binaries or texts, and the bytes that they point into (views)."""
    _, offsets, values = array.buffers()
    # empty arrays have no buffers: one offset of 0 and no bytes replace them
    return (
        np.frombuffer(offsets or bytes(8), np.int64, count=len(array) + 1, offset=8 * array.offset),
        np.frombuffer(values or b"", np.uint8),
    )


class Layout(Protocol):
    """A way to store episodes in Parquet files that are opened directly, with one row per episode or fragment."""

    def read_contents(self, file: pq.ParquetFile) -> Contents:
        """Read the lengths of a file's episodes, and its spec.

        Raises:
            DataError: the metadata cannot be read or have a newer format, or a column is missing.
            CellError: a row cannot be read.
        """
        ...

    def required_columns(self, schema: pa.Schema, spec: DataSpec, leaves: Sequence[str]) -> list[str]:
        """Return the Parquet columns of a file that decoding these leaves requires.

        Raises:
            DataError: the file lacks a required column.
        """
        ...

    def decode(self, table: pa.Table, spec: DataSpec, leaves: Sequence[str]) -> Block:
        """Decode rows into stored episodes and fragments, one for each row.

        Args:
            table: complete row groups, with the `required_columns`.
            spec: spec of the file.
            leaves: names of the leaves to decode.

        Raises:
            CellError: a row does not fit the spec.
        """
        ...
