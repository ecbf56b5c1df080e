"""Files that appear whole or not at all."""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import pyarrow.fs as pafs

from hindcast.store.remote import TEMPORARY_SUFFIX, store_of
from hindcast.store.storage_errors import storage_errors

if TYPE_CHECKING:
    from hindcast.store.filesystem import Location

__all__ = ["TEMPORARY_SUFFIX", "AtomicFile", "create_local_exclusive", "sync_folder"]

_IN_MEMORY = 8 << 20


class AtomicFile:
    """A file being written. It exists under its name only after `commit`.

    Locally it is written under a temporary name (hidden, so that Parquet readers skip it), fsynced, renamed.
    Elsewhere it is collected here, in memory and then in a temporary file, and put there as a whole by `commit`: what
    fails can be put again, and nothing that was given up is ever sent.

    As a context manager it commits at the end, and aborts on an exception.

    Attributes:
        size: bytes written so far.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self.size = 0
        self._hash = hashlib.sha256()
        self._temporary: Path | None = None
        with storage_errors("write", location.uri, location.fs):
            self._stream = self._open()

    @property
    def checksum(self) -> str:
        """sha256 (hex) of what was written so far."""
        return self._hash.hexdigest()

    def write(self, data: Any) -> int:
        """Append bytes (any buffer).

        Raises:
            StorageError: with path and reason.
        """
        view = memoryview(data).cast("B")
        with storage_errors("write", self.location.uri, self.location.fs):
            self._write_all(view)
        self._hash.update(view)
        self.size += len(view)
        return len(view)

    def commit(self) -> None:
        """Make the file durable and visible under its name.

        Raises:
            StorageError: with path and reason; the file is not there then.
        """
        self.location.check_guard()
        with storage_errors("write", self.location.uri, self.location.fs):
            if self._temporary is None:
                self._put()
                return
            os.fsync(self._stream.fileno())
            self._stream.close()
            final = self._temporary.replace(self.location.path)
            sync_folder(final.parent)

    def abort(self) -> None:
        """Give the file up; what was written is removed."""
        with suppress(Exception):  # a full disk fails here once more
            self._stream.close()
        if self._temporary is not None:
            with suppress(Exception):
                self._temporary.unlink()

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            return tempfile.SpooledTemporaryFile(_IN_MEMORY)
        self.location.check_guard()
        self._temporary = _temporary_beside(Path(self.location.path))
        return self._temporary.open("xb", buffering=0)

    def _put(self) -> None:
        store = store_of(self.location.fs)
        assert store is not None, f"{self.location.fs} is neither local nor a store"
        if isinstance(store.inner, pafs.PyFileSystem):  # fsspec may serve file systems that have folders
            self.location.parent().mkdirs()
        with self._stream as stream:
            stream.flush()
            if self.size <= _IN_MEMORY:
                stream.seek(0)
                store.put(self.location.path, memoryview(stream.read()))
                return
            with (
                mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
                memoryview(content) as view,
            ):
                store.put(self.location.path, view)

    def _write_all(self, view: memoryview) -> None:
        while view:
            written = self._stream.write(view)
            view = view[len(view) if written is None else written :]


def create_local_exclusive(path: Path, data: bytes) -> bool:
    """Write a whole local file unless one is there: the content is complete before the name exists."""
    temporary = _temporary_beside(path)
    try:
        with temporary.open("xb", buffering=0) as stream:
            stream.write(data)
            os.fsync(stream.fileno())
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """Make renames in a local folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary_beside(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
