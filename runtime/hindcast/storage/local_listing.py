"""Listing local folders through links: every real file and folder once, however many links lead to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Found(NamedTuple):
    """A file, a folder or a broken link.

    Attributes:
        relative: path below the folder that was listed.
        size: of a file, in bytes.
        is_file: whether it is one; broken links are not.
        modified: nanoseconds.
    """

    relative: str
    size: int
    is_file: bool
    modified: int


def children(folder: str) -> Iterator[Found]:
    """What a folder itself holds, links followed; nothing where there is no folder.

    Raises:
        OSError: a folder that cannot be listed.
    """
    for entry in _entries(folder):
        with suppress(FileNotFoundError):  # deleted meanwhile, or a broken link
            yield _found(entry.name, entry.stat(), is_file=entry.is_file())


def walk(folder: str) -> Iterator[Found]:
    """What a folder holds at any depth; nothing where there is no folder.

    What is reached without links comes first, so that it keeps its own path.

    Raises:
        OSError: a folder that cannot be listed.
    """
    if not Path(folder).is_dir():
        return
    seen: set[str] = {os.path.realpath(folder)}
    links: list[str] = []
    yield from _below(folder, "", os.path.realpath(folder), seen, links)
    for relative in links:  # grows meanwhile
        path = f"{folder}/{relative}"
        real = os.path.realpath(path)
        if real in seen:
            continue
        if not os.path.lexists(real):
            yield Found(relative, 0, False, 0)
            continue
        seen.add(real)
        yield _found(relative, Path(path).stat(), is_file=Path(path).is_file())
        if Path(path).is_dir():
            yield from _below(path, f"{relative}/", real, seen, links)


def link_target(path: str) -> str | None:
    """Where a broken link points; None for anything else."""
    return str(Path(path).readlink()) if Path(path).is_symlink() and not Path(path).exists() else None


def _below(folder: str, prefix: str, real: str, seen: set[str], links: list[str]) -> Iterator[Found]:
    """What a folder holds, without what its links lead to: they are put to `links`."""
    for entry in _entries(folder):
        relative, own = f"{prefix}{entry.name}", f"{real.rstrip('/')}/{entry.name}"
        if entry.is_symlink():
            links.append(relative)
        elif own not in seen:
            seen.add(own)
            with suppress(FileNotFoundError):  # deleted meanwhile
                yield _found(relative, entry.stat(), is_file=entry.is_file())
            if entry.is_dir():
                yield from _below(entry.path, f"{relative}/", own, seen, links)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:  # deleted meanwhile
        return []


def _found(relative: str, info: os.stat_result, is_file: bool) -> Found:
    return Found(relative, info.st_size if is_file else 0, is_file, info.st_mtime_ns)
