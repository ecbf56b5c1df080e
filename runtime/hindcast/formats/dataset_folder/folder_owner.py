"""Recordings without a manifest: what exists of them, and what was requested."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import orjson

from hindcast import formatting
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.commits import Commit, read_commits
from hindcast.formats.dataset_folder.manifest import FOLDER, MANIFEST
from hindcast.storage.location import Location

OWNER_FILE: Final = "spec.json"
"""The file in `_hindcast` that says what will fill the folder."""
LOG_RESOURCE: Final = "EpisodeWriter"
"""Marks the log of an application, which is never complete."""


def describe_unfinished(folder: Location) -> str:
    """What to say of a folder, where it is a recording that is not complete; else nothing."""
    state = folder.child(FOLDER)
    if not state.exists() or folder.child(MANIFEST).exists():
        return ""
    commits = read_commits(folder).values()
    return describe_progress(folder, commits) if commits else ""


def describe_progress(folder: Location, commits: Collection[Commit]) -> str:
    """What to say of a recording without a manifest: how much of it is there."""
    mark = read_owner(folder.child(FOLDER)) or {}
    resource = mark.get("resource")
    if resource == LOG_RESOURCE:
        return ""
    unit, total = _wanted(mark)
    done = sum(commit.timesteps if unit == "timesteps" else commit.episodes for commit in commits)
    much = f"{formatting.integer(done)} of {formatting.integer(total)} {unit} are"
    if done >= total:
        verb = "is" if done == 1 else "are"
        much = f"it has no manifest yet, {formatting.plural(done, unit.removesuffix('s'))} {verb}"
    again = f"run {resource} again" if str(resource).startswith("OfflineRecording/") else "run it again"
    return f"{folder} is not complete: {much} recorded; {again} for the rest, or wait while it runs"


def write_owner(state: Location, content: Mapping[str, Any]) -> None:
    """Say whose a folder is: the resource, its hash and its spec, where `state` has its own files."""
    state.child(OWNER_FILE).write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))


def read_owner(state: Location) -> dict[str, Any] | None:
    """What the mark says; None without one, nothing of a damaged one."""
    location = state.child(OWNER_FILE)
    if not location.exists():
        return None
    try:
        found = orjson.loads(location.read_bytes())
    except ValueError:  # damaged
        return {}
    return found if isinstance(found, dict) else {}


def require_owner(state: Location) -> dict[str, Any] | None:
    """The mark with all that a run or a log writes into it; None without one.

    Raises:
        DataError: it is damaged.
    """
    found = read_owner(state)
    if found is not None and not {"resource", "specHash", "spec"} <= found.keys():
        raise DataError(
            f"{state.child(OWNER_FILE)}, which says whose the folder is, is damaged: restore the "
            "file from a copy, or write "
            "into another folder"
        )
    return found


def _wanted(mark: dict[str, Any]) -> tuple[str, int]:
    """The unit of a recording's duration and how many of it; 0 where nothing says how many."""
    try:
        duration = mark["spec"]["spec"]["duration"]
        return next((unit, int(duration[unit])) for unit in ("episodes", "timesteps") if duration.get(unit))
    except (KeyError, TypeError, StopIteration):
        return "episodes", 0
