"""The format "RayData": rows that a read method of Ray Data or a user's function returns, read before training."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

from hindcast.api.sentences import nearest
from hindcast.episodes.block import Block
from hindcast.errors import SpecError
from hindcast.formats.format import FileGroup, Format, Piece, ReadOptions, is_hidden
from hindcast.formats.media.files import group_by_folder
from hindcast.formats.media.mapping import map_to_episodes, object_array
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.decoding import TableContext, decode_rows
from hindcast.formats.tables.naming import plan_columns
from hindcast.ray_session import ray_connection
from hindcast.storage.location import Entry, Location
from hindcast.user_code import calling, import_object

METHOD_OPTION: Final = "method"
_BATCH_SIZE_OPTION: Final = "batch_size"
_METHOD_FIELD: Final = f"readOptions.{METHOD_OPTION}"
_DEFAULT_BATCH_ROWS: Final = 1024


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
        """See `Format.list_pieces`: the whole location is one piece.

        Raises:
            SpecError: the method does not exist, or it is `read_parquet` and the folder has no Parquet files.
        """
        _resolve_read_method(options)
        if location.is_folder():
            files = list(location.files(recursive=True))
            _require_parquet_files(location, files, options)
            return [Piece(location, sum(entry.size for entry in files))]
        return [Piece(location, location.info().size or 0)]

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows | Block]:
        """See `Format.read`: the episodes that the user's class returns for each batch of rows, or else the rows.

        Raises:
            UserCodeError: the function or the class raised.
            DataError: a cell cannot be read.
        """
        first_row, path = 0, str(piece.location)
        for index, batch in enumerate(_read_batches(piece.location, options)):
            if options.mapper is not None:
                yield from map_to_episodes(batch, options, f"{path}, batch {index}")
                continue
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
        raise SpecError(
            f"{folder} holds {', '.join(suffixes)} files, but without a named format only Parquet is read: for "
            "SampleBatch JSON set input_read_sample_batches=True (format: SampleBatch), for other files set "
            "input_read_method (format)."
        )


def _read_batches(location: Location, options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Yield batches: column -> `[rows, …]`."""
    read_options = dict(options.options)
    batch_size = read_options.pop(_BATCH_SIZE_OPTION, _DEFAULT_BATCH_ROWS)
    read_options.pop(METHOD_OPTION)
    method = _resolve_read_method(options)
    path = location.path if location.is_local else location.uri
    with ray_connection(num_cpus=len(os.sched_getaffinity(0))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Ray Data warns about its own code
            _configure_ray_data()
        with calling(repr(options.options[METHOD_OPTION]), method, _METHOD_FIELD):
            data = method(path, **read_options)
        yield from _iter_batches(data, batch_size)


def _configure_ray_data() -> None:
    """Turn off Ray Data's logs and progress bars, and make rows come in the order of the files."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # by default, rows come in the order in which Ray's tasks end
    context.execution_options.preserve_order = True


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
            f"the function returned a {type(data).__name__}; it must return a dataset of Ray, a table, a data frame, "
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
