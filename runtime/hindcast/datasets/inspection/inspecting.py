"""Inspect data of any kind: directly if they are complete episodes in order, otherwise after preparing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.hooks import NO_HOOKS, Hooks
from hindcast.datasets.inspection.column_roles import profile_files
from hindcast.datasets.inspection.data_verdict import judge_data
from hindcast.datasets.inspection.sample import SAMPLE_STEPS
from hindcast.datasets.inspection.summarising import summarise
from hindcast.datasets.inspection.summary import DataProblem, Summary, make_file_problem, sort_by_severity
from hindcast.datasets.inspection.survey import DescribedFile, Finder, find_largest_compatible_group, survey
from hindcast.datasets.prepare.misread_files import refuse_misread_files
from hindcast.datasets.prepare.non_data_files import find_data_files, split_non_data
from hindcast.datasets.prepare.opening import OpenedData, open_reading
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.prepare.source_files import RecognisedFile, find_source_files, recognise_formats
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.parquet.opening import UnknownLayoutError
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec, infer_leaf
from hindcast.storage.location import Location


def inspect_data(
    reading: Reading, *, sample_limit: int | None = SAMPLE_STEPS, hooks: Hooks = NO_HOOKS
) -> Summary:
    """Summarise data and find all problems in them.

    Args:
        reading: what to read, and how.
        sample_limit: approximate number of timesteps to read; None reads everything.
        hooks: notified of progress in preparing, then in inspecting.

    Raises:
        DataError: a path does not exist, or foreign data cannot be prepared. If only some files are bad, they become
            problems instead.
        StorageError: the storage fails or denies access.
    """
    finder = Finder()
    try:
        opened_data = open_reading(reading, hooks=hooks, verify=sample_limit is None, finder=finder)
    except DataError as error:
        return _inspect_file_by_file(reading, finder, error, sample_limit, hooks)
    opening_problems = [
        *(DataProblem(severity="warning", message=message) for message in opened_data.warnings),
        *(DataProblem(severity="info", message=note) for note in opened_data.notes),
    ]
    dataset, problems = survey(opened_data.files, reading.options.columns)
    progress = partial(hooks.progress, "Looking")
    summary = summarise(
        dataset, sample_limit, known_problems=[*opening_problems, *problems], progress=progress
    )
    if summary.episodes:
        summary = summary.model_copy(update={"verdict": judge_data(dataset)})
    if not opened_data.is_prepared:
        return summary
    data_files = find_data_files(reading)
    # None match if the same files were prepared in another folder.
    data_files = [file for file in data_files if _has_rows(file, opened_data)] or data_files
    formats = tuple(sorted({file.format.name for file in data_files}))
    profile = profile_files(data_files, reading.options.schema)
    unfinished_problems = [
        DataProblem(severity="warning", kind="incomplete", message=message)
        for message in opened_data.unfinished_notes
    ]
    return summary.model_copy(
        update={
            "prepared_path": str(opened_data.paths[0]),
            "layouts": formats or summary.layouts,
            "table_columns": () if profile is None else profile.columns,
            "problems": sort_by_severity([*unfinished_problems, *summary.problems]),
        }
    )


def _has_rows(file: RecognisedFile, opened_data: OpenedData) -> bool:
    """Return True if the file, or a file in the folder that is read as one, is among those that were prepared."""
    path = str(file.location)
    return path in opened_data.files_with_rows or any(
        name.startswith(f"{path}/") for name in opened_data.files_with_rows
    )


def _inspect_file_by_file(
    reading: Reading, finder: Finder, error: DataError, sample_limit: int | None, hooks: Hooks
) -> Summary:
    """Find the problem of each file, and summarise the other files.

    Raises:
        DataError: `error`, if there is only one file, or if no problem belongs to one file.
    """
    if reading.can_open_directly:
        # If the first refused file is foreign, all files may be, and none is usable before it is prepared.
        is_foreign = isinstance(finder.error, UnknownLayoutError)
        if finder.files is not None:
            dataset, problems = survey(finder.files, reading.options.columns)
            summary = summarise(dataset, sample_limit, known_problems=[*finder.problems, *problems])
            if summary.episodes or not is_foreign:
                return summary
        elif not is_foreign:
            raise error
    try:
        # A file that is opened separately would lose the Hive keys in the names of its folders.
        has_keys = any(file.keys for file in find_source_files(reading))
        files, problems = _find_usable_files(reading) if not has_keys else ([], [])
    except DataError:
        raise error from None
    if not problems or len(files) + len(problems) < 2:
        raise error
    if files:
        try:
            usable_summary = inspect_data(
                replace(reading, paths=tuple(files)), sample_limit=sample_limit, hooks=hooks
            )
        except DataError as combined_error:
            problems.append(DataProblem(severity="error", kind="unreadable", message=str(combined_error)))
        else:
            return usable_summary.model_copy(
                update={"problems": sort_by_severity([*problems, *usable_summary.problems])}
            )
    return summarise(EpisodeDataset(DataSpec(), []), known_problems=problems)


def _find_usable_files(reading: Reading) -> tuple[list[Location], list[DataProblem]]:
    """Read every file of an input to its end.

    Returns:
        The files that can be used together, and the problems of the other files.

    Raises:
        DataError: a path does not exist.
        StorageError: the storage fails or denies access.
    """
    source_files = find_source_files(reading)
    recognised_files, _ = recognise_formats(source_files, reading)
    described_files: list[DescribedFile] = []
    usable_files: list[RecognisedFile] = []
    errors: dict[Location, DataError] = {}
    for recognised_file in recognised_files:
        try:
            described_files.append(_describe_source(recognised_file))
            usable_files.append(recognised_file)
        except DataError as error:
            errors[recognised_file.location] = error
    if errors and usable_files and reading.format == "Auto":
        named_locations = [file.location for file in source_files if file.is_named]
        _, non_data = split_non_data(recognised_files, named_locations)
        for location in errors.keys() & non_data.keys():
            errors[location] = _explain_error(location, errors[location], usable_files)
    problems = [make_file_problem(str(location), error) for location, error in errors.items()]
    indices, _, drift_problems = find_largest_compatible_group(described_files)
    return [described_files[i].location for i in indices], [*problems, *drift_problems]


def _explain_error(location: Location, error: DataError, usable_files: Sequence[RecognisedFile]) -> DataError:
    """Return the error of a file without columns of timesteps as a training reports it: compared with other files."""
    try:
        refuse_misread_files(usable_files, {location: error}, [])
    except DataError as explained_error:
        return explained_error
    return error


def _describe_source(recognised_file: RecognisedFile) -> DescribedFile:
    """Read a file to its end, and return its location, its spec and its number of timesteps.

    Raises:
        DataError: the file cannot be read, or its rows differ in columns, kinds or shapes.
    """
    file_format, location, options = recognised_file
    spec, num_steps = file_format.describe(location), 0
    for piece in file_format.list_pieces(location, options):
        for chunk in file_format.read(piece, options):
            spec = _add_leaves(spec, chunk, location)
            num_steps += chunk.num_steps if isinstance(chunk, Block) else len(chunk)
    return DescribedFile(location, spec, num_steps)


def _add_leaves(spec: DataSpec, chunk: Rows | Block, location: Location) -> DataSpec:
    chunk_spec = replace(
        spec, leaves={name: infer_leaf(name, column) for name, column in chunk.columns.items()}
    )
    difference = spec.difference(chunk_spec, can_widen=True) if spec.leaves else None
    if difference:
        raise DataError(f"{location} differs from part to part: {difference}")
    return spec.merge(chunk_spec)


def inspect_paths(
    paths: Sequence[str | Path | Location],
    *,
    sample_limit: int | None = SAMPLE_STEPS,
    columns: Sequence[str] | None = None,
) -> Summary:
    """Inspect files, folders and globs, see `inspect_data`; with `columns`, only these columns."""
    reading = Reading(tuple(paths), options=ReadOptions(columns=columns))
    return inspect_data(reading, sample_limit=sample_limit)
