"""Survey data with faulty files: each unusable file becomes a problem, the usable files form a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hindcast import formatting
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.file_index import IndexedFile, index_file
from hindcast.datasets.inspection.summary import DataProblem, ProblemKind, make_file_problem
from hindcast.datasets.opening import project_columns, repeat_notes, unfinished_notes
from hindcast.datasets.sources import DataFiles, RefusalReason, check_distinct, find_files, map_in_threads
from hindcast.datasets.stitching import drop_repeats, stitch
from hindcast.errors import DataError
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location


class Finder:
    """A file finder for `open_reading` that keeps usable files and the problems of unusable files for a survey.

    Attributes:
        files: the usable files; None if the search failed.
        problems: problems of the unusable files.
        error: the error that the finder raised, of the search or of the first unusable file; None if it raised none.
    """

    def __init__(self) -> None:
        self.files: DataFiles | None = None
        self.problems: list[DataProblem] = []
        self.error: DataError | None = None

    def __call__(self, locations: Sequence[Location], verify: bool) -> DataFiles:
        """See `find_files`."""
        try:
            data_files = self.files = find_files(locations, verify, self._record_problem)
        except DataError as error:
            self.error = error
            raise
        if self.error is not None:
            raise self.error
        return data_files

    def _record_problem(self, reason: RefusalReason, location: Location, error: DataError) -> None:
        self.error = self.error or error
        if reason == "unreadable":  # the error may name a row
            self.problems.append(make_file_problem(str(location), error))
        else:
            self.problems.append(_make_error_problem(reason, location, str(error)))


def survey(
    data_files: DataFiles, columns: Sequence[str] | None = None
) -> tuple[EpisodeDataset, list[DataProblem]]:
    """Make a dataset of the files that can be used together, and find the problems of files.

    If files differ in columns, dtypes, shapes or spaces, the group of compatible files with the most timesteps is used.

    Args:
        data_files: the usable files.
        columns: the columns to inspect; None inspects all.

    Returns:
        A dataset of the files that can be used together, which may have no episodes; and problems of files.

    Raises:
        DataError: a file is named twice, or a column does not exist.
        StorageError: the storage fails or denies access.
    """
    check_distinct(file.location for file in data_files.indexed_files)
    problems = [_make_unlisted_problem(location) for location in data_files.unlisted_files]
    problems += [
        DataProblem(severity="warning", kind="incomplete", message=message)
        for message in unfinished_notes(data_files.indexed_files)
    ]
    files = project_columns(_select_unchanged_files(data_files.indexed_files, problems), columns)
    described_files = [DescribedFile(file.location, file.spec, file.entry.timesteps) for file in files]
    indices, spec, drift_problems = find_largest_compatible_group(described_files)
    files = [files[i] for i in indices]
    problems += drift_problems
    for file in files:
        if not file.entry.rows:
            path = str(file.location)
            problems.append(
                DataProblem(severity="info", kind="empty-file", message=f"{path} holds no rows", path=path)
            )
    stitched_files, num_repeated = stitch(files), 0
    try:
        stitched_files, num_repeated = drop_repeats(stitched_files, spec)
    except DataError as error:
        problems.append(DataProblem(severity="error", kind="unreadable", message=str(error)))
    return EpisodeDataset(spec, stitched_files, notes=tuple(repeat_notes(num_repeated))), problems


def _select_unchanged_files(files: Sequence[IndexedFile], problems: list[DataProblem]) -> list[IndexedFile]:
    """Return the files that match their manifest or commit, and add the problems of the others to `problems`."""

    def find_difference(file: IndexedFile) -> tuple[ProblemKind, str] | None:
        """Return the kind and the message of a file's problem; None if it has none."""
        if not file.is_listed:
            return None
        try:
            actual_file = index_file(file.location, file.entry.path)
        except DataError as error:
            return "unreadable", str(error)
        difference = file.spec.difference(actual_file.spec)
        if difference:
            return "drift", f"{file.location} differs from its recording's description: {difference}"
        if [group.lengths for group in file.entry.row_groups] != [
            group.lengths for group in actual_file.entry.row_groups
        ]:
            return "other-lengths", (
                f"{file.location} holds {_describe_size(actual_file)}, but its recording lists {_describe_size(file)}, "
                "or episodes of other lengths: copy the recording again, or record again"
            )
        return None

    problems_of_files = map_in_threads(find_difference, files)
    unchanged_files: list[IndexedFile] = []
    for file, problem in zip(files, problems_of_files, strict=True):
        if problem is None:
            unchanged_files.append(file)
        else:
            kind, message = problem
            problems.append(_make_error_problem(kind, file.location, message))
    return unchanged_files


def _describe_size(file: IndexedFile) -> str:
    return f"{formatting.plural(file.entry.timesteps, 'timestep')} in {formatting.plural(file.entry.rows, 'row')}"


def _make_error_problem(kind: ProblemKind, location: Location, message: str) -> DataProblem:
    return DataProblem(severity="error", kind=kind, message=message, path=str(location))


def _make_unlisted_problem(location: Location) -> DataProblem:
    message = (
        f"{location} is in the folder of a recording that does not list it, so it is not read: its range is "
        "incomplete, or it was added by hand; run the recording again, or move the file away"
    )
    return DataProblem(severity="warning", kind="unlisted", message=message, path=str(location))


class DescribedFile(NamedTuple):
    """A file, its spec and its number of timesteps."""

    location: Location
    spec: DataSpec
    num_steps: int


def find_largest_compatible_group(
    files: Sequence[DescribedFile],
) -> tuple[list[int], DataSpec, list[DataProblem]]:
    """Find the largest group, by timesteps, of files that can be one dataset: dtypes of numbers may differ.

    Args:
        files: the files.

    Returns:
        Indices of the files in the group, their common spec, and a problem for each other file.
    """
    groups: list[tuple[DataSpec, list[int]]] = []  # common spec and indices of the files
    for file_index, file in enumerate(files):
        for i, (spec, members) in enumerate(groups):
            if not spec.difference(file.spec, can_widen=True):
                groups[i] = (spec if spec is file.spec else spec.merge(file.spec), [*members, file_index])
                break
        else:
            groups.append((file.spec, [file_index]))
    if not groups:
        return [], DataSpec(), []
    (spec, members), *other_groups = sorted(
        groups, key=lambda group: sum(files[i].num_steps for i in group[1]), reverse=True
    )
    reference_location = files[members[0]].location
    drift_problems = [
        _make_drift_problem(files[i], reference_location, spec.difference(files[i].spec, can_widen=True))
        for _, group in other_groups
        for i in group
    ]
    return members, spec, drift_problems


def _make_drift_problem(
    file: DescribedFile, reference_location: Location, difference: str | None
) -> DataProblem:
    verb = "is" if file.num_steps == 1 else "are"
    message = (
        f"{file.location} cannot be one dataset with {reference_location}: {difference}; its "
        f"{formatting.plural(file.num_steps, 'timestep')} {verb} not counted"
    )
    return DataProblem(severity="error", kind="drift", message=message, path=str(file.location))
