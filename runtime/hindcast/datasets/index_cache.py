"""What decoding files of other tools found, cached so that it is done once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hindcast.datasets.footers import Indexed
from hindcast.errors import UserError
from hindcast.formats.entries import FileEntry, Run, Stored
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Entry, Location, resolve

_VERSION = 4


class _Cached(Stored):
    """A file as it was when it was decoded."""

    size: int
    modified: int
    layout: str
    spec: dict[str, Any]
    entry: FileEntry
    runs: tuple[Run, ...]


class _Document(Stored):
    """All that is kept of a folder; `version` changes with what is found in files."""

    version: int
    files: dict[str, _Cached]


class IndexCache:
    """The indices of files in one folder whose lengths are only known after decoding.

    It is a file in `$HINDCAST_CACHE`, by default `~/.cache/hindcast`. A file that has another size or time of
    change than when it was decoded is decoded again.

    Args:
        folder: where the files are.
    """

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        name = hashlib.sha256(f"{folder.backend.root} {folder.path}".encode()).hexdigest()[:32]
        self._place = cache_folder().child("index", f"{name}.json")
        self._files = self._load()
        self._has_new = False

    def get(self, entry: Entry) -> Indexed | None:
        """What is known of a file; None if nothing is."""
        cached = self._files.get(entry.relative)
        if cached is None or (cached.size, cached.modified) != (entry.size, entry.modified):
            return None
        spec = DataSpec.from_json(cached.spec)
        return Indexed(entry.location, cached.entry, spec, cached.layout, cached.runs)

    def put(self, entry: Entry, indexed: Indexed) -> None:
        """Remember a file, if it took decoding and can be recognised."""
        if not indexed.runs or entry.modified is None:
            return
        self._files[entry.relative] = _Cached(
            size=entry.size,
            modified=entry.modified,
            layout=indexed.layout,
            spec=indexed.spec.to_json(),
            entry=indexed.entry,
            runs=indexed.runs,
        )
        self._has_new = True

    def save(self) -> None:
        """Keep what is new. A cache that cannot be written is none: the files will be decoded again."""
        if not self._has_new:
            return
        document = _Document(version=_VERSION, files=self._files)
        try:
            self._place.write_bytes(document.model_dump_json(by_alias=True).encode())
        except UserError:
            return

    def _load(self) -> dict[str, _Cached]:
        try:
            if not self._place.exists():
                return {}
            document = _Document.model_validate_json(self._place.read_bytes())
        except (UserError, ValidationError):  # unreadable, or of an older Hindcast: it will be written again
            return {}
        return document.files if document.version == _VERSION else {}


def cache_folder() -> Location:
    """`$HINDCAST_CACHE`, a folder or a URI, by default `~/.cache/hindcast`: for files that can be made again."""
    given = os.environ.get("HINDCAST_CACHE")
    if given:
        return resolve(given)
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    except RuntimeError:  # a user without a home
        caches = Path(tempfile.gettempdir())
    return resolve(caches / "hindcast")
