"""Files of this machine. Listings follow links and contain each file and folder once."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.fs as pafs

TEMPORARY_NAME: Final = re.compile(r"^\..+\.[0-9a-f]{8}\.tmp$")
"""Pattern of the names that `temporary_path` makes."""
_ARROW_FILE_SYSTEM: Final = pafs.LocalFileSystem()


@dataclass(frozen=True)
class LocalFiles:
    """The file system of this machine; see `storage.backend.Backend`."""

    is_foreign = False
    root = "file://"

    def info(self, path: str) -> pafs.FileInfo:
        return _ARROW_FILE_SYSTEM.get_file_info(path)

    def list(self, path: str, recursive: bool) -> list[pafs.FileInfo]:
        """List a folder, following links.

        A recursive listing has each file once. Broken links are listed as folders, so that they are not read as files;
        see `broken_links`.
        """
        return list(_walk(path) if recursive else _children(path))

    def open(self, path: str, size: int | None = None) -> pa.NativeFile:  # noqa: ARG002
        return _ARROW_FILE_SYSTEM.open_input_file(path)

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def create(self, path: str, data: bytes) -> bool:
        target = Path(path)
        temporary = temporary_path(target)
        try:
            with temporary.open("xb", buffering=0) as stream:
                stream.write(data)
                os.fsync(stream.fileno())
            # Unlike a rename, a hard link fails if the target exists, so only one of several writers succeeds.
            target.hardlink_to(temporary)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(target.parent)
        return True

    def delete(self, path: str) -> None:
        Path(path).unlink()

    def delete_folder(self, path: str) -> None:
        _ARROW_FILE_SYSTEM.delete_dir(path)

    def make_folder(self, path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)


def temporary_path(path: Path) -> Path:
    """Return a unique temporary path in the same folder, and create the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Hidden, so that readers of Parquet folders ignore it.
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def sync_folder(folder: Path) -> None:
    """Make renames in a local folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def broken_link_target(path: str) -> str | None:
    """Return the target of a broken link; None for anything else."""
    return str(Path(path).readlink()) if Path(path).is_symlink() and not Path(path).exists() else None


def _children(folder: str) -> Iterator[pafs.FileInfo]:
    """List the files and folders directly in a folder, following links; nothing if the folder does not exist."""
    for entry in _entries(folder):
        with suppress(FileNotFoundError):  # the entry was deleted meanwhile, or is a broken link
            yield _file_info(entry.path, entry.stat(), entry.is_file())


def _walk(folder: str) -> Iterator[pafs.FileInfo]:
    """List the files and folders at any depth of a folder; nothing if the folder does not exist."""
    visited_paths: set[str] = set()
    links: list[str] = []
    if Path(folder).is_dir():
        yield from _walk_without_links(folder, os.path.realpath(folder), visited_paths, links)
    # Links come last, so that a file which can be reached without links has its real path. The list grows during the
    # loop.
    for path in links:
        real_path = os.path.realpath(path)
        if not os.path.lexists(real_path):
            yield pafs.FileInfo(path, pafs.FileType.Directory, mtime_ns=0)
        elif real_path not in visited_paths:
            visited_paths.add(real_path)
            yield _file_info(path, Path(path).stat(), Path(path).is_file())
            if Path(path).is_dir():
                yield from _walk_without_links(path, real_path, visited_paths, links)


def _walk_without_links(
    folder: str, real_folder: str, visited_paths: set[str], links: list[str]
) -> Iterator[pafs.FileInfo]:
    """List the content of a folder without following its links, which are appended to `links`."""
    visited_paths.add(real_folder)
    for entry in _entries(folder):
        real_path = f"{real_folder.rstrip('/')}/{entry.name}"
        if entry.is_symlink():
            links.append(entry.path)
        elif real_path not in visited_paths:
            visited_paths.add(real_path)
            with suppress(FileNotFoundError):  # deleted meanwhile
                yield _file_info(entry.path, entry.stat(), entry.is_file())
            if entry.is_dir():
                yield from _walk_without_links(entry.path, real_path, visited_paths, links)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:  # deleted meanwhile
        return []


def _file_info(path: str, status: os.stat_result, is_file: bool) -> pafs.FileInfo:
    file_type, size = (pafs.FileType.File, status.st_size) if is_file else (pafs.FileType.Directory, None)
    return pafs.FileInfo(path, file_type, size=size, mtime_ns=status.st_mtime_ns)
