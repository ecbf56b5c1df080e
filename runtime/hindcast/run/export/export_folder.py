"""Check that the target of an export is empty or contains an earlier export, and no files that would be lost."""

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
_LOADER_MARKER: Final = b"class OnnxPolicy"
_DESCRIPTION_KEYS: Final = {
    DESCRIPTION: ("formatVersion", "inputs", "outputs", "policy"),
    policy_files.DESCRIPTION: ("formatVersion", "moduleClass", "checksums"),
}
"""Description file of an export -> keys that it contains."""
_REMEDY: Final = "choose a new or an empty folder"


def refuse_foreign_files(folder: Location, names: Collection[str]) -> None:
    """Refuse a folder in which an export would overwrite, or be mixed with, files that no export wrote.

    Args:
        folder: target of the export; other files next to an earlier export are allowed, and stay.
        names: names of the files that will be written.

    Raises:
        OutputConflict: the folder contains such files.
    """
    if _is_run_module(folder):
        raise OutputConflict(f"{folder} is the policy of a run, a recording or a checkpoint: {_REMEDY}.")
    entries = {
        entry.relative_path for entry in folder.list() if not TEMPORARY_NAME.match(entry.relative_path)
    }
    export_files = _earlier_export_files(folder, entries)
    # Next to an earlier export, only files that the new one would overwrite matter.
    overwritten_files = entries & set(names)
    foreign_files = sorted(overwritten_files - export_files if export_files else entries)
    if not foreign_files:
        return
    more = f" and {len(foreign_files) - 3} more" if len(foreign_files) > 3 else ""
    raise OutputConflict(
        f"{folder} holds {', '.join(foreign_files[:3])}{more}, which hindcast export did not write: {_REMEDY}."
    )


def _is_run_module(folder: Location) -> bool:
    """Return True for the `module` folder of a run, of a checkpoint, or of a recording's policy."""
    if folder.name != MODULE:
        return False
    parent = folder.parent()
    markers = [parent.child(name) for name in (RECORD_FILE, CHECKPOINTS_FOLDER, OWNER_FILE)]
    return any(marker.exists() for marker in (*markers, parent.parent().child(OWNER_FILE)))


def _earlier_export_files(folder: Location, entries: Set[str]) -> set[str]:
    """Return the names of the files in the folder that an earlier export wrote."""
    files: set[str] = set()
    if _is_export_description(folder, DESCRIPTION, entries):
        files = {DESCRIPTION, PROGRAM, TORCH_PROGRAM}
        # A policy.py without the class OnnxPolicy is the user's own file.
        if LOADER in entries and _LOADER_MARKER in folder.child(LOADER).read_bytes():
            files.add(LOADER)
    if _is_export_description(folder, policy_files.DESCRIPTION, entries):
        files.update(policy_files.FILE_NAMES)
    return files & entries


def _is_export_description(folder: Location, name: str, entries: Set[str]) -> bool:
    """Return True if the file is an export's description of itself."""
    if name not in entries:
        return False
    location = folder.child(name)
    if location.is_folder():
        return False
    try:
        document = json.loads(location.read_bytes())
    except ValueError:
        return False
    return isinstance(document, dict) and all(key in document for key in _DESCRIPTION_KEYS[name])
