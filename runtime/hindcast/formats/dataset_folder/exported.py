"""Folders that Hindcast filled in an exported layout: which files count, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence

from hindcast.formats.dataset_folder.commits import Commit, ExportedFiles, commit_of, read_commits
from hindcast.formats.dataset_folder.manifest import Manifest, read_manifest
from hindcast.formats.layouts import EXPORTED_LAYOUTS
from hindcast.formats.parquet.description import described
from hindcast.formats.parquet.opening import open_parquet
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location


def exported_recording(folder: Location) -> Manifest | None:
    """What such a folder holds: its manifest, or what the commits of an unfinished one say of it.

    Returns:
        None of any other folder.

    Raises:
        DataError: a manifest or commit that cannot be read.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest if manifest.layout in EXPORTED_LAYOUTS else None
    commits = list(read_commits(folder).values())
    exported = _exported(folder, commits)
    if exported is None:
        return None
    return exported.manifest(tuple(file for commit in commits for file in commit.files))


def recording_of(file: Location) -> Manifest | None:
    """The same for the folder that a file is in, with the files of its range only where it is unfinished.

    Raises:
        DataError: see `exported_recording`.
    """
    folder = file.parent()
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest if manifest.layout in EXPORTED_LAYOUTS else None
    commit = commit_of(folder, file.name)
    return None if commit is None or commit.exported is None else commit.exported.manifest(commit.files)


def exported_files(layout: str, spec: DataSpec) -> ExportedFiles | None:
    """What a commit says of files in a layout; None if they say it themselves."""
    return ExportedFiles(layout=layout, spec=spec.to_json()) if layout in EXPORTED_LAYOUTS else None


def _exported(folder: Location, commits: Sequence[Commit]) -> ExportedFiles | None:
    """What the commits say; those of earlier versions say nothing about Columns, but the files do."""
    if not commits or commits[0].exported is not None:
        return commits[0].exported if commits else None
    files = [file for commit in commits for file in commit.files]
    if not files:
        return None
    with open_parquet(folder.child(files[0].path)) as file:
        description = described(file.schema_arrow)
    return None if description is None else exported_files(description.layout, description.spec)
