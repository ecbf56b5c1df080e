"""Conversion of columns in memory to Arrow: arrays of any shape, lists of cells, dictionaries, data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hindcast.episodes.columns import Columns
from hindcast.errors import SpecError, first_line
from hindcast.formats.columns.infos import encode_info
from hindcast.formats.layout import CellError

if TYPE_CHECKING:
    import pyarrow as pa

_INFO_COLUMNS: Final = (Columns.INFOS, "info")


def columns_to_table(columns: Mapping[str, Any], *, has_episodes: bool = False) -> pa.Table:
    """Convert a dictionary of column name -> values to a table.

    Args:
        columns: arrays `[n, ...]`, lists of n cells, or dictionaries of these.
        has_episodes: whether each cell has a whole episode, an array `[steps, ...]`.

    Raises:
        SpecError: a column cannot be stored, or has another number of rows than the first one.
    """
    import pyarrow as pa

    arrays: dict[str, pa.Array] = {}
    for name, values in columns.items():
        try:
            arrays[name] = _episodes_to_arrow(values) if has_episodes else _column_to_arrow(values, name)
        # TypeError: `len` of an array without axes, or cells of other objects
        except (ValueError, TypeError, OverflowError, CellError, pa.ArrowNotImplementedError) as error:
            raise SpecError(
                f"input_: the column {name!r} mixes types or cannot be stored ({first_line(error)}); convert it."
            ) from error
    num_rows = len(next(iter(arrays.values())))
    for name, array in arrays.items():
        if len(array) != num_rows:
            shape = list(columns[name].shape) if hasattr(columns[name], "shape") else [len(array)]
            raise SpecError(
                f"input_: the array {name!r} has shape {shape}, expected [{num_rows}] or [{num_rows}, ...]: one row "
                "per timestep."
            )
    return pa.table(arrays)


def frame_to_table(frame: Any) -> pa.Table:
    """Convert a data frame of pandas or Polars, or another object that exports an Arrow table.

    Raises:
        SpecError: it is a Series, or a column cannot be stored.
    """
    import pyarrow as pa

    is_series = hasattr(frame, "iloc") and not hasattr(frame, "columns")
    if is_series or (hasattr(frame, "to_frame") and hasattr(frame, "arr")):
        raise SpecError("input_: a Series is one column, expected a data frame.")
    try:
        return _pandas_to_table(frame) if hasattr(frame, "iloc") else pa.table(frame)
    # pandas' own errors (duplicate columns, for example) and most of Arrow's are ValueErrors and TypeErrors
    except (ValueError, TypeError, OverflowError, CellError, pa.ArrowNotImplementedError) as error:
        raise SpecError(
            f"input_: a column of the table mixes types or cannot be stored ({first_line(error)}); convert it."
        ) from error


def _pandas_to_table(frame: Any) -> pa.Table:
    """Convert a data frame; the named levels of its index become columns, since they may be ids and times."""
    import pyarrow as pa

    levels = [name for name in frame.index.names if name is not None and name not in frame.columns]
    frame = frame.reset_index(level=levels) if levels else frame
    # Arrow neither converts cells with arrays of several axes, nor stores dictionaries that are all empty.
    objects = [name for name in frame.columns if frame.columns.is_unique and _needs_conversion(frame[name])]
    table = pa.Table.from_pandas(frame.drop(columns=objects), preserve_index=False)
    for name in objects:
        # pandas writes a missing cell as NaN.
        is_present = frame[name].notna()
        cells = [cell if present else None for cell, present in zip(frame[name], is_present, strict=True)]
        table = table.append_column(str(name), _column_to_arrow(cells, str(name)))
    return table


def _needs_conversion(series: Any) -> bool:
    if series.dtype != object:
        return False
    cell = next(iter(series.dropna()), None)
    return isinstance(cell, Mapping) or getattr(cell, "ndim", 0) > 1


def _column_to_arrow(values: Any, name: str = "") -> pa.Array:
    """Convert a column: an array `[n, ...]`, a list of n cells, or a dictionary of these."""
    import pyarrow as pa

    if isinstance(values, Mapping):
        fields = {str(key): _column_to_arrow(child) for key, child in values.items()}
        return pa.StructArray.from_arrays(list(fields.values()), list(fields))
    if not isinstance(values, list | tuple):
        array = np.asanyarray(values)  # keeps a mask
        if array.dtype != object and array.ndim:
            return _array_to_arrow(array)
        values = list(values)
    return _cells_to_arrow(values, name)


def _episodes_to_arrow(episodes: Sequence[Any]) -> pa.Array:
    """Convert a list of arrays `[steps, ...]`, one for each episode, to a column of lists."""
    import pyarrow as pa

    arrays = [np.asanyarray(episode) for episode in episodes]  # keeps masks
    if any(array.dtype == object or not array.ndim for array in arrays):
        return _cells_to_arrow(episodes)
    stops = np.cumsum([len(array) for array in arrays], dtype=np.int64)
    concatenate = np.ma.concatenate if any(map(np.ma.isMaskedArray, arrays)) else np.concatenate
    return pa.LargeListArray.from_arrays(np.append(0, stops), _array_to_arrow(concatenate(arrays)))


def _array_to_arrow(array: Any) -> pa.Array:
    """Convert an array `[n, ...]`; axes after the first become fixed-size lists."""
    import pyarrow as pa

    mask = np.ma.getmaskarray(array).reshape(-1) if np.ma.isMaskedArray(array) else None
    flat_array = np.asarray(array, array.dtype.newbyteorder("=")).reshape(-1)
    column = pa.array(flat_array, mask=mask)
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _cells_to_arrow(cells: Sequence[Any], name: str = "") -> pa.Array:
    """Convert a list of cells: numbers, text, lists, arrays of one shape or dictionaries."""
    import pyarrow as pa

    mappings = [cell for cell in cells if isinstance(cell, Mapping)]
    if mappings and name in _INFO_COLUMNS:
        return pa.array([encode_info(cell, row) for row, cell in enumerate(cells)], pa.string())
    if mappings and len(mappings) == len(cells):
        keys = dict.fromkeys(key for cell in mappings for key in cell)
        return _column_to_arrow({key: [cell.get(key) for cell in mappings] for key in keys})
    arrays = [np.asanyarray(cell) for cell in cells if hasattr(cell, "dtype") and np.ndim(cell)]
    if len(arrays) == len(cells) and len({(array.shape, array.dtype) for array in arrays}) == 1:
        return _array_to_arrow(
            np.ma.stack(arrays) if any(map(np.ma.isMaskedArray, arrays)) else np.stack(arrays)
        )
    return pa.array([cell.tolist() if hasattr(cell, "dtype") and np.ndim(cell) else cell for cell in cells])
