"""Commits: one small file for each complete range of a recording; and descriptions of exported files.

A range of episodes counts when `_hindcast/commits/<range>.json` lists its files. If two writers wrote the same
range, the last commit stays; both are complete and hold the same episodes.
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
    """Layout and spec of files in an exported layout; text files do not contain them.

    Attributes:
        layout: name of the layout.
        spec: `DataSpec.to_json()`.
    """

    layout: str
    spec: dict[str, Any]


class Commit(JsonModel):
    """A complete range of episodes.

    Attributes:
        range: number of the range.
        files: its files in order; paths relative to the dataset's folder.
        episodes: number of episodes.
        timesteps: number of their steps.
        first: index of the first episode.
        exported: layout and spec of files in an exported layout; else None.
        content: digest of the episodes (`Content.to_json`), if they are later compared with what was read.
    """

    range: int
    files: tuple[FileEntry, ...]
    episodes: int
    timesteps: int
    first: int
    exported: ExportedFiles | None = Field(None, alias="text")  # JSON name from when only text was exported
    content: dict[str, Any] | None = None

    remedy: ClassVar[str] = "delete it and record again, which repeats this range"

    @classmethod
    def read(cls, folder: Location, number: int) -> Self:
        """Read the commit of a complete range.

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
    """Return the beginning of a range's file names; `writer` (letters and digits) is unique to the writer."""
    return f"{number:06d}-{writer}"


def commit_location(folder: Location, number: int) -> Location:
    """Return the location of a range's commit."""
    return folder.child(COMMITS, f"{number:06d}.json")


def write_commit(folder: Location, commit: Commit) -> None:
    """Write a range's commit, which makes the range count; it replaces an earlier commit of the range.

    Raises:
        StorageError: the commit cannot be written; then the range does not count.
    """
    location = commit_location(folder, commit.range)
    location.write_bytes(commit.model_dump_json(by_alias=True).encode())


def committed_ranges(folder: Location) -> list[int]:
    """List the numbers of the committed ranges, ascending."""
    names = (entry.relative_path for entry in folder.child(COMMITS).files())
    return sorted(int(name.removesuffix(".json")) for name in names if _COMMIT_FILE.match(name))


def read_commits(folder: Location) -> dict[int, Commit]:
    """Read the commits of a dataset's folder, by range number in order.

    Raises:
        DataError: a commit cannot be read.
    """
    return {number: Commit.read(folder, number) for number in committed_ranges(folder)}


def committed_files(commits: Iterable[Commit]) -> tuple[FileEntry, ...]:
    """Return the files that commits list, in order."""
    return tuple(file for commit in commits for file in commit.files)


def remove_orphans(folder: Location, commits: Iterable[Commit]) -> None:
    """Delete leftovers of interrupted writers: data files that no commit lists, and temporary files.

    Call it only while nobody writes to the folder. Files with other names than Hindcast's stay.
    """
    keep = {file.path for file in committed_files(commits)}
    remove_temporary_files(folder.child(FOLDER))
    for entry in folder.files():
        is_orphan = _DATA_FILE.match(entry.relative_path) and entry.relative_path not in keep
        if is_orphan or TEMPORARY_NAME.match(entry.relative_path):
            entry.location.delete()


def clear_dataset(folder: Location, keep: Collection[str]) -> None:
    """Delete the folder's manifest, the files that it and the commits list, and the commits.

    Args:
        keep: names in `_hindcast` that stay; everything else there is deleted.
    """
    manifest = read_manifest(folder)
    files = (*committed_files(read_commits(folder).values()), *(manifest.files if manifest else ()))
    # first, so that an interrupted call leaves no dataset that looks complete
    folder.child(MANIFEST).delete()
    for path in dict.fromkeys(file.path for file in files):
        folder.child(path).delete()
    for entry in folder.child(FOLDER).list():
        if entry.relative_path not in keep:
            entry.location.delete()


def read_exported_manifest(folder: Location, file: str | None = None) -> Manifest | None:
    """Read the manifest of an exported recording; of an unfinished one, make it from the commits.

    Args:
        file: name of one of its files; for an unfinished recording only the commit of its range is read.

    Returns:
        The manifest; None for other folders.

    Raises:
        DataError: a manifest or a commit cannot be read.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest if manifest.layout in EXPORTED_LAYOUTS else None
    commits = list(read_commits(folder).values()) if file is None else _commits_of_file(folder, file)
    exported_files = _find_exported_files(folder, commits)
    if exported_files is None:
        return None
    return Manifest(layout=exported_files.layout, spec=exported_files.spec, files=committed_files(commits))


def describe_exported_files(layout: str, spec: DataSpec) -> ExportedFiles | None:
    """Return a commit's description of files in a layout; None if the files describe themselves."""
    return ExportedFiles(layout=layout, spec=spec.to_json()) if layout in EXPORTED_LAYOUTS else None


def _find_exported_files(folder: Location, commits: Sequence[Commit]) -> ExportedFiles | None:
    """Return the description in the commits; if they have none for Columns, read it from the first file."""
    files = committed_files(commits)
    if not files or commits[0].exported is not None:
        return commits[0].exported if commits else None
    # commits of earlier versions do not describe Columns, but the files do
    with open_parquet(folder.child(files[0].path)) as file:
        description = read_description(file.schema_arrow)
    return None if description is None else describe_exported_files(description.layout, description.spec)


def _commits_of_file(folder: Location, name: str) -> list[Commit]:
    """Return the commit of the range that a data file belongs to; empty if it is no data file or has no commit."""
    if not _DATA_FILE.match(name):
        return []
    number = int(name.split("-", 1)[0])
    return [Commit.read(folder, number)] if commit_location(folder, number).exists() else []
