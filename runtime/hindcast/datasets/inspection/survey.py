"""Opening data with faulty files: each file that cannot be used is a problem, the others are the dataset."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hindcast import formatting
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.footers import Indexed, index_file
from hindcast.datasets.inspection.summary import Kind, Problem, problem_of
from hindcast.datasets.opening import notes_on_repeated, projected, unfinished_of
from hindcast.datasets.sources import (
    Reason,
    check_distinct,
    expand,
    find_files,
    in_threads,
    is_parquet,
    recordings_in,
)
from hindcast.datasets.stitching import drop_repeated, stitch
from hindcast.errors import DataError
from hindcast.formats.format import is_hidden
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location, resolve


def survey(
    paths: Sequence[str | Path | Location],
    *,
    columns: Sequence[str] | None = None,
    verify: bool = False,
) -> tuple[EpisodeDataset, list[Problem]]:
    """Find the files that paths name and read the footer of each.

    Files that differ in columns, dtypes, shapes or spaces are left to those that hold the most timesteps.

    Args:
        paths: see `open_dataset`.
        columns: those to look at; all if None.
        verify: read all files of recordings and compare their checksums.

    Returns:
        All files that can be used together, which may hold no episodes; and what is wrong with files.

    Raises:
        DataError: nothing there, nothing of Hindcast's layouts, a file that is named twice, a
            column that there is not.
        StorageError: storage that refuses or fails.
    """
    problems: list[Problem] = []

    def refuse(reason: Reason, location: Location, error: DataError) -> None:
        is_damaged = reason == "unreadable"
        problems.append(
            problem_of(str(location), error) if is_damaged else _error(reason, location, str(error))
        )

    places = [resolve(path) for path in paths]
    files = [file for place in places for file in find_files(place, verify, refuse)]
    check_distinct(file.location for file in files)
    known = {problem.path for problem in problems} | {str(file.location) for file in files}
    folders = [folder for place in places for folder in expand(place)]
    problems += _unlisted(folders, known)
    problems += [
        Problem(severity="warning", kind="incomplete", message=message) for message in unfinished_of(files)
    ]
    files = projected(_as_recorded(files, problems), columns)
    described = [Described(file.location, file.spec, file.entry.timesteps) for file in files]
    numbers, spec, differing = compatible(described)
    files = [files[number] for number in numbers]
    problems += differing
    for file in files:
        if not file.entry.rows:
            path = str(file.location)
            problems.append(
                Problem(severity="info", kind="empty-file", message=f"{path} holds no rows", path=path)
            )
    stitched, repeated = stitch(files), 0
    try:
        stitched, repeated = drop_repeated(stitched, spec)
    except DataError as error:
        problems.append(Problem(severity="error", kind="unreadable", message=str(error)))
    return EpisodeDataset(spec, stitched, notes=tuple(notes_on_repeated(repeated))), problems


def _as_recorded(files: Sequence[Indexed], problems: list[Problem]) -> list[Indexed]:
    """The files that hold what their manifest or commit says."""

    def difference(file: Indexed) -> tuple[Kind, str] | None:
        if file.runs:  # of another recorder, decoded a moment ago
            return None
        try:
            found = index_file(file.location, file.entry.path)
        except DataError as error:
            return "unreadable", str(error)
        recorded = file.spec.difference(found.spec)
        if recorded:
            return "drift", f"{file.location} differs from what its recording says: {recorded}"
        if [group.lengths for group in file.entry.row_groups] != [
            group.lengths for group in found.entry.row_groups
        ]:
            return "other-lengths", (
                f"{file.location} holds {_size(found)}, but its recording lists {_size(file)}, or episodes of other "
                "lengths: copy the recording again, or record again"
            )
        return None

    found = in_threads(difference, files)
    problems += [
        _error(what[0], file.location, what[1]) for file, what in zip(files, found, strict=True) if what
    ]
    return [file for file, what in zip(files, found, strict=True) if what is None]


def _size(file: Indexed) -> str:
    return f"{formatting.plural(file.entry.timesteps, 'timestep')} in {formatting.plural(file.entry.rows, 'row')}"


def _error(kind: Kind, location: Location, message: str) -> Problem:
    return Problem(severity="error", kind=kind, message=message, path=str(location))


def _unlisted(folders: Iterable[Location], listed: Collection[str | None]) -> Iterator[Problem]:
    """A problem for each data file in recordings that is not among those listed."""
    for folder in folders:
        entries = folder.list(recursive=True) if folder.is_folder() else []
        recordings = recordings_in(entries)
        for entry in entries:
            if not is_parquet(entry) or is_hidden(entry.relative) or str(entry.location) in listed:
                continue
            if any(not own or entry.relative.startswith(f"{own}/") for own in recordings):
                message = (
                    f"{entry.location} is in a recording that does not list it, so it is not read: its range "
                    "is not complete, or somebody put it there; run the recording again, or move it away"
                )
                yield Problem(severity="warning", kind="unlisted", message=message, path=str(entry.location))


class Described(NamedTuple):
    """A file, what it holds, and how many timesteps."""

    location: Location
    spec: DataSpec
    steps: int


def compatible(files: Sequence[Described]) -> tuple[list[int], DataSpec, list[Problem]]:
    """The largest group, by timesteps, of files that agree in columns, dtypes, shapes and spaces.

    Returns:
        Which of the files these are; what they hold together; a problem for each other file.
    """
    groups: list[tuple[DataSpec, list[int]]] = []
    for number, file in enumerate(files):
        for i, (spec, members) in enumerate(groups):
            if not spec.difference(file.spec):
                groups[i] = (spec if spec is file.spec else spec.merge(file.spec), [*members, number])
                break
        else:
            groups.append((file.spec, [number]))
    if not groups:
        return [], DataSpec(), []
    (spec, members), *others = sorted(
        groups, key=lambda group: sum(files[i].steps for i in group[1]), reverse=True
    )
    usual = files[members[0]].location
    return members, spec, [_drift(files[i], usual, spec) for _, group in others for i in group]


def _drift(file: Described, usual: Location, spec: DataSpec) -> Problem:
    message = (
        f"{file.location} cannot be one dataset with {usual}: {spec.difference(file.spec)}; its "
        f"{formatting.plural(file.steps, 'timestep')} are not counted"
    )
    return Problem(severity="error", kind="drift", message=message, path=str(file.location))
