"""A file that grows, on stores that cannot append too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hindcast.storage.location import Location

MOST_PIECES: Final = 256


class GrowingFile:
    """What grows piece by piece: a local file; on an object store a row of objects of at most 256 pieces each.

    An object is rewritten with each of its pieces; the limit keeps the total written proportional to their number.

    Args:
        name: number of a piece -> the object that begins with it; a local file is that of piece 0.
        head: what the file, and each object, begins with.
    """

    def __init__(self, name: Callable[[int], Location], head: bytes = b"") -> None:
        self._name = name
        self._head = head
        self._pieces = 0
        self._content = b""

    def append(self, piece: bytes) -> None:
        """Add a piece; it is there when this returns.

        Raises:
            StorageError: with path and reason.
        """
        file = self._name(0)
        number, self._pieces = self._pieces, self._pieces + 1
        if file.is_local:
            file.append_bytes(piece if number else self._head + piece)
            return
        begun = number % MOST_PIECES
        self._content = (self._content if begun else self._head) + piece
        self._name(number - begun).write_bytes(self._content)
