"""Commits, each a small file for one complete range of a recording; and descriptions of exported files.

A range of episodes is complete once `_hindcast/commits/<range>.json` lists its files. If two writers write the same
range, the later commit replaces the earlier one; the files of both hold the same episodes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, Self

from pydantic import Field, ValidationError

from hindcast.errors import DataError
from hindcast.formats.dataset_folder.manifest import (
    FOLDER,
    MANIFEST,
    Manifest,
    describe_first_problem,
    read_manifest,
)
from hindcast.formats.entries import FileEntry, JsonModel
from hindcast.formats.layouts import EXPORTED_LAYOUTS
from hindcast.formats.parquet.description import read_description
from hindcast.formats.parquet.opening import open_parquet
from hindcast.formats.spec import DataSpec
from hindcast.storage.local_files import TEMPORARY_NAME
from hindcast.storage.location import Location, remove_temporary_files

COMMITS_FOLDER = f"{FOLDER}/commits"
_DATA_FILE = re.compile(r"^\d{6,}-[0-9A-Za-z_]+-\d{3,}\.(parquet|json|csv)$")
_COMMIT_FILE = re.compile(r"^\d{6,}\.json$")


class ExportedFiles(JsonModel):
    """Layout and spec of files in an exported layout; text files cannot store them.

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
        files: files of the range, in order; their paths are relative to the dataset's folder.
        episodes: number of episodes.
        timesteps: number of timesteps of all episodes.
        first: index of the first episode in the recording.
        exported: layout and spec of files in an exported layout; else None.
        content: checksums of the episodes (`Content.to_json`), if they are verified against a source; else None.
        remedy: advice if a commit cannot be read; `{folder}` in it stands for the dataset's folder.
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
            DataError: the commit cannot be read or does not exist.
        """
        location = commit_location(folder, number)
        try:
            return cls.model_validate_json(location.read_bytes())
        except ValidationError as error:
            remedy = cls.remedy.format(folder=folder)
            raise DataError(
                f"cannot be read ({describe_first_problem(error)}): {remedy}", path=str(location)
            ) from error


def make_file_stem(number: int, writer: str) -> str:
    """Return the beginning of the names of a range's files.

    Args:
        number: number of the range.
        writer: letters and digits that no other writer uses.
    """
    return f"{number:06d}-{writer}"


def commit_location(folder: Location, number: int) -> Location:
    """Return the location of a range's commit."""
    return folder.child(COMMITS_FOLDER, f"{number:06d}.json")


def write_commit(folder: Location, commit: Commit) -> None:
    """Write a range's commit, which completes the range; it replaces an earlier commit of the range.

    Raises:
        StorageError: the commit cannot be written; then the range is not complete.
    """
    location = commit_location(folder, commit.range)
    location.write_bytes(commit.model_dump_json(by_alias=True).encode())


def committed_ranges(folder: Location) -> list[int]:
    """List the numbers of the committed ranges, ascending."""
    names = (entry.relative_path for entry in folder.child(COMMITS_FOLDER).files())
    return sorted(int(name.removesuffix(".json")) for name in names if _COMMIT_FILE.match(name))


def read_commits(folder: Location) -> dict[int, Commit]:
    """Read the commits of a dataset's folder: number of the range -> commit, in ascending order.

    Raises:
        DataError: a commit cannot be read.
    """
    return {number: Commit.read(folder, number) for number in committed_ranges(folder)}


def committed_files(commits: Iterable[Commit]) -> tuple[FileEntry, ...]:
    """Return the files that commits list, in order."""
    return tuple(file for commit in commits for file in commit.files)


def remove_orphans(folder: Location, commits: Iterable[Commit]) -> None:
    """Delete leftovers of interrupted writers: data files that no commit lists, and temporary files.

    Call it only while nobody writes to the folder. Files with names that Hindcast does not use stay.
    """
    listed_paths = {file.path for file in committed_files(commits)}
    remove_temporary_files(folder.child(FOLDER))
    for entry in folder.files():
        is_orphan = _DATA_FILE.match(entry.relative_path) and entry.relative_path not in listed_paths
        if is_orphan or TEMPORARY_NAME.match(entry.relative_path):
            entry.location.delete()


def clear_dataset(folder: Location, keep: Collection[str]) -> None:
    """Delete a dataset: the manifest, the files that manifest and commits list, and the content of `_hindcast`.

    Args:
        folder: folder of the dataset.
        keep: names in `_hindcast` that stay.
    """
    manifest = read_manifest(folder)
    files = (*committed_files(read_commits(folder).values()), *(manifest.files if manifest else ()))
    # the manifest first, so that an interrupted call leaves no dataset that looks complete
    folder.child(MANIFEST).delete()
    for path in dict.fromkeys(file.path for file in files):
        folder.child(path).delete()
    for entry in folder.child(FOLDER).list():
        if entry.relative_path not in keep:
            entry.location.delete()


def read_exported_manifest(folder: Location, file_name: str | None = None) -> Manifest | None:
    """Read the manifest of an exported recording; if the recording is unfinished, make a manifest from its commits.

    Args:
        folder: folder of the recording.
        file_name: a file of the recording. If the recording is unfinished, only the commit with this file is read.

    Returns:
        The manifest; None for other folders.

    Raises:
        DataError: a manifest or a commit cannot be read.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest if manifest.layout in EXPORTED_LAYOUTS else None
    commits = (
        list(read_commits(folder).values()) if file_name is None else _commits_of_file(folder, file_name)
    )
    exported_files = _find_exported_files(folder, commits)
    if exported_files is None:
        return None
    return Manifest(layout=exported_files.layout, spec=exported_files.spec, files=committed_files(commits))


def describe_exported_files(layout: str, spec: DataSpec) -> ExportedFiles | None:
    """Return the description for a commit of files in an exported layout; None for other layouts."""
    return ExportedFiles(layout=layout, spec=spec.to_json()) if layout in EXPORTED_LAYOUTS else None


def _find_exported_files(folder: Location, commits: Sequence[Commit]) -> ExportedFiles | None:
    """Return the description in the first commit, or else in the first file; None if there is none."""
    if not commits:
        return None
    files = committed_files(commits)
    if not files or commits[0].exported is not None:
        return commits[0].exported
    # commits of earlier versions do not describe Columns, but the files do
    with open_parquet(folder.child(files[0].path)) as file:
        description = read_description(file.schema_arrow)
    return None if description is None else describe_exported_files(description.layout, description.spec)


def _commits_of_file(folder: Location, name: str) -> list[Commit]:
    """Return the commit of a data file's range; empty if the range has no commit, or `name` is not a data file's."""
    if not _DATA_FILE.match(name):
        return []
    number = int(name.split("-", 1)[0])
    return [Commit.read(folder, number)] if commit_location(folder, number).exists() else []
