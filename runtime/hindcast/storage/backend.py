"""Protocols that every kind of storage implements, so that no caller asks which kind it is."""

from __future__ import annotations

from typing import IO, Protocol

import pyarrow as pa
import pyarrow.fs as pafs


class Backend(Protocol):
    """One file system or bucket. Paths are below its root; each raises what its client raises.

    Attributes:
        root: prefix of its URIs; two backends with the same root are the same storage.
        is_foreign: whether the client comes from the user: it raises its own exceptions, and may be unable to create a
            file conditionally.
    """

    @property
    def root(self) -> str: ...

    @property
    def is_foreign(self) -> bool: ...

    def info(self, path: str) -> pafs.FileInfo:
        """Return type and size; the type is `NotFound` if nothing exists at the path."""

    def list(self, path: str, recursive: bool) -> list[pafs.FileInfo]:
        """List files and folders in a folder, in any order; empty if the folder does not exist."""

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for reading, at any offset."""

    def read(self, path: str) -> bytes:
        """Return a file's content."""

    def create(self, path: str, data: bytes) -> bool:
        """Create a file unless it exists; return True if this call created it.

        No other caller may pass the same `data`: a lost answer is told from another writer's file by its content.
        """

    def delete(self, path: str) -> None:
        """Delete a file."""

    def delete_folder(self, path: str) -> None:
        """Delete a folder with its content."""

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents."""


class Store(Backend, Protocol):
    """Storage that takes complete files; local files are written through `AtomicFile`."""

    def put(self, path: str, content: IO[bytes]) -> None:
        """Create or replace a file, all or nothing."""


class LocationLike(Protocol):
    """The part of `Location` that writing a file and describing an error need."""

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
    """List the folders between `base` and `path`: object stores do not list folders."""
    parts = path[len(base) :].strip("/").split("/")
    return ["/".join(filter(None, (base, *parts[:depth]))) for depth in range(1, len(parts))]


def is_from_obstore(value: object) -> bool:
    """Return True if a store or an exception comes from obstore, without importing obstore."""
    return type(value).__module__.startswith("obstore")
