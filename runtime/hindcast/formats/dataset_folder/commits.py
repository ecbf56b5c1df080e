"""Commits: which ranges of a recording are complete, one small file each; and what exported files hold.

A range of episodes counts when `_hindcast/commits/<range>.json` lists its files. Of two writers that made the
same range the last commit stays; both are complete and hold the same episodes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, Self

from pydantic import Field, ValidationError

from hindcast.errors import DataError
from hindcast.formats.dataset_folder.manifest import FOLDER, MANIFEST, Manifest, first_problem, read_manifest
from hindcast.formats.entries import FileEntry, JsonModel
from hindcast.formats.layouts import EXPORTED_LAYOUTS
from hindcast.formats.parquet.description import read_description
from hindcast.formats.parquet.opening import open_parquet
from hindcast.formats.spec import DataSpec
from hindcast.storage.local_files import TEMPORARY_NAME
from hindcast.storage.location import Location, remove_temporary_files

COMMITS = f"{FOLDER}/commits"
_DATA_FILE = re.compile(r"^\d{6,}-[0-9A-Za-z_]+-\d{3,}\.(parquet|json|csv)$")
_COMMIT_FILE = re.compile(r"^\d{6,}\.json$")


class ExportedFiles(JsonModel):
    """What files in an exported layout hold, which those of text do not say themselves.

    Attributes:
        layout: name of their layout.
        spec: `DataSpec.to_json()`.
    """

    layout: str
    spec: dict[str, Any]


class Commit(JsonModel):
    """A range of episodes that is complete.

    Attributes:
        range: its number.
        files: those that hold it, in order; paths relative to the dataset's folder.
        episodes: how many.
        timesteps: their steps.
        first: index of the first episode.
        exported: what its files hold, where they are in an exported layout.
        content: what it holds, where what was read is known to compare it with (`Content.to_json`).
    """

    range: int
    files: tuple[FileEntry, ...]
    episodes: int
    timesteps: int
    first: int
    exported: ExportedFiles | None = Field(None, alias="text")  # its name from when only text was exported
    content: dict[str, Any] | None = None

    remedy: ClassVar[str] = "delete it and record again, which repeats this range"

    @classmethod
    def read(cls, folder: Location, number: int) -> Self:
        """The commit of a range that counts.

        Raises:
            DataError: it cannot be read.
        """
        location = commit_location(folder, number)
        try:
            return cls.model_validate_json(location.read_bytes())
        except ValidationError as error:
            remedy = cls.remedy.format(folder=folder)
            raise DataError(f"{location} cannot be read ({first_problem(error)}): {remedy}") from error


def file_stem(number: int, writer: str) -> str:
    """How the names of a range's files begin; `writer` (letters and digits) is unique to who writes."""
    return f"{number:06d}-{writer}"


def commit_location(folder: Location, number: int) -> Location:
    """Where the commit of a range is."""
    return folder.child(COMMITS, f"{number:06d}.json")


def write_commit(folder: Location, commit: Commit) -> None:
    """Make a range count; it replaces an earlier commit of the same range.

    Raises:
        StorageError: it could not be written; the range does not count then.
    """
    location = commit_location(folder, commit.range)
    location.write_bytes(commit.model_dump_json(by_alias=True).encode())


def committed_ranges(folder: Location) -> list[int]:
    """The numbers of the ranges that count, ascending."""
    names = (entry.relative_path for entry in folder.child(COMMITS).files())
    return sorted(int(name.removesuffix(".json")) for name in names if _COMMIT_FILE.match(name))


def read_commits(folder: Location) -> dict[int, Commit]:
    """The commits of a dataset's folder by range number, in order; empty if there are none.

    Raises:
        DataError: one cannot be read.
    """
    return {number: Commit.read(folder, number) for number in committed_ranges(folder)}


def committed_files(commits: Iterable[Commit]) -> tuple[FileEntry, ...]:
    """The files that commits list, in order."""
    return tuple(file for commit in commits for file in commit.files)


def remove_orphans(folder: Location, commits: Iterable[Commit]) -> None:
    """Delete what interrupted writers left: files of ours that no commit lists, and temporary files.

    Only while nobody writes to the folder. Files whose names are not ours stay.
    """
    keep = {file.path for file in committed_files(commits)}
    remove_temporary_files(folder.child(FOLDER))
    for entry in folder.files():
        is_orphan = _DATA_FILE.match(entry.relative_path) and entry.relative_path not in keep
        if is_orphan or TEMPORARY_NAME.match(entry.relative_path):
            entry.location.delete()


def clear_dataset(folder: Location, keep: Collection[str]) -> None:
    """Delete what the folder's manifest and commits list, and these themselves.

    Args:
        keep: names of what stays in `_hindcast`, of which all else is deleted.
    """
    manifest = read_manifest(folder)
    files = (*committed_files(read_commits(folder).values()), *(manifest.files if manifest else ()))
    folder.child(MANIFEST).delete()
    for path in dict.fromkeys(file.path for file in files):
        folder.child(path).delete()
    for entry in folder.child(FOLDER).list():
        if entry.relative_path not in keep:
            entry.location.delete()


def read_exported_manifest(folder: Location, file: str | None = None) -> Manifest | None:
    """What such a folder holds: its manifest, or what the commits of an unfinished one say of it.

    Args:
        file: name of one of its files; of an unfinished recording only the commit of its range is read.

    Returns:
        None of any other folder.

    Raises:
        DataError: a manifest or commit that cannot be read.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest if manifest.layout in EXPORTED_LAYOUTS else None
    commits = list(read_commits(folder).values()) if file is None else _commits_of(folder, file)
    exported = _exported(folder, commits)
    if exported is None:
        return None
    return Manifest(layout=exported.layout, spec=exported.spec, files=committed_files(commits))


def describe_exported_files(layout: str, spec: DataSpec) -> ExportedFiles | None:
    """What a commit says of files in a layout; None if they say it themselves."""
    return ExportedFiles(layout=layout, spec=spec.to_json()) if layout in EXPORTED_LAYOUTS else None


def _exported(folder: Location, commits: Sequence[Commit]) -> ExportedFiles | None:
    """What the commits say; those of earlier versions say nothing about Columns, but the files do."""
    files = committed_files(commits)
    if not files or commits[0].exported is not None:
        return commits[0].exported if commits else None
    with open_parquet(folder.child(files[0].path)) as file:
        description = read_description(file.schema_arrow)
    return None if description is None else describe_exported_files(description.layout, description.spec)


def _commits_of(folder: Location, name: str) -> list[Commit]:
    """The commit of the range that a data file belongs to, if it is one and its range counts."""
    if not _DATA_FILE.match(name):
        return []
    number = int(name.split("-", 1)[0])
    return [Commit.read(folder, number)] if commit_location(folder, number).exists() else []
