"""What each kind of storage can do, so that nothing above asks which one it is."""

from __future__ import annotations

from typing import IO, Protocol

import pyarrow as pa
import pyarrow.fs as pafs


class Backend(Protocol):
    """One file system or bucket. Paths are below its root; each raises what its client raises.

    Attributes:
        root: how URIs in it begin; two of one root are the same place.
        is_foreign: a client that the user gave: it has its own exceptions, and may not create conditionally.
    """

    @property
    def root(self) -> str: ...

    @property
    def is_foreign(self) -> bool: ...

    def info(self, path: str) -> pafs.FileInfo:
        """Type and size; the type is `NotFound` if nothing is there."""

    def list(self, path: str, recursive: bool) -> list[pafs.FileInfo]:
        """Files and folders in a folder, in any order; empty if there is no folder."""

    def open(self, path: str) -> pa.NativeFile:
        """A file for reading, at any offset."""

    def read(self, path: str) -> bytes:
        """A file's content."""

    def create(self, path: str, data: bytes) -> bool:
        """Make a file unless one is there; whether this call made it. No other caller has the same `data`."""

    def delete(self, path: str) -> None:
        """Remove a file."""

    def delete_folder(self, path: str) -> None:
        """Remove a folder with all that is in it."""

    def make_folder(self, path: str) -> None:
        """Make a folder and those on the way to it."""


class Store(Backend, Protocol):
    """Storage that takes complete files; local files are written through `AtomicFile`."""

    def put(self, path: str, content: IO[bytes]) -> None:
        """Make or replace a file, all or nothing."""


class LocationLike(Protocol):
    """What writing a file at a `Location` takes, and reporting what went wrong."""

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
        """Raise if the right to write there was lost."""


def folders_between(base: str, path: str) -> list[str]:
    """The folders between `base` and `path`: object stores do not list folders."""
    parts = path[len(base) :].strip("/").split("/")
    return ["/".join(filter(None, (base, *parts[:depth]))) for depth in range(1, len(parts))]


def is_from_obstore(value: object) -> bool:
    """Whether a store or an exception is obstore's, which need not be imported for it."""
    return type(value).__module__.startswith("obstore")
