"""Tables in memory as input of a config: data frames, Arrow tables, and dictionaries of NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hindcast.errors import SpecError

if TYPE_CHECKING:
    import pyarrow as pa

FILE_NAME = "table.parquet"


@dataclass(frozen=True, eq=False)
class TableInput:
    """A table in memory, an entry of `input_`."""

    table: pa.Table

    def write(self, folder: str) -> None:
        """Write the table to a folder as one Parquet file."""
        import pyarrow.parquet as pq

        pq.write_table(self.table, Path(folder) / FILE_NAME)

    def __repr__(self) -> str:
        return f"a table in memory ({self.table.num_rows} rows)"


def wrap_tables(inputs: Any) -> Any:
    """Return `input_` with a `TableInput` for each table in memory.

    Args:
        inputs: a table or another entry of `input_`, or a list of them. A table is a pandas or Polars data frame, a
            PyArrow table, or a dictionary of column name -> array `[n]` or `[n, k]`.

    Raises:
        SpecError: a table's columns cannot be stored.
    """
    if isinstance(inputs, list | tuple):
        return [wrap_tables(entry) for entry in inputs]
    if hasattr(inputs, "__arrow_c_stream__") or hasattr(inputs, "__dataframe__"):
        return TableInput(_to_arrow(inputs))
    if isinstance(inputs, Mapping) and inputs and all(hasattr(value, "dtype") for value in inputs.values()):
        return TableInput(_arrays_to_arrow(inputs))
    return inputs


def _to_arrow(table: Any) -> pa.Table:
    import pyarrow as pa

    if hasattr(table, "iloc") and not hasattr(table, "columns"):
        raise SpecError("input_: a Series is one column, expected a data frame.")
    try:
        return (
            pa.Table.from_pandas(_with_index_columns(table), preserve_index=False)
            if hasattr(table, "iloc")
            else pa.table(table)
        )
    # pandas' own errors (duplicate columns, for example) and Arrow's are ValueErrors and TypeErrors
    except (ValueError, TypeError, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise SpecError(
            f"input_: a column of the table mixes types or cannot be stored ({reason}); convert it."
        ) from error


def _with_index_columns(frame: Any) -> Any:
    """Return a pandas data frame with the named levels of its index as columns: they may be ids and times."""
    levels = [name for name in frame.index.names if name is not None and name not in frame.columns]
    return frame.reset_index(level=levels) if levels else frame


def _arrays_to_arrow(arrays: Mapping[str, Any]) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    columns = {}
    num_rows = len(next(iter(arrays.values())))
    for name, values in arrays.items():
        array = np.asanyarray(values)  # keeps a mask
        if array.ndim not in (1, 2) or len(array) != num_rows:
            raise SpecError(
                f"input_: the array {name!r} has shape {list(array.shape)}, expected [{num_rows}] or [{num_rows}, k]: "
                "one row per timestep."
            )
        mask = np.ma.getmaskarray(array).reshape(-1) if np.ma.isMaskedArray(array) else None
        flat_array = np.asarray(array, array.dtype.newbyteorder("=")).reshape(-1)
        try:
            flat_values = pa.array(flat_array, mask=mask)
        except (ValueError, TypeError, pa.ArrowNotImplementedError) as error:
            raise SpecError(f"input_: the array {name!r} cannot be stored ({error}); convert it.") from error
        columns[name] = (
            flat_values if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat_values, array.shape[1])
        )
    return pa.table(columns)
