"""Commits: which ranges of a recording are complete, one small file each.

A range of episodes counts when `_hindcast/commits/<range>.json` lists its files. Of two writers that made the
same range the last commit stays; both are complete and hold the same episodes.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from hindcast.errors import DataError
from hindcast.store.atomic import TEMPORARY_SUFFIX
from hindcast.store.entries import FileEntry, Stored
from hindcast.store.filesystem import Location
from hindcast.store.manifest import FOLDER, first_problem

COMMITS = f"{FOLDER}/commits"
_DATA_FILE = re.compile(r"^\d{6,}-[0-9A-Za-z_]+-\d{3,}\.(parquet|json|csv)$")
_COMMIT_FILE = re.compile(r"^\d{6,}\.json$")
_TEMPORARY_FILE = re.compile(rf"^\..+\.[0-9a-f]{{8}}{re.escape(TEMPORARY_SUFFIX)}$")


class Commit(Stored):
    """A range of episodes that is complete.

    Attributes:
        range: its number.
        files: those that hold it, in order; paths relative to the dataset's folder.
        episodes: how many.
        timesteps: their steps.
        first: index of the first episode.
        content: what it holds, where what was read is known to compare it with (`Content.to_json`).
    """

    range: int
    files: tuple[FileEntry, ...]
    episodes: int
    timesteps: int
    first: int
    content: dict[str, Any] | None = None


def file_stem(number: int, writer: str) -> str:
    """How the names of a range's files begin; `writer` (letters and digits) is unique to who writes."""
    return f"{number:06d}-{writer}"


def write_commit(folder: Location, commit: Commit) -> None:
    """Make a range count; it replaces an earlier commit of the same range.

    Raises:
        StorageError: it could not be written; the range does not count then.
    """
    location = folder.child(COMMITS, f"{commit.range:06d}.json")
    location.write_bytes(commit.model_dump_json(by_alias=True).encode())


def read_commits(folder: Location) -> dict[int, Commit]:
    """The commits of a dataset's folder by range number, in order; empty if there are none.

    Raises:
        DataError: one cannot be read.
    """
    commits = {}
    for entry in folder.child(COMMITS).files():
        if not _COMMIT_FILE.match(entry.relative):
            continue
        try:
            commit = Commit.model_validate_json(entry.location.read_bytes())
        except ValidationError as error:
            raise DataError(
                f"{entry.location} cannot be read ({first_problem(error)}): delete it and record again, "
                "which makes this range anew"
            ) from error
        commits[commit.range] = commit
    return dict(sorted(commits.items()))


def remove_orphans(folder: Location, keep: set[str]) -> list[str]:
    """Delete what interrupted writers left: uncommitted files of ours and temporary files.

    Only while nobody writes to the folder. Files whose names are not ours stay.

    Args:
        folder: the dataset's.
        keep: relative paths that commits list.

    Returns:
        The relative paths deleted.
    """
    removed = [f"{FOLDER}/{name}" for name in remove_temporary_files(folder.child(FOLDER))]
    for entry in folder.files():
        is_orphan = _DATA_FILE.match(entry.relative) and entry.relative not in keep
        if is_orphan or _TEMPORARY_FILE.match(entry.relative):
            entry.location.delete()
            removed.append(entry.relative)
    return removed


def remove_temporary_files(folder: Location) -> list[str]:
    """Delete the temporary files that killed writers left in a folder and in those below it.

    Only while nobody writes there.

    Returns:
        Their paths in the folder.
    """
    left = [entry for entry in folder.files(recursive=True) if _TEMPORARY_FILE.match(entry.location.name)]
    for entry in left:
        entry.location.delete()
    return [entry.relative for entry in left]
