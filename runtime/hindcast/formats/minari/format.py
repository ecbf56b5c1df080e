"""The format "Minari": `<name>/data/main_data.hdf5`, or `<name>/data/<n>/part-0.arrow` (or `.parquet`)."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.formats import hdf5
from hindcast.formats.format import (
    FileGroup,
    Format,
    Piece,
    ReadOptions,
    check_no_schema,
    has_suffix,
    require_package,
)
from hindcast.formats.minari.episode_index import EpisodeGroup, index_episodes, is_episode
from hindcast.formats.minari.metadata import MAIN_FILE, METADATA_FILE, read_json, read_metadata
from hindcast.formats.minari.reading import link_or_copy_files, read_episodes
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.read_options import check_options
from hindcast.storage.location import Entry, Location, resolve

_NAMESPACE_FILE: Final = "namespace_metadata.json"
_DATA_FORMATS: Final = ("hdf5", "arrow", "parquet")


class Minari(Format):
    """Datasets of Minari, located by their main file, or by `metadata.json` if they are in Arrow or Parquet."""

    name = "Minari"
    title = "Minari"

    def recognises(self, location: Location) -> bool:
        """See `Format.recognises`: a main file, metadata of a dataset in Arrow or Parquet, or HDF5 with episodes.

        A main file has Minari's name `main_data.hdf5`; an episode is a group such as `episode_7`.
        """
        if location.name == METADATA_FILE:
            return _read_data_format(location) not in (None, "hdf5")
        if location.name == MAIN_FILE:
            return True
        if not has_suffix(location.name, hdf5.SUFFIXES):
            return False
        with suppress(DataError), hdf5.open_file(location) as file:
            return any(map(is_episode, file))
        return False

    def group_files(self, entries: Sequence[Entry]) -> list[FileGroup]:
        """See `Format.group_files`: a dataset is the folder that contains its metadata, with everything in it.

        Files that describe Minari's namespaces also belong to each group, so that they are not read as data.
        """
        groups: list[FileGroup] = []
        grouped_files: set[str] = set()
        # outer folders first: metadata below a dataset belong to that dataset
        for entry in sorted(entries, key=lambda entry: entry.relative_path.count("/")):
            is_candidate = (
                entry.location.name == METADATA_FILE
                and entry.is_file
                and entry.relative_path not in grouped_files
            )
            if not is_candidate or _read_data_format(entry.location) is None:
                continue
            group = _make_file_group(entry, entries)
            grouped_files |= group.files
            groups.append(group)
        return groups

    def list_pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `Format.list_pieces`: adjacent episodes of about 16 MiB; an HDF5 file on an object store is one piece.

        Raises:
            DataError: the file is damaged, episodes are missing, an option is set, or the package `minari` is not
                installed.
        """
        check_options(self.name, options.options, ())
        check_no_schema(options, self.name)
        for package in ("minari", "PIL"):
            require_package(location, package, "minari")
        metadata = read_metadata(location)
        if metadata.data_format not in _DATA_FORMATS:
            raise DataError(
                f"is stored as {metadata.data_format!r}: allowed are {', '.join(_DATA_FORMATS)}",
                path=str(location),
            )
        if location.name != METADATA_FILE and not location.is_local:
            # one piece, so that the file is copied only once
            return [Piece(location, location.info().size or 0)]
        index = index_episodes(location, metadata)
        return [Piece(location, group.nbytes, group) for group in index.split()]

    def describe(self, location: Location) -> DataSpec:
        """See `Format.describe`: the spaces and the environment in the metadata."""
        return read_metadata(location).spec

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows | Block]:
        """See `Format.read`: blocks of complete episodes.

        Raises:
            DataError: the file is damaged.
        """
        location: Location = piece.location
        should_read_infos = options.columns is None or Columns.INFOS in options.columns
        files = {MAIN_FILE: location}
        if location.name == METADATA_FILE:
            names = [name for episode in piece.extent.episodes for name in episode.files]
            files = {name: location.parent().child(name) for name in names}
        with link_or_copy_files(files) as folder:
            group: EpisodeGroup = piece.extent
            if group is None:
                # so that messages name the user's file, not the copy
                copy = replace(resolve(folder / MAIN_FILE), uri=location.uri)
                group = index_episodes(copy, read_metadata(location))
            for episodes in group.split():
                yield read_episodes(location, folder, episodes, should_read_infos)


def _make_file_group(metadata: Entry, entries: Sequence[Entry]) -> FileGroup:
    folder = posixpath.dirname(metadata.relative_path)
    prefix = f"{folder}/" if folder else ""
    members = {entry.relative_path for entry in entries if entry.relative_path.startswith(prefix)}
    namespaces = {entry.relative_path for entry in entries if entry.location.name == _NAMESPACE_FILE}
    main_file = metadata.location.parent().child(MAIN_FILE)
    return FileGroup(
        main_file if f"{prefix}{MAIN_FILE}" in members else metadata.location, frozenset(members | namespaces)
    )


def _read_data_format(metadata: Location) -> str | None:
    """Return the data format that a `metadata.json` names; None if the file is not Minari's."""
    with suppress(DataError):
        return read_json(metadata).get("data_format")
    return None
