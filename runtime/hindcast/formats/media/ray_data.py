"""The format "RayData": rows that a read method of Ray Data or a user's function returns, read before training."""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from hindcast.api.sentences import nearest
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError, SpecError
from hindcast.formats.columns.packed_cells import PREFIX, unpack_cells
from hindcast.formats.format import FileGroup, Format, Piece, ReadOptions, has_suffix, is_hidden
from hindcast.formats.media.files import group_by_folder
from hindcast.formats.media.mapping import map_to_episodes, object_array
from hindcast.formats.media.ray_errors import ray_errors_in_one_sentence
from hindcast.formats.parquet.opening import open_parquet
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.decoding import TableContext, decode_rows
from hindcast.formats.tables.naming import plan_columns
from hindcast.formatting import describe_type, natural_sort_key
from hindcast.ray_session import ray_connection
from hindcast.storage.location import Entry, Location
from hindcast.user_code import calling, import_object

METHOD_OPTION: Final = "method"
_BATCH_SIZE_OPTION: Final = "batch_size"
_METHOD_FIELD: Final = f"readOptions.{METHOD_OPTION}"
_DIRECT_SUFFIXES: Final = {
    "read_parquet": (".parquet",),
    "read_json": (".json", ".jsonl"),
    "read_csv": (".csv",),
}
"""Method of Ray Data -> suffixes of the files that are read without Ray."""
_COMPRESSED_SUFFIXES: Final = (".gz", ".br", ".zst", ".lz4", ".bz2", ".snappy")
_DEFAULT_BATCH_ROWS: Final = 1024
_MAX_RETRIES: Final = 2
"""How often Ray repeats a task whose process died."""


class RayData(Format):
    """Rows that `ray.data.<method>(path, **options)` or a user's function returns.

    A pre-learner in RLlib's form converts batches of rows to episodes; without a pre-learner each row is a timestep.
    """

    name = "RayData"
    read_option_names = None

    def recognises(self, location: Location) -> bool:  # noqa: ARG002
        """See `Format.recognises`: any location, because the format is used only if the user sets it."""
        return True

    def group_files(self, entries: Sequence[Entry]) -> list[FileGroup]:
        """See `Format.group_files`: the files of each folder."""
        return group_by_folder(entries, ("",))

    def list_pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `Format.list_pieces`: each file that is read without Ray is a piece; else the whole location is one.

        Raises:
            SpecError: the method does not exist, or it is `read_parquet` and the folder has no Parquet files.
        """
        _resolve_read_method(options)
        if not location.is_folder():
            return [Piece(location, location.info().size or 0)]
        files = list(location.files(recursive=True))
        _require_parquet_files(location, files, options)
        if _is_read_directly(options, [entry.relative_path for entry in files]):
            return [
                Piece(entry.location, entry.size)
                for entry in sorted(files, key=lambda entry: natural_sort_key(entry.relative_path))
                if _is_data_file(entry.relative_path, options)
            ]
        return [Piece(location, sum(entry.size for entry in files))]

    def join_pieces(self, pieces: Sequence[Piece], options: ReadOptions) -> list[Piece]:
        """See `Format.join_pieces`: the paths of a method of Ray Data become one dataset."""
        paths = [piece.location.path for piece in pieces]
        is_named_method = ":" not in options.options[METHOD_OPTION]
        if len(pieces) < 2 or not is_named_method or _is_read_directly(options, paths):
            return list(pieces)
        locations = tuple(piece.location for piece in pieces)
        return [Piece(locations[0], sum(piece.nbytes for piece in pieces), locations)]

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows | Block]:
        """See `Format.read`: the episodes that the user's class returns for each batch of rows, or else the rows.

        A batch for a class ends with an episode: adjacent rows with one `eps_id` are in one batch.

        Raises:
            UserCodeError: the function or the class raised.
            DataError: a cell cannot be read.
        """
        first_row, path = 0, str(piece.location)
        batches = _read_batches(piece, options)
        if options.mapper is not None:
            id_column = options.schema.get(Columns.EPS_ID, Columns.EPS_ID)
            for index, batch in enumerate(_join_episodes(batches, str(id_column))):
                yield from map_to_episodes(batch, options, f"{path}, batch {index}")
            return
        for batch in batches:
            rows = _decode_batch(batch, first_row, path, options)
            first_row += len(next(iter(batch.values())))
            if rows is not None:
                yield rows


def _require_parquet_files(folder: Location, files: Sequence[Entry], options: ReadOptions) -> None:
    """Refuse a folder without Parquet files if the method is `read_parquet`, the default."""
    read_options = options.options
    names = [entry.relative_path for entry in files if not is_hidden(entry.relative_path)]
    suffixes = sorted({PurePosixPath(name).suffix.lower() or "extensionless" for name in names})
    if (
        read_options[METHOD_OPTION] == "read_parquet"
        and "file_extensions" not in read_options
        and ".parquet" not in suffixes
    ):
        problem = (
            f"{folder} holds {', '.join(suffixes)} files, but without a named format only Parquet is read: "
        )
        raise SpecError(
            f"{problem}set the format, SampleBatch if they are RLlib's batches.",
            python=f"{problem}set input_read_method, or input_read_sample_batches=True if they are RLlib's batches.",
        )


def _read_batches(piece: Piece, options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Yield batches: column -> `[rows, …]`."""
    read_options = dict(options.options)
    batch_size = read_options.pop(_BATCH_SIZE_OPTION, None) or _DEFAULT_BATCH_ROWS
    name = read_options.pop(METHOD_OPTION)
    method = _resolve_read_method(options)
    locations = [piece.location] if piece.extent is None else piece.extent
    if _is_read_directly(options, [location.path for location in locations]):
        for table in _read_tables(piece.location, name, batch_size):
            for start in range(0, len(table), batch_size):
                yield _to_columns(table.slice(start, batch_size))
        return
    paths = [location.path if location.is_local else location.uri for location in locations]
    with ray_connection(num_cpus=len(os.sched_getaffinity(0))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Ray Data warns about its own code
            _configure_ray_data()
        location = str(piece.location)
        code = import_object(name, _METHOD_FIELD) if ":" in name else method
        with calling(repr(name), code, _METHOD_FIELD), ray_errors_in_one_sentence(location):
            data = method(paths[0] if piece.extent is None else paths, **read_options)
        limit_retries(data)
        batches = _iter_batches(data, batch_size)
        while True:
            # Ray Data reads, and runs the user's functions, when batches are read.
            with calling(repr(name), code, _METHOD_FIELD), ray_errors_in_one_sentence(location):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def _is_read_directly(options: ReadOptions, paths: Sequence[str]) -> bool:
    """Return True if files are read without Ray, because its start takes seconds. The columns are the same as Ray's.

    Ray reads the files if there are further options, compressed files, or columns in the names of folders (`day=3`).
    """
    suffixes = _DIRECT_SUFFIXES.get(options.options[METHOD_OPTION], ())
    if options.options.keys() - {METHOD_OPTION, _BATCH_SIZE_OPTION}:
        return False
    needs_ray = any(has_suffix(path, _COMPRESSED_SUFFIXES) or "=" in path for path in paths)
    return not needs_ray and any(has_suffix(path, suffixes) for path in paths)


def _is_data_file(relative_path: str, options: ReadOptions) -> bool:
    suffixes = _DIRECT_SUFFIXES[options.options[METHOD_OPTION]]
    return has_suffix(relative_path, suffixes) and not is_hidden(relative_path)


def _read_tables(location: Location, method: str, batch_size: int) -> Iterator[pa.Table]:
    """Yield the tables of a file; JSON is one object on each line, or a list of objects."""
    if method == "read_parquet":
        with open_parquet(location) as file:
            for batch in file.iter_batches(batch_size=batch_size):
                yield pa.Table.from_batches([batch])
        return
    data = location.read_bytes()
    try:
        if method == "read_csv":
            yield pyarrow.csv.read_csv(io.BytesIO(data))
        elif data.lstrip()[:1] == b"[":
            yield pa.Table.from_pylist(json.loads(data))
        else:
            # A block must hold the longest line.
            read_options = pyarrow.json.ReadOptions(block_size=max(len(data), 1), use_threads=False)
            yield pyarrow.json.read_json(io.BytesIO(data), read_options=read_options)
    except (pa.ArrowInvalid, ValueError) as error:
        raise DataError(f"cannot be read by {method}: {error}", path=str(location)) from error


def _to_columns(table: pa.Table) -> dict[str, Any]:
    """Return a table's columns as Ray Data does: lists as an object array of arrays, tensors as one array."""
    if any(isinstance(column_type, pa.BaseExtensionType) for column_type in table.schema.types):
        from ray.data.block import BlockAccessor

        return dict(BlockAccessor.for_block(table).to_batch_format("numpy"))
    return {name: table[name].to_numpy() for name in table.column_names}


def _join_episodes(batches: Iterable[dict[str, Any]], id_column: str) -> Iterator[dict[str, Any]]:
    """Yield the batches; rows of an episode that the next batch continues are moved to the next batch."""
    pending_rows: dict[str, Any] = {}
    for batch in batches:
        if id_column not in batch:
            yield batch
            continue
        if not pending_rows:
            pending_rows = batch
            continue
        next_id = _id_of_row(batch[id_column][0])
        num_rows = len(pending_rows[id_column])
        while num_rows and _id_of_row(pending_rows[id_column][num_rows - 1]) == next_id:
            num_rows -= 1
        moved_rows = {name: column[num_rows:] for name, column in pending_rows.items()}
        if num_rows:
            yield {name: column[:num_rows] for name, column in pending_rows.items()}
        pending_rows = _concatenate(moved_rows, batch) if len(moved_rows[id_column]) else batch
    if pending_rows:
        yield pending_rows


def _id_of_row(cell: Any) -> Any:
    """Return the episode's id in a cell; a cell of a SampleBatch holds the ids of all its timesteps, perhaps packed."""
    if isinstance(cell, str) and cell.startswith(PREFIX):
        cell = unpack_cells([cell])[0]
    return cell[0] if isinstance(cell, np.ndarray | list) and len(cell) else cell


def _concatenate(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Concatenate batches of rows in the order of the first one's columns; columns that only one has are left out."""
    columns = {}
    for name in (name for name in first if name in second):
        pair = [np.asarray(batch[name]) for batch in (first, second)]
        is_uniform = len({(column.dtype, column.shape[1:]) for column in pair}) == 1
        columns[name] = (
            np.concatenate(pair) if is_uniform else object_array([row for column in pair for row in column])
        )
    return columns


def _configure_ray_data() -> None:
    """Turn off Ray Data's logs and progress bars, and make rows come in the order of the files."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # by default, rows come in the order in which Ray's tasks end
    context.execution_options.preserve_order = True


def limit_retries(data: Any) -> None:
    """Let Ray Data give up on a function that kills its process, which by default it calls again without end.

    Ray has no option for this that holds for a whole dataset, only one for each `map`, and users write those calls.
    """
    plan = getattr(data, "_logical_plan", None)
    for operator in plan.dag.post_order_iter() if plan is not None else ():
        arguments = getattr(operator, "ray_remote_args", None)
        if isinstance(arguments, dict):
            runs_in_actors = "Actor" in type(getattr(operator, "compute", None)).__name__
            names = ("max_restarts", "max_task_retries") if runs_in_actors else ("max_retries",)
            for name in names:
                arguments.setdefault(name, _MAX_RETRIES)


def _resolve_read_method(options: ReadOptions) -> Callable[..., Any]:
    """Return the read method of Ray Data, or the user's function, that the options name."""
    name = options.options.get(METHOD_OPTION)
    if not isinstance(name, str):
        raise SpecError(
            "is missing: name a read method of Ray Data ('read_numpy'), or your own function, "
            '"package.module:name", called with the path.',
            field=_METHOD_FIELD,
        )
    if ":" in name:
        reader = import_object(name, _METHOD_FIELD)
        # a subclass of RLlib's OfflineData, which opens the data itself, from its config
        if isinstance(reader, type) and hasattr(reader, "read_rows"):
            return lambda _path, **__: reader.read_rows(options.mapper_training)
        return cast(Callable[..., Any], reader)
    import ray.data

    methods = [method for method in dir(ray.data) if method.startswith("read_")]
    if name not in methods:
        raise SpecError(
            f"is {name!r}, which is not a read method of Ray Data{nearest(name, methods)}",
            field=_METHOD_FIELD,
        )
    return cast(Callable[..., Any], getattr(ray.data, name))


def _iter_batches(data: Any, batch_size: int) -> Iterator[dict[str, Any]]:
    """Yield the batches of a Ray Dataset, a table, a data frame, a dictionary of columns, or an iterable of these.

    A Ray Dataset is divided into batches of `batch_size` rows; each table, data frame or dictionary is one batch.
    """
    if hasattr(data, "iter_batches"):
        for batch in data.iter_batches(batch_size=batch_size, batch_format="numpy"):
            yield dict(batch)
    elif isinstance(data, pa.Table):
        yield from _iter_batches(data.to_pydict(), batch_size)
    elif hasattr(data, "to_dict") and hasattr(data, "columns"):
        yield from _iter_batches(data.to_dict("list"), batch_size)
    elif isinstance(data, Mapping):
        yield {
            str(name): values if isinstance(values, np.ndarray) else _to_array(values)
            for name, values in data.items()
        }
    elif hasattr(data, "__iter__") and not isinstance(data, str | bytes):
        for item in data:
            yield from _iter_batches(item, batch_size)
    else:
        raise SpecError(
            f"the function returned {describe_type(data)}; it must return a dataset of Ray, a table, a data frame, "
            "a dictionary of columns, or several of these.",
            field=_METHOD_FIELD,
        )


def _to_array(values: Sequence[Any]) -> Any:
    try:
        array = np.array(values)
    except ValueError:
        return object_array(list(values))
    return array if array.dtype.kind in "biuf" else object_array(list(values))


def _decode_batch(batch: Mapping[str, Any], first_row: int, path: str, options: ReadOptions) -> Rows | None:
    table = pa.table({name: pa.array(np.asarray(values).tolist()) for name, values in batch.items()})
    plan = plan_columns(table.column_names, options)
    return decode_rows(table, first_row, TableContext(path, plan, DataSpec(), options))
