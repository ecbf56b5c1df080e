"""Folders of tools that keep their own list of files: tables of a lakehouse, and LeRobot's datasets."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

import orjson

from hindcast.datasets.iceberg_table import list_current_files
from hindcast.errors import DataError
from hindcast.formats.format import require_package
from hindcast.storage.location import Entry, Location

_DELTA_LOG: Final = re.compile(r"(?:(?P<folder>.+)/)?_delta_log/[^/]+\.(?:json|parquet)")
_ICEBERG_METADATA: Final = re.compile(r"(?:(?P<folder>.+)/)?metadata/(?P<name>[^/]+\.metadata\.json)")
_HUDI_PROPERTIES: Final = re.compile(r"(?:(?P<folder>.+)/)?\.hoodie/hoodie\.properties")
_LEROBOT_INFO: Final = re.compile(r"(?:(?P<folder>.+)/)?meta/info\.json")
_HUGGING_FACE_STATE: Final = re.compile(r"(?:(?P<folder>.+)/)?state\.json")
_HUGGING_FACE_DATA: Final = re.compile(r"data-[^/]+\.arrow")
_REMEDY: Final = "write its current rows to Parquet files"
_REFUSED_DELTA_FEATURES: Final = {"deletionVectors", "columnMapping"}
_DELTA_MAPPING_MODE: Final = "delta.columnMapping.mode"
_ICEBERG_REMEDY: Final = (
    f"{_REMEDY} (pyiceberg: table.scan().to_arrow(), Spark: spark.read.format('iceberg'))"
)


def select_live_entries(folder: Location, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries of a recursive listing without files that their tool does not count as data.

    Of a table of Delta Lake or Iceberg only the files of its current version remain, of a LeRobot dataset only those in
    `data`, and of a dataset that Hugging Face's `save_to_disk` wrote only its Arrow files, without cached results of
    `map`.

    Raises:
        DataError: there is a Hudi table or only a part of a table, or a table that cannot be read or has no rows.
        StorageError: the storage fails.
    """
    _refuse_part_of_table(folder)
    for hudi_table in _find_folders(entries, _HUDI_PROPERTIES):
        raise DataError(
            f"{_subfolder(folder, hudi_table)} is a Hudi table, whose files also hold deleted rows: {_REMEDY} "
            "(Spark: spark.read.format('hudi'))"
        )
    live_files = {
        table: _list_delta_files(_subfolder(folder, table)) for table in _find_folders(entries, _DELTA_LOG)
    }
    for table, metadata_names in _find_iceberg_metadata(entries).items():
        live_files[table] = list_current_files(_subfolder(folder, table), metadata_names, _ICEBERG_REMEDY)
    remaining = list(entries)
    for table, live_names in live_files.items():
        remaining = _keep_only(remaining, table, live_names)
    if live_files and not remaining:
        raise DataError(f"{folder} is a table without rows")
    for dataset in _find_folders(entries, _LEROBOT_INFO):
        names = {name for name in _names_below(remaining, dataset) if name.startswith("data/")}
        if names:
            remaining = _keep_only(remaining, dataset, names)
    for dataset in _find_folders(entries, _HUGGING_FACE_STATE):
        data_files = _list_hugging_face_files(_subfolder(folder, dataset))
        names = {
            name
            for name in _names_below(remaining, dataset)
            if name in data_files or (not data_files and _HUGGING_FACE_DATA.fullmatch(name))
        }
        if names:
            remaining = _keep_only(remaining, dataset, names)
    return remaining


def _refuse_part_of_table(folder: Location) -> None:
    """Refuse the folder of a table's files without the list of those that are current, in a folder above.

    Raises:
        DataError: the folder is Iceberg's `data`, or a partition such as `day=3`.
    """
    table = folder
    while "=" in table.name:
        table = table.parent()
    if table.name == "data":
        table = table.parent()
    if table == folder:
        return
    metadata = table.child("metadata")
    is_iceberg = metadata.exists() and any(
        entry.location.name.endswith(".metadata.json") for entry in metadata.list()
    )
    if is_iceberg or table.child("_delta_log").exists():
        raise DataError(f"{folder} is a part of the table {table} and may hold deleted rows: name {table}")


def _subfolder(folder: Location, relative_path: str) -> Location:
    return folder.child(relative_path) if relative_path else folder


def _find_iceberg_metadata(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Return the names of the metadata files of each Iceberg table, by its path relative to the listed folder."""
    metadata_names: dict[str, list[str]] = {}
    for entry in entries:
        match = _ICEBERG_METADATA.fullmatch(entry.relative_path)
        if match is not None and entry.is_file:
            metadata_names.setdefault(match["folder"] or "", []).append(match["name"])
    return metadata_names


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
            f"{table} is a Delta Lake table that cannot be read ({' '.join(str(error).split())}): {_REMEDY} "
            "(deltalake: DeltaTable(path).to_pyarrow_table())"
        ) from error
    if features:
        raise DataError(
            f"{table} is a Delta Lake table with {' and '.join(sorted(features))}, without which its files cannot be "
            f"read: {_REMEDY} (Spark: spark.read.format('delta'))"
        )
    return names
