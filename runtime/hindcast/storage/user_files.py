"""Files in file systems of pyarrow and fsspec, for objects that users pass and for schemes that only these support.

These file systems have their own credentials, timeouts and retries. None of pyarrow's and few of fsspec's can refuse,
in one step, to create a file that exists. So if two writers start at the same moment, both may write until their next
check of the lease.
"""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass, field
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.fs as pafs

from hindcast.storage.backend import folders_between

_CHUNK_BYTES: Final = 8 << 20
_filesystems: Final[dict[str, object]] = {}
"""Scheme -> file system object that `register_filesystem` registered."""


def register_filesystem(filesystem: object) -> str:
    """Register a file system object in this process; return its scheme, such as `S3FileSystem-1`.

    Equal objects have the same scheme.
    """
    for scheme, registered_filesystem in _filesystems.items():
        if type(registered_filesystem) is type(filesystem) and registered_filesystem == filesystem:
            return scheme
    scheme = f"{type(filesystem).__name__}-{len(_filesystems) + 1}"
    _filesystems[scheme] = filesystem
    return scheme


def find_filesystem(scheme: str) -> object | None:
    """Return the file system object that is registered under a scheme; None if there is none."""
    return _filesystems.get(scheme)


@dataclass(frozen=True)
class UserFiles:
    """A file system object; see `storage.backend.Store`.

    Attributes:
        filesystem: a pyarrow file system, or an fsspec file system in pyarrow's `FSSpecHandler`.
        root: prefix of its URIs.
    """

    filesystem: pafs.FileSystem = field(hash=False)
    root: str

    is_foreign = True

    def info(self, path: str) -> pafs.FileInfo:
        return self.filesystem.get_file_info(path)

    def list(self, path: str, recursive: bool) -> list[pafs.FileInfo]:
        # pyarrow's client for Google Cloud Storage lists a folder only if an object represents it.
        can_list_folders = self.filesystem.type_name != "gcs"
        selector = pafs.FileSelector(path, allow_not_found=True, recursive=recursive or not can_list_folders)
        infos = list(self.filesystem.get_file_info(selector))
        return infos if can_list_folders else _with_folders(path.strip("/"), infos, recursive)

    def open(self, path: str, size: int | None = None) -> pa.NativeFile:  # noqa: ARG002
        return self.filesystem.open_input_file(path)

    def read(self, path: str) -> bytes:
        with self.open(path) as file:
            return bytes(file.read())

    def put(self, path: str, content: IO[bytes]) -> None:
        if self._fsspec is None:
            stream = self.filesystem.open_output_stream(path)
        else:  # fsspec also serves file systems whose folders must exist first
            self.make_folder(path.rpartition("/")[0])
            stream = self._fsspec.open(path, "wb")
        shutil.copyfileobj(content, stream, _CHUNK_BYTES)
        stream.close()  # only after copying succeeded: closing completes the file

    def create(self, path: str, data: bytes) -> bool:
        if self.info(path).type != pafs.FileType.NotFound:
            return False
        if self._fsspec is None:
            self.put(path, io.BytesIO(data))
            return True
        self.make_folder(path.rpartition("/")[0])
        try:
            self._fsspec.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        return True

    def delete(self, path: str) -> None:
        self.filesystem.delete_file(path)

    def delete_folder(self, path: str) -> None:
        self.filesystem.delete_dir(path)

    def make_folder(self, path: str) -> None:
        self.filesystem.create_dir(path, recursive=True)

    @property
    def _fsspec(self) -> Any:
        handler = self.filesystem.handler if isinstance(self.filesystem, pafs.PyFileSystem) else None
        return handler.fs if isinstance(handler, pafs.FSSpecHandler) else None


def _with_folders(base: str, infos: list[pafs.FileInfo], recursive: bool) -> list[pafs.FileInfo]:
    """Add the folders that the files' paths imply; return everything below `base`, or only what is directly in it."""
    info_by_path = {info.path.strip("/"): info for info in infos}
    folders = {
        parent for path in info_by_path for parent in folders_between(base, path)
    } - info_by_path.keys()
    info_by_path |= {folder: pafs.FileInfo(folder, pafs.FileType.Directory) for folder in folders}
    return [
        info for path, info in info_by_path.items() if recursive or "/" not in path[len(base) :].strip("/")
    ]
