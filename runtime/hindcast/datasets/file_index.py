"""Index Parquet files that no manifest describes, by their footers and, if necessary, their rows.

Rows must be decoded if another tool wrote the file; these indices are cached.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from pydantic import ValidationError

from hindcast.errors import DataError, UserError
from hindcast.formats.dataset_folder.index import EpisodeIndex
from hindcast.formats.entries import FileEntry, JsonModel, RowGroup, StoredFragment
from hindcast.formats.layout import CellError, Contents
from hindcast.formats.layouts import DEFAULT_LAYOUT, LAYOUTS, detect_layout
from hindcast.formats.parquet.opening import (
    UnknownLayoutError,
    compute_fingerprint,
    describe_damage,
    open_parquet,
)
from hindcast.formats.spec import DataSpec
from hindcast.formatting import plural
from hindcast.storage.location import Entry, Location, resolve

_CACHE_VERSION = 4


class IndexedFile(NamedTuple):
    """A data file with its index.

    Attributes:
        location: the file.
        entry: rows, timesteps and row groups.
        spec: leaves, spaces and environment.
        layout: name of its layout.
        stored_fragments: the episode or fragment in each stored row; empty if Hindcast wrote the file.
        unfinished_note: note that the file's recording is incomplete; empty if it is complete.
        is_listed: whether a recording describes the file, so that it was not indexed from its own content.
        origin: name of the data that the file was prepared from, for messages; empty for the user's files.
        episode_index: index of the episodes of the file's recording; None if it has none.
    """

    location: Location
    entry: FileEntry
    spec: DataSpec
    layout: str = DEFAULT_LAYOUT
    stored_fragments: tuple[StoredFragment, ...] = ()
    unfinished_note: str = ""
    is_listed: bool = False
    origin: str = ""
    episode_index: EpisodeIndex | None = None


def index_file(location: Location, relative_path: str) -> IndexedFile:
    """Index one file.

    Args:
        location: the file.
        relative_path: its path within the dataset.

    Raises:
        DataError: the file is empty, truncated, not Parquet, of no known layout, or has rows that cannot be read.
    """
    # The checksum covers the size, both ends and the episodes' lengths. Covering the whole file would require reading
    # it.
    checksum, size = compute_fingerprint(location)
    with open_parquet(location) as file:
        layout, contents = _read_layout(location, file)
        num_rows = sum(len(lengths) for lengths in contents.lengths)
        if num_rows != file.metadata.num_rows or len(contents.lengths) != file.num_row_groups:
            reason = f"it has {plural(num_rows, 'row')}, but its footer says {file.metadata.num_rows}"
            raise DataError(describe_damage(reason), path=str(location))
        row_groups = [
            RowGroup(
                rows=len(lengths),
                timesteps=int(lengths.sum()),
                bytes=file.metadata.row_group(i).total_byte_size,
                lengths=tuple(lengths.tolist()),
                continued=tuple(np.flatnonzero(is_continued).tolist()),
            )
            for i, (lengths, is_continued) in enumerate(
                zip(contents.lengths, contents.continued, strict=True)
            )
        ]
    for lengths in contents.lengths:
        checksum.update(lengths.tobytes())
    entry = FileEntry.from_row_groups(relative_path, size, checksum.hexdigest(), row_groups)
    return IndexedFile(location, entry, contents.spec, layout, contents.stored_fragments)


def describe_file(location: Location) -> tuple[DataSpec, str]:
    """Return spec and layout of a file that Hindcast wrote.

    Raises:
        DataError: as `index_file`.
    """
    with open_parquet(location) as file:
        layout, contents = _read_layout(location, file)
    return contents.spec, layout


def _read_layout(location: Location, file: pq.ParquetFile) -> tuple[str, Contents]:
    """Detect the file's layout and read its description."""
    try:
        layout = detect_layout(file.schema_arrow)
        return layout, LAYOUTS[layout].read_contents(file)
    except CellError as error:
        raise error.to_row_error(str(location), error.row) from error
    except DataError as error:
        error.locate(path=str(location))
        if isinstance(error, UnknownLayoutError):
            error.has_rows = bool(file.metadata.num_rows)
        raise


class _CachedFile(JsonModel):
    """The index of a file, and the file's size and modification time when it was decoded.

    Attributes:
        size: size of the file in bytes.
        modified: modification time in nanoseconds.
        layout: see `IndexedFile`.
        spec: see `IndexedFile`; as JSON.
        entry: see `IndexedFile`.
        runs: `IndexedFile.stored_fragments`, under the name that it has in existing caches.
    """

    size: int
    modified: int
    layout: str
    spec: dict[str, Any]
    entry: FileEntry
    runs: tuple[StoredFragment, ...]


class _CacheDocument(JsonModel):
    """The cached indices of a folder; `version` changes when the same file would be indexed differently."""

    version: int
    files: dict[str, _CachedFile]


class IndexCache:
    """A cache of the indices of one folder's files whose episode lengths are only known after decoding.

    It is stored in `$HINDCAST_CACHE`, by default `~/.cache/hindcast`. A file is decoded again if its size or
    modification time differs.
    """

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        name = hashlib.sha256(f"{folder.backend.root} {folder.path}".encode()).hexdigest()[:32]
        self._location = cache_folder().child("index", f"{name}.json")
        self._files = self._load()
        self._has_new_files = False

    def index(self, entry: Entry) -> IndexedFile:
        """Index a file, or return its index from the cache.

        Raises:
            DataError: as `index_file`.
        """
        cached_file = self._files.get(entry.relative_path)
        if cached_file is not None and (cached_file.size, cached_file.modified) == (
            entry.size,
            entry.modified_ns,
        ):
            spec = DataSpec.from_json(cached_file.spec)
            return IndexedFile(entry.location, cached_file.entry, spec, cached_file.layout, cached_file.runs)
        indexed_file = index_file(entry.location, entry.relative_path)
        # Files without fragments are indexed from their footers alone, which is fast.
        if indexed_file.stored_fragments and entry.modified_ns is not None:
            self._files[entry.relative_path] = _CachedFile(
                size=entry.size,
                modified=entry.modified_ns,
                layout=indexed_file.layout,
                spec=indexed_file.spec.to_json(),
                entry=indexed_file.entry,
                runs=indexed_file.stored_fragments,
            )
            self._has_new_files = True
        return indexed_file

    def save(self) -> None:
        """Store new indices. If the cache cannot be written, files are decoded again."""
        if not self._has_new_files:
            return
        document = _CacheDocument(version=_CACHE_VERSION, files=self._files)
        try:
            self._location.write_bytes(document.model_dump_json(by_alias=True).encode())
        except UserError:
            return

    def _load(self) -> dict[str, _CachedFile]:
        try:
            if not self._location.exists():
                return {}
            document = _CacheDocument.model_validate_json(self._location.read_bytes())
        except (UserError, ValidationError):  # damaged, or written by an older Hindcast: write it again
            return {}
        return document.files if document.version == _CACHE_VERSION else {}


def cache_folder() -> Location:
    """Return the folder of caches: `$HINDCAST_CACHE`, which is a path or a URI, or else `~/.cache/hindcast`.

    `$XDG_CACHE_HOME` replaces `~/.cache`, and so does the folder of temporary files if the user has no home folder.
    """
    folder = os.environ.get("HINDCAST_CACHE")
    if folder:
        return resolve(folder)
    try:
        cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    except RuntimeError:  # the user has no home folder
        cache_home = Path(tempfile.gettempdir())
    return resolve(cache_home / "hindcast")
