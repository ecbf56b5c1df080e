"""The owner of a folder, stored in `_hindcast/spec.json`, and descriptions of unfinished recordings."""

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
"""The file in `_hindcast` that names the resource that writes to the folder."""
LOG_RESOURCE: Final = "EpisodeWriter"
"""The resource that owns an application's log; a log is never complete."""


def describe_unfinished(folder: Location) -> str:
    """Describe an unfinished recording and its progress, as a sentence for a note; "" for other folders."""
    state_folder = folder.child(FOLDER)
    if not state_folder.exists() or folder.child(MANIFEST).exists():
        return ""
    commits = read_commits(folder).values()
    return describe_recording_progress(folder, commits) if commits else ""


def describe_recording_progress(folder: Location, commits: Collection[Commit]) -> str:
    """Describe a recording without a manifest and its progress, as a sentence; "" for an application's log.

    Args:
        folder: folder of the recording.
        commits: commits of the recording.
    """
    owner = read_owner(folder.child(FOLDER)) or {}
    resource = owner.get("resource")
    if resource == LOG_RESOURCE:
        return ""
    unit, total = _requested_duration(owner)
    num_done = sum(commit.timesteps if unit == "timesteps" else commit.episodes for commit in commits)
    progress = f"{formatting.integer(num_done)} of {formatting.integer(total)} {unit} are"
    if num_done >= total:
        verb = "is" if num_done == 1 else "are"
        progress = f"it has no manifest yet, {formatting.plural(num_done, unit.removesuffix('s'))} {verb}"
    remedy = f"run {resource} again" if str(resource).startswith("OfflineRecording/") else "run it again"
    return f"{folder} is not complete: {progress} recorded; {remedy} for the rest, or wait while it runs"


def write_owner(state_folder: Location, content: Mapping[str, Any]) -> None:
    """Write the owner of a folder.

    Args:
        state_folder: `_hindcast` in the folder.
        content: `resource`, `specHash` and `spec` of the owner.
    """
    state_folder.child(OWNER_FILE).write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))


def read_owner(state_folder: Location) -> dict[str, Any] | None:
    """Read the owner from `_hindcast`; None if the file does not exist, empty if it is damaged."""
    location = state_folder.child(OWNER_FILE)
    if not location.exists():
        return None
    try:
        owner = orjson.loads(location.read_bytes())
    except ValueError:  # damaged
        return {}
    return owner if isinstance(owner, dict) else {}


def require_owner(state_folder: Location) -> dict[str, Any] | None:
    """Read the owner, and check that it has all fields that a run or a log writes; None if the file does not exist.

    Raises:
        DataError: the file is damaged.
    """
    owner = read_owner(state_folder)
    if owner is not None and not {"resource", "specHash", "spec"} <= owner.keys():
        raise DataError(
            f"{state_folder.child(OWNER_FILE)}, which names the owner of the folder, is damaged: "
            "restore it from a copy, or write into another folder"
        )
    return owner


def _requested_duration(owner: dict[str, Any]) -> tuple[str, int]:
    """Return the duration that a recording requests: "episodes" or "timesteps", and their number; 0 if unknown."""
    try:
        duration = owner["spec"]["spec"]["duration"]
        return next((unit, int(duration[unit])) for unit in ("episodes", "timesteps") if duration.get(unit))
    except (KeyError, TypeError, StopIteration):
        return "episodes", 0
