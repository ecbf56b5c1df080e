"""Inspecting data of any kind: directly if they are complete episodes in order, else what was prepared from them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.inspection.sample import SAMPLE_STEPS, Progress
from hindcast.datasets.inspection.summarising import summarise
from hindcast.datasets.inspection.summary import Problem, Summary, problem_of, worst_first
from hindcast.datasets.inspection.survey import Described, compatible, survey
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import ready
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.prepare.source_files import Found, find, recognised
from hindcast.datasets.watch import NOBODY, Watch
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.parquet.opening import NotReadable
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec, leaf_of
from hindcast.storage.location import Location, resolve


def inspect_data(
    reading: Reading, *, sample_limit: int | None = SAMPLE_STEPS, watch: Watch = NOBODY
) -> Summary:
    """All that is in data, and all that is wrong with them.

    Args:
        reading: what is read, and how.
        sample_limit: about how many timesteps to look at; None reads everything.
        watch: notified of progress in preparing, then in inspecting.

    Raises:
        DataError: nothing there, or foreign data that cannot be prepared. Of several files, the bad ones are problems.
        StorageError: storage that refuses or fails.
    """
    columns = reading.options.columns
    try:
        found = ready(reading, watch=watch)
    except DataError as error:
        return _file_by_file(reading, error, sample_limit, watch)
    summary = inspect_paths(
        found.paths,
        sample_limit=sample_limit,
        columns=columns,
        notes=found.notes,
        progress=partial(watch.progress, "Looking"),
    )
    if {str(path) for path in found.paths} == {str(path) for path in reading.paths}:
        return summary
    known, _ = recognised(find(reading), reading)
    formats = tuple(sorted({one.format.name for one in known}))
    warnings = [
        Problem(severity="warning", kind="incomplete", message=message) for message in found.unfinished
    ]
    return summary.model_copy(
        update={
            "prepared": str(found.paths[0]),
            "layouts": formats or summary.layouts,
            "problems": worst_first([*warnings, *summary.problems]),
        }
    )


def _file_by_file(reading: Reading, error: DataError, sample_limit: int | None, watch: Watch) -> Summary:
    """What is wrong with each file, and the summary of the others.

    Raises:
        DataError: the given error, if there is nothing to add.
    """
    places = [resolve(path, reading.filesystem) for path in reading.paths]
    if reading.is_plain:
        own = _of_own_layouts(places, reading, sample_limit)
        if own is not None:
            return own
    try:
        is_keyed = any(place.keys for place in find(reading))  # files on their own would lose these
        files, problems = _usable(reading) if not is_keyed else ([], [])
    except DataError:
        raise error from None
    if not problems or len(files) + len(problems) < 2:
        raise error
    if not files:
        return summarise(EpisodeDataset(DataSpec(), []), found=problems)
    rest = _rest(replace(reading, paths=tuple(files)), sample_limit, watch)
    return rest.model_copy(update={"problems": worst_first([*problems, *rest.problems])})


def _usable(reading: Reading) -> tuple[list[Location], list[Problem]]:
    """Read every file of an input to its end: those that can be used together, and what is wrong with the others.

    Raises:
        DataError: nothing is there.
        StorageError: storage that refuses or fails.
    """
    known, _ = recognised(find(reading), reading)
    read: list[Described] = []
    problems: list[Problem] = []
    for one in known:
        try:
            read.append(_read(one))
        except DataError as error:
            problems.append(problem_of(str(one.location), error))
    numbers, _, differing = compatible(read)
    return [read[i].location for i in numbers], [*problems, *differing]


def _read(found: Found) -> Described:
    """A file's spaces, and the kinds of its columns. All numbers count as float64, since preparing widens them."""
    form, location, options = found
    spec, steps = form.describe(location), 0
    for piece in form.pieces(location, options):
        for part in form.read(piece, options):
            spec = _with_leaves(spec, part, location)
            steps += part.num_steps if isinstance(part, Block) else len(part)
    return Described(location, spec, steps)


def _with_leaves(spec: DataSpec, part: Rows | Block, location: Location) -> DataSpec:
    leaves = {
        name: leaf_of(name, column[:0].astype(np.float64) if column.dtype.kind in "iuf" else column)
        for name, column in part.columns.items()
    }
    own = replace(spec, leaves=leaves)
    difference = spec.difference(own) if spec.leaves else None
    if difference:
        raise DataError(f"{location} differs from place to place: {difference}")
    return spec.merge(own)


def _of_own_layouts(places: list[Location], reading: Reading, sample_limit: int | None) -> Summary | None:
    """The summary of files that are opened directly; None if there are only others."""
    try:
        open_dataset(places)
    except NotReadable:
        with suppress(DataError):
            found = inspect_paths(places, sample_limit=sample_limit, columns=reading.options.columns)
            return found if found.episodes else None
        return None
    except DataError:
        pass
    return inspect_paths(places, sample_limit=sample_limit, columns=reading.options.columns)


def _rest(reading: Reading, sample_limit: int | None, watch: Watch) -> Summary:
    """The summary of files that can each be read, though perhaps not together."""
    try:
        return inspect_data(reading, sample_limit=sample_limit, watch=watch)
    except DataError as error:
        problem = Problem(severity="error", kind="unreadable", message=str(error))
        return summarise(EpisodeDataset(DataSpec(), []), found=[problem])


def inspect_paths(
    paths: Sequence[str | Path | Location],
    *,
    sample_limit: int | None = SAMPLE_STEPS,
    columns: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    progress: Progress | None = None,
) -> Summary:
    """Look at the footers of all files, and into a sample of their episodes.

    Args:
        paths: files, folders or globs.
        sample_limit: about how many timesteps to read; None reads everything, and compares recordings' checksums.
        columns: those to look at; all if None.
        notes: what is known of the data already; each becomes an info.
        progress: called with how many units are done, and how many there are.

    Raises:
        DataError: nothing there, or nothing of Hindcast's layouts. Files that are damaged are problems.
        StorageError: storage that refuses or fails.
    """
    dataset, problems = survey(paths, columns=columns, verify=sample_limit is None)
    known = [Problem(severity="info", message=note) for note in notes]
    return summarise(dataset, sample_limit, found=[*problems, *known], progress=progress)
