"""Folders that Hindcast filled with text: which files count, and what they hold, which text itself does not say."""

from __future__ import annotations

from hindcast.storage.location import Location
from hindcast.store.commits import commit_of, read_commits
from hindcast.store.layouts import TEXT_LAYOUTS
from hindcast.store.manifest import Manifest, read_manifest


def text_recording(folder: Location) -> Manifest | None:
    """What a folder of text holds: its manifest, or as much of it as the commits of an unfinished one tell.

    Returns:
        None of any other folder.

    Raises:
        DataError: a manifest or commit that cannot be read.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest if manifest.layout in TEXT_LAYOUTS else None
    commits = list(read_commits(folder).values())
    if not commits or commits[0].text is None:
        return None
    return commits[0].text.manifest(tuple(file for commit in commits for file in commit.files))


def recording_of(file: Location) -> Manifest | None:
    """The same of the folder that a file lies in, with the files of its range only where it is unfinished.

    Raises:
        DataError: see `text_recording`.
    """
    folder = file.parent()
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest if manifest.layout in TEXT_LAYOUTS else None
    commit = commit_of(folder, file.name)
    return None if commit is None or commit.text is None else commit.text.manifest(commit.files)
