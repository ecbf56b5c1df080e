"""Files that are read in ranges of bytes, each of which is one request."""

from __future__ import annotations

import io
from typing import Any


class RangeReader(io.RawIOBase):
    """Base class of files that are open for reading at any offset.

    Args:
        size: size of the file in bytes.
    """

    def __init__(self, size: int) -> None:
        self._size, self._offset = size, 0

    def read_range(self, start: int, length: int) -> Any:
        """Return `length` bytes, at least 1, from the offset `start`."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = 0) -> int:
        self._offset = (0, self._offset, self._size)[whence] + offset
        return self._offset

    def read(self, nbytes: int | None = None) -> Any:
        """Read at most `nbytes`; by default, up to the end of the file."""
        remaining = max(0, self._size - self._offset)
        length = remaining if nbytes is None or nbytes < 0 else min(nbytes, remaining)
        if not length:
            return b""
        content = self.read_range(self._offset, length)
        self._offset += length
        return content
