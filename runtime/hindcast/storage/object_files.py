"""Files in a bucket, through obstore, which retries requests and refuses to create an object that exists."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, Final, TypeVar

import obstore
import pyarrow as pa
import pyarrow.fs as pafs
from obstore.exceptions import AlreadyExistsError, GenericError

from hindcast.storage.backend import folders_between
from hindcast.storage.range_reader import RangeReader
from hindcast.storage.retry_timeout import INITIAL_BACKOFF_SECONDS, retry_timeout_seconds

Result = TypeVar("Result")

_PART_BYTES: Final = 8 << 20
_MAX_PARALLEL_PARTS: Final = 4


@dataclass(frozen=True)
class ObjectFiles:
    """The objects of a bucket as files and folders; see `storage.backend.Store`.

    Attributes:
        store: an obstore store.
        root: prefix of the bucket's URIs, such as `s3://bucket`.
        reopen: opens the bucket in another process, with the credentials of that process's environment; by default
            `store` is pickled, with its own credentials.
    """

    store: Any = field(hash=False)
    root: str
    reopen: Callable[[], ObjectFiles] | None = field(default=None, compare=False)

    is_foreign = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (ObjectFiles, (self.store, self.root)) if self.reopen is None else (self.reopen, ())

    def info(self, path: str) -> pafs.FileInfo:
        meta = None
        if path:
            with suppress(FileNotFoundError):
                meta = obstore.head(self.store, path)
        if meta is not None and meta["size"]:
            return _file_info(meta)
        # Web consoles create an empty object to represent a folder; it does not count as a file.
        if self._has_objects_below(path) or not path:
            return pafs.FileInfo(path, pafs.FileType.Directory)
        return pafs.FileInfo(path, pafs.FileType.NotFound) if meta is None else _file_info(meta)

    def list(self, path: str, recursive: bool) -> list[pafs.FileInfo]:
        if recursive:
            objects: Sequence[Any] = self._objects_below(path)
            folders = {parent for meta in objects for parent in folders_between(path, meta["path"])}
        else:
            listing = self._list_with_retry(lambda: obstore.list_with_delimiter(self.store, path or None))
            objects, folders = listing["objects"], set(listing["common_prefixes"])
        markers = {path, *folders}  # web consoles create empty objects to represent folders
        files = [_file_info(meta) for meta in objects if meta["size"] or meta["path"] not in markers]
        return [pafs.FileInfo(folder, pafs.FileType.Directory) for folder in folders] + files

    def open(self, path: str, size: int | None = None) -> pa.NativeFile:
        if size is None:
            size = obstore.head(self.store, path)["size"]
        return pa.PythonFile(_ObjectReader(self.store, path, size), mode="r")

    def read(self, path: str) -> bytes:
        return bytes(obstore.get(self.store, path).bytes())

    def put(self, path: str, content: IO[bytes]) -> None:
        obstore.put(self.store, path, content, chunk_size=_PART_BYTES, max_concurrency=_MAX_PARALLEL_PARTS)

    def create(self, path: str, data: bytes) -> bool:
        try:
            obstore.put(self.store, path, data, mode="create")
        except AlreadyExistsError:
            # If an answer is lost, obstore repeats the request, and then finds the object of the first request.
            return self.read(path) == data
        return True

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):  # only Azure reports that the object does not exist
            obstore.delete(self.store, path)

    def delete_folder(self, path: str) -> None:
        if paths := [meta["path"] for meta in self._objects_below(path)]:
            with suppress(FileNotFoundError):
                obstore.delete(self.store, paths)

    def make_folder(self, path: str) -> None:
        """Do nothing: a folder exists as soon as there are objects below it."""

    def _has_objects_below(self, path: str) -> bool:
        return (
            self._list_with_retry(lambda: next(iter(obstore.list(self.store, path or None)), None))
            is not None
        )

    def _objects_below(self, path: str) -> Sequence[Any]:
        return self._list_with_retry(
            lambda: [meta for chunk in obstore.list(self.store, path or None) for meta in chunk]
        )

    def _list_with_retry(self, request_listing: Callable[[], Result]) -> Result:
        """Request a listing; repeat the request if the connection breaks during the answer."""
        # obstore retries all other failures.
        deadline, pause = time.monotonic() + retry_timeout_seconds(), INITIAL_BACKOFF_SECONDS
        while True:
            try:
                return request_listing()
            except GenericError as error:
                if "ListResponseBody" not in str(error) or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause *= 2


class _ObjectReader(RangeReader):
    """An object that is open for reading; obstore retries each request."""

    def __init__(self, store: Any, path: str, size: int) -> None:
        super().__init__(size)
        self._store, self._path = store, path

    def read_range(self, start: int, length: int) -> Any:
        return obstore.get_range(self._store, self._path, start=start, length=length)


def _file_info(meta: Any) -> pafs.FileInfo:
    modified_ns = int(meta["last_modified"].timestamp() * 1e9)
    return pafs.FileInfo(meta["path"], pafs.FileType.File, size=meta["size"], mtime_ns=modified_ns)
