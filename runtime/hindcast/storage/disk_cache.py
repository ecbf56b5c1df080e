"""A cache on this machine's disk of the bytes that a process reads from a store, epoch after epoch."""

from __future__ import annotations

import io
import logging
import os
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

_LOG: Final = logging.getLogger("hindcast")


class DiskCache:
    """Bytes by key, in one temporary file, for any number of threads.

    The file has no name, so that it ends with the process, even if that is killed. What comes first stays: once the
    cache is full, nothing is added. An epoch reads all data once, in an order of its own, so that no replacement would
    find more of them in the next epoch.

    Args:
        max_bytes: maximum size of the file.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._descriptor, path = tempfile.mkstemp(prefix="hindcast-")
        Path(path).unlink()
        self._ranges: dict[tuple[str, int, int], int] = {}
        self._size = 0
        self._lock = threading.Lock()

    def __del__(self) -> None:
        os.close(self._descriptor)

    def get(self, key: str, start: int, length: int) -> bytes | None:
        """Return bytes of a file, or None if they are not in the cache.

        Args:
            key: identifies the content of the file.
            start: offset in the file.
            length: number of bytes.
        """
        position = self._ranges.get((key, start, length))
        return None if position is None else os.pread(self._descriptor, length, position)

    def put(self, key: str, start: int, content: bytes) -> None:
        """Add bytes of a file, if they fit; a disk that is full ends the adding."""
        with self._lock:
            position = self._size
            if (key, start, len(content)) in self._ranges or position + len(content) > self.max_bytes:
                return
            self._size += len(content)
        try:
            num_written = os.pwrite(self._descriptor, content, position)
        except OSError as error:
            _LOG.warning("pipeline.diskCache: holds no more than %d bytes: %s", position, error)
            num_written, self.max_bytes = 0, 0
        if num_written == len(content):
            self._ranges[key, start, len(content)] = position


_process_cache: DiskCache | None = None


def open_disk_cache(max_bytes: int) -> None:
    """Let this process keep what `read_through` reads; a cache of the same size stays as it is.

    Args:
        max_bytes: maximum size; 0 ends the cache.
    """
    global _process_cache  # noqa: PLW0603  (one per process)
    if max_bytes != (_process_cache.max_bytes if _process_cache else 0):
        _process_cache = DiskCache(max_bytes) if max_bytes else None


def read_through(file: pa.NativeFile, key: str) -> pa.NativeFile:
    """Return the file, of which each range is read once if this process has a disk cache.

    Args:
        file: an open file of a store.
        key: identifies its content, such as a checksum.
    """
    return (
        file if _process_cache is None else pa.PythonFile(_CachedReader(file, key, _process_cache), mode="r")
    )


class _CachedReader(io.RawIOBase):
    """A file whose ranges are read from a cache, or else from the file and added to the cache."""

    def __init__(self, file: pa.NativeFile, key: str, cache: DiskCache) -> None:
        self._file, self._key, self._cache = file, key, cache
        self._size, self._offset = file.size(), 0

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
        content = self._cache.get(self._key, self._offset, length)
        if content is None:
            self._file.seek(self._offset)
            content = self._file.read(length)
            self._cache.put(self._key, self._offset, content)
        self._offset += len(content)
        return content

    def close(self) -> None:
        self._file.close()
        super().close()
