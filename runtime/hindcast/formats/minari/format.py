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
from hindcast.formats.format import FileGroup, Format, Piece, ReadOptions, check_no_schema, require_package
from hindcast.formats.minari.episode_index import EpisodeGroup, index_episodes, is_episode
from hindcast.formats.minari.metadata import MAIN_FILE, METADATA_FILE, read_json, read_metadata
from hindcast.formats.minari.reading import local_folder, read_episodes
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.read_options import check_options
from hindcast.storage.location import Entry, Location, resolve

_NAMESPACE: Final = "namespace_metadata.json"
_FORMATS: Final = ("hdf5", "arrow", "parquet")


class Minari(Format):
    """A dataset in Arrow or Parquet is located by its `metadata.json`."""

    name = "Minari"

    def recognises(self, location: Location) -> bool:
        """Whether it is a main file of Minari, or the metadata of a dataset in Arrow or Parquet."""
        if location.name == METADATA_FILE:
            return _format_in(location) not in (None, "hdf5")
        if location.name == MAIN_FILE:
            return True
        if not location.name.endswith(hdf5.SUFFIXES):
            return False
        with suppress(DataError), hdf5.open_file(location) as file:
            return any(map(is_episode, file))
        return False

    def groups(self, entries: Sequence[Entry]) -> list[FileGroup]:
        """A dataset is all that is in the folder of its metadata and below."""
        groups: list[FileGroup] = []
        grouped: set[str] = set()
        for entry in sorted(entries, key=lambda entry: entry.relative_path.count("/")):
            is_candidate = (
                entry.location.name == METADATA_FILE and entry.is_file and entry.relative_path not in grouped
            )
            if not is_candidate or _format_in(entry.location) is None:
                continue
            group = _group(entry, entries)
            grouped |= group.files
            groups.append(group)
        return groups

    def pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """Adjacent episodes of about 16 MiB; an HDF5 file on an object store is one piece, so that it is copied once.

        Raises:
            DataError: a damaged file, episodes missing, options that it does not have, or no package `minari`.
        """
        check_options(self.name, options.options, ())
        check_no_schema(options, self.name)
        for package in ("minari", "PIL"):
            require_package(location, package, "minari")
        metadata = read_metadata(location)
        if metadata.data_format not in _FORMATS:
            raise DataError(
                f"{location} is stored as {metadata.data_format!r}: known are {', '.join(_FORMATS)}"
            )
        if location.name != METADATA_FILE and not location.is_local:
            return [Piece(location, location.info().size or 0)]
        found = index_episodes(location, metadata)
        return [Piece(location, stored.nbytes, stored) for stored in found.split()]

    def describe(self, location: Location) -> DataSpec:
        """Spaces and environment, by the metadata."""
        return read_metadata(location).spec

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows | Block]:
        """Blocks of complete episodes.

        Raises:
            DataError: damage, with file and path inside.
        """
        location: Location = piece.location
        with_infos = options.columns is None or Columns.INFOS in options.columns
        files = {MAIN_FILE: location}
        if location.name == METADATA_FILE:
            names = [name for episode in piece.extent.episodes for name in episode.files]
            files = {name: location.parent().child(name) for name in names}
        with local_folder(files) as folder:
            stored: EpisodeGroup = piece.extent
            if stored is None:
                copy = replace(resolve(folder / MAIN_FILE), uri=location.uri)
                stored = index_episodes(copy, read_metadata(location))
            for part in stored.split():
                yield read_episodes(location, folder, part, with_infos)


def _group(metadata: Entry, entries: Sequence[Entry]) -> FileGroup:
    folder = posixpath.dirname(metadata.relative_path)
    prefix = f"{folder}/" if folder else ""
    inside = {entry.relative_path for entry in entries if entry.relative_path.startswith(prefix)}
    namespaces = {entry.relative_path for entry in entries if entry.location.name == _NAMESPACE}
    main = metadata.location.parent().child(MAIN_FILE)
    return FileGroup(
        main if f"{prefix}{MAIN_FILE}" in inside else metadata.location, frozenset(inside | namespaces)
    )


def _format_in(metadata: Location) -> str | None:
    """How the dataset of a `metadata.json` is stored; None if that file is not Minari's."""
    with suppress(DataError):
        return read_json(metadata).get("data_format")
    return None
