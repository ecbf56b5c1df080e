"""Formats that read the files of a folder together: images and binary files."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from hindcast.errors import DataError
from hindcast.formats.format import Group, Piece, ReadOptions, is_hidden
from hindcast.formats.media.mapping import check_mapper
from hindcast.formats.tables.read_options import check_options
from hindcast.formatting import natural
from hindcast.storage.location import Entry, Location

BATCH_SIZE: Final = "batch_size"


def folders_of(entries: Sequence[Entry], suffixes: tuple[str, ...]) -> list[Group]:
    """The folders in a recursive listing, each with the files in it that have such names."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.is_file and is_member(entry.relative, suffixes):
            found.setdefault(posixpath.dirname(entry.relative), []).append(entry)
    return [
        Group(members[0].location.parent(), frozenset(entry.relative for entry in members))
        for members in found.values()
    ]


def is_member(relative: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a file is one to read: by its name; hidden ones are not."""
    return relative.lower().endswith(suffixes) and not is_hidden(relative)


def pieces_of(
    location: Location, options: ReadOptions, form: str, suffixes: tuple[str, ...], allowed: Collection[str]
) -> list[Piece]:
    """A folder's files in natural order (2 before 10), `batch_size` at a time; a file by itself.

    Raises:
        DataError: options that the format does not have.
        SpecError: no class is named that makes episodes of the files.
    """
    given = check_options(form, options.options, (*allowed, BATCH_SIZE))
    check_mapper(options, form)
    if not location.is_folder():
        return [Piece(location, 0, location.info().size or 0, None)]
    files = sorted(
        (entry for entry in location.files() if is_member(entry.relative, suffixes)),
        key=lambda entry: natural(entry.relative),
    )
    size = _batch_size(given, len(files))
    batches = [files[start : start + size] for start in range(0, len(files), size)]
    return [
        Piece(location, number, sum(file.size for file in batch), tuple(file.relative for file in batch))
        for number, batch in enumerate(batches)
    ]


def files_of(piece: Piece) -> Iterator[Location]:
    """The files of a piece."""
    if piece.part is None:
        yield piece.location
        return
    for name in piece.part:
        yield piece.location.child(name)


def _batch_size(given: dict[str, Any], files: int) -> int:
    size = given.get(BATCH_SIZE, max(1, files))
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise DataError(f"readOptions.{BATCH_SIZE} is {size!r}: expected a number of files, at least 1")
    return size
