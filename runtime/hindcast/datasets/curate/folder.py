"""Whose a destination is: its mark says what it is made of, and it is never mixed with anything else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from hindcast.errors import OutputConflict
from hindcast.formats.dataset_folder.commits import COMMITS, read_commits
from hindcast.formats.dataset_folder.manifest import FOLDER, MANIFEST, read_manifest
from hindcast.formats.dataset_folder.unfinished import MARK
from hindcast.storage.lease import LOCK
from hindcast.storage.location import Location

_WAY_OUT = "give another folder, or --replace it (which deletes only what its manifest lists)"


def claim(folder: Location, made_of: Mapping[str, Any], replace: bool) -> None:
    """Mark a folder, unless it has this mark already.

    Args:
        folder: the destination.
        made_of: all that its content depends on.
        replace: whether other data of ours are deleted.

    Raises:
        OutputConflict: something else is there.
    """
    if is_claimed(folder, made_of, replace):
        return
    if _holds_data(folder):
        clear(folder)
    mark = {"resource": "hindcast data", "specHash": _hash(made_of), "spec": made_of}
    folder.child(FOLDER, MARK).write_bytes(orjson.dumps(mark, option=orjson.OPT_INDENT_2))


def is_claimed(folder: Location, made_of: Mapping[str, Any], replace: bool) -> bool:
    """Whether a folder has the mark that `claim` gives it; it raises what `claim` would.

    Raises:
        OutputConflict: something else is there.
    """
    found = _mark_of(folder.child(FOLDER))
    if found is not None and found.get("specHash") == _hash(made_of):
        return True
    if _holds_data(folder):
        if not replace:
            raise OutputConflict(f"{folder} holds {_described(found)}: {_WAY_OUT}")
    elif found is None and any(entry.relative != FOLDER for entry in folder.list()):
        raise OutputConflict(
            f"{folder} holds files that Hindcast did not write: give an empty or a new folder (--replace deletes only "
            "what a manifest lists)"
        )
    return False


def clear(folder: Location) -> None:
    """Delete what the folder's manifest and commits list, and these themselves."""
    manifest, commits = read_manifest(folder), read_commits(folder)
    files = [file.path for commit in commits.values() for file in commit.files]
    files += [file.path for file in (manifest.files if manifest else ())]
    folder.child(MANIFEST).delete()
    for path in dict.fromkeys(files):
        folder.child(path).delete()
    for entry in folder.child(FOLDER).list():
        if entry.relative != LOCK:
            entry.location.delete()


def _holds_data(folder: Location) -> bool:
    return folder.child(MANIFEST).exists() or any(folder.child(COMMITS).files())


def _mark_of(state: Location) -> dict[str, Any] | None:
    location = state.child(MARK)
    if not location.exists():
        return None
    try:
        found = orjson.loads(location.read_bytes())
    except ValueError:  # damaged
        return {}
    return found if isinstance(found, dict) else {}


def _described(found: Mapping[str, Any] | None) -> str:
    resource = (found or {}).get("resource")
    if resource == "hindcast data":
        return "data that were made from something else, or with other options"
    return f"the recording of {resource}" if resource else "a recording"


def _hash(made_of: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(made_of, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
