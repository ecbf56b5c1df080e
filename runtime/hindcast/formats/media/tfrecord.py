"""The format "TFRecord": a `tf.train.Example` for each timestep, read without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.errors import DataError
from hindcast.formats.format import PIECE_BYTES, Format, Piece, ReadOptions
from hindcast.formats.layout import CellError
from hindcast.formats.media.examples import decode
from hindcast.formats.media.record_file import FOOTER, HEADER, read_lengths, read_records
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.decoding import TableReader, decode_rows, locate_errors
from hindcast.formats.tables.naming import TablePlan, plan_columns
from hindcast.formats.tables.read_options import check_options, is_shape
from hindcast.formatting import plural
from hindcast.storage.location import Location

_SUFFIXES: Final = (".tfrecord", ".tfrecords")
_SHAPES: Final = "shapes"
_DTYPES: Final = "dtypes"
_DTYPE_NAMES: Final = (
    "bool",
    "float16",
    "float32",
    "float64",
    *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)),
)


class _RecordRange(NamedTuple):
    """Adjacent records: first byte and number of the first one, and `[R]` the bytes of each."""

    start: int
    first: int
    lengths: NDArray[np.int64]


class TFRecord(Format):
    """TFRecord files as tables; the columns are the features."""

    name = "TFRecord"
    title = "TFRecord"
    ray_methods = ("read_tfrecords",)

    def recognises(self, location: Location) -> bool:
        """See `Format.recognises`: by the name."""
        return location.name.lower().endswith(_SUFFIXES)

    def pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `Format.pieces`: adjacent records of about 16 MiB.

        Raises:
            DataError: the file is damaged or empty, or the format does not have an option.
        """
        _check_read_options(options)
        lengths = read_lengths(location)
        if not len(lengths):
            raise DataError(f"{location} holds no records: delete it, or leave it out of the paths")
        ends = np.cumsum(lengths + HEADER + FOOTER)
        starts = ends - lengths - HEADER - FOOTER
        first = np.flatnonzero(np.diff(starts // PIECE_BYTES, prepend=-1))
        return [
            Piece(
                location,
                int(ends[stop - 1] - starts[begin]),
                _RecordRange(int(starts[begin]), begin, lengths[begin:stop]),
            )
            for begin, stop in pairwise([*first.tolist(), len(lengths)])
        ]

    def describe(self, location: Location) -> DataSpec:  # noqa: ARG002
        """See `Format.describe`: the files name neither spaces nor environment."""
        return DataSpec(normalized_actions=False)

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows]:
        """See `Format.read`.

        Raises:
            DataError: the file is damaged, or records differ in the names or sizes of their features.
        """
        location, extent, read_options = piece.location, piece.extent, _check_read_options(options)
        data, starts = read_records(location, extent.start, extent.lengths, extent.first)
        try:
            columns = _decode_columns(data, starts, extent.lengths)
            table = pa.table(
                {name: _to_arrow(name, values, read_options[_DTYPES]) for name, values in columns.items()}
            )
        except CellError as error:
            raise DataError(f"{location}, record {extent.first + error.row}: {error}") from error
        with locate_errors(str(location)):
            plan = plan_columns(table.column_names, options)
        rows = decode_rows(table, extent.first, TableReader(str(location), plan, DataSpec(), options))
        if rows is not None:
            yield _reshape(location, rows, plan, read_options[_SHAPES])


def _check_read_options(options: ReadOptions) -> dict[str, dict[str, Any]]:
    read_options = check_options("TFRecord", options.options, (_SHAPES, _DTYPES))
    for name, value in read_options.items():
        if not isinstance(value, Mapping):
            raise DataError(f"readOptions.{name} is {value!r}: expected a map with names of features as keys")
    for feature, dtype in read_options.get(_DTYPES, {}).items():
        if not isinstance(dtype, str) or dtype not in _DTYPE_NAMES:
            raise DataError(
                f"readOptions.{_DTYPES} has {dtype!r} for {feature!r}: allowed are {', '.join(_DTYPE_NAMES)}"
            )
    for feature, shape in read_options.get(_SHAPES, {}).items():
        if not is_shape(shape):
            raise DataError(f"readOptions.{_SHAPES} has {shape!r} for {feature!r}: expected a list of sizes")
    return {name: dict(read_options.get(name, {})) for name in (_SHAPES, _DTYPES)}


def _decode_columns(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """Decode feature -> `[R, values]`, in the order of the records."""
    columns: dict[str, NDArray[Any]] = {}
    features: set[str] | None = None
    for group in decode(data, starts, lengths):
        record = int(group.record[0])
        features = set(group.columns) if features is None else features
        if features != group.columns.keys():
            differing = ", ".join(sorted(features ^ group.columns.keys()))
            raise CellError(record, f"its features differ from those of other records: {differing}")
        for name, values in group.columns.items():
            column = columns.setdefault(name, np.empty((len(starts), values.shape[1]), dtype=values.dtype))
            if (column.shape[1], column.dtype) != (values.shape[1], values.dtype):
                raise CellError(
                    record,
                    f"{name!r} holds {plural(values.shape[1], 'value')} of {values.dtype}, and {column.shape[1]} of "
                    f"{column.dtype} in other records",
                )
            column[group.record] = values
    return columns


def _to_arrow(name: str, values: NDArray[Any], dtypes: Mapping[str, str]) -> pa.Array:
    """Convert a feature: one value becomes a number, several a list; bytes become text or numbers."""
    if values.dtype == object:
        if values.shape[1] != 1:
            raise CellError(0, f"{name!r} holds {values.shape[1]} byte strings: only one can be read")
        if name not in dtypes:
            return _decode_text(name, values[:, 0])
        values = _decode_numbers(name, values[:, 0], np.dtype(dtypes[name]))
    if values.shape[1] == 1:
        return pa.array(values[:, 0])
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def _decode_text(name: str, values: NDArray[np.object_]) -> pa.Array:
    try:
        return pa.array([value.decode() for value in values], pa.string())
    except UnicodeDecodeError as error:
        raise CellError(
            0, f"{name!r} holds bytes that are not text: set its dtype in readOptions.{_DTYPES}"
        ) from error


def _decode_numbers(name: str, values: NDArray[np.object_], dtype: np.dtype) -> NDArray[Any]:
    sizes = {len(value) for value in values}
    if len(sizes) != 1 or next(iter(sizes)) % dtype.itemsize or not next(iter(sizes)):
        raise CellError(0, f"{name!r} holds {sorted(sizes)[:4]} bytes, which are not arrays of {dtype}")
    return np.frombuffer(b"".join(values), dtype.newbyteorder("<")).reshape(len(values), -1).astype(dtype)


def _reshape(location: Location, rows: Rows, plan: TablePlan, shapes: Mapping[str, Any]) -> Rows:
    columns = dict(rows.columns)
    for leaf, source in plan.sources.items():
        shape = shapes.get(source.columns[0])
        if shape is None or leaf not in columns:
            continue
        column = columns[leaf]
        if column[0].size != np.prod(shape):
            raise DataError(
                f"{location}: {source.columns[0]!r} holds {plural(column[0].size, 'value')}, not {list(shape)}"
            )
        columns[leaf] = column.reshape(len(column), *shape)
    return replace(rows, columns=columns)
