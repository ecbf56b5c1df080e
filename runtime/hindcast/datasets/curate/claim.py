"""Claim a folder for one output: its owner file records the source and the options, so other outputs are refused."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from hindcast.datasets.target import Target
from hindcast.errors import OutputConflict
from hindcast.formats.dataset_folder.commits import COMMITS_FOLDER, clear_dataset
from hindcast.formats.dataset_folder.folder_owner import read_owner, write_owner
from hindcast.formats.dataset_folder.manifest import FOLDER, MANIFEST
from hindcast.storage.lease import LOCK
from hindcast.storage.location import Location

_REMEDY: Final = "choose another folder, or pass --replace, which deletes only the files in its manifest"


def claim(target: Target, digest: str) -> None:
    """Claim the target's folder for data with this digest, unless it is already claimed for them.

    Other data in the folder are deleted if `target.replace` is set.

    Raises:
        OutputConflict: the folder holds something else.
    """
    if is_claimed(target, digest):
        return
    if _holds_data(target.folder):
        # The lock of this process is in the folder, too.
        clear_dataset(target.folder, keep=(LOCK,))
    output_spec = _make_output_spec(target, digest)
    owner = {"resource": "hindcast data", "specHash": _hash(output_spec), "spec": output_spec}
    write_owner(target.folder.child(FOLDER), owner)


def is_claimed(target: Target, digest: str) -> bool:
    """Return True if the target's folder is already claimed for data with this digest.

    Raises:
        OutputConflict: the folder holds something else, so that `claim` would fail.
    """
    folder = target.folder
    owner = read_owner(folder.child(FOLDER))
    if owner is not None and owner.get("specHash") == _hash(_make_output_spec(target, digest)):
        return True
    if _holds_data(folder):
        if not target.replace:
            raise OutputConflict(f"{folder} holds {_describe_owner(owner)}: {_REMEDY}")
    elif owner is None and any(entry.relative_path != FOLDER for entry in folder.list()):
        raise OutputConflict(
            f"{folder} holds files that Hindcast did not write: choose an empty or a new folder (--replace "
            "deletes only the files in a manifest)"
        )
    return False


def _make_output_spec(target: Target, digest: str) -> dict[str, Any]:
    """Return everything that the written files depend on: the data's digest, the format and its options."""
    return {
        "data": digest,
        "format": target.format,
        "rowsPerFile": target.rows_per_file,
        "fileBytes": target.file_bytes,
        "compression": target.compression,
        **({"compressColumns": target.compress_columns} if target.compress_columns else {}),
    }


def _holds_data(folder: Location) -> bool:
    return folder.child(MANIFEST).exists() or any(folder.child(COMMITS_FOLDER).files())


def _describe_owner(owner: Mapping[str, Any] | None) -> str:
    resource = (owner or {}).get("resource")
    if resource == "hindcast data":
        return "data made from a different source or with different options"
    return f"the recording of {resource}" if resource else "a recording"


def _hash(output_spec: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(output_spec, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
