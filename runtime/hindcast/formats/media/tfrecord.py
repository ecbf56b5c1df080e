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
_NUMBERS: Final = (
    "bool",
    "float16",
    "float32",
    "float64",
    *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)),
)


class _RecordRange(NamedTuple):
    """Adjacent records: where the first begins, its number, and `[R]` the bytes of each."""

    start: int
    first: int
    lengths: NDArray[np.int64]


class TFRecord(Format):
    """a table whose columns are the features."""

    name = "TFRecord"

    def recognises(self, location: Location) -> bool:
        """By the name."""
        return location.name.lower().endswith(_SUFFIXES)

    def pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """Records of about 16 MiB together.

        Raises:
            DataError: a damaged file, one without records, or options that it does not have.
        """
        _options(options)
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
        """Nothing."""
        return DataSpec(normalized_actions=False)

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows]:
        """The piece's rows.

        Raises:
            DataError: damage, or features that are missing or of another size in some records.
        """
        location, stretch, own = piece.location, piece.extent, _options(options)
        data, starts = read_records(location, stretch.start, stretch.lengths, stretch.first)
        try:
            columns = _columns(data, starts, stretch.lengths)
            table = pa.table({name: _arrow(name, values, own[_DTYPES]) for name, values in columns.items()})
        except CellError as error:
            raise DataError(f"{location}, record {stretch.first + error.row}: {error}") from error
        with locate_errors(str(location)):
            plan = plan_columns(table.column_names, options)
        rows = decode_rows(table, stretch.first, TableReader(str(location), plan, DataSpec(), options))
        if rows is not None:
            yield _shaped(location, rows, plan, own[_SHAPES])


def _options(options: ReadOptions) -> dict[str, dict[str, Any]]:
    given = check_options("TFRecord", options.options, (_SHAPES, _DTYPES))
    for name, value in given.items():
        if not isinstance(value, Mapping):
            raise DataError(f"readOptions.{name} is {value!r}: expected a feature's name for each")
    for feature, dtype in given.get(_DTYPES, {}).items():
        if not isinstance(dtype, str) or dtype not in _NUMBERS:
            raise DataError(
                f"readOptions.{_DTYPES} has {dtype!r} for {feature!r}: allowed are {', '.join(_NUMBERS)}"
            )
    for feature, shape in given.get(_SHAPES, {}).items():
        if not is_shape(shape):
            raise DataError(f"readOptions.{_SHAPES} has {shape!r} for {feature!r}: expected a list of sizes")
    return {name: dict(given.get(name, {})) for name in (_SHAPES, _DTYPES)}


def _columns(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """Feature -> `[R, values]`, put back in the order of the records."""
    columns: dict[str, NDArray[Any]] = {}
    features: set[str] | None = None
    for some in decode(data, starts, lengths):
        record = int(some.record[0])
        features = set(some.columns) if features is None else features
        if features != some.columns.keys():
            odd = ", ".join(sorted(features ^ some.columns.keys()))
            raise CellError(record, f"it and other records differ in their features: {odd}")
        for name, values in some.columns.items():
            known = columns.setdefault(name, np.empty((len(starts), values.shape[1]), dtype=values.dtype))
            if (known.shape[1], known.dtype) != (values.shape[1], values.dtype):
                raise CellError(
                    record,
                    f"{name!r} holds {plural(values.shape[1], 'value')} of {values.dtype}, and {known.shape[1]} of "
                    f"{known.dtype} in other records",
                )
            known[some.record] = values
    return columns


def _arrow(name: str, values: NDArray[Any], dtypes: Mapping[str, str]) -> pa.Array:
    """A column: one value is a number, several are a list; bytes are text, or numbers of the given dtype."""
    if values.dtype == object:
        if values.shape[1] != 1:
            raise CellError(0, f"{name!r} holds {values.shape[1]} byte strings: only one can be read")
        if name not in dtypes:
            return _text(name, values[:, 0])
        values = _numbers(name, values[:, 0], np.dtype(dtypes[name]))
    if values.shape[1] == 1:
        return pa.array(values[:, 0])
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def _text(name: str, values: NDArray[np.object_]) -> pa.Array:
    try:
        return pa.array([value.decode() for value in values], pa.string())
    except UnicodeDecodeError as error:
        raise CellError(
            0, f"{name!r} holds bytes that are not text: name its dtype by readOptions.{_DTYPES}"
        ) from error


def _numbers(name: str, values: NDArray[np.object_], dtype: np.dtype) -> NDArray[Any]:
    sizes = {len(value) for value in values}
    if len(sizes) != 1 or next(iter(sizes)) % dtype.itemsize or not next(iter(sizes)):
        raise CellError(0, f"{name!r} holds {sorted(sizes)[:4]} bytes, which are not arrays of {dtype}")
    return np.frombuffer(b"".join(values), dtype.newbyteorder("<")).reshape(len(values), -1).astype(dtype)


def _shaped(location: Location, rows: Rows, plan: TablePlan, shapes: Mapping[str, Any]) -> Rows:
    columns = dict(rows.columns)
    for leaf, source in plan.sources.items():
        shape = shapes.get(source.columns[0])
        if shape is None or leaf not in columns:
            continue
        found = columns[leaf]
        if found[0].size != np.prod(shape):
            raise DataError(
                f"{location}: {source.columns[0]!r} holds {plural(found[0].size, 'value')}, not {list(shape)}"
            )
        columns[leaf] = found.reshape(len(found), *shape)
    return replace(rows, columns=columns)
