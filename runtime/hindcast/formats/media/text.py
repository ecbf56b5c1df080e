"""The format "Text": a row for each line of a file."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any, Final

from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.format import Format, Piece, ReadOptions
from hindcast.formats.media.mapping import check_mapper, episodes_of, objects
from hindcast.formats.tables.read_options import check_options
from hindcast.storage.location import Location

_SUFFIXES: Final = (".txt", ".text", ".log", ".md")
_ENCODING: Final = "encoding"
_DROP: Final = "drop_empty_lines"


class Text(Format):
    """text files, each mapped as one."""

    name = "Text"

    def recognises(self, location: Location) -> bool:
        """By the name."""
        return location.name.lower().endswith(_SUFFIXES)

    def pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """The file as one piece.

        Raises:
            DataError: options that it does not have.
            SpecError: no class is named that makes episodes of it.
        """
        _options(options)
        check_mapper(options, self.name)
        return [Piece(location, 0, location.info().size or 0)]

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Block]:
        """The episodes that the user's class makes of the lines, `{"text": [R], "path": [R]}`.

        Raises:
            DataError: text of another encoding.
            UserCodeError: the class raised.
        """
        own, path = _options(options), str(piece.location)
        encoding = own.get(_ENCODING, "utf-8")
        try:
            lines = piece.location.read_bytes().decode(encoding).splitlines()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not {encoding} (at byte {error.start}): name its encoding by readOptions.{_ENCODING}"
            ) from error
        if own.get(_DROP, False):
            lines = [line for line in lines if line.strip()]
        if lines:
            yield from episodes_of(
                {"text": objects(lines), "path": objects([path] * len(lines))}, options, path
            )


def _options(options: ReadOptions) -> dict[str, Any]:
    given = check_options("Text", options.options, (_ENCODING, _DROP))
    if not isinstance(given.get(_DROP, False), bool):
        raise DataError(f"readOptions.{_DROP} is {given[_DROP]!r}: expected true or false")
    try:
        codecs.lookup(given.get(_ENCODING, "utf-8"))
    except (LookupError, TypeError) as error:
        raise DataError(
            f"readOptions.{_ENCODING} is {given[_ENCODING]!r}, which is not a known encoding"
        ) from error
    return given
