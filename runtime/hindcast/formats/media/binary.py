"""The format "Binary": a row for each file, with its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from hindcast.episodes.block import Block
from hindcast.formats.format import Format, Group, Piece, ReadOptions
from hindcast.formats.media.folders import files_of, folders_of, pieces_of
from hindcast.formats.media.mapping import episodes_of, objects
from hindcast.storage.location import Entry, Location

_ANY: Final = ("",)


class Binary(Format):
    """files of any kind; those of a folder are mapped together."""

    name = "Binary"

    def recognises(self, location: Location) -> bool:
        """Folders; a file is binary only where it is named as such."""
        return location.is_folder()

    def groups(self, entries: Sequence[Entry]) -> list[Group]:
        """Each folder with its files."""
        return folders_of(entries, _ANY)

    def pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `pieces_of`."""
        return pieces_of(location, options, self.name, _ANY, ())

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Block]:
        """The episodes that the user's class makes of the files, `{"bytes": [R], "path": [R]}`.

        Raises:
            UserCodeError: the class raised.
        """
        files = list(files_of(piece))
        rows = {
            "bytes": objects([file.read_bytes() for file in files]),
            "path": objects([str(file) for file in files]),
        }
        yield from episodes_of(rows, options, str(piece.location))
