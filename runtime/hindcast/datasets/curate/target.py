"""Where and how data are written, and whose a folder is: its mark says what it is made of, and nothing is mixed in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from hindcast.api.sentences import similar
from hindcast.errors import OutputConflict, SpecError
from hindcast.formats.dataset_folder.commits import COMMITS, files_of, read_commits
from hindcast.formats.dataset_folder.manifest import FOLDER, MANIFEST, read_manifest
from hindcast.formats.dataset_folder.unfinished import MARK, read_mark
from hindcast.formats.layouts import EXPORTED_LAYOUTS, layout_of_output
from hindcast.storage.lease import LOCK
from hindcast.storage.location import Location

FORMATS: Final = {
    "Episodes": ("Episodes", "Arrow"),
    "MessagePack": ("Episodes", "MessagePack"),
    "Columns": ("Columns", "Arrow"),
    "JSON": ("JSON", "Arrow"),
    "CSV": ("CSV", "Arrow"),
    "SampleBatch": ("SampleBatch", "Arrow"),
}
"""Name -> `format` and `encoding` of a recording's output."""
_WAY_OUT = "give another folder, or --replace it (which deletes only what its manifest lists)"


@dataclass(frozen=True)
class Target:
    """A folder that is to be filled.

    Attributes:
        folder: where.
        format: one of `FORMATS`.
        rows_per_file: most rows of a file, in complete episodes; no limit by default.
        file_bytes: most bytes of a file, about.
        compression: of the files; None is the format's own default.
        compress_columns: columns that SampleBatch packs.
        replace: whether existing data are replaced: the files that their manifest or commits list.

    Raises:
        SpecError: an unknown format, or `compress_columns` for one that packs no columns.
    """

    folder: Location
    format: str = "Episodes"
    rows_per_file: int | None = None
    file_bytes: int = 128 << 20
    compression: str | None = None
    replace: bool = False
    compress_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise SpecError(
                f"the format {self.format!r} is not written{similar(self.format, FORMATS)}; "
                f"allowed are {', '.join(FORMATS)}"
            )

        if self.compress_columns and self.format != "SampleBatch":
            raise SpecError(
                f"columns are packed in SampleBatch, and the format is {self.format}: leave out --compress-columns"
            )

    @property
    def layout(self) -> str:
        """Name of the files' layout."""
        return layout_of_output(*FORMATS[self.format])

    @property
    def is_exported(self) -> bool:
        """Whether the files are for other tools, and prepared before they are read."""
        return self.layout in EXPORTED_LAYOUTS

    @property
    def is_text(self) -> bool:
        """Whether the files are text rather than Parquet."""
        return self.is_exported and self.format != "Columns"

    @property
    def keeps_details(self) -> bool:
        """Whether the files store episode details."""
        return self.format not in ("CSV", "SampleBatch")

    @property
    def is_row_an_episode(self) -> bool:
        """Whether files have a row for each episode, rather than for each timestep."""
        return self.format in ("Episodes", "MessagePack", "SampleBatch")

    def made_of(self, digest: str) -> dict[str, Any]:
        """What the files depend on.

        Args:
            digest: of the data.
        """
        return {
            "data": digest,
            "format": self.format,
            "rowsPerFile": self.rows_per_file,
            "fileBytes": self.file_bytes,
            "compression": self.compression,
            **({"compressColumns": self.compress_columns} if self.compress_columns else {}),
        }


def claim(target: Target, digest: str) -> None:
    """Mark the folder as that of some data, unless it has this mark already.

    Raises:
        OutputConflict: something else is there.
    """
    if is_claimed(target, digest):
        return
    if _holds_data(target.folder):
        clear(target.folder)
    made_of = target.made_of(digest)
    mark = {"resource": "hindcast data", "specHash": _hash(made_of), "spec": made_of}
    target.folder.child(FOLDER, MARK).write_bytes(orjson.dumps(mark, option=orjson.OPT_INDENT_2))


def is_claimed(target: Target, digest: str) -> bool:
    """Whether the folder has the mark that `claim` gives it; it raises what `claim` would.

    Raises:
        OutputConflict: something else is there.
    """
    folder = target.folder
    found = read_mark(folder)
    if found is not None and found.get("specHash") == _hash(target.made_of(digest)):
        return True
    if _holds_data(folder):
        if not target.replace:
            raise OutputConflict(f"{folder} holds {_described(found)}: {_WAY_OUT}")
    elif found is None and any(entry.relative != FOLDER for entry in folder.list()):
        raise OutputConflict(
            f"{folder} holds files that Hindcast did not write: give an empty or a new folder (--replace deletes only "
            "what a manifest lists)"
        )
    return False


def clear(folder: Location) -> None:
    """Delete what the folder's manifest and commits list, and these themselves."""
    manifest = read_manifest(folder)
    files = (*files_of(read_commits(folder).values()), *(manifest.files if manifest else ()))
    folder.child(MANIFEST).delete()
    for path in dict.fromkeys(file.path for file in files):
        folder.child(path).delete()
    for entry in folder.child(FOLDER).list():
        if entry.relative != LOCK:
            entry.location.delete()


def _holds_data(folder: Location) -> bool:
    return folder.child(MANIFEST).exists() or any(folder.child(COMMITS).files())


def _described(found: Mapping[str, Any] | None) -> str:
    resource = (found or {}).get("resource")
    if resource == "hindcast data":
        return "data that were made from something else, or with other options"
    return f"the recording of {resource}" if resource else "a recording"


def _hash(made_of: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(made_of, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
