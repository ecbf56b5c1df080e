"""Data files that lie in a recording's folder and do not belong to it."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator

from hindcast.datasets.inspection.problems import Problem
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.storage.location import Location

_ENDINGS = (".parquet", ".pq")


def unlisted(folders: Iterable[Location], listed: Collection[str | None]) -> Iterator[Problem]:
    """A problem for each data file in recordings that is not among those listed."""
    for folder in folders:
        if not folder.is_folder():
            continue
        entries = folder.list(recursive=True)
        recordings = {posixpath.dirname(entry.relative) for entry in entries if entry.location.name == FOLDER}
        for entry in entries:
            if not entry.is_file or not entry.relative.endswith(_ENDINGS) or _is_hidden(entry.relative):
                continue
            if str(entry.location) not in listed and any(_is_in(entry.relative, own) for own in recordings):
                message = (
                    f"{entry.location} lies in a recording that does not list it, so it is not read: its range "
                    "is not complete, or it was put there; run the recording again, or move it away"
                )
                path = str(entry.location)
                yield Problem(severity="warning", kind="unlisted", message=message, path=path)


def _is_hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) for part in relative.split("/"))


def _is_in(relative: str, folder: str) -> bool:
    return not folder or relative.startswith(f"{folder}/")
