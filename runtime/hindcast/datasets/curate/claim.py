"""Whose a folder is: its mark says what its data are made of, and nothing is mixed in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from hindcast.datasets.target import Target
from hindcast.errors import OutputConflict
from hindcast.formats.dataset_folder.commits import COMMITS, clear_dataset
from hindcast.formats.dataset_folder.folder_owner import read_owner, write_owner
from hindcast.formats.dataset_folder.manifest import FOLDER, MANIFEST
from hindcast.storage.lease import LOCK
from hindcast.storage.location import Location

_WAY_OUT: Final = "give another folder, or --replace it (which deletes only what its manifest lists)"


def claim(target: Target, digest: str) -> None:
    """Mark the folder as that of some data, unless it has this mark already.

    Raises:
        OutputConflict: something else is there.
    """
    if is_claimed(target, digest):
        return
    if _holds_data(target.folder):
        clear_dataset(target.folder, keep=(LOCK,))
    made_of = _made_of(target, digest)
    mark = {"resource": "hindcast data", "specHash": _hash(made_of), "spec": made_of}
    write_owner(target.folder.child(FOLDER), mark)


def is_claimed(target: Target, digest: str) -> bool:
    """Whether the folder has the mark that `claim` gives it; it raises what `claim` would.

    Raises:
        OutputConflict: something else is there.
    """
    folder = target.folder
    found = read_owner(folder.child(FOLDER))
    if found is not None and found.get("specHash") == _hash(_made_of(target, digest)):
        return True
    if _holds_data(folder):
        if not target.replace:
            raise OutputConflict(f"{folder} holds {_described(found)}: {_WAY_OUT}")
    elif found is None and any(entry.relative_path != FOLDER for entry in folder.list()):
        raise OutputConflict(
            f"{folder} holds files that Hindcast did not write: give an empty or a new folder (--replace deletes only "
            "what a manifest lists)"
        )
    return False


def _made_of(target: Target, digest: str) -> dict[str, Any]:
    """What the files depend on.

    Args:
        digest: of the data.
    """
    return {
        "data": digest,
        "format": target.format,
        "rowsPerFile": target.rows_per_file,
        "fileBytes": target.file_bytes,
        "compression": target.compression,
        **({"compressColumns": target.compress_columns} if target.compress_columns else {}),
    }


def _holds_data(folder: Location) -> bool:
    return folder.child(MANIFEST).exists() or any(folder.child(COMMITS).files())


def _described(found: Mapping[str, Any] | None) -> str:
    resource = (found or {}).get("resource")
    if resource == "hindcast data":
        return "data that were made from something else, or with other options"
    return f"the recording of {resource}" if resource else "a recording"


def _hash(made_of: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(made_of, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
