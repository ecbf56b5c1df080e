"""Folders of tools that keep their own list of files: tables of a lakehouse, and LeRobot's datasets."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

import orjson

from hindcast.errors import DataError
from hindcast.formats.format import require_package
from hindcast.storage.location import Entry, Location

_DELTA_LOG: Final = re.compile(r"(?:(?P<folder>.+)/)?_delta_log/[^/]+\.(?:json|parquet)")
_ICEBERG_METADATA: Final = re.compile(r"(?:(?P<folder>.+)/)?metadata/[^/]+\.metadata\.json")
_HUDI_PROPERTIES: Final = re.compile(r"(?:(?P<folder>.+)/)?\.hoodie/hoodie\.properties")
_LEROBOT_INFO: Final = re.compile(r"(?:(?P<folder>.+)/)?meta/info\.json")
_HUGGING_FACE_STATE: Final = re.compile(r"(?:(?P<folder>.+)/)?state\.json")
_HUGGING_FACE_DATA: Final = re.compile(r"data-[^/]+\.arrow")
_REMEDY: Final = "write its current rows to Parquet files"
_REFUSED_DELTA_FEATURES: Final = {"deletionVectors", "columnMapping"}
_DELTA_MAPPING_MODE: Final = "delta.columnMapping.mode"
_REFUSED_TABLES: Final = (
    (
        _ICEBERG_METADATA,
        "an Iceberg table, whose files also hold deleted rows",
        "pyiceberg: table.scan().to_arrow()",
    ),
    (
        _HUDI_PROPERTIES,
        "a Hudi table, whose files also hold deleted rows",
        "Spark: spark.read.format('hudi')",
    ),
)


def select_live_entries(folder: Location, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries of a recursive listing without files that their tool does not count as data.

    Of a Delta Lake table only the files of its current version remain, of a LeRobot dataset only those in `data`, and
    of a dataset that Hugging Face's `save_to_disk` wrote only its Arrow files, without cached results of `map`.

    Raises:
        DataError: there is a table of Iceberg or Hudi, or a Delta Lake table that cannot be read.
    """
    for pattern, kind, reader in _REFUSED_TABLES:
        if table_folders := _find_folders(entries, pattern):
            raise DataError(f"{folder.child(table_folders[0])} is {kind}: {_REMEDY} ({reader})")
    remaining = list(entries)
    for table in _find_folders(entries, _DELTA_LOG):
        remaining = _keep_only(remaining, table, _list_delta_files(folder.child(table) if table else folder))
    for dataset in _find_folders(entries, _LEROBOT_INFO):
        names = {name for name in _names_below(remaining, dataset) if name.startswith("data/")}
        if names:
            remaining = _keep_only(remaining, dataset, names)
    for dataset in _find_folders(entries, _HUGGING_FACE_STATE):
        data_files = _list_hugging_face_files(folder.child(dataset) if dataset else folder)
        names = {
            name
            for name in _names_below(remaining, dataset)
            if name in data_files or (not data_files and _HUGGING_FACE_DATA.fullmatch(name))
        }
        if names:
            remaining = _keep_only(remaining, dataset, names)
    return remaining


def _find_folders(entries: Sequence[Entry], pattern: re.Pattern[str]) -> list[str]:
    """Return the folders with a file that matches, relative to the listed folder, which is ""."""
    matches = (pattern.fullmatch(entry.relative_path) for entry in entries if entry.is_file)
    return list(dict.fromkeys(match["folder"] or "" for match in matches if match is not None))


def _names_below(entries: Sequence[Entry], folder: str) -> list[str]:
    prefix = f"{folder}/" if folder else ""
    return [
        entry.relative_path.removeprefix(prefix)
        for entry in entries
        if entry.relative_path.startswith(prefix)
    ]


def _keep_only(entries: Sequence[Entry], folder: str, names: set[str]) -> list[Entry]:
    """Return the entries without those below `folder` that are not in `names`."""
    prefix = f"{folder}/" if folder else ""
    return [
        entry
        for entry in entries
        if not entry.relative_path.startswith(prefix) or entry.relative_path.removeprefix(prefix) in names
    ]


def _list_hugging_face_files(dataset: Location) -> set[str]:
    """Return the names of the Arrow files that `state.json` lists; empty if it lists none."""
    try:
        return {
            str(file["filename"])
            for file in orjson.loads(dataset.child("state.json").read_bytes())["_data_files"]
        }
    except (ValueError, KeyError, TypeError):
        return set()


def _list_delta_files(table: Location) -> set[str]:
    """Return the paths of the files in a Delta Lake table's current version, relative to the table.

    Raises:
        DataError: deltalake is not installed, or cannot read the table; or its files alone are not its rows.
    """
    deltalake = require_package(table, "deltalake", "delta")
    try:
        delta_table = deltalake.DeltaTable(table.path if table.is_local else table.uri)
        features = set(delta_table.protocol().reader_features or ()) & _REFUSED_DELTA_FEATURES
        if delta_table.metadata().configuration.get(_DELTA_MAPPING_MODE, "none") != "none":
            features.add("columnMapping")
        root = unquote(delta_table.table_uri).removeprefix("file://").rstrip("/")
        names = {
            posixpath.relpath(unquote(uri).removeprefix("file://"), root) for uri in delta_table.file_uris()
        }
    except Exception as error:  # deltalake raises exceptions of many types
        raise DataError(
            f"{table} is a Delta Lake table that cannot be read ({error}): {_REMEDY} "
            "(deltalake: DeltaTable(path).to_pyarrow_table())"
        ) from error
    if features:
        raise DataError(
            f"{table} is a Delta Lake table with {' and '.join(sorted(features))}, without which its files cannot be "
            f"read: {_REMEDY} (Spark: spark.read.format('delta'))"
        )
    return names
