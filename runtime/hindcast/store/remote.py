"""File systems behind a network: every operation tried again while that helps, every failure one sentence.

What other code gets is a `pyarrow.fs.PyFileSystem` over a `Store`, so that whoever opens a file through it, Parquet
readers too, has its patience and its sentences.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from hindcast.store.retrying import answer_limit, patience, persistently, still_wanted, within
from hindcast.store.storage_errors import storage_errors

Result = TypeVar("Result")

TEMPORARY_SUFFIX = ".tmp"
_CHUNK = 64 << 20
_COMPARED = 8 << 20
_CLOSED = "connection closed by the store"
"""Said of files that Google's client has closed, since their first or last request failed."""
_STATELESS = frozenset({"s3", "gcs", "abfs"})


class Store(pafs.FileSystemHandler):
    """A file system behind a network.

    Args:
        inner: it, as pyarrow sees it.
        root: how URIs in it begin, for messages.
        rebuild: makes the same store in another process, from that process's environment; by default `inner`
            travels, with the credentials that are in it.
        limits_itself: its client gives up on a server that does not answer.
    """

    def __init__(
        self,
        inner: pafs.FileSystem,
        root: str,
        rebuild: Callable[[], pafs.FileSystem] | None = None,
        limits_itself: bool = False,
    ) -> None:
        self.inner, self.root = inner, root
        self._rebuild = rebuild
        self._limits_itself = limits_itself

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and (self.root, self.inner) == (other.root, other.inner)

    def __hash__(self) -> int:
        return hash((type(self), self.root, self.inner.type_name))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._rebuild is not None:
            return _rebuilt, (self._rebuild,)
        return type(self), (self.inner, self.root, None, self._limits_itself)

    def attempt(
        self, action: str, path: str, operation: Callable[[], Result], limit: float | None = None
    ) -> Result:
        """Carry out an operation persistently.

        Args:
            action: a verb, for messages.
            path: what it is done to.
            operation: one attempt.
            limit: seconds that an attempt may take; `answer_limit()` by default.

        Raises:
            FileNotFoundError: nothing is there.
            StorageError: the store refused, failed, or took too long.
        """
        seconds = answer_limit() if limit is None else limit

        def bounded() -> Result:
            return operation() if self._limits_itself else within(operation, seconds)

        with storage_errors(action, f"{self.root}{path.lstrip('/')}", self.inner, missing_is_error=False):
            return persistently(bounded)

    def put(self, path: str, data: memoryview) -> None:
        """Make a file of `data`, all or nothing, replacing what is there.

        Raises:
            StorageError: it is not there then.
        """
        self.attempt("write", path, lambda: self._upload(path, data), answer_limit(2 * len(data)))

    def _upload(self, path: str, data: memoryview) -> None:
        _write(self.inner, path, data)

    def get_type_name(self) -> str:
        return str(self.inner.type_name)

    def normalize_path(self, path: str) -> str:
        return str(self.inner.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        found = self.attempt("look at", ", ".join(paths[:1]), lambda: self.inner.get_file_info(paths))
        return list(found)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        found = self.attempt(
            "list", selector.base_dir, lambda: self.inner.get_file_info(selector), limit=patience()
        )
        return list(found)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.attempt("make the folder", path, lambda: self.inner.create_dir(path, recursive=recursive))

    def delete_dir(self, path: str) -> None:
        self.attempt("delete", path, lambda: self.inner.delete_dir(path), limit=patience())

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self.attempt(
            "delete",
            path,
            lambda: self.inner.delete_dir_contents(path, missing_dir_ok=missing_dir_ok),
            limit=patience(),
        )

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("nothing deletes all buckets")

    def delete_file(self, path: str) -> None:
        self.attempt("delete", path, lambda: self.inner.delete_file(path))

    def move(self, src: str, dest: str) -> None:
        self.attempt("move", src, lambda: self.inner.move(src, dest))

    def copy_file(self, src: str, dest: str) -> None:
        self.attempt("copy", src, lambda: self.inner.copy_file(src, dest))

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(RemoteFile(self, path), mode="r")

    def open_output_stream(self, path: str, metadata: dict[str, str]) -> pa.NativeFile:
        return self.attempt("write", path, lambda: self.inner.open_output_stream(path, metadata=metadata))

    def open_append_stream(self, path: str, metadata: dict[str, str]) -> pa.NativeFile:
        return self.attempt("write", path, lambda: self.inner.open_append_stream(path, metadata=metadata))


class S3Store(Store):
    """S3. Small objects are put by one request each; larger ones in parts, and appear when all have arrived.

    Args:
        inner: the client.
        small: one that may open late: it puts a small object by one request.
        root: see `Store`.
        rebuild: see `Store`.
        limits_itself: see `Store`.
    """

    _ONE_REQUEST = 5 << 20

    def __init__(
        self,
        inner: pafs.FileSystem,
        small: pafs.FileSystem,
        root: str,
        rebuild: Callable[[], pafs.FileSystem],
        limits_itself: bool = True,
    ) -> None:
        super().__init__(inner, root, rebuild, limits_itself)
        self._small = small

    def _upload(self, path: str, data: memoryview) -> None:
        # A client that may open late puts what it has when the beginning of an upload in parts fails.
        if len(data) < self._ONE_REQUEST:
            _write(self._small, path, data)
            return
        try:
            _write(self.inner, path, data)
        except Exception:  # once told 503, the client takes the answer to its next try, too, for that refusal
            if not self._holds(path, data):
                raise

    def _holds(self, path: str, data: memoryview) -> bool:
        """Whether the object is what was to be put."""
        with suppress(Exception), self.inner.open_input_file(path) as file:
            return bool(file.size() == len(data)) and all(
                file.read_at(_COMPARED, start) == data[start : start + _COMPARED]
                for start in range(0, len(data), _COMPARED)
            )
        return False


class GcsStore(Store):
    """Google Cloud Storage. Its client lists a folder only where an object stands for it: the names of others tell."""

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        base, all_below = selector.base_dir.strip("/"), selector.recursive
        everything = pafs.FileSelector(base, allow_not_found=selector.allow_not_found, recursive=True)
        found = {info.path.rstrip("/"): info for info in super().get_file_info_selector(everything)}
        folders = {parent for path in found for parent in _folders_between(base, path)} - found.keys()
        found |= {folder: pafs.FileInfo(folder, pafs.FileType.Directory) for folder in folders}
        return [info for path, info in found.items() if all_below or "/" not in path[len(base) + 1 :]]


class AzureStore(Store):
    """Azure. Its client begins a blob by emptying it: so blobs are written under another name and copied.

    It lists what lies below a folder by a request per folder: each is tried again by itself.
    """

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        found: list[pafs.FileInfo] = []
        folders = [selector.base_dir]
        while folders:
            below = pafs.FileSelector(folders.pop(), allow_not_found=selector.allow_not_found or bool(found))
            within_it = super().get_file_info_selector(below)
            found += within_it
            if selector.recursive:
                folders += [info.path for info in within_it if info.type == pafs.FileType.Directory]
        return found

    def _upload(self, path: str, data: memoryview) -> None:
        folder, _, name = path.rpartition("/")
        temporary = f"{folder}/.{name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
        try:
            _write(self.inner, temporary, data)
            still_wanted()
            self.inner.copy_file(temporary, path)
        finally:
            with suppress(Exception):  # what stays is swept up with other temporary files
                self.inner.delete_file(temporary)


class RemoteFile:
    """A file each read of which is a request of its own, which is tried again where it failed.

    What keeps a connection (HDFS, fsspec) is opened again first.
    """

    closed = False

    def __init__(self, store: Store, path: str) -> None:
        self._store, self._path = store, path
        self._offset = 0
        self._file: pa.NativeFile | None = None
        self._size: int = store.attempt("read", path, self._open)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = 0) -> int:
        start = (0, self._offset, self._size)[whence]
        self._offset = start + offset
        return self._offset

    def read(self, nbytes: int | None = None) -> Any:
        """At most `nbytes`; all that is left by default."""
        left = max(0, self._size - self._offset)
        wanted = left if nbytes is None or nbytes < 0 else min(nbytes, left)
        if not wanted:
            return b""
        found = self._store.attempt("read", self._path, lambda: self._read(wanted), answer_limit(wanted))
        self._offset += len(found)
        return found

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        self.closed = True
        file, self._file = self._file, None
        if file is not None:
            with suppress(Exception):  # it was only read
                file.close()

    def _open(self) -> int:
        file = self._store.inner.open_input_file(self._path)
        if file.closed:
            raise ConnectionError(_CLOSED)
        self._file = file
        return int(file.size())

    def _read(self, nbytes: int) -> bytes:
        try:
            if self._file is None or self._file.closed:
                self._open()
            assert self._file is not None
            found: bytes = self._file.read_at(nbytes, self._offset)
        except Exception:
            if self._store.inner.type_name not in _STATELESS:
                self._file = None
            raise
        if len(found) < nbytes:
            raise ConnectionError(f"connection closed after {len(found)} of {nbytes} bytes")
        return found


def remote(store: Store) -> pafs.FileSystem:
    """The store, as a file system of pyarrow."""
    return pafs.PyFileSystem(store)


def store_of(filesystem: pafs.FileSystem) -> Store | None:
    """The store that a file system is; None where it is another."""
    if isinstance(filesystem, pafs.PyFileSystem) and isinstance(filesystem.handler, Store):
        return filesystem.handler
    return None


def _write(filesystem: pafs.FileSystem, path: str, data: memoryview) -> None:
    stream = filesystem.open_output_stream(path)
    for start in range(0, len(data), _CHUNK):
        stream.write(data[start : start + _CHUNK])
        if start + _CHUNK < len(data):
            stream.flush()
        still_wanted()
    stream.close()


def _folders_between(base: str, path: str) -> list[str]:
    """The folders below `base` that `path` lies in."""
    parts = path[len(base) :].strip("/").split("/")
    return ["/".join((base, *parts[:depth])) for depth in range(1, len(parts))]


def _rebuilt(rebuild: Callable[[], pafs.FileSystem]) -> Any:
    return rebuild().handler
