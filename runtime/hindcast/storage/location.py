"""Locations of data on any storage: a plain path, a URI, or a path in a file system object.

Buckets of S3, Google Cloud Storage and Azure go to obstore; `hdfs://` to pyarrow; any other scheme to fsspec.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
from fsspec.implementations.local import LocalFileSystem as FsspecLocal

from hindcast.api.base import one_slash_problem
from hindcast.api.sentences import similar_file
from hindcast.errors import MissingDataError, SpecError, StorageError
from hindcast.formatting import describe_type
from hindcast.storage.atomic import AtomicFile
from hindcast.storage.backend import Store
from hindcast.storage.failures import reason_of, storage_errors
from hindcast.storage.local_files import TEMPORARY_NAME, LocalFiles, broken_link_target
from hindcast.storage.object_stores import open_bucket, wrap_store
from hindcast.storage.user_files import UserFiles, find_filesystem

_SCHEME: Final = re.compile(r"^(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
_CREDENTIALS: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/@]*:[^/@]*@")
_KNOWN_SCHEMES: Final = ("abfs", "abfss", "az", "file", "gcs", "gs", "hdfs", "s3", "viewfs")
_HDFS_REMEDY: Final = (
    "; it needs Java and Hadoop's native client (JAVA_HOME, HADOOP_HOME and CLASSPATH); "
    "webhdfs://host:port/folder needs neither"
)

Guard = Callable[[], None]
"""A function that is called before every change of stored data; it raises if the caller has lost its lease."""


class Entry(NamedTuple):
    """A file or folder in a listing of a folder.

    Attributes:
        location: location of the file or folder.
        relative_path: path relative to the listed folder.
        size: size in bytes; 0 for folders.
        is_file: whether it is a file, not a folder.
        modified_ns: time of the last change, in nanoseconds since 1970; None if unknown.
    """

    location: Location
    relative_path: str
    size: int
    is_file: bool
    modified_ns: int | None = None


@dataclass(frozen=True)
class Location:
    """A file or folder on some file system.

    Attributes:
        backend: the storage.
        path: path within the backend.
        uri: the location as the user wrote it, or with names of children appended; shown in messages.
        guard: called before anything at or below the location is written or deleted; None if there is no lease.
    """

    backend: LocalFiles | Store
    path: str
    uri: str
    guard: Guard | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.uri

    @property
    def is_local(self) -> bool:
        """True if the location is on a file system of this machine, which supports fsync and rename."""
        return isinstance(self.backend, LocalFiles)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self.path.rstrip("/"))

    def child(self, *names: str) -> Location:
        """Return a location below this one; a name may contain slashes."""
        child_path = "/".join(names)
        return replace(self, path=_join(self.path, child_path), uri=_join(self.uri, child_path))

    def parent(self) -> Location:
        """Return the folder that contains this location."""
        return replace(self, path=posixpath.dirname(self.path.rstrip("/")), uri=_uri_parent(self.uri))

    def with_guard(self, guard: Guard | None) -> Location:
        """Return the same location with another guard."""
        return replace(self, guard=guard)

    def check_guard(self) -> None:
        """Call the guard, if there is one; it raises if the lease is lost."""
        if self.guard is not None:
            self.guard()

    def info(self) -> pafs.FileInfo:
        """Return the type and size; the type is `NotFound` if nothing exists at the location."""
        with storage_errors("access", self):
            return self.backend.info(self.path)

    def exists(self) -> bool:
        """Return True if a file or folder exists at the location."""
        return self.info().type != pafs.FileType.NotFound

    def is_folder(self) -> bool:
        """Return True if the location is a folder."""
        return self.info().type == pafs.FileType.Directory

    def read_bytes(self) -> bytes:
        """Return the content of the file.

        Raises:
            DataError: the file does not exist.
            StorageError: the file cannot be read.
        """
        with storage_errors("read", self):
            return self.backend.read(self.path)

    def open(self, size: int | None = None) -> pa.NativeFile:
        """Open the file for reading, at any offset.

        Args:
            size: its size in bytes if that is known, which saves one request to a bucket; with a wrong size reads fail.

        Raises:
            DataError: the file does not exist.
            StorageError: the file cannot be opened.
        """
        with storage_errors("read", self):
            return self.backend.open(self.path, size)

    @contextmanager
    def open_stream(self) -> Iterator[pa.NativeFile]:
        """Open the file for reading in a `with` block; exceptions in the block are converted by `storage_errors`."""
        with storage_errors("read", self), self.backend.open(self.path) as file:
            yield file

    def write_bytes(self, data: bytes) -> None:
        """Write the file and create its parent folders; if this fails, an existing file does not change.

        A local file is written under a temporary name, fsynced and renamed. An object store shows an object only when
        it is complete.

        Raises:
            StorageError: the file cannot be written.
        """
        with AtomicFile(self) as file:
            file.write(data)

    def append_bytes(self, data: bytes) -> None:
        """Append `data` to a local file, creating it if it does not exist.

        If the process is killed meanwhile, the file may contain only a part of `data`.

        Raises:
            StorageError: the file cannot be written.
        """
        self.check_guard()
        with storage_errors("write", self), Path(self.path).open("ab", buffering=0) as file:
            while data:
                data = data[file.write(data) :]

    def create_exclusive(self, data: bytes) -> bool:
        """Create the file unless it exists; return True if this call created it.

        Locally and in buckets, exactly one of several simultaneous callers gets True. In file systems of pyarrow, and
        in most of fsspec, two callers may get True; the later content then stays.

        Args:
            data: content that no other caller passes; see `Backend.create`.
        """
        self.check_guard()
        with storage_errors("write", self):
            return self.backend.create(self.path, data)

    def list(self, recursive: bool = False) -> list[Entry]:
        """List the folder, sorted by relative path; empty if it does not exist.

        Local links are followed. A recursive listing contains each file and folder once, including broken links.
        """
        with storage_errors("list", self):
            infos = self.backend.list(self.path, recursive)
        prefix_length = len(self.path.strip("/"))
        entries = []
        for info in infos:
            relative_path = info.path.strip("/")[prefix_length:].strip("/")
            if relative_path:
                size, is_file = info.size or 0, info.type == pafs.FileType.File
                entries.append(Entry(self.child(relative_path), relative_path, size, is_file, info.mtime_ns))
        return sorted(entries, key=lambda entry: entry.relative_path)

    def files(self, recursive: bool = False) -> Iterator[Entry]:
        """List the files, as `list` does, without folders."""
        return (entry for entry in self.list(recursive) if entry.is_file)

    def delete(self) -> None:
        """Delete the file, or the folder with its content, if it exists."""
        self.check_guard()
        with storage_errors("delete", self), suppress(FileNotFoundError):
            file_type = self.backend.info(self.path).type
            if file_type == pafs.FileType.Directory:
                self.backend.delete_folder(self.path)
            elif file_type == pafs.FileType.File:
                self.backend.delete(self.path)

    def mkdirs(self) -> None:
        """Create the folder and its parents, if they do not exist."""
        with storage_errors("make the folder", self):
            self.backend.make_folder(self.path)


def resolve(path: str | Path | Location, filesystem: object | None = None) -> Location:
    """Return the location of a path, with the storage that it belongs to.

    Args:
        path: a plain path (relative to the current folder; `~` is the home folder) or a URI. With `filesystem`, a path
            in that file system (a scheme is ignored).
        filesystem: a `pyarrow.fs.FileSystem`, an fsspec file system, or an obstore store.

    Raises:
        SpecError: `path` is not a path.
        StorageError: the scheme is unknown, or is followed by a single slash; its driver is not installed or fails; or
            the URI contains credentials.
    """
    if isinstance(path, Location):
        return path
    if not isinstance(path, str | os.PathLike):
        raise SpecError(f"the path is {path!r}, expected text or a pathlib.Path: a file, a folder or a URI.")
    text = os.fspath(path)
    if filesystem is not None:
        return _resolve_in_filesystem(filesystem, text)
    if scheme := _SCHEME.match(text):
        return _resolve_uri(scheme["scheme"], text)
    if problem := one_slash_problem(text):
        raise StorageError(f"{text} {problem}")
    return Location(LocalFiles(), _make_absolute(text), text)


def _resolve_uri(scheme: str, uri: str) -> Location:
    path_without_scheme = uri.partition("://")[2]
    if (filesystem := find_filesystem(scheme)) is not None:
        return replace(_resolve_in_filesystem(filesystem, path_without_scheme), uri=uri)
    if _CREDENTIALS.match(uri):
        raise StorageError(
            f"the URI of {_CREDENTIALS.sub(f'{scheme}://', uri)} contains credentials: leave them out and "
            "set the store's environment variables, such as AWS_ACCESS_KEY_ID"
        )
    if bucket_and_inner_path := open_bucket(scheme, path_without_scheme):
        if problem := _describe_invalid_part(path_without_scheme):
            raise StorageError(f"{uri} {problem}")
        return Location(*bucket_and_inner_path, uri)
    return _resolve_by_pyarrow(uri) if scheme in _KNOWN_SCHEMES else _resolve_by_fsspec(scheme, uri)


def _describe_invalid_part(bucket_and_path: str) -> str | None:
    """Describe why a path in a bucket cannot be read: a part is empty, `.` or `..`; None if it can."""
    _, *parts = bucket_and_path.rstrip("/").split("/")
    if "" in parts:
        return "has an empty part ('//'), which cannot be read: rename the objects, or leave out a slash"
    for part in parts:
        if part in (".", ".."):
            return f"has the part {part!r}, which is not resolved in a bucket: write the path without it"
    return None


def _make_absolute(path: str) -> str:
    return os.path.normpath(Path(os.path.expanduser(path)).absolute())  # noqa: PTH111 (raises for an unknown ~name)


def _resolve_by_pyarrow(uri: str) -> Location:
    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
    except Exception as error:
        remedy = _HDFS_REMEDY if uri.startswith(("hdfs://", "viewfs://")) else ""
        raise StorageError(f"cannot use the URI {uri}: {reason_of(error)}{remedy}") from error
    if isinstance(filesystem, pafs.LocalFileSystem):
        return Location(LocalFiles(), path, uri)
    return Location(UserFiles(filesystem, uri.partition("://")[0] + "://"), path, uri)


def _resolve_by_fsspec(scheme: str, uri: str) -> Location:
    try:
        filesystem, path = fsspec.url_to_fs(uri)
    except ValueError as error:
        schemes = ", ".join(f"{name}://" for name in _KNOWN_SCHEMES)
        raise StorageError(
            f"no file system is known for {scheme}:// (in {uri}): use a path, {schemes} or a scheme of fsspec"
        ) from error
    except ImportError as error:
        raise StorageError(f"the driver for {scheme}:// is not installed: {error}") from error
    except Exception as error:  # drivers may already connect here, and raise exceptions of any type
        raise StorageError(f"cannot use the URI {uri}: {reason_of(error)}") from error
    return Location(_wrap_fsspec(filesystem), path, uri)


def _wrap_fsspec(filesystem: fsspec.AbstractFileSystem) -> UserFiles:
    protocol = filesystem.protocol
    root = protocol if isinstance(protocol, str) else protocol[0]
    return UserFiles(pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), f"{root}://")


def _resolve_in_filesystem(filesystem: Any, path: str) -> Location:
    if isinstance(filesystem, fsspec.AbstractFileSystem):
        inner_path = filesystem._strip_protocol(path)
        is_local = isinstance(filesystem, FsspecLocal)
        return Location(LocalFiles() if is_local else _wrap_fsspec(filesystem), inner_path, path)
    inner_path = _SCHEME.sub("", path)
    if store := wrap_store(filesystem):
        return Location(store, inner_path, path)
    if not isinstance(filesystem, pafs.FileSystem):
        raise StorageError(
            f"filesystem is {describe_type(filesystem)}: "
            "pass a pyarrow.fs.FileSystem, an fsspec file system, or an obstore store"
        )
    if isinstance(filesystem, pafs.LocalFileSystem):
        return Location(LocalFiles(), _make_absolute(inner_path), path)
    if isinstance(filesystem, pafs.SubTreeFileSystem) and isinstance(
        filesystem.base_fs, pafs.LocalFileSystem
    ):
        return Location(LocalFiles(), _join(filesystem.base_path, inner_path), path)
    root = f"{filesystem.type_name.removeprefix('py::')}://"
    return Location(UserFiles(filesystem, root), inner_path, path)


def _join(base: str, child_path: str) -> str:
    child_path = child_path.strip("/")
    if not child_path:
        return base
    return f"{base.rstrip('/')}/{child_path}" if base else child_path


def _uri_parent(uri: str) -> str:
    uri_path = uri.rstrip("/")
    head, slash, _ = uri_path.rpartition("/")
    if not slash:
        return "."
    return head or "/"


def broken_links(entries: Iterable[Entry]) -> Iterator[Location]:
    """Yield the broken links in a recursive listing."""
    for entry in entries:
        if (
            entry.location.is_local
            and not entry.is_file
            and broken_link_target(entry.location.path) is not None
        ):
            yield entry.location


def remove_temporary_files(folder: Location) -> None:
    """Delete the temporary files that killed writers left in a folder, at any depth.

    Call it only while no process writes to the folder.
    """
    for entry in folder.files(recursive=True):
        if TEMPORARY_NAME.match(entry.location.name):
            entry.location.delete()


def missing_error(location: Location) -> MissingDataError:
    """Make the error for a path that does not exist."""
    target = broken_link_target(location.path) if location.is_local else None
    if target is not None:
        return MissingDataError(
            f"{location} is a link to {target}, which does not exist: fix the link, or delete it"
        )
    if location.uri.startswith(("http://", "https://")):
        return MissingDataError(
            f"{location} does not exist or cannot be reached: check the address, or download it and name the local file"
        )
    hint = similar_file(location.path) if location.is_local else ""
    return MissingDataError(f"{location} does not exist{hint or ': check the path'}")
