"""Whole numbers in text that no int64 holds: Arrow makes floats of them, and of the column, without a word."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import pyarrow as pa

from hindcast.store.layout import CellError

_BEYOND: Final = 1 << 63


def may_be_beyond(table: pa.Table, told: Collection[str]) -> list[str]:
    """The columns of floats with a number so large that it may have been such a whole number; cheap.

    Args:
        table: as Arrow read it.
        told: columns whose type the user gave.
    """
    return [name for name in table.column_names if name not in told and _is_large(table.column(name))]


def first_beyond(value: Any) -> int | None:
    """The first whole number in a JSON value that no int64 holds."""
    if isinstance(value, int):
        return None if -_BEYOND <= value < _BEYOND else value
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return None
    return next((found for part in value if (found := first_beyond(part)) is not None), None)


def refusal(row: int, name: str, number: object) -> CellError:
    """What to say of one."""
    return CellError(
        row,
        f"{name!r} is {number}, a whole number that int64 does not hold and a float would round: write it as text, or "
        "say float64 for it under `readOptions: {column_types: …}`",
    )


def _is_large(column: pa.Array | pa.ChunkedArray) -> bool:
    if isinstance(column, pa.ChunkedArray):
        return any(map(_is_large, column.chunks))
    if pa.types.is_struct(column.type):
        return any(map(_is_large, column.flatten()))
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return _is_large(column.flatten())
    if not pa.types.is_float64(column.type):
        return False
    values = column.to_numpy(zero_copy_only=False)
    return bool((np.isfinite(values) & (np.abs(values) >= _BEYOND)).any())
