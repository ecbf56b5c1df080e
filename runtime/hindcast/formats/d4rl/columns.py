"""Mapping the datasets of a D4RL file to columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from hindcast.episodes.block import Bool
from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError
from hindcast.formats import hdf5
from hindcast.formats.columns.steps import NON_OUTPUT_COLUMNS
from hindcast.formats.format import ReadOptions
from hindcast.formats.hdf5 import Dataset, Group
from hindcast.formats.layout import first_true
from hindcast.formats.tables.naming import format_names, plan_columns
from hindcast.formatting import plural
from hindcast.storage.location import Location

_INFOS_PREFIX: Final = "infos/"
# the recorded policy's weights, and virtual copies of the data
_UNREAD_GROUPS: Final = ("metadata", "virtual")
_LOG_PROBS: Final = "action_log_probs"


class D4RLFile(NamedTuple):
    """An open D4RL file.

    Attributes:
        columns: leaf of `Rows` -> dataset in the file, except the flags.
        filter_columns: column of the filter -> dataset in the file.
        terminals: `[R]` flags.
        timeouts: `[R]` flags; None if the file has no timeouts.
        num_rows: R, the number of rows.
    """

    columns: dict[str, Dataset]
    filter_columns: dict[str, Dataset]
    terminals: Dataset
    timeouts: Dataset | None
    num_rows: int


def find_columns(location: Location, file: Group, options: ReadOptions) -> D4RLFile:
    """Find the datasets of the columns, the flags and the filter.

    Raises:
        DataError: a column is missing, differs in length from other columns, or is split into several datasets; or the
            file has no rows.
    """
    datasets = hdf5.collect_datasets(location, file, skip=_UNREAD_GROUPS)
    # A dataset that is a single value is metadata of the file, not a column.
    step_datasets = {path: dataset for path, dataset in datasets.items() if dataset.shape}
    names_by_path = {path: _column_name(path) for path in step_datasets}
    paths_by_name = {name: path for path, name in names_by_path.items()}
    if len(paths_by_name) < len(names_by_path):
        raise DataError(
            f"has two datasets with the same column name, among {sorted(names_by_path)}", path=str(location)
        )
    try:
        # `schema` names datasets by their paths in the file (`infos/qpos`), `plan_columns` by their columns (`qpos`)
        schema: dict[str, str | list[str]] = {}
        for name, source in options.schema.items():
            if isinstance(source, str):
                schema[name] = names_by_path.get(source, source)
            else:
                schema[name] = [names_by_path.get(path, path) for path in source]
        plan = plan_columns(list(paths_by_name), replace(options, schema=schema), may_have_structs=False)
    except DataError as error:
        raise DataError(f"is neither a D4RL nor a Minari file: {error}", path=str(location)) from error
    vector_columns = next(
        (source.columns for source in plan.sources.values() if len(source.columns) > 1), None
    )
    if vector_columns is not None:
        raise DataError(
            f"{location} splits one column into {format_names(vector_columns)}: store them as one dataset "
            "of vectors"
        )
    columns = {name: step_datasets[paths_by_name[source.columns[0]]] for name, source in plan.sources.items()}
    terminals = columns.pop(Columns.TERMINATEDS, None)
    if terminals is None:
        raise DataError(
            "has no 'terminals', which mark the ends of episodes: name them under `schema`",
            path=str(location),
        )
    timeouts = columns.pop(Columns.TRUNCATEDS, None)
    num_rows = hdf5.count_rows(location, terminals)
    _check_lengths(location, {**columns, "terminals": terminals, "timeouts": timeouts}, num_rows)
    filter_columns = {
        term.column: _find_filter_column(location, step_datasets, term.column) for term in options.filter
    }
    return D4RLFile(columns, filter_columns, terminals, timeouts, num_rows)


def read_flags(location: Location, dataset: Dataset, start: int, stop: int) -> Bool:
    """Read the flags of the rows `start` to `stop` (exclusive). Some files store flags as numbers, or as `[R, 1]`.

    Raises:
        DataError: a value is neither true nor false.
    """
    values = hdf5.read_values(location, dataset, start, stop).reshape(stop - start, -1)
    if values.shape[1] != 1 or values.dtype.kind not in "biuf":
        raise DataError(f"has {list(dataset.shape)} at {dataset.name}: expected flags", path=str(location))
    if (row := first_true((values != 0) & (values != 1))) is not None:
        raise DataError(
            f"{dataset.name} is {values[row, 0]}, expected true or false", path=str(location), row=start + row
        )
    return values[:, 0].astype(np.bool_)


def _column_name(path: str) -> str:
    """Return the name of a dataset's column, without `infos/`.

    A name that another column of Hindcast has gets the prefix `info_`: `infos/rewards` becomes `info_rewards`.
    `action_log_probs` becomes `action_logp`.
    """
    name = path.removeprefix(_INFOS_PREFIX)
    if name == _LOG_PROBS:
        return Columns.ACTION_LOGP
    return f"info_{name}" if name != path and root(name) in NON_OUTPUT_COLUMNS else name


def _check_lengths(location: Location, datasets: dict[str, Dataset | None], num_rows: int) -> None:
    """Check that all datasets (None is left out) have `num_rows` rows, and that this is not 0."""
    for dataset in datasets.values():
        if dataset is not None and hdf5.count_rows(location, dataset) != num_rows:
            raise DataError(
                f"has {plural(dataset.shape[0], 'row')} at {dataset.name}, but {num_rows} in other "
                "datasets: copy it again",
                path=str(location),
            )
    if not num_rows:
        raise DataError("holds no rows: delete it, or leave it out of the paths", path=str(location))


def _find_filter_column(location: Location, datasets: dict[str, Dataset], name: str) -> Dataset:
    if name not in datasets:
        raise DataError(
            f"has no column {name!r}, which `filter` names: it has {sorted(datasets)}", path=str(location)
        )
    return datasets[name]
