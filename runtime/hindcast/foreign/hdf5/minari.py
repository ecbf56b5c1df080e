"""Minari's datasets: `<name>/data/main_data.hdf5`, or `<name>/data/<n>/part-0.arrow` (or `.parquet`)."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from hindcast import words
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.foreign.format import Group, Piece, ReadOptions
from hindcast.foreign.hdf5 import h5, minari_arrow, minari_hdf5
from hindcast.foreign.hdf5.minari_episodes import block_of
from hindcast.foreign.hdf5.minari_metadata import MAIN, METADATA, MinariMetadata, metadata_of, read_json
from hindcast.foreign.own_names import check_no_schema
from hindcast.foreign.rows import Rows
from hindcast.foreign.tables.read_options import check_options
from hindcast.store.filesystem import Entry, Location
from hindcast.store.spec import DataSpec

_PIECE_BYTES: Final = 16 << 20
_NAMESPACE: Final = "namespace_metadata.json"
_FORMATS: Final = ("hdf5", "arrow", "parquet")


class _Episode(NamedTuple):
    """Its number, its bytes in memory, and, where it has files of its own, these."""

    number: int
    nbytes: int
    files: tuple[str, ...] = ()


class Minari:
    """Minari's datasets. A dataset in Arrow or Parquet is located by its `metadata.json`."""

    name = "Minari"

    def recognises(self, location: Location) -> bool:
        """Whether it is a main file of Minari, or the metadata of a dataset in Arrow or Parquet."""
        if location.name == METADATA:
            with suppress(DataError):
                return _is_metadata(location) and metadata_of(location).format != "hdf5"
            return False
        if location.name == MAIN:
            return True
        if not location.name.endswith(h5.SUFFIXES):
            return False
        with suppress(DataError), h5.opened(location) as file:
            return any(map(minari_hdf5.is_episode, file))
        return False

    def groups(self, entries: Sequence[Entry]) -> list[Group]:
        """A dataset is all that lies beside or below its metadata."""
        groups: list[Group] = []
        grouped: set[str] = set()
        for entry in sorted(entries, key=lambda entry: entry.relative.count("/")):
            is_candidate = entry.location.name == METADATA and entry.is_file and entry.relative not in grouped
            if not (is_candidate and _is_metadata(entry.location)):
                continue
            group = _group(entry, entries)
            grouped |= group.files
            groups.append(group)
        return groups

    def pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """Adjacent episodes of about 16 MiB.

        Raises:
            DataError: a damaged file, episodes missing, or options that it does not have.
        """
        check_options(self.name, options.options, ())
        check_no_schema(options, self.name)
        metadata = metadata_of(location)
        if metadata.format not in _FORMATS:
            raise DataError(f"{location} is stored as {metadata.format!r}: known are {', '.join(_FORMATS)}")
        episodes = (
            _in_hdf5(location, metadata) if location.name != METADATA else _in_folders(location, metadata)
        )
        if metadata.episodes is not None and metadata.episodes != len(episodes):
            raise DataError(
                f"{location} holds {words.plural(len(episodes), 'episode')}, but its metadata say "
                f"{metadata.episodes}: copy the dataset again"
            )
        return _pieces(location, episodes)

    def describe(self, location: Location, options: ReadOptions) -> DataSpec:  # noqa: ARG002
        """Spaces and environment, by the metadata."""
        return metadata_of(location).spec

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows | Block]:
        """One block of whole episodes.

        Raises:
            DataError: damage, with file and path inside.
        """
        location, metadata = piece.location, metadata_of(piece.location)
        with_infos = options.columns is None or Columns.INFOS in options.columns
        if location.name == METADATA:
            folder = location.parent()
            yield block_of(
                [
                    minari_arrow.read_episode(folder, episode.files, episode.number, metadata, with_infos)
                    for episode in piece.part
                ]
            )
            return
        with h5.opened(location) as file:
            yield block_of(
                [
                    minari_hdf5.read_episode(location, file, episode.number, metadata, with_infos)
                    for episode in piece.part
                ]
            )


def _group(metadata: Entry, entries: Sequence[Entry]) -> Group:
    folder = posixpath.dirname(metadata.relative)
    prefix = f"{folder}/" if folder else ""
    inside = {entry.relative for entry in entries if entry.relative.startswith(prefix)}
    namespaces = {entry.relative for entry in entries if entry.location.name == _NAMESPACE}
    main = metadata.location.parent().child(MAIN)
    return Group(main if f"{prefix}{MAIN}" in inside else metadata.location, frozenset(inside | namespaces))


def _is_metadata(location: Location) -> bool:
    with suppress(DataError):
        return "data_format" in read_json(location)
    return False


def _in_hdf5(location: Location, metadata: MinariMetadata) -> list[_Episode]:
    with h5.opened(location) as file:
        stored = minari_hdf5.episodes_in(location, file)
        if not stored:
            return []
        longest = max(stored, key=lambda episode: episode.steps)
        each = minari_hdf5.bytes_per_step(location, file, longest)
    steps = sum(episode.steps for episode in stored)
    if metadata.steps is not None and metadata.steps != steps:
        raise DataError(
            f"{location} holds {steps} timesteps, but its metadata say {metadata.steps}: copy the dataset again"
        )
    return [_Episode(episode.number, episode.steps * each) for episode in stored]


def _in_folders(location: Location, metadata: MinariMetadata) -> list[_Episode]:
    stored = minari_arrow.episodes_in(location.parent(), metadata.format)
    return [_Episode(episode.number, episode.nbytes, episode.files) for episode in stored]


def _pieces(location: Location, episodes: Sequence[_Episode]) -> list[Piece]:
    pieces: list[Piece] = []
    held: list[_Episode] = []
    nbytes = 0
    for episode in episodes:
        held.append(episode)
        nbytes += episode.nbytes
        if nbytes >= _PIECE_BYTES or episode is episodes[-1]:
            pieces.append(Piece(location, len(pieces), nbytes, tuple(held)))
            held, nbytes = [], 0
    return pieces
