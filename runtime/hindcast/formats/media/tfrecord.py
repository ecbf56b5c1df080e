"""The format "TFRecord": a `tf.train.Example` for each timestep, read without TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.formats.format import PIECE_BYTES, Format, NoRowsError, Piece, ReadOptions
from hindcast.formats.layout import CellError, RowError, first_true
from hindcast.formats.media.examples import DecodedRecords, decode_examples
from hindcast.formats.media.record_file import FOOTER_BYTES, HEADER_BYTES, read_lengths, read_records
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.decoding import TableContext, decode_rows, locate_errors
from hindcast.formats.tables.naming import TablePlan, plan_columns
from hindcast.formats.tables.read_options import check_options, is_shape
from hindcast.formatting import plural
from hindcast.storage.location import Location

_NAME: Final = re.compile(r".*\.tfrecords?(-\d+-of-\d+)?", re.I | re.S)
_STEP_PREFIX: Final = "steps/"  # of features of RLDS, in which an Example is an episode
_IS_FIRST: Final = "steps/is_first"
_SHAPES_OPTION: Final = "shapes"
_DTYPES_OPTION: Final = "dtypes"
_DTYPE_NAMES: Final = (
    "bool",
    "float16",
    "float32",
    "float64",
    *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)),
)


class _RecordRange(NamedTuple):
    """Adjacent records.

    Attributes:
        start: position of the first record's header in the file.
        first_record: index of the first record in the file.
        lengths: `[R]` size of each record in bytes.
    """

    start: int
    first_record: int
    lengths: NDArray[np.int64]


class TFRecord(Format):
    """TFRecord files, read as tables with the features as columns."""

    name = "TFRecord"
    title = "TFRecord"
    ray_methods = ("read_tfrecords",)
    read_option_names = (_SHAPES_OPTION, _DTYPES_OPTION)

    def recognises(self, location: Location) -> bool:
        """See `Format.recognises`: by the name."""
        return _NAME.fullmatch(location.name) is not None

    def list_pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `Format.list_pieces`: adjacent records of about 16 MiB.

        Raises:
            DataError: the file is damaged or empty, or an option is unknown or invalid.
        """
        _parse_read_options(options)
        lengths = read_lengths(location)
        if not len(lengths):
            raise NoRowsError(location)
        ends = np.cumsum(lengths + HEADER_BYTES + FOOTER_BYTES)
        starts = ends - lengths - HEADER_BYTES - FOOTER_BYTES
        first_records = np.flatnonzero(np.diff(starts // PIECE_BYTES, prepend=-1))
        return [
            Piece(
                location,
                int(ends[stop - 1] - starts[begin]),
                _RecordRange(int(starts[begin]), begin, lengths[begin:stop]),
            )
            for begin, stop in pairwise([*first_records.tolist(), len(lengths)])
        ]

    def describe(self, location: Location) -> DataSpec:  # noqa: ARG002
        """See `Format.describe`: the files name neither spaces nor environment."""
        return DataSpec(normalized_actions=False)

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows]:
        """See `Format.read`.

        Raises:
            DataError: the file is damaged, or records differ in the names or sizes of their features.
        """
        location, extent, read_options = piece.location, piece.extent, _parse_read_options(options)
        data, starts = read_records(location, extent.start, extent.lengths, extent.first_record)
        groups = decode_examples(data, starts, extent.lengths)
        record_of_row = np.arange(len(starts))
        try:
            first_group = next(groups)
            groups = chain([first_group], groups)
            is_episodes = _IS_FIRST in first_group.columns
            if is_episodes:
                columns, record_of_row = _decode_episodes(groups, len(starts))
            else:
                columns = _decode_columns(groups, len(starts))
        except CellError as error:
            raise _record_error(error, location, extent.first_record + error.row) from error
        records = extent.first_record + record_of_row
        try:
            table = pa.table(
                {
                    name: _to_arrow(name, values, read_options[_DTYPES_OPTION])
                    for name, values in columns.items()
                }
            )
        except CellError as error:
            raise _record_error(error, location, int(records[error.row])) from error
        if is_episodes:
            table = table.append_column(Columns.EPS_ID, _make_ids(location, records))
            options = replace(options, schema=_without_step_prefix(options.schema))
        with locate_errors(str(location)):
            plan = plan_columns(table.column_names, options)
        try:
            rows = decode_rows(table, 0, TableContext(str(location), plan, DataSpec(), options))
        except RowError as error:
            row = error.problems[0].row
            raise _record_error(error, location, int(records[row or 0])) from error
        if rows is not None:
            rows = replace(rows, row=records[rows.row])
            yield _reshape_columns(location, rows, plan, read_options[_SHAPES_OPTION])


def _record_error(error: CellError | RowError, location: Location, record: int) -> DataError:
    """Return the error of a record, which is counted from 0 in its file."""
    what = error.problems[0].what if isinstance(error, RowError) else str(error)
    return DataError(what, path=str(location), row=record, row_name="record")


def _parse_read_options(options: ReadOptions) -> dict[str, dict[str, Any]]:
    """Check the options and return `shapes` (feature -> shape) and `dtypes` (feature -> name of a dtype)."""
    read_options = check_options("TFRecord", options.options, TFRecord.read_option_names)
    for name, value in read_options.items():
        if not isinstance(value, Mapping):
            raise DataError(f"readOptions.{name} is {value!r}: expected a map with names of features as keys")
    for feature, dtype in read_options.get(_DTYPES_OPTION, {}).items():
        if not isinstance(dtype, str) or dtype not in _DTYPE_NAMES:
            raise DataError(
                f"readOptions.{_DTYPES_OPTION} has {dtype!r} for {feature!r}: allowed are {', '.join(_DTYPE_NAMES)}"
            )
    for feature, shape in read_options.get(_SHAPES_OPTION, {}).items():
        if not is_shape(shape):
            raise DataError(
                f"readOptions.{_SHAPES_OPTION} has {shape!r} for {feature!r}: expected a list of sizes"
            )
    return {name: dict(read_options.get(name, {})) for name in (_SHAPES_OPTION, _DTYPES_OPTION)}


def _without_step_prefix(schema: Mapping[str, str | Sequence[str]]) -> dict[str, str | list[str]]:
    """Return a schema with the names of features as `_decode_episodes` returns them."""
    stripped_schema: dict[str, str | list[str]] = {}
    for column, source in schema.items():
        if isinstance(source, str):
            stripped_schema[column] = source.removeprefix(_STEP_PREFIX)
        else:
            stripped_schema[column] = [name.removeprefix(_STEP_PREFIX) for name in source]
    return stripped_schema


def _make_ids(location: Location, episode: NDArray[np.int64]) -> pa.Array:
    return pa.array([f"{location}:{index}" for index in episode.tolist()], pa.string())


def _decode_episodes(
    groups: Iterable[DecodedRecords], num_records: int
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
    """Decode records that hold an episode each: features of its steps (`steps/…`), and others, which are not read.

    Returns:
        Feature, without `steps/` -> `[S, values]` over the steps of all records; and `[S]` index of their record.

    Raises:
        CellError: a record has no steps, or its features differ from those of other records.
    """
    episodes: list[dict[str, NDArray[Any]]] = [{} for _ in range(num_records)]
    num_steps = np.zeros(num_records, np.int64)
    for group in groups:
        if _IS_FIRST not in group.columns:
            raise CellError(int(group.record[0]), f"it has no {_IS_FIRST!r}, which other records have")
        count = group.columns[_IS_FIRST].shape[1]
        if not count:
            raise CellError(
                int(group.record[0]), f"its {_IS_FIRST!r} is empty, so it has no steps: leave it out"
            )
        num_steps[group.record] = count
        for name, values in group.columns.items():
            if name.startswith(_STEP_PREFIX) and values.shape[1] and values.shape[1] % count == 0:
                for record, record_values in zip(group.record.tolist(), values, strict=True):
                    episodes[record][name.removeprefix(_STEP_PREFIX)] = record_values.reshape(count, -1)
    names = episodes[0].keys()
    for record, episode in enumerate(episodes):
        different_names = sorted(names ^ episode.keys()) or [
            name for name in names if episode[name].shape[1] != episodes[0][name].shape[1]
        ]
        if different_names:
            raise CellError(
                record, f"its features differ from those of other records: {', '.join(different_names)}"
            )
    columns = {name: np.concatenate([episode[name] for episode in episodes]) for name in names}
    return columns, np.repeat(np.arange(num_records), num_steps)


def _decode_columns(groups: Iterable[DecodedRecords], num_records: int) -> dict[str, NDArray[Any]]:
    """Decode records into feature -> `[R, values]`, in the order of the records.

    Raises:
        CellError: a record is invalid, or its features differ from those of other records.
    """
    columns: dict[str, NDArray[Any]] = {}
    features: set[str] | None = None
    # The largest group comes first, so that an error names a record that differs from most others.
    for group in sorted(groups, key=lambda group: -len(group.record)):
        record = int(group.record[0])
        features = set(group.columns) if features is None else features
        if features != group.columns.keys():
            different_names = ", ".join(sorted(features ^ group.columns.keys()))
            raise CellError(record, f"its features differ from those of other records: {different_names}")
        for name, values in group.columns.items():
            column = columns.setdefault(name, np.empty((num_records, values.shape[1]), dtype=values.dtype))
            if (column.shape[1], column.dtype) != (values.shape[1], values.dtype):
                raise CellError(
                    record,
                    f"{name!r} holds {plural(values.shape[1], 'value')} of {values.dtype}, and {column.shape[1]} of "
                    f"{column.dtype} in other records",
                )
            column[group.record] = values
    return columns


def _to_arrow(name: str, values: NDArray[Any], dtypes: Mapping[str, str]) -> pa.Array:
    """Convert a feature to Arrow.

    One value per record becomes a number, several values become a list. Bytes are decoded as numbers of the dtype
    in `dtypes`, or as text if `dtypes` does not name the feature.
    """
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
    texts: list[str] = []
    try:
        for value in values:
            texts.append(value.decode())
        return pa.array(texts, pa.string())
    except UnicodeDecodeError as error:
        raise CellError(
            len(texts),
            f"{name!r} holds bytes that are not text: set its dtype in readOptions.{_DTYPES_OPTION}",
        ) from error


def _decode_numbers(name: str, values: NDArray[np.object_], dtype: np.dtype) -> NDArray[Any]:
    sizes = np.array([len(value) for value in values])
    # The most frequent size, so that the error names a record that differs from most others.
    common_size = int(np.bincount(sizes).argmax())
    if (row := first_true((sizes != common_size) | (sizes % dtype.itemsize != 0) | (sizes == 0))) is not None:
        raise CellError(
            row,
            f"{name!r} holds {plural(int(sizes[row]), 'byte')}, and {common_size} in most records: expected arrays of "
            f"{dtype} of one size",
        )
    return np.frombuffer(b"".join(values), dtype.newbyteorder("<")).reshape(len(values), -1).astype(dtype)


def _reshape_columns(location: Location, rows: Rows, plan: TablePlan, shapes: Mapping[str, Any]) -> Rows:
    columns = dict(rows.columns)
    for leaf, source in plan.sources.items():
        shape = shapes.get(source.columns[0])
        if shape is None or leaf not in columns:
            continue
        column = columns[leaf]
        if column[0].size != np.prod(shape):
            raise DataError(
                f"{source.columns[0]!r} holds {plural(column[0].size, 'value')}, not {list(shape)}",
                path=str(location),
            )
        columns[leaf] = column.reshape(len(column), *shape)
    return replace(rows, columns=columns)
