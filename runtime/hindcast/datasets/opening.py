"""Opening files of complete episodes as one dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from hindcast import formatting
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.file_index import IndexedFile
from hindcast.datasets.sources import check_distinct, find_files
from hindcast.datasets.stitching import drop_repeats, stitch
from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location, resolve

_IMPLICIT_COLUMNS: Final = frozenset(
    {
        Columns.EPS_ID,
        Columns.AGENT_ID,
        Columns.MODULE_ID,
        Columns.T,
        Columns.NEXT_OBS,
        Columns.TERMINATEDS,
        Columns.TRUNCATEDS,
    }
)
"""Columns that every episode has in another form."""


_Path = str | Path | Location


def open_dataset(
    paths: _Path | Sequence[_Path], filesystem: object | None = None, verify: bool = False
) -> EpisodeDataset:
    """Open recorded episodes.

    A folder with a manifest is what its manifest lists; one with commits only, what they list; any other
    folder is searched recursively for Parquet files, which are indexed from their footers. Several paths make
    one dataset when their columns and spaces agree.

    Args:
        paths: files, folders or globs (`*`, `?`, `[…]`, `**`); plain paths or URIs.
        filesystem: a file system of `pyarrow.fs` or fsspec, or an obstore store, in which the paths are.
        verify: read all files of recordings and compare their checksums (sizes are always compared).

    Raises:
        DataError: no such path, no Parquet files, no episodes, a damaged or changed file, files that differ.
        StorageError: storage that refuses or fails.
    """
    path_list = [paths] if isinstance(paths, str | Path | Location) else list(paths)
    data_files = find_files([resolve(path, filesystem) for path in path_list], verify)
    return dataset_of(data_files.indexed_files, ", ".join(map(str, path_list)))


def dataset_of(files: Sequence[IndexedFile], name: str) -> EpisodeDataset:
    """Files that were found, in that order, as one dataset.

    Args:
        files: as `find_files` gives them, perhaps of several calls.
        name: of the data, for messages.

    Raises:
        DataError: no episodes, a file that is there twice, files that differ.
    """
    check_distinct(file.location for file in files)
    spec = DataSpec.merge_all((file.location, file.spec) for file in files)
    stitched_files, num_repeated = drop_repeats(stitch(files), spec)
    notes = (*unfinished_notes(files), *repeat_notes(num_repeated))
    dataset = EpisodeDataset(spec, stitched_files, notes=notes, num_repeated=num_repeated)
    if not dataset.num_steps:
        raise DataError(f"{name} holds no episodes: record some first")
    return dataset


def project_columns(files: Sequence[IndexedFile], columns: Sequence[str] | None) -> Sequence[IndexedFile]:
    """The files of one input, as if they held no other columns.

    Args:
        files: as `find_files` gives them.
        columns: names of columns (`obs` means all its leaves) or of leaves; all if None.

    Raises:
        DataError: a column that none of them has.
    """
    if columns is None or not files:
        return files
    column_names = set(columns)
    specs = {id(file.spec): file.spec for file in files}  # most files of a recording share one
    known_leaves = dict.fromkeys(leaf for spec in specs.values() for leaf in spec.leaves)
    unknown_columns = sorted(
        name
        for name in column_names - known_leaves.keys() - {*map(root, known_leaves)}
        if root(name) not in _IMPLICIT_COLUMNS
    )
    if unknown_columns:
        raise DataError(
            f"{files[0].location} has no column {', '.join(unknown_columns)}, which `columns` names: it has {', '.join(known_leaves)}"
        )
    projected_specs = {
        key: replace(
            spec,
            leaves={name: leaf for name, leaf in spec.leaves.items() if {name, root(name)} & column_names},
        )
        for key, spec in specs.items()
    }
    return [file._replace(spec=projected_specs[id(file.spec)]) for file in files]


def unfinished_notes(files: Iterable[IndexedFile]) -> Iterator[str]:
    """What to say of each recording among them that is not complete."""
    yield from dict.fromkeys(file.unfinished_note for file in files if file.unfinished_note)


def repeat_notes(num_repeated: int) -> Iterator[str]:
    """What to say of stored episodes that do not count."""
    if num_repeated:
        yield (
            f"{formatting.plural(num_repeated, 'stored episode')} {'repeats' if num_repeated == 1 else 'repeat'} others (the "
            "same id and the same content): each counts once"
        )
