"""Files that appear complete or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, cast

from hindcast.storage.backend import LocationLike, Store
from hindcast.storage.failures import storage_errors
from hindcast.storage.local_files import sync_folder, temporary_path

_MAX_MEMORY_BYTES: Final = 8 << 20
"""Size from which content for a store is buffered on disk."""


class AtomicFile:
    """A file that exists under its name only after `commit`.

    A local file is written under a temporary name, fsynced and renamed. For a store the content is buffered, in memory
    and then in a temporary file, and `commit` uploads all of it: an aborted file is never sent.

    The context manager commits at the end of the block, and aborts if there is an exception.

    Attributes:
        location: location of the file.
        size: bytes written so far.
    """

    def __init__(self, location: LocationLike) -> None:
        self.location = location
        self.size = 0
        self._hash = hashlib.sha256()
        self._temporary_path: Path | None = None
        with storage_errors("write", location):
            self._stream = self._open()

    @property
    def checksum(self) -> str:
        """The sha256 (hex) of the bytes written so far."""
        return self._hash.hexdigest()

    def write(self, data: Any) -> int:
        """Append bytes, from any object with the buffer protocol; return their number.

        Raises:
            StorageError: the bytes cannot be written.
        """
        view = memoryview(data).cast("B")
        with storage_errors("write", self.location):
            self._write_all(view)
        self._hash.update(view)
        self.size += len(view)
        return len(view)

    def commit(self) -> None:
        """Make the file durable and visible under its name.

        Raises:
            StorageError: the file cannot be written; then an earlier file of this name is unchanged.
            Exception: the location's guard has found that the lease was lost.
        """
        # The lease may have been lost since the file was opened.
        self.location.check_guard()
        with storage_errors("write", self.location):
            if self._temporary_path is None:
                self._upload()
                return
            os.fsync(self._stream.fileno())
            self._stream.close()
            path = self._temporary_path.replace(self.location.path)
            sync_folder(path.parent)

    def abort(self) -> None:
        """Discard the file and everything written to it."""
        with suppress(Exception):  # on a full disk, closing fails as well
            self._stream.close()
        if self._temporary_path is not None:
            with suppress(Exception):
                self._temporary_path.unlink()

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.abort()
            return
        try:
            self.commit()
        except BaseException:
            self.abort()
            raise

    def _open(self) -> IO[bytes]:
        if not self.location.is_local:
            return tempfile.SpooledTemporaryFile(_MAX_MEMORY_BYTES)
        self.location.check_guard()
        self._temporary_path = temporary_path(Path(self.location.path))
        return self._temporary_path.open("xb", buffering=0)

    def _upload(self) -> None:
        with self._stream as stream:
            stream.seek(0)
            cast(Store, self.location.backend).put(self.location.path, stream)

    def _write_all(self, view: memoryview) -> None:
        while view:  # an unbuffered file may write only a part of the bytes
            num_written = self._stream.write(view)
            view = view[len(view) if num_written is None else num_written :]
