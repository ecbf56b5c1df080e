"""One resolver for every place data can live: a plain path, a URI, or a file system object with a path in it.

`pyarrow.fs` serves local paths, `s3://`, `gs://`, `abfss://` and `hdfs://`; any other scheme goes to fsspec. All but
local ones are a `Store`, which tries again what can pass.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pyarrow.fs as pafs
from fsspec.implementations.local import LocalFileSystem as FsspecLocal

from hindcast.errors import DataError, StorageError
from hindcast.store.atomic import AtomicFile, create_local_exclusive
from hindcast.store.local_listing import children, link_target, walk
from hindcast.store.object_stores import open_uri, s3_of
from hindcast.store.remote import GcsStore, Store, remote, store_of
from hindcast.store.storage_errors import reason_of, storage_errors

_SCHEME = re.compile(r"^(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
_CREDENTIALS = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/@]*:[^/@]*@")
_PYARROW_SCHEMES = frozenset({"file", "s3", "gs", "gcs", "abfs", "abfss", "az", "hdfs", "viewfs"})


Guard = Callable[[], None]
"""Called before every change of what is stored; it raises where the caller has lost the right to it."""


class Entry(NamedTuple):
    """One file or folder found by `Location.list`."""

    location: Location
    relative: str
    size: int
    is_file: bool
    modified: int | None = None  # nanoseconds; None where the store does not say


@dataclass(frozen=True)
class Location:
    """A file or folder on some file system.

    Attributes:
        fs: the file system.
        path: the path inside it.
        uri: how the user wrote it (with the children appended); what messages show.
        guard: asked before anything here or below is written or deleted; None where everyone may.
    """

    fs: pafs.FileSystem
    path: str
    uri: str
    guard: Guard | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.uri

    @property
    def is_local(self) -> bool:
        """Whether this is a path of the machine itself, where fsync and rename exist."""
        return isinstance(self.fs, pafs.LocalFileSystem)

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

    def guarded(self, guard: Guard | None) -> Location:
        """The same location, changed only while `guard` lets it."""
        return replace(self, guard=guard)

    def check_guard(self) -> None:
        """Ask the guard, where there is one."""
        if self.guard is not None:
            self.guard()

    def info(self) -> pafs.FileInfo:
        """Type and size; the type is `NotFound` where nothing is."""
        with storage_errors("look at", self.uri, self.fs):
            return self.fs.get_file_info(self.path)

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
        with storage_errors("read", self.uri, self.fs), self.fs.open_input_file(self.path) as file:
            return bytes(file.read(file.size()))

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
        with storage_errors("write", self.uri, self.fs), Path(self.path).open("ab", buffering=0) as file:
            while data:
                data = data[file.write(data) :]

    def create_exclusive(self, data: bytes) -> bool:
        """Put `data` there only if nothing is; False if something was.

        Exclusive locally and on fsspec file systems that can create conditionally. Elsewhere, pyarrow's object
        stores among them, it is a look followed by a write: of two simultaneous callers both may get True, and
        the later content stays. Who must know reads it back.
        """
        self.check_guard()
        if self.is_local:
            with storage_errors("write", self.uri, self.fs):
                return create_local_exclusive(Path(self.path), data)
        inner = store.inner if (store := store_of(self.fs)) else self.fs
        if isinstance(inner, pafs.PyFileSystem) and isinstance(inner.handler, pafs.FSSpecHandler):
            with storage_errors("write", self.uri, self.fs):
                return _create_fsspec_exclusive(inner.handler.fs, self.path, data)
        if self.exists():
            return False
        self.write_bytes(data)
        return True

    def list(self, recursive: bool = False) -> list[Entry]:
        """What the folder holds, sorted by relative path; empty where there is no folder.

        Local links are followed. Where all below is listed, each file and folder is there once, and a link to nothing
        as well.
        """
        if self.is_local:
            look = walk if recursive else children
            with storage_errors("list", self.uri, self.fs):
                local = [Entry(self.child(found.relative), *found) for found in look(self.path)]
            return sorted(local, key=lambda entry: entry.relative)
        selector = pafs.FileSelector(self.path, allow_not_found=True, recursive=recursive)
        with storage_errors("list", self.uri, self.fs):
            found = self.fs.get_file_info(selector)
        prefix = len(self.path.strip("/"))
        entries = []
        for info in found:
            relative = info.path.strip("/")[prefix:].strip("/")
            if relative:
                size, is_file = info.size or 0, info.type == pafs.FileType.File
                entries.append(Entry(self.child(relative), relative, size, is_file, info.mtime_ns))
        return sorted(entries, key=lambda entry: entry.relative)

    def files(self, recursive: bool = False) -> Iterator[Entry]:
        """The files among `list`."""
        return (entry for entry in self.list(recursive) if entry.is_file)

    def delete(self) -> None:
        """Remove the file, or the folder with all that is in it; nothing there is fine."""
        self.check_guard()
        with storage_errors("delete", self.uri, self.fs), suppress(FileNotFoundError):
            if self.is_folder():
                self.fs.delete_dir(self.path)
            else:
                self.fs.delete_file(self.path)

    def mkdirs(self) -> None:
        """Make the folder and those on the way to it; there already is fine."""
        with storage_errors("make the folder", self.uri, self.fs):
            if self.is_local:
                Path(self.path).mkdir(parents=True, exist_ok=True)
            else:
                self.fs.create_dir(self.path, recursive=True)


def resolve(path: str | Path | Location, filesystem: object | None = None) -> Location:
    """Find the file system that a path belongs to.

    Args:
        path: a plain path (relative ones start at the current folder, `~` is the home folder), a URI, or,
            with `filesystem`, a path inside that file system (its scheme, if any, is dropped).
        filesystem: a `pyarrow.fs.FileSystem` or an fsspec file system.

    Raises:
        StorageError: an unknown scheme, a driver that is not installed, or a secret in the URI.
    """
    if isinstance(path, Location):
        return path
    text = os.fspath(path)
    if filesystem is not None:
        return _inside(filesystem, text)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return _local(text)
    if _CREDENTIALS.match(text):
        hidden = _CREDENTIALS.sub(f"{scheme['scheme']}://", text)
        raise StorageError(
            f"the URI of {hidden} carries credentials: leave them out and give them by environment variables"
        )
    if opened := open_uri(scheme["scheme"], text):
        return Location(opened.filesystem, opened.path, text)
    if scheme["scheme"] in _PYARROW_SCHEMES:
        return _by_pyarrow(text)
    return _by_fsspec(scheme["scheme"], text)


def _local(path: str) -> Location:
    return Location(pafs.LocalFileSystem(), _absolute(path), path)


def _absolute(path: str) -> str:
    return os.path.normpath(Path(path).expanduser().absolute())


def _by_pyarrow(uri: str) -> Location:
    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
    except Exception as error:
        raise StorageError(f"cannot use the URI {uri}: {reason_of(error)}") from error
    if not isinstance(filesystem, pafs.LocalFileSystem):
        filesystem = remote(Store(filesystem, uri.partition("://")[0] + "://"))
    return Location(filesystem, path, uri)


def _by_fsspec(scheme: str, uri: str) -> Location:
    try:
        filesystem, path = fsspec.url_to_fs(uri)
    except ValueError as error:
        known = ", ".join(f"{name}://" for name in sorted(_PYARROW_SCHEMES))
        raise StorageError(
            f"no file system is known for {scheme}:// (in {uri}): use a path, {known} or one fsspec knows"
        ) from error
    except ImportError as error:
        raise StorageError(f"the driver for {scheme}:// is not installed: {error}") from error
    return Location(_wrapped(filesystem), path, uri)


def _wrapped(filesystem: fsspec.AbstractFileSystem) -> pafs.FileSystem:
    protocol = filesystem.protocol
    root = protocol if isinstance(protocol, str) else protocol[0]
    inner = pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))
    return remote(Store(inner, f"{root}://", limits_itself=True))


def _inside(filesystem: Any, path: str) -> Location:
    if isinstance(filesystem, fsspec.AbstractFileSystem):
        stripped = filesystem._strip_protocol(path)
        if isinstance(filesystem, FsspecLocal):
            return Location(pafs.LocalFileSystem(), stripped, path)
        return Location(_wrapped(filesystem), stripped, path)
    if not isinstance(filesystem, pafs.FileSystem):
        raise StorageError(
            f"filesystem is a {type(filesystem).__name__}: "
            "give a pyarrow.fs.FileSystem or an fsspec file system"
        )
    stripped = _SCHEME.sub("", path)
    if isinstance(filesystem, pafs.LocalFileSystem):
        stripped = _absolute(stripped)
    elif isinstance(filesystem, pafs.SubTreeFileSystem) and isinstance(
        filesystem.base_fs, pafs.LocalFileSystem
    ):
        return Location(filesystem.base_fs, _join(filesystem.base_path, stripped), path)
    else:
        filesystem = _persistent(filesystem)
    return Location(filesystem, stripped, path)


def _persistent(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    """A file system of the user's, with our patience."""
    if store_of(filesystem) is not None:
        return filesystem
    if isinstance(filesystem, pafs.S3FileSystem):
        return s3_of(filesystem)
    kind = GcsStore if isinstance(filesystem, pafs.GcsFileSystem) else Store
    limits_itself = isinstance(filesystem, pafs.PyFileSystem)
    return remote(
        kind(filesystem, f"{filesystem.type_name.removeprefix('py::')}://", limits_itself=limits_itself)
    )


def _create_fsspec_exclusive(filesystem: Any, path: str, data: bytes) -> bool:
    if filesystem.exists(path):
        return False
    try:
        filesystem.pipe_file(path, data, mode="create")
    except FileExistsError:
        return False
    return True


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
    """The links to nothing among what `Location.list(recursive=True)` gave."""
    for entry in entries:
        if entry.location.is_local and not entry.is_file and link_target(entry.location.path) is not None:
            yield entry.location


def missing(location: Location) -> DataError:
    """The sentence for a path at which nothing is."""
    target = link_target(location.path) if location.is_local else None
    if target is not None:
        return DataError(
            f"{location} is a link to {target}, which does not exist: mend the link, or delete it"
        )
    if location.uri.startswith(("http://", "https://")):
        return DataError(
            f"{location} does not exist or cannot be reached: check the address; or download it, and name the file"
        )
    return DataError(f"{location} does not exist: check the path")
