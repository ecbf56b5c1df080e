"""Open data of any kind: directly if they are complete episodes in order, otherwise after preparing them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from hindcast import formatting
from hindcast.code_digest import ignoring_own_changes
from hindcast.datasets.assembly.rules import Finding
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.file_index import cache_folder
from hindcast.datasets.hooks import NO_HOOKS, Hooks
from hindcast.datasets.opening import make_dataset, project_columns
from hindcast.datasets.prepare.job import Part
from hindcast.datasets.prepare.misread_files import refuse_misread_files
from hindcast.datasets.prepare.non_data_files import (
    check_unopened_files,
    make_non_data_note,
    make_skipped_note,
    split_non_data,
    unknown_format_error,
)
from hindcast.datasets.prepare.partitions import read_notes
from hindcast.datasets.prepare.preparer import PreparationSource, Preparer
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.prepare.source_files import (
    RecognisedFile,
    SourceFile,
    files_digest,
    find_source_files,
    preparation_digest,
    recognise_formats,
    user_objects,
)
from hindcast.datasets.sources import DataFiles, expand_glob, find_files, map_in_threads
from hindcast.datasets.units import Unit
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError, OutputConflict
from hindcast.formats.dataset_folder.folder_owner import describe_unfinished
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.formats.format import Format, NoRowsError, Piece, ReadOptions
from hindcast.formats.media.mapping import map_to_episodes
from hindcast.formats.parquet.opening import UnknownLayoutError
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.read_options import check_options
from hindcast.storage.lease import sole_writer
from hindcast.storage.location import Location, resolve

_POLL_INTERVAL_SECONDS: Final = 0.5

Data = str | Path | Location | Reading
FileFinder = Callable[[Sequence[Location], bool], DataFiles]
"""Finds the files of complete episodes in locations, as `find_files`; the flag says whether to verify them."""


class OpenedData(NamedTuple):
    """Opened data, prepared if necessary.

    Attributes:
        paths: paths of the reading, or of the prepared copy.
        files: the data files.
        dataset: the files as a dataset, restricted to `columns`.
        notes: notes from finding and preparing the data.
        warnings: what may be a mistake in the data, or in how they were prepared.
        unfinished_notes: notes on incomplete recordings that were prepared.
        columns: columns or leaves that `dataset` is restricted to; None for all.
        is_prepared: whether the data were prepared.
        missing: element of the observations, such as `heart_rate` -> the rows without its value, if data were prepared.
        files_with_rows: paths of the files that were prepared; if these were moved later, their earlier paths.
    """

    paths: list[str | Path | Location]
    files: DataFiles
    dataset: EpisodeDataset
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unfinished_notes: tuple[str, ...] = ()
    columns: Sequence[str] | None = None
    is_prepared: bool = False
    missing: Mapping[str, Finding] = MappingProxyType({})
    files_with_rows: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Name of the data in messages: the paths."""
        return ", ".join(map(str, self.paths))

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The warnings, then the notes."""
        return (*self.unfinished_notes, *self.warnings, *self.notes)

    def without(self, leaves: Collection[str]) -> OpenedData:
        """Return the same data without some leaves."""
        columns = [leaf for leaf in self.dataset.spec.leaves if leaf not in leaves]
        dataset = make_dataset(project_columns(self.files.indexed_files, columns), self.name)
        return self._replace(dataset=dataset, columns=columns)

    def with_all_columns(self) -> EpisodeDataset:
        """Return the dataset with all stored columns.

        Raises:
            DataError: files differ in a column that the reading does not include.
        """
        return self.dataset if self.columns is None else make_dataset(self.files.indexed_files, self.name)


def open_data(
    data: Data | Sequence[Data],
    *,
    cache: str | Path | None = None,
    hooks: Hooks = NO_HOOKS,
    verify: bool = False,
) -> EpisodeDataset:
    """Open data of any kind as one dataset.

    Args:
        data: paths (files, folders, globs, URIs) or readings. All paths together form the first reading, so rows of an
            episode may be in several of them.
        cache: folder for prepared data; by default `$HINDCAST_CACHE` or `~/.cache/hindcast`.
        hooks: notified of progress in preparing; the notes are in the dataset's `notes`.
        verify: whether to read all files of recordings and compare their checksums.

    Raises:
        DataError: a path does not exist, data are damaged, or rows do not form complete episodes under the reading's
            rules.
        StorageError: the storage fails or denies access.
    """
    items = [data] if isinstance(data, str | Path | Location | Reading) else list(data)
    paths = tuple(item for item in items if not isinstance(item, Reading))
    readings = [item for item in items if isinstance(item, Reading)]
    if paths or not items:  # without items, opening raises an error about the empty list
        readings.insert(0, Reading(paths))
    inputs = [open_reading(reading, cache=cache, hooks=hooks, verify=verify) for reading in readings]
    dataset = combine_datasets(inputs)
    notes = [note for data_input in inputs for note in data_input.all_notes]
    dataset.notes = (*notes, *dataset.notes)
    return dataset


def combine_datasets(inputs: Sequence[OpenedData]) -> EpisodeDataset:
    """Combine the opened data of several readings into one dataset.

    Raises:
        DataError: the data differ in columns, dtypes, shapes or spaces, or two readings contain the same file.
    """
    if len(inputs) == 1:
        return inputs[0].dataset
    files = [
        file
        for data_input in inputs
        for file in project_columns(data_input.files.indexed_files, data_input.columns)
    ]
    return make_dataset(files, ", ".join(data_input.name for data_input in inputs))


def find_differing_leaves(datasets: Sequence[Dataset]) -> set[str]:
    """Return the leaves that only some datasets have, such as those that only a stochastic policy records."""
    first_leaves, *other_leaves = [dataset.spec.required_leaves for dataset in datasets]
    return first_leaves.union(*other_leaves) - first_leaves.intersection(*other_leaves)


def open_reading(
    reading: Reading,
    *,
    cache: str | Path | None = None,
    hooks: Hooks = NO_HOOKS,
    ray_options: Mapping[str, Any] | None = None,
    verify: bool = False,
    finder: FileFinder = find_files,
) -> OpenedData:
    """Open the data of a reading, and prepare them if necessary. All functions that open data of any kind call this.

    Complete episodes in order are opened where they are. Everything else is prepared once, as a dataset in the cache:
    an interrupted preparation is resumed, a finished preparation is reused. Small data are prepared in this process,
    larger data on Ray.

    Args:
        reading: what to read, and how.
        cache: see `open_data`.
        hooks: notified of progress in preparing, and of waiting; notes on the data are returned instead.
        ray_options: Ray's options for preparation tasks, such as `label_selector`; none by default.
        verify: see `open_data`.
        finder: finds the files that are opened directly; its errors are raised, except `UnknownLayoutError`, which
            means that the files must be prepared.

    Raises:
        DataError: as `open_data`.
        StorageError: the storage fails or denies access.
    """
    preparer = Preparer(reading, hooks, ray_options or {})
    prepared_folder = (cache_folder() if cache is None else resolve(cache)).child("prepared")
    is_table = bool(reading.options.schema) or reading.options.time is not None
    if (reading.format not in ("Auto", "Parquet") or is_table) and not reading.maps_episodes:
        return _open_foreign(preparer, prepared_folder, None, verify)
    name = ", ".join(map(str, reading.locations))
    try:
        files = finder(reading.locations, verify)
    except UnknownLayoutError as error:
        return _open_foreign(preparer, prepared_folder, None if reading.maps_episodes else error, verify)
    if reading.maps_episodes:
        return _open_mapped_episodes(
            preparer, prepared_folder, make_dataset(files.indexed_files, name), verify
        )
    columns = reading.options.columns if reading.can_open_directly else None
    dataset = make_dataset(project_columns(files.indexed_files, columns), name)
    check_options("Parquet", reading.options.options, ())  # complete episodes have no read options
    if dataset.num_repeated and reading.prepare.duplicates == "Refuse":
        raise DataError(
            f"{name} has {formatting.plural(dataset.num_repeated, 'stored episode')} with the id and the "
            "content of another, but prepare.duplicates is Refuse; set it to Drop"
        )
    notes = check_unopened_files(files, name, reading)
    if reading.can_open_directly and reading.actions_normalized in (None, dataset.spec.normalized_actions):
        return OpenedData(list(reading.paths), files, dataset, notes, columns=columns)
    folder = prepared_folder.child(preparation_digest([dataset.digest], reading, hooks.note))
    prepared_data = _open_prepared(folder, lambda: _make_dataset_source(dataset, reading), preparer, verify)
    return prepared_data._replace(notes=(*prepared_data.notes, *notes))


def _open_mapped_episodes(
    preparer: Preparer, prepared_folder: Location, dataset: Dataset, verify: bool
) -> OpenedData:
    """Prepare the episodes that the user's class makes of complete episodes, and open the result."""
    folder = prepared_folder.child(
        preparation_digest([dataset.digest], preparer.reading, preparer.hooks.note)
    )
    return _open_prepared(
        folder, lambda: _make_dataset_source(dataset, preparer.reading, _map_episodes), preparer, verify
    )


def _read_episodes(dataset: Dataset, unit: Unit, _: ReadOptions) -> list[Block]:
    return [dataset.read(unit)]


def _map_episodes(dataset: Dataset, unit: Unit, options: ReadOptions) -> list[Block]:
    return map_to_episodes(dataset.read(unit), options, f"{unit.parts[0].path}, unit {unit.id}")


def _make_dataset_source(
    dataset: Dataset,
    reading: Reading,
    read: Callable[[Dataset, Unit, ReadOptions], list[Block]] = _read_episodes,
) -> PreparationSource:
    """Make the source of complete episodes that must be prepared: each unit of the dataset is a part."""
    parts = [
        Part(unit.parts[0].path, unit.nbytes, reading.options, partial(read, dataset, unit, reading.options))
        for unit in dataset.units
    ]
    names = {name: leaf.names for name, leaf in dataset.spec.leaves.items() if leaf.names}
    return PreparationSource(parts, replace(dataset.spec, leaves={}), dataset.notes, names)


def _open_foreign(
    preparer: Preparer, prepared_folder: Location, error: DataError | None, verify: bool
) -> OpenedData:
    """Prepare foreign files, and open the result; `error` is the error of opening the files directly, if tried."""
    source_files = find_source_files(preparer.reading)
    folder = prepared_folder.child(files_digest(source_files, preparer.reading, preparer.hooks.note))
    opened_data = _open_prepared(
        folder, lambda: _make_foreign_source(source_files, preparer.reading, error), preparer, verify
    )
    named_files = {file.location.path for file in source_files if file.is_named}
    locations = [match for location in preparer.reading.locations for match in expand_glob(location)]
    folders = [location for location in locations if location.path not in named_files]
    return opened_data._replace(unfinished_notes=tuple(filter(None, map(describe_unfinished, folders))))


def _make_foreign_source(
    source_files: list[SourceFile], reading: Reading, error: DataError | None
) -> PreparationSource:
    """Split foreign files into the parts to prepare.

    Args:
        source_files: the files.
        reading: what to read, and how.
        error: error of the attempt to open the files directly; None if there was no attempt.

    Raises:
        DataError: no file has the reading's format (with Auto: a known format), or a file that the user named has
            another. If `error` is not None, it is raised instead, except for a named file of unknown format with Auto.
    """
    recognised_files, unknown_files = recognise_formats(source_files, reading)
    named_locations = [file.location for file in source_files if file.is_named]
    unknown_named_files = [location for location in named_locations if location in unknown_files]
    if unknown_named_files and reading.format == "Auto":
        raise unknown_format_error(unknown_named_files[0])
    if not recognised_files or unknown_named_files:
        file = (unknown_named_files or unknown_files or [file.location for file in source_files])[0]
        raise error or DataError(
            f"{file} has no known format: set `format` to the file's format"
            if reading.format == "Auto"
            else f"{file} does not have the format {reading.format}: change `format`, or leave it out"
        )
    recognised_files, non_data = split_non_data(recognised_files, named_locations)
    if reading.format == "Auto":
        refuse_misread_files(recognised_files, non_data, unknown_files)
    listings = map_in_threads(_list_pieces, recognised_files)
    empty_files = [listing for listing in listings if isinstance(listing, NoRowsError)]
    if len(empty_files) == len(listings):
        raise empty_files[0]
    empty_locations = [
        file.location
        for file, listing in zip(recognised_files, listings, strict=True)
        if isinstance(listing, NoRowsError)
    ]
    recognised_files = [file for file in recognised_files if file.location not in empty_locations]
    pieces = [listing for listing in listings if not isinstance(listing, NoRowsError)]
    specs = map_in_threads(lambda file: file.format.describe(file.location), recognised_files)
    parts = [
        Part(str(piece.location), piece.nbytes, options, partial(data_format.read, piece, options))
        for data_format, options, format_pieces in _join_pieces(recognised_files, pieces)
        for piece in format_pieces
    ]
    notes = dict.fromkeys(
        note for file in recognised_files for note in file.format.list_notes(file.location, file.options)
    )
    spec = DataSpec.merge_all(
        (file.location, file_spec) for file, file_spec in zip(recognised_files, specs, strict=True)
    )
    if empty_locations:
        notes[make_skipped_note(empty_locations, "without rows")] = None
    return PreparationSource(parts, spec, (*_make_notes(recognised_files, unknown_files, non_data), *notes))


def _join_pieces(
    files: Sequence[RecognisedFile], pieces: Sequence[Sequence[Piece]]
) -> Iterator[tuple[Format, ReadOptions, Sequence[Piece]]]:
    """Yield the format, options and pieces of each file, or of adjacent files whose pieces are read at once."""
    pairs = zip(files, pieces, strict=True)
    for _, group in groupby(pairs, key=lambda pair: (pair[0].format, pair[0].options.keys)):
        group_pairs = list(group)
        data_format, options = group_pairs[0][0].format, group_pairs[0][0].options
        all_pieces = [piece for _, file_pieces in group_pairs for piece in file_pieces]
        yield data_format, options, data_format.join_pieces(all_pieces, options)


def _list_pieces(file: RecognisedFile) -> list[Piece] | NoRowsError:
    try:
        return file.format.list_pieces(file.location, file.options)
    except NoRowsError as error:
        return error


def _make_notes(
    recognised_files: Sequence[RecognisedFile],
    unknown_files: Sequence[Location],
    non_data: Collection[Location],
) -> tuple[str, ...]:
    formats = ", ".join(sorted({file.format.name for file in recognised_files}))
    return (
        f"read {formatting.plural(len(recognised_files), 'file')} as {formats}",
        *((make_skipped_note(unknown_files, "of no known format"),) if unknown_files else ()),
        *((make_non_data_note(non_data),) if non_data else ()),
    )


def _open_prepared(
    folder: Location, make_source: Callable[[], PreparationSource], preparer: Preparer, verify: bool
) -> OpenedData:
    """Open the prepared data in a folder; if they are not finished, prepare them or wait for another process to.

    Args:
        folder: folder of the prepared data.
        make_source: finds the data to prepare; called only by the process that prepares them.
        preparer: prepares the data.
        verify: see `open_data`.
    """
    has_noted_waiting = False
    while (preparation_notes := read_notes(folder)) is None:
        try:
            with sole_writer(folder.child(FOLDER)) as guard:
                # Another process may have finished before this one got the lock.
                if read_notes(folder) is None:
                    with ignoring_own_changes([*user_objects(preparer.reading.options).values()]):
                        preparer.prepare(folder.with_guard(guard), make_source())
        except OutputConflict as error:
            if not has_noted_waiting:
                preparer.hooks.note(f"waiting for data that another process is preparing: {error}")
            has_noted_waiting = True
            preparer.hooks.check()
            time.sleep(_POLL_INTERVAL_SECONDS)
    columns = preparer.reading.options.columns
    if columns is not None and preparer.reading.options.time is not None:
        columns = [*columns, Columns.DELTA_T]
    data_files = find_files([resolve(folder.uri)], verify)
    files = data_files._replace(
        indexed_files=[file._replace(origin=preparer.reading.name) for file in data_files.indexed_files]
    )
    dataset = make_dataset(project_columns(files.indexed_files, columns), preparer.reading.name)
    return OpenedData(
        [folder.uri],
        files,
        dataset,
        preparation_notes.notes,
        preparation_notes.warnings,
        columns=columns,
        is_prepared=True,
        missing=preparation_notes.findings.missing,
        files_with_rows=frozenset(preparation_notes.files),
    )
