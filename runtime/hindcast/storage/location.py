"""One resolver for every place data can live: a plain path, a URI, or a file system object with a path in it.

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
from hindcast.errors import DataError, SpecError, StorageError
from hindcast.storage.atomic import AtomicFile
from hindcast.storage.backend import Store
from hindcast.storage.failures import reason_of, storage_errors
from hindcast.storage.local_files import TEMPORARY_NAME, LocalFiles, link_target
from hindcast.storage.object_stores import bucket_of, wrap_store
from hindcast.storage.user_files import UserFiles, filesystem_of

_SCHEME: Final = re.compile(r"^(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
_CREDENTIALS: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/@]*:[^/@]*@")
_KNOWN_SCHEMES: Final = ("abfs", "abfss", "az", "file", "gcs", "gs", "hdfs", "s3", "viewfs")
_HDFS_NEEDS: Final = (
    "; it needs Java and Hadoop's native client (JAVA_HOME, HADOOP_HOME and CLASSPATH), "
    "webhdfs://host:port/folder needs neither"
)

Guard = Callable[[], None]
"""Called before every change of what is stored; it raises where the caller has lost the right to it."""


class Entry(NamedTuple):
    """One file or folder found by `Location.list`."""

    location: Location
    relative_path: str
    size: int
    is_file: bool
    modified_ns: int | None = None  # nanoseconds; None if the store does not say


@dataclass(frozen=True)
class Location:
    """A file or folder on some file system.

    Attributes:
        uri: how the user wrote it (with the children appended); shown in messages.
        guard: called before anything here or below is written or deleted; None allows everyone.
    """

    backend: LocalFiles | Store
    path: str
    uri: str
    guard: Guard | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.uri

    @property
    def is_local(self) -> bool:
        """Whether this is a path of the machine itself, where fsync and rename exist."""
        return isinstance(self.backend, LocalFiles)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self.path.rstrip("/"))

    def child(self, *names: str) -> Location:
        """The location below this one; a name may hold slashes."""
        below = "/".join(names)
        return replace(self, path=_join(self.path, below), uri=_join(self.uri, below))

    def parent(self) -> Location:
        """The folder that this location is in."""
        return replace(self, path=posixpath.dirname(self.path.rstrip("/")), uri=_uri_parent(self.uri))

    def with_guard(self, guard: Guard | None) -> Location:
        """The same location, changed only while `guard` lets it."""
        return replace(self, guard=guard)

    def check_guard(self) -> None:
        """Ask the guard, where there is one."""
        if self.guard is not None:
            self.guard()

    def info(self) -> pafs.FileInfo:
        """Type and size; the type is `NotFound` where nothing is."""
        with storage_errors("access", self):
            return self.backend.info(self.path)

    def exists(self) -> bool:
        """Whether a file or a folder is there."""
        return self.info().type != pafs.FileType.NotFound

    def is_folder(self) -> bool:
        """Whether a folder is there."""
        return self.info().type == pafs.FileType.Directory

    def read_bytes(self) -> bytes:
        """The content of the file.

        Raises:
            DataError: it does not exist.
            StorageError: it cannot be read.
        """
        with storage_errors("read", self):
            return self.backend.read(self.path)

    def open(self) -> pa.NativeFile:
        """The file for reading, at any offset.

        Raises:
            DataError: it does not exist.
            StorageError: it cannot be read.
        """
        with storage_errors("read", self):
            return self.backend.open(self.path)

    @contextmanager
    def open_stream(self) -> Iterator[pa.NativeFile]:
        """The same for a `with` block, in which failures of storage and Arrow become one-sentence errors."""
        with storage_errors("read", self), self.backend.open(self.path) as file:
            yield file

    def write_bytes(self, data: bytes) -> None:
        """Put `data` there, all or nothing; folders on the way are made.

        Locally: temporary file, fsync, rename. An object store shows an object only when it is complete.

        Raises:
            StorageError: read-only, full, denied, …, with path and reason.
        """
        with AtomicFile(self) as file:
            file.write(data)

    def append_bytes(self, data: bytes) -> None:
        """Put `data` at the end of a local file, which is made where it is not there.

        A process killed meanwhile leaves a part of `data` there.

        Raises:
            StorageError: read-only, full, denied, …, with path and reason.
        """
        self.check_guard()
        with storage_errors("write", self), Path(self.path).open("ab", buffering=0) as file:
            while data:
                data = data[file.write(data) :]

    def create_exclusive(self, data: bytes) -> bool:
        """Put `data` there only if nothing is; whether this call did.

        Of any number of simultaneous callers exactly one gets True: locally and in the stores of obstore. A file
        system object of pyarrow's, or one of fsspec's that cannot create conditionally, is looked at and then
        written: two may get True, and the later content stays.

        Args:
            data: which no other caller has, since a request whose answer was lost is made again.
        """
        self.check_guard()
        with storage_errors("write", self):
            return self.backend.create(self.path, data)

    def list(self, recursive: bool = False) -> list[Entry]:
        """What the folder holds, sorted by relative path; empty if there is no folder.

        Local links are followed. Where all below is listed, each file and folder is there once, including
        broken links.
        """
        with storage_errors("list", self):
            found = self.backend.list(self.path, recursive)
        prefix = len(self.path.strip("/"))
        entries = []
        for info in found:
            relative = info.path.strip("/")[prefix:].strip("/")
            if relative:
                size, is_file = info.size or 0, info.type == pafs.FileType.File
                entries.append(Entry(self.child(relative), relative, size, is_file, info.mtime_ns))
        return sorted(entries, key=lambda entry: entry.relative_path)

    def files(self, recursive: bool = False) -> Iterator[Entry]:
        """The files among `list`."""
        return (entry for entry in self.list(recursive) if entry.is_file)

    def delete(self) -> None:
        """Remove the file, or the folder with all that is in it; nothing there is fine."""
        self.check_guard()
        with storage_errors("delete", self), suppress(FileNotFoundError):
            kind = self.backend.info(self.path).type
            if kind == pafs.FileType.Directory:
                self.backend.delete_folder(self.path)
            elif kind == pafs.FileType.File:
                self.backend.delete(self.path)

    def mkdirs(self) -> None:
        """Make the folder and those on the way to it; there already is fine."""
        with storage_errors("make the folder", self):
            self.backend.make_folder(self.path)


def resolve(path: str | Path | Location, filesystem: object | None = None) -> Location:
    """Find the file system that a path belongs to.

    Args:
        path: a plain path (relative ones start at the current folder, `~` is the home folder), a URI, or,
            with `filesystem`, a path inside that file system (its scheme, if any, is dropped).
        filesystem: a `pyarrow.fs.FileSystem`, an fsspec file system, or an obstore store.

    Raises:
        SpecError: it is no path.
        StorageError: an unknown scheme or one followed by a single slash, a driver that is not installed or fails, or a
            secret in the URI.
    """
    if isinstance(path, Location):
        return path
    if not isinstance(path, str | os.PathLike):
        raise SpecError(f"the path is {path!r}, expected text or a pathlib.Path: a file, a folder or a URI.")
    text = os.fspath(path)
    if filesystem is not None:
        return _inside(filesystem, text)
    if scheme := _SCHEME.match(text):
        return _by_uri(scheme["scheme"], text)
    if problem := one_slash_problem(text):
        raise StorageError(f"{text} {problem}")
    return Location(LocalFiles(), _absolute(text), text)


def _by_uri(scheme: str, uri: str) -> Location:
    rest = uri.partition("://")[2]
    if (given := filesystem_of(scheme)) is not None:
        return replace(_inside(given, rest), uri=uri)
    if _CREDENTIALS.match(uri):
        raise StorageError(
            f"the URI of {_CREDENTIALS.sub(f'{scheme}://', uri)} carries credentials: leave them out and "
            "set environment variables"
        )
    if found := bucket_of(scheme, rest):
        return Location(*found, uri)
    return _by_pyarrow(uri) if scheme in _KNOWN_SCHEMES else _by_fsspec(scheme, uri)


def _absolute(path: str) -> str:
    return os.path.normpath(Path(path).expanduser().absolute())


def _by_pyarrow(uri: str) -> Location:
    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
    except Exception as error:
        needs = _HDFS_NEEDS if uri.startswith(("hdfs://", "viewfs://")) else ""
        raise StorageError(f"cannot use the URI {uri}: {reason_of(error)}{needs}") from error
    if isinstance(filesystem, pafs.LocalFileSystem):
        return Location(LocalFiles(), path, uri)
    return Location(UserFiles(filesystem, uri.partition("://")[0] + "://"), path, uri)


def _by_fsspec(scheme: str, uri: str) -> Location:
    try:
        filesystem, path = fsspec.url_to_fs(uri)
    except ValueError as error:
        known = ", ".join(f"{name}://" for name in _KNOWN_SCHEMES)
        raise StorageError(
            f"no file system is known for {scheme}:// (in {uri}): use a path, {known} or one fsspec knows"
        ) from error
    except ImportError as error:
        raise StorageError(f"the driver for {scheme}:// is not installed: {error}") from error
    except Exception as error:  # whatever a driver raises, which may connect already
        raise StorageError(f"cannot use the URI {uri}: {reason_of(error)}") from error
    return Location(_of_fsspec(filesystem), path, uri)


def _of_fsspec(filesystem: fsspec.AbstractFileSystem) -> UserFiles:
    protocol = filesystem.protocol
    root = protocol if isinstance(protocol, str) else protocol[0]
    return UserFiles(pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), f"{root}://")


def _inside(filesystem: Any, path: str) -> Location:
    if isinstance(filesystem, fsspec.AbstractFileSystem):
        stripped = filesystem._strip_protocol(path)
        is_local = isinstance(filesystem, FsspecLocal)
        return Location(LocalFiles() if is_local else _of_fsspec(filesystem), stripped, path)
    stripped = _SCHEME.sub("", path)
    if store := wrap_store(filesystem):
        return Location(store, stripped, path)
    if not isinstance(filesystem, pafs.FileSystem):
        raise StorageError(
            f"filesystem is a {type(filesystem).__name__}: "
            "give a pyarrow.fs.FileSystem, an fsspec file system, or an obstore store"
        )
    if isinstance(filesystem, pafs.LocalFileSystem):
        return Location(LocalFiles(), _absolute(stripped), path)
    if isinstance(filesystem, pafs.SubTreeFileSystem) and isinstance(
        filesystem.base_fs, pafs.LocalFileSystem
    ):
        return Location(LocalFiles(), _join(filesystem.base_path, stripped), path)
    root = f"{filesystem.type_name.removeprefix('py::')}://"
    return Location(UserFiles(filesystem, root), stripped, path)


def _join(base: str, below: str) -> str:
    below = below.strip("/")
    if not below:
        return base
    return f"{base.rstrip('/')}/{below}" if base else below


def _uri_parent(uri: str) -> str:
    trimmed = uri.rstrip("/")
    head, slash, _ = trimmed.rpartition("/")
    if not slash:
        return "."
    return head or "/"


def broken_links(entries: Iterable[Entry]) -> Iterator[Location]:
    """The broken links among what `Location.list(recursive=True)` gave."""
    for entry in entries:
        if entry.location.is_local and not entry.is_file and link_target(entry.location.path) is not None:
            yield entry.location


def remove_temporary_files(folder: Location) -> None:
    """Delete the temporary files that killed writers left in a folder and in those below it.

    Only while nobody writes there.
    """
    for entry in folder.files(recursive=True):
        if TEMPORARY_NAME.match(entry.location.name):
            entry.location.delete()


def missing_error(location: Location) -> DataError:
    """The error for a path that does not exist."""
    target = link_target(location.path) if location.is_local else None
    if target is not None:
        return DataError(
            f"{location} is a link to {target}, which does not exist: fix the link, or delete it"
        )
    if location.uri.startswith(("http://", "https://")):
        return DataError(
            f"{location} does not exist or cannot be reached: check the address; or download it, and name the file"
        )
    return DataError(f"{location} does not exist: check the path")
