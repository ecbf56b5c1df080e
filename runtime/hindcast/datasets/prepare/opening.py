"""Opening data of any kind: directly if they are complete episodes in order, prepared otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from hindcast import formatting
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.file_index import cache_folder
from hindcast.datasets.hooks import NO_HOOKS, Hooks
from hindcast.datasets.opening import dataset_of, project_columns
from hindcast.datasets.prepare.job import Part
from hindcast.datasets.prepare.non_data_files import (
    non_data_note,
    notes_on_skipped,
    skipped_note,
    split_non_data,
    unknown_format_error,
)
from hindcast.datasets.prepare.partitions import read_notes
from hindcast.datasets.prepare.preparer import Preparer, Work
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.prepare.source_files import (
    RecognisedFile,
    SourceFile,
    files_digest,
    find_source_files,
    preparation_digest,
    recognise_formats,
)
from hindcast.datasets.sources import DataFiles, expand_glob, find_files, map_in_threads
from hindcast.datasets.units import Unit
from hindcast.episodes.block import Block
from hindcast.errors import DataError, OutputConflict
from hindcast.formats.dataset_folder.folder_owner import describe_unfinished
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.formats.parquet.opening import UnknownLayoutError
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.read_options import check_options
from hindcast.storage.lease import sole_writer
from hindcast.storage.location import Location, resolve

_POLL_INTERVAL_SECONDS: Final = 0.5

Data = str | Path | Location | Reading
FileFinder = Callable[[Sequence[Location], bool], DataFiles]
"""Finds the files of places that hold complete episodes, as `find_files`; the flag says whether to verify them."""


class OpenedData(NamedTuple):
    """Data that are open, after they were prepared where that is needed.

    Attributes:
        paths: where they are: those of the reading, or what was prepared.
        files: what is there.
        dataset: the same, with the columns of the reading.
        notes: what finding and preparing them found, in sentences.
        unfinished: what to say of recordings that were prepared and are not complete.
        columns: of the reading; None for all.
        is_prepared: whether they were prepared.
    """

    paths: list[str | Path | Location]
    files: DataFiles
    dataset: EpisodeDataset
    notes: tuple[str, ...] = ()
    unfinished_notes: tuple[str, ...] = ()
    columns: Sequence[str] | None = None
    is_prepared: bool = False

    @property
    def name(self) -> str:
        """The paths, for messages."""
        return ", ".join(map(str, self.paths))

    def without(self, leaves: Collection[str]) -> OpenedData:
        """The same data, as if they did not hold these leaves."""
        columns = [leaf for leaf in self.dataset.spec.leaves if leaf not in leaves]
        dataset = dataset_of(project_columns(self.files.indexed_files, columns), self.name)
        return self._replace(dataset=dataset, columns=columns)

    def with_all_columns(self) -> EpisodeDataset:
        """The data with all columns that they have.

        Raises:
            DataError: files differ in a column that the reading leaves out.
        """
        return self.dataset if self.columns is None else dataset_of(self.files.indexed_files, self.name)


def open_data(
    data: Data | Sequence[Data],
    *,
    cache: str | Path | None = None,
    hooks: Hooks = NO_HOOKS,
    verify: bool = False,
) -> EpisodeDataset:
    """Any data, as one dataset.

    Args:
        data: paths (files, folders, globs, URIs) or readings. Paths are one reading, whose rows may belong together.
        cache: folder for what is prepared; `$HINDCAST_CACHE`, by default `~/.cache/hindcast`.
        watch: notified of progress in preparing.
        verify: read all files of recordings and compare their checksums.

    Raises:
        DataError: nothing there, damaged data, or rows that do not form complete episodes under the reading's rules.
        StorageError: storage that refuses or fails.
    """
    items = [data] if isinstance(data, str | Path | Location | Reading) else list(data)
    paths = tuple(one for one in items if not isinstance(one, Reading))
    readings = [one for one in items if isinstance(one, Reading)]
    if paths or not items:
        readings.insert(0, Reading(paths))
    opened = [open_reading(reading, cache=cache, hooks=hooks, verify=verify) for reading in readings]
    dataset = combine_datasets(opened)
    notes = [note for one in opened for note in (*one.unfinished_notes, *one.notes)]
    dataset.notes = (*notes, *dataset.notes)
    return dataset


def combine_datasets(opened: Sequence[OpenedData]) -> EpisodeDataset:
    """What several readings found as one dataset, as if one reading had found it.

    Raises:
        DataError: they differ in columns, dtypes, shapes or spaces, or two have the same file.
    """
    if len(opened) == 1:
        return opened[0].dataset
    files = [file for one in opened for file in project_columns(one.files.indexed_files, one.columns)]
    return dataset_of(files, ", ".join(one.name for one in opened))


def differing_leaves(datasets: Sequence[Dataset]) -> set[str]:
    """The leaves that some of them have and others lack, such as what only a policy with a distribution records."""
    first, *others = [one.spec.required_leaves for one in datasets]
    return first.union(*others) - first.intersection(*others)


def open_reading(
    reading: Reading,
    *,
    cache: str | Path | None = None,
    hooks: Hooks = NO_HOOKS,
    ray_options: Mapping[str, Any] | None = None,
    verify: bool = False,
    finder: FileFinder = find_files,
) -> OpenedData:
    """Open what a reading names, prepared where that is needed: the one way to data of any kind.

    Complete episodes in order are left where they are. All else becomes a dataset in the cache, once:
    a preparation that was interrupted is resumed, and a finished one is used. Small data are prepared in
    this process, others on Ray.

    Args:
        reading: what is read, and how.
        cache: see `open_data`.
        watch: notified of progress in preparing, and of why it waits; notes on the data are given back instead.
        ray_options: Ray's, for the tasks that prepare.
        verify: see `open_data`.
        look: finds the files that are opened directly; what it raises is raised here, except `NotReadable`.

    Raises:
        DataError: as `open_data`.
        StorageError: storage that refuses or fails.
    """
    preparer = Preparer(reading, hooks, ray_options or {})
    prepared_folder = (cache_folder() if cache is None else resolve(cache)).child("prepared")
    if reading.format not in ("Auto", "Parquet") or reading.options.schema:
        return _open_foreign(preparer, prepared_folder, None, verify)
    name = ", ".join(map(str, reading.locations))
    try:
        files = finder(reading.locations, verify)
    except UnknownLayoutError as error:
        return _open_foreign(preparer, prepared_folder, error, verify)
    columns = reading.options.columns if reading.is_plain else None
    dataset = dataset_of(project_columns(files.indexed_files, columns), name)
    check_options("Parquet", reading.options.options, ())
    if dataset.num_repeated and reading.prepare.duplicates == "Refuse":
        raise DataError(
            f"{name} has {formatting.plural(dataset.num_repeated, 'stored episode')} "
            "of the id and the content of another, and prepare.duplicates is Refuse"
        )
    notes = notes_on_skipped(files, name, reading)
    if reading.is_plain and reading.actions_normalized in (None, dataset.spec.normalized_actions):
        return OpenedData(list(reading.paths), files, dataset, notes, columns=columns)
    folder = prepared_folder.child(preparation_digest([dataset.digest], reading))
    opened = _open_prepared(folder, lambda: _make_stored_work(dataset, reading), preparer, verify)
    return opened._replace(notes=(*opened.notes, *notes))


def _make_stored_work(dataset: Dataset, reading: Reading) -> Work:
    parts = [
        Part(unit.parts[0].path, unit.nbytes, reading.options, partial(_read_episodes, dataset, unit))
        for unit in dataset.units
    ]
    return Work(parts, replace(dataset.spec, leaves={}), dataset.notes)


def _read_episodes(dataset: Dataset, unit: Unit) -> list[Block]:
    return [dataset.read(unit)]


def _open_foreign(
    preparer: Preparer, prepared_folder: Location, error: DataError | None, verify: bool
) -> OpenedData:
    source_files = find_source_files(preparer.reading)
    folder = prepared_folder.child(files_digest(source_files, preparer.reading))
    opened = _open_prepared(
        folder, lambda: _make_foreign_work(source_files, preparer.reading, error), preparer, verify
    )
    named_files = {place.location.path for place in source_files if place.is_named}
    locations = [place for location in preparer.reading.locations for place in expand_glob(location)]
    folders = [place for place in locations if place.path not in named_files]
    return opened._replace(unfinished_notes=tuple(filter(None, map(describe_unfinished, folders))))


def _make_foreign_work(source_files: list[SourceFile], reading: Reading, error: DataError | None) -> Work:
    """The pieces of foreign files.

    Raises:
        DataError: none of them is of a known format.
    """
    recognised_files, unrecognised = recognise_formats(source_files, reading)
    named = [place.location for place in source_files if place.is_named and place.location in unrecognised]
    if named and reading.format == "Auto":
        raise unknown_format_error(named[0])
    if not recognised_files or named:
        file = (named or unrecognised or [place.location for place in source_files])[0]
        raise error or DataError(f"{file} is not of the format {reading.format}: name another by `format`")
    recognised_files, non_data = split_non_data(
        recognised_files, [place.location for place in source_files if place.is_named]
    )
    pieces = map_in_threads(lambda one: one.format.pieces(one.location, one.options), recognised_files)
    specs = map_in_threads(lambda one: one.format.describe(one.location), recognised_files)
    parts = [
        Part(str(piece.location), piece.nbytes, one.options, partial(one.format.read, piece, one.options))
        for one, own in zip(recognised_files, pieces, strict=True)
        for piece in own
    ]
    notes = dict.fromkeys(
        note for one in recognised_files for note in one.format.notes(one.location, one.options)
    )
    spec = DataSpec.merge_all((one.location, own) for one, own in zip(recognised_files, specs, strict=True))
    return Work(parts, spec, (*_notes(recognised_files, unrecognised, non_data), *notes))


def _notes(
    recognised_files: Sequence[RecognisedFile], unrecognised: Sequence[Location], non_data: Sequence[Location]
) -> tuple[str, ...]:
    formats = ", ".join(sorted({one.format.name for one in recognised_files}))
    return (
        f"read {formatting.plural(len(recognised_files), 'file')} as {formats}",
        *((skipped_note(unrecognised, "of no known format"),) if unrecognised else ()),
        *((non_data_note(non_data),) if non_data else ()),
    )


def _open_prepared(
    folder: Location, find_work: Callable[[], Work], preparer: Preparer, verify: bool
) -> OpenedData:
    """What is in the folder, once it is complete: made here, or by another process."""
    is_waiting = False
    while (notes := read_notes(folder)) is None:
        try:
            with sole_writer(folder.child(FOLDER)) as guard:
                if read_notes(folder) is None:
                    preparer.prepare(folder.with_guard(guard), find_work())
        except OutputConflict as error:
            if not is_waiting:
                preparer.hooks.note(f"waiting for data that another process is preparing: {error}")
            is_waiting = True
            preparer.hooks.check()
            time.sleep(_POLL_INTERVAL_SECONDS)
    columns = preparer.reading.options.columns
    data_files = find_files([resolve(folder.uri)], verify)
    files = data_files._replace(
        indexed_files=[one._replace(origin=preparer.reading.name) for one in data_files.indexed_files]
    )
    dataset = dataset_of(project_columns(files.indexed_files, columns), preparer.reading.name)
    return OpenedData([folder.uri], files, dataset, notes, columns=columns, is_prepared=True)
