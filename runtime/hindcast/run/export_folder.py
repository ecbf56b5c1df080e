"""Where an export goes: into an empty folder, or over an earlier export; never over what somebody else put there."""

from __future__ import annotations

import json
from collections.abc import Collection, Set
from typing import Final

from hindcast.errors import OutputConflict
from hindcast.formats.dataset_folder.folder_owner import OWNER_FILE
from hindcast.learn.checkpoint import MODULE
from hindcast.learn.checkpoint_record import RECORD_FILE
from hindcast.models import policy_files
from hindcast.onnx_policy import DESCRIPTION, LOADER, PROGRAM
from hindcast.run.claim import CHECKPOINTS_FOLDER
from hindcast.storage.local_files import TEMPORARY_NAME
from hindcast.storage.location import Location

TORCH_PROGRAM: Final = "policy.pt2"
_LOADER_CLASS: Final = b"class OnnxPolicy"
_DESCRIPTIONS: Final = {
    DESCRIPTION: ("formatVersion", "inputs", "outputs", "policy"),
    policy_files.DESCRIPTION: ("formatVersion", "moduleClass", "checksums"),
}
"""The files that tell an export, and what is in them."""
_WAY_OUT: Final = "give a new or an empty folder"


def refuse_foreign_files(folder: Location, names: Collection[str]) -> None:
    """Refuse a folder in which an export would overwrite, or be mixed with, files that no export wrote.

    Args:
        folder: of the export. Files of the user's next to an earlier export stay, and are in nobody's way.
        names: of the files that are to be written.

    Raises:
        OutputConflict: such files are there.
    """
    if _is_of_a_run(folder):
        raise OutputConflict(f"{folder} is the policy of a run, a recording or a checkpoint: {_WAY_OUT}.")
    found = {entry.relative_path for entry in folder.list() if not TEMPORARY_NAME.match(entry.relative_path)}
    exported = _exported(folder, found)
    others = sorted(found & set(names) - exported if exported else found)
    if not others:
        return
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    raise OutputConflict(
        f"{folder} holds {', '.join(others[:3])}{more}, which hindcast export did not write: {_WAY_OUT}."
    )


def _is_of_a_run(folder: Location) -> bool:
    """Whether this is the `module` of a run folder, of a checkpoint, or of what a recording keeps of its policy."""
    if folder.name != MODULE:
        return False
    above = folder.parent()
    marks = [above.child(name) for name in (RECORD_FILE, CHECKPOINTS_FOLDER, OWNER_FILE)]
    return any(mark.exists() for mark in (*marks, above.parent().child(OWNER_FILE)))


def _exported(folder: Location, found: Set[str]) -> set[str]:
    """The files, of those found, that are an earlier export's."""
    files: set[str] = set()
    if _is_described(folder, DESCRIPTION, found):
        files = {DESCRIPTION, PROGRAM, TORCH_PROGRAM}
        if LOADER in found and _LOADER_CLASS in folder.child(LOADER).read_bytes():
            files.add(LOADER)
    if _is_described(folder, policy_files.DESCRIPTION, found):
        files.update(policy_files.NAMES)
    return files & found


def _is_described(folder: Location, name: str, found: Set[str]) -> bool:
    """Whether the file is what an export says of itself."""
    if name not in found:
        return False
    location = folder.child(name)
    if location.is_folder():
        return False
    try:
        said = json.loads(location.read_bytes())
    except ValueError:
        return False
    return isinstance(said, dict) and all(key in said for key in _DESCRIPTIONS[name])
