"""Open files of complete episodes as one dataset."""

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
"""Columns that are never leaves, since every episode has them in another form."""


_Path = str | Path | Location


def open_dataset(
    paths: _Path | Sequence[_Path], filesystem: object | None = None, verify: bool = False
) -> EpisodeDataset:
    """Open recorded episodes.

    Of a folder with a manifest, the files that the manifest lists are opened; of a folder with only commits, the files
    that the commits list. Any other folder is searched recursively for such folders and for Parquet files, which are
    indexed. Several paths make one dataset if their columns and spaces agree.

    Args:
        paths: files, folders or globs (`*`, `?`, `[…]`, `**`); plain paths or URIs.
        filesystem: a file system of `pyarrow.fs` or fsspec, or an obstore store, that contains the paths.
        verify: whether to read all files of recordings and compare their checksums; sizes are always compared.

    Raises:
        DataError: a path does not exist, there are no Parquet files or no episodes, a file is damaged or changed, or
            files differ.
        StorageError: the storage fails or denies access.
    """
    path_list = [paths] if isinstance(paths, str | Path | Location) else list(paths)
    data_files = find_files([resolve(path, filesystem) for path in path_list], verify)
    return make_dataset(data_files.indexed_files, ", ".join(map(str, path_list)))


def make_dataset(files: Sequence[IndexedFile], name: str) -> EpisodeDataset:
    """Make a dataset of indexed files, in their order.

    Args:
        files: files from one or more calls of `find_files`.
        name: name of the data, for messages.

    Raises:
        DataError: there are no episodes, a file occurs twice, or files differ.
    """
    check_distinct(file.location for file in files)
    spec = DataSpec.merge_all((file.origin or file.location, file.spec) for file in files)
    stitched_files, num_repeated = drop_repeats(stitch(files), spec)
    notes = (*unfinished_notes(files), *repeat_notes(num_repeated))
    dataset = EpisodeDataset(spec, stitched_files, notes=notes, num_repeated=num_repeated)
    if not dataset.num_steps:
        raise DataError(f"{name} holds no episodes: record some first")
    return dataset


def project_columns(files: Sequence[IndexedFile], columns: Sequence[str] | None) -> Sequence[IndexedFile]:
    """Restrict the files of one input to some columns.

    Args:
        files: files from `find_files`.
        columns: names of columns (`obs` means all its leaves) or of leaves; None keeps all. Columns that are never
            leaves, such as `t`, are ignored.

    Raises:
        DataError: a column is in none of the files.
    """
    if columns is None or not files:
        return files
    column_names = set(columns)
    specs_by_object = {id(file.spec): file.spec for file in files}  # most files of a recording share one spec
    known_leaves = dict.fromkeys(leaf for spec in specs_by_object.values() for leaf in spec.leaves)
    unknown_columns = sorted(
        name
        for name in column_names - known_leaves.keys() - {*map(root, known_leaves)}
        if root(name) not in _IMPLICIT_COLUMNS
    )
    if unknown_columns:
        raise DataError(
            f"{files[0].location} has no column {', '.join(unknown_columns)}, which `columns` names: it has "
            f"{', '.join(known_leaves)}"
        )
    projected_specs = {
        key: replace(
            spec,
            leaves={name: leaf for name, leaf in spec.leaves.items() if {name, root(name)} & column_names},
        )
        for key, spec in specs_by_object.items()
    }
    return [file._replace(spec=projected_specs[id(file.spec)]) for file in files]


def unfinished_notes(files: Iterable[IndexedFile]) -> Iterator[str]:
    """Yield a note on each incomplete recording among the files."""
    yield from dict.fromkeys(file.unfinished_note for file in files if file.unfinished_note)


def repeat_notes(num_repeated: int) -> Iterator[str]:
    """Yield a note on stored episodes that were dropped because they repeat others, if there are any."""
    if num_repeated:
        verb = "repeats" if num_repeated == 1 else "repeat"
        yield (
            f"{formatting.plural(num_repeated, 'stored episode')} {verb} others (the same id and the same content): "
            "each counts once"
        )
