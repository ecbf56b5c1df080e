"""The format "RayData": what a read method of Ray Data, or a function of the user's, reads, once, before training."""

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
from hindcast.formats.tables.decoding import TableReader, decode_rows
from hindcast.formats.tables.naming import plan_columns
from hindcast.ray_session import ray_connection
from hindcast.storage.location import Entry, Location
from hindcast.user_code import calling, import_object

METHOD: Final = "method"
_BATCH_SIZE: Final = "batch_size"
_FIELD: Final = f"readOptions.{METHOD}"
_ROWS: Final = 1024


class RayData(Format):
    """rows as `ray.data.<method>(path, **options)` reads them, or as a function of the user's gives them.

    A pre-learner in RLlib's form makes episodes of them, batch by batch; without one they are timesteps.
    """

    name = "RayData"

    def recognises(self, location: Location) -> bool:  # noqa: ARG002
        """Anything: this format is used only if it is named."""
        return True

    def groups(self, entries: Sequence[Entry]) -> list[FileGroup]:
        """Each folder with its files."""
        return group_by_folder(entries, ("",))

    def pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """All that is read as one piece.

        Raises:
            SpecError: there is no such method, or a folder without the Parquet files that it reads.
        """
        _method(options)
        if location.is_folder():
            files = list(location.files(recursive=True))
            _refuse_no_parquet(location, files, options)
            return [Piece(location, sum(entry.size for entry in files))]
        return [Piece(location, location.info().size or 0)]

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows | Block]:
        """Episodes that the user's class makes of each batch of rows; or the rows.

        Raises:
            UserCodeError: the function or the class raised.
            DataError: cells that cannot be read.
        """
        row, path = 0, str(piece.location)
        for number, batch in enumerate(_batches(piece.location, options)):
            if options.mapper is not None:
                yield from map_to_episodes(batch, options, f"{path}, batch {number}")
                continue
            rows = _rows(batch, row, path, options)
            row += len(next(iter(batch.values())))
            if rows is not None:
                yield rows


def _refuse_no_parquet(folder: Location, files: Sequence[Entry], options: ReadOptions) -> None:
    """Refuse a folder in which `read_parquet`, the method where no format is named, would find nothing to read."""
    given = options.options
    names = [entry.relative_path for entry in files if not is_hidden(entry.relative_path)]
    found = sorted({PurePosixPath(name).suffix.lower() or "extensionless" for name in names})
    if given[METHOD] == "read_parquet" and "file_extensions" not in given and ".parquet" not in found:
        raise SpecError(
            f"{folder} holds {', '.join(found)} files, and Parquet is read where no other format is named: for "
            "SampleBatch JSON give input_read_sample_batches=True (format: SampleBatch), for other files their "
            "input_read_method (format)."
        )


def _batches(location: Location, options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Column -> `[rows, ...]`."""
    given = dict(options.options)
    size = given.pop(_BATCH_SIZE, _ROWS)
    given.pop(METHOD)
    method = _method(options)
    place = location.path if location.is_local else location.uri
    with ray_connection(num_cpus=len(os.sched_getaffinity(0))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Ray's, of itself
            _be_quiet()
        with calling(f"{_FIELD} {options.options[METHOD]!r}", method):
            found = method(place, **given)
        yield from _each(found, size)


def _be_quiet() -> None:
    """Rows come in the order of the files; what fails is raised."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = True


def _method(options: ReadOptions) -> Callable[..., Any]:
    name = options.options.get(METHOD)
    if not isinstance(name, str):
        raise SpecError(
            f"{_FIELD} is missing: name a read method of Ray Data ('read_numpy'), or your own function, "
            '"package.module:name", called with the path.'
        )
    if ":" in name:
        found = import_object(name, _FIELD)
        if isinstance(found, type) and hasattr(found, "read_rows"):
            return lambda _path, **__: found.read_rows(options.mapper_training)
        return cast(Callable[..., Any], found)
    import ray.data

    known = [each for each in dir(ray.data) if each.startswith("read_")]
    if name not in known:
        raise SpecError(f"{_FIELD} is {name!r}, which is not a read method of Ray Data{nearest(name, known)}")
    return cast(Callable[..., Any], getattr(ray.data, name))


def _each(found: Any, size: int) -> Iterator[dict[str, Any]]:
    """The batches of a Ray Dataset, a table, a data frame, a dictionary of columns, or an iterable of such."""
    if hasattr(found, "iter_batches"):
        for batch in found.iter_batches(batch_size=size, batch_format="numpy"):
            yield dict(batch)
    elif isinstance(found, pa.Table):
        yield from _each(found.to_pydict(), size)
    elif hasattr(found, "to_dict") and hasattr(found, "columns"):
        yield from _each(found.to_dict("list"), size)
    elif isinstance(found, Mapping):
        yield {
            str(name): values if isinstance(values, np.ndarray) else _column(values)
            for name, values in found.items()
        }
    elif hasattr(found, "__iter__") and not isinstance(found, str | bytes):
        for each in found:
            yield from _each(each, size)
    else:
        raise SpecError(
            f"{_FIELD} gave a {type(found).__name__}; it must return a dataset of Ray, a table, a data frame, a "
            "dictionary of columns, or several of these."
        )


def _column(values: Sequence[Any]) -> Any:
    try:
        array = np.array(values)
    except ValueError:
        return object_array(list(values))
    return array if array.dtype.kind in "biuf" else object_array(list(values))


def _rows(batch: Mapping[str, Any], first: int, path: str, options: ReadOptions) -> Rows | None:
    table = pa.table({name: pa.array(np.asarray(values).tolist()) for name, values in batch.items()})
    plan = plan_columns(table.column_names, options)
    return decode_rows(table, first, TableReader(path, plan, DataSpec(), options))
