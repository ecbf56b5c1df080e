"""A cache on this machine's disk of the bytes that a process reads from a store, epoch after epoch."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from hindcast.storage.range_reader import RangeReader

_LOG: Final = logging.getLogger("hindcast")


class DiskCache:
    """Bytes by key, in one temporary file, for any number of threads.

    The file has no name, so it disappears with the process, even if the process is killed. Nothing is evicted: once
    the cache is full, nothing is added. Each epoch reads all data once, in a different order, so no eviction would give
    more hits in the next epoch.

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
        """Add bytes of a file, if they fit. After a failed write, such as on a full disk, nothing more is added."""
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
    """Open the cache in which this process keeps what `read_through` reads; an open cache of this size is kept.

    Args:
        max_bytes: maximum size; 0 closes the cache.
    """
    global _process_cache  # noqa: PLW0603  (one per process)
    if max_bytes != (_process_cache.max_bytes if _process_cache else 0):
        _process_cache = DiskCache(max_bytes) if max_bytes else None


def read_through(file: pa.NativeFile, key: str) -> pa.NativeFile:
    """Wrap a file so that each of its ranges is requested once; without a disk cache, return it unchanged.

    Args:
        file: an open file of a store.
        key: identifies its content, such as a checksum.
    """
    return (
        file if _process_cache is None else pa.PythonFile(_CachedReader(file, key, _process_cache), mode="r")
    )


class _CachedReader(RangeReader):
    """A file whose ranges are read from a cache, or else from the file and added to the cache."""

    def __init__(self, file: pa.NativeFile, key: str, cache: DiskCache) -> None:
        super().__init__(file.size())
        self._file, self._key, self._cache = file, key, cache

    def read_range(self, start: int, length: int) -> Any:
        content = self._cache.get(self._key, start, length)
        if content is None:
            self._file.seek(start)
            content = self._file.read(length)
            self._cache.put(self._key, start, content)
        return content

    def close(self) -> None:
        self._file.close()
        super().close()
