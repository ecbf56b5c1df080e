"""Files of this machine. A file is created by a hard link, which fails where one is already."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.fs as pafs

from hindcast.storage.local_listing import Found, children, walk

TEMPORARY_SUFFIX: Final = ".tmp"
_ARROWS: Final = pafs.LocalFileSystem()


class LocalFiles:
    """The machine's own file system; see `storage.backend.Backend`."""

    is_foreign = False
    root = "file://"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalFiles)

    def __hash__(self) -> int:
        return hash(self.root)

    def info(self, path: str) -> pafs.FileInfo:
        return _ARROWS.get_file_info(path)

    def list(self, path: str, recursive: bool) -> list[pafs.FileInfo]:
        """Links are followed; where all below is listed, each file and folder is there once, broken links included."""
        look = walk if recursive else children
        return [_info(path, found) for found in look(path)]

    def open(self, path: str) -> pa.NativeFile:
        return _ARROWS.open_input_file(path)

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def create(self, path: str, data: bytes) -> bool:
        target = Path(path)
        temporary = temporary_for(target)
        try:
            with temporary.open("xb", buffering=0) as stream:
                stream.write(data)
                os.fsync(stream.fileno())
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
        _ARROWS.delete_dir(path)

    def make_folder(self, path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)


def temporary_for(path: Path) -> Path:
    """A unique name in the same folder, which is created; hidden, so that readers of Parquet ignore it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")


def sync_folder(folder: Path) -> None:
    """Make renames in a local folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _info(folder: str, found: Found) -> pafs.FileInfo:
    kind = pafs.FileType.File if found.is_file else pafs.FileType.Directory
    size = found.size if found.is_file else None
    return pafs.FileInfo(f"{folder.rstrip('/')}/{found.relative}", kind, size=size, mtime_ns=found.modified)
