"""Conversion of columns in memory to Arrow: arrays of any shape, lists of cells, dictionaries, data frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hindcast.episodes.columns import Columns
from hindcast.errors import SpecError, first_line
from hindcast.formats.columns.infos import encode_info
from hindcast.formats.layout import CellError
from hindcast.formats.lossless import describe_rounded, find_rounded_row

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

    convert = _episodes_to_arrow if has_episodes else _column_to_arrow
    arrays: dict[str, pa.Array] = {}
    for name, values in columns.items():
        with _refusing(f"the column {name!r}"):
            arrays[name] = convert(values, name)
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
    with _refusing("a column of the table"):
        return _pandas_to_table(frame) if hasattr(frame, "iloc") else pa.table(frame)


@contextmanager
def _refusing(column: str) -> Iterator[None]:
    """Raise errors of a conversion to Arrow as a `SpecError` about the column.

    Raises:
        SpecError: the block raised such an error.
    """
    import pyarrow as pa

    try:
        yield
    # Errors of pandas (duplicate columns, for example), most of Arrow's, and that of `len` of an array without axes are
    # ValueErrors and TypeErrors.
    except (ValueError, TypeError, OverflowError, CellError, pa.ArrowNotImplementedError) as error:
        reason = f"row {error.row}: {error}" if isinstance(error, CellError) else first_line(error)
        raise SpecError(
            f"input_: {column} mixes types or cannot be stored ({reason}); convert it."
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
        array = to_array(values)
        if array.dtype != object and array.ndim:
            return _array_to_arrow(array)
        values = list(values)
    return _cells_to_arrow(values, name)


def _episodes_to_arrow(episodes: Sequence[Any], name: str) -> pa.Array:
    """Convert a list of arrays `[steps, ...]`, one for each episode, to a column of lists; arrays may be nested.

    Raises:
        CellError: the steps have no common shape, or no common type that is exact.
    """
    import pyarrow as pa

    steps = None if name in _INFO_COLUMNS else _flatten_steps(episodes, name)
    if steps is None:
        return _cells_to_arrow(episodes)
    lengths, column = steps
    return pa.LargeListArray.from_arrays(np.append(0, np.cumsum(lengths, dtype=np.int64)), column)


def _flatten_steps(episodes: Sequence[Any], name: str) -> tuple[list[int], pa.Array] | None:
    """Return the number of steps of each episode, and the values of all steps; None if there are no arrays."""
    import pyarrow as pa

    if all(isinstance(episode, Mapping) for episode in episodes):
        row = next(
            (row for row, episode in enumerate(episodes) if episode.keys() != episodes[0].keys()), None
        )
        if row is not None:
            raise CellError(row, f"it has the keys {list(episodes[row])}, row 0 has {list(episodes[0])}")
        children = {
            str(key): _flatten_steps([episode[key] for episode in episodes], f"{name}/{key}")
            for key in episodes[0]
        }
        steps = [child for child in children.values() if child is not None]
        if not steps:
            return None
        lengths = steps[0][0]
        for key, child in children.items():
            if child is None or child[0] != lengths:
                raise CellError(0, f"{name}/{key} has other steps than {name}/{next(iter(children))}")
        return lengths, pa.StructArray.from_arrays([column for _, column in steps], list(children))
    arrays = [_episode_to_array(episode, row, name) for row, episode in enumerate(episodes)]
    if any(array.dtype == object or not array.ndim for array in arrays):
        return None
    # NumPy makes floats of an empty list.
    rows = [row for row, array in enumerate(arrays) if len(array)] or [0]
    column = _array_to_arrow(_concatenate([arrays[row] for row in rows], rows, name))
    return [len(array) for array in arrays], column


def _episode_to_array(episode: Any, row: int, name: str) -> Any:
    """Convert the values of an episode to an array.

    Raises:
        CellError: the values have no common shape, or no common type that is exact.
    """
    import pyarrow as pa

    if not isinstance(episode, list | tuple) or not episode:
        return to_array(episode)
    try:
        if hasattr(episode[0], "dtype") and (np.ndim(episode[0]) or hasattr(episode[0], "detach")):
            return _concatenate([to_array(step)[np.newaxis] for step in episode], [row] * len(episode), name)
        array = np.asanyarray(episode)
        if array.dtype.kind in "fUS":
            pa.array(episode)  # unlike NumPy, Arrow neither rounds integers nor makes text of numbers
    except (ValueError, TypeError, OverflowError, pa.ArrowNotImplementedError) as error:
        raise CellError(row, first_line(error)) from error
    return array


def _concatenate(arrays: Sequence[Any], rows: Sequence[int], name: str) -> Any:
    """Concatenate arrays `[n, ...]` with their masks; `rows` are the indices of their rows, for messages.

    Raises:
        CellError: the arrays differ in shape or kind, or their common type would round an integer.
    """
    shape, kind = arrays[0].shape[1:], _describe_kind(arrays[0])
    dtype = np.result_type(*{array.dtype for array in arrays if _describe_kind(array) == kind})
    for row, array in zip(rows, arrays, strict=True):
        if array.shape[1:] != shape:
            raise CellError(row, f"a step has shape {list(array.shape[1:])}, others have {list(shape)}")
        if _describe_kind(array) != kind:
            raise CellError(row, f"it holds {_describe_kind(array)}, row {rows[0]} holds {kind}")
        if (step := find_rounded_row(array, dtype)) is not None:
            raise CellError(row, describe_rounded(name, array[step], dtype))
    return (np.ma.concatenate if any(map(np.ma.isMaskedArray, arrays)) else np.concatenate)(arrays)


def _describe_kind(array: Any) -> str:
    """Return the kind of an array's values; values of one kind have a common type."""
    if array.dtype.kind in "biuf":
        return "numbers"
    return {"U": "text", "S": "bytes"}.get(array.dtype.kind, str(array.dtype))


def to_array(values: Any) -> Any:
    """Convert values to an array, with its mask; NumPy itself refuses tensors that have gradients."""
    return np.asanyarray(values.detach() if hasattr(values, "detach") else values)


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
    arrays = [to_array(cell) for cell in cells if hasattr(cell, "dtype") and np.ndim(cell)]
    if len(arrays) == len(cells) and len({(array.shape, array.dtype) for array in arrays}) == 1:
        return _array_to_arrow(
            np.ma.stack(arrays) if any(map(np.ma.isMaskedArray, arrays)) else np.stack(arrays)
        )
    return pa.array([cell.tolist() if hasattr(cell, "dtype") and np.ndim(cell) else cell for cell in cells])
