"""Protocols of storage, which let callers use all kinds of storage in the same way."""

from __future__ import annotations

from typing import IO, Protocol

import pyarrow as pa
import pyarrow.fs as pafs


class Backend(Protocol):
    """A file system or a bucket. Paths are relative to the backend's root. Methods raise the exceptions of its client.

    Attributes:
        root: prefix of the backend's URIs; two backends with the same root are the same storage.
        is_foreign: whether the client is a file system of pyarrow or fsspec, which raises exceptions of any type; two
            simultaneous calls of `create` may then both succeed.
    """

    @property
    def root(self) -> str: ...

    @property
    def is_foreign(self) -> bool: ...

    def info(self, path: str) -> pafs.FileInfo:
        """Return the type and size of a file or folder; the type is `NotFound` if nothing exists at the path."""

    def list(self, path: str, recursive: bool) -> list[pafs.FileInfo]:
        """List files and folders in a folder, in any order; empty if the folder does not exist."""

    def open(self, path: str, size: int | None = None) -> pa.NativeFile:
        """Open a file for reading, at any offset; a bucket need not be asked for its size if `size` is known."""

    def read(self, path: str) -> bytes:
        """Return a file's content."""

    def create(self, path: str, data: bytes) -> bool:
        """Create a file unless it exists; return True if this call created it.

        `data` must differ from that of every other caller: if the store's answer is lost, the request is repeated, and
        the file's content tells whether this call or another caller created the file.
        """

    def delete(self, path: str) -> None:
        """Delete a file; may raise FileNotFoundError if it does not exist."""

    def delete_folder(self, path: str) -> None:
        """Delete a folder with its content."""

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents, unless they exist; does nothing in a bucket."""


class Store(Backend, Protocol):
    """Storage to which complete files are uploaded. (Local files are written by `AtomicFile`.)"""

    def put(self, path: str, content: IO[bytes]) -> None:
        """Create or replace a file; if this fails, the file does not change."""


class LocationLike(Protocol):
    """The attributes of `Location` that are required to write a file and to describe an error."""

    @property
    def backend(self) -> Backend: ...

    @property
    def path(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def uri(self) -> str: ...

    @property
    def is_local(self) -> bool: ...

    def check_guard(self) -> None:
        """Raise if the lease on the location was lost."""


def folders_between(base: str, path: str) -> list[str]:
    """Return the folders between `base` and `path`, outermost first.

    Object stores list only objects, so the folders follow from their paths.
    """
    parts = path[len(base) :].strip("/").split("/")
    return ["/".join(filter(None, (base, *parts[:depth]))) for depth in range(1, len(parts))]


def is_from_obstore(value: object) -> bool:
    """Return True if a store or an exception comes from obstore, without importing obstore."""
    return type(value).__module__.startswith("obstore")
