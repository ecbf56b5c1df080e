"""Which datasets of a D4RL file are which columns."""

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

_INFOS: Final = "infos/"
_UNREAD: Final = ("metadata", "virtual")  # the policy that was recorded; views of the data in parts
_LOG_PROBS: Final = "action_log_probs"


class D4RLFile(NamedTuple):
    """A file that is open.

    Attributes:
        columns: leaf of Rows -> its dataset in the file; without the flags.
        filtered: name that the filter compares -> its dataset in the file.
        terminals: `[R]` flags.
        timeouts: `[R]` flags; None if there are none.
        rows: R.
    """

    columns: dict[str, Dataset]
    filter_columns: dict[str, Dataset]
    terminals: Dataset
    timeouts: Dataset | None
    num_rows: int


def find_columns(location: Location, file: Group, options: ReadOptions) -> D4RLFile:
    """Look into the file.

    Raises:
        DataError: a column that is missing, or of another length than the others.
    """
    found = hdf5.collect_datasets(location, file, skip=_UNREAD)
    # A dataset without a shape describes the file.
    stored = {path: dataset for path, dataset in found.items() if dataset.shape}
    names = {path: _own_name(path) for path in stored}
    paths = {own: path for path, own in names.items()}
    if len(paths) < len(names):
        raise DataError(f"{location} has two datasets that would get the same name, among {sorted(names)}")
    try:
        schema = {
            own: names.get(theirs, theirs) if isinstance(theirs, str) else [names.get(n, n) for n in theirs]
            for own, theirs in options.schema.items()
        }
        plan = plan_columns(list(paths), replace(options, schema=schema))
    except DataError as error:
        raise DataError(f"{location} is neither a D4RL nor a Minari file: {error}") from error
    several = next((source.columns for source in plan.sources.values() if len(source.columns) > 1), None)
    if several is not None:
        raise DataError(
            f"{location} has one column in {format_names(several)}: store it as one dataset of vectors"
        )
    columns = {own: stored[paths[source.columns[0]]] for own, source in plan.sources.items()}
    terminals = columns.pop(Columns.TERMINATEDS, None)
    if terminals is None:
        raise DataError(f"{location} has no 'terminals', which say where episodes end; name them by `schema`")
    timeouts = columns.pop(Columns.TRUNCATEDS, None)
    rows = hdf5.num_rows(location, terminals)
    _check_lengths(location, {**columns, "terminals": terminals, "timeouts": timeouts}, rows)
    filtered = {term.column: _filtered(location, stored, term.column) for term in options.filter}
    return D4RLFile(columns, filtered, terminals, timeouts, rows)


def read_flags(location: Location, dataset: Dataset, start: int, stop: int) -> Bool:
    """`[stop - start]` flags, which some files hold as numbers, and as columns of one.

    Raises:
        DataError: values other than true and false.
    """
    found = hdf5.read_values(location, dataset, start, stop).reshape(stop - start, -1)
    if found.shape[1] != 1 or found.dtype.kind not in "biuf":
        raise DataError(f"{location} has {list(dataset.shape)} at {dataset.name}, where flags are expected")
    if (row := first_true((found != 0) & (found != 1))) is not None:
        raise DataError(
            f"{location}, row {start + row}: {dataset.name} is {found[row, 0]}, expected true or false"
        )
    return found[:, 0].astype(np.bool_)


def _own_name(path: str) -> str:
    """`infos/qpos` is the output `qpos`: an output may not have the name of another column."""
    name = path.removeprefix(_INFOS)
    if name == _LOG_PROBS:
        return Columns.ACTION_LOGP
    return f"info_{name}" if name != path and root(name) in NON_OUTPUT_COLUMNS else name


def _check_lengths(location: Location, found: dict[str, Dataset | None], rows: int) -> None:
    for dataset in found.values():
        if dataset is not None and hdf5.num_rows(location, dataset) != rows:
            raise DataError(
                f"{location} has {plural(dataset.shape[0], 'row')} at {dataset.name}, and {rows} elsewhere: copy it "
                "again"
            )
    if not rows:
        raise DataError(f"{location} holds no rows: delete it, or leave it out of the paths")


def _filtered(location: Location, stored: dict[str, Dataset], name: str) -> Dataset:
    if name not in stored:
        raise DataError(f"{location} has no {name!r}, which `filter` names: it has {sorted(stored)}")
    return stored[name]
