"""Folders of tools that keep their own list of files: tables of a lakehouse, and LeRobot's datasets."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Final

import orjson

from hindcast.datasets.iceberg_table import list_current_files
from hindcast.errors import DataError, StorageError, StorageUnavailable
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

    The remaining files are, by the kind of folder:

    * a table of Delta Lake or Iceberg: the files of its current version;
    * a dataset of LeRobot: the files in `data`;
    * a dataset that Hugging Face's `save_to_disk` wrote: its Arrow files, without cached results of `map`.

    Raises:
        DataError: there is a Hudi table or only a part of a table, or a table that cannot be read, lacks a file or
            has no rows; or a dataset of Hugging Face has only some rows of its files.
        StorageError: the storage fails.
    """
    _refuse_part_of_table(folder, folder)
    for hudi_table in _find_folders(entries, _HUDI_PROPERTIES):
        raise DataError(
            f"{_subfolder(folder, hudi_table)} is a Hudi table. Its files also hold deleted rows: {_REMEDY} "
            "(Spark: spark.read.format('hudi'))"
        )
    live_files = {
        table: _list_delta_files(_subfolder(folder, table)) for table in _find_folders(entries, _DELTA_LOG)
    }
    for table, metadata_names in _find_iceberg_metadata(entries).items():
        live_files[table] = list_current_files(_subfolder(folder, table), metadata_names, _ICEBERG_REMEDY)
    remaining = list(entries)
    for table, live_names in live_files.items():
        missing_names = live_names - set(_names_below(entries, table))
        if missing_names:
            raise DataError(
                f"{_subfolder(folder, table)} lacks {min(missing_names)}, which its current version has: "
                "copy the table again"
            )
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


def refuse_parts_of_tables(files: Iterable[Location]) -> None:
    """Refuse files of a table that the user named: only the table's own list says which of its files are current.

    Raises:
        DataError: a file is a part of a table.
        StorageUnavailable: the storage does not answer.
    """
    first_files = {file.parent().path: file for file in reversed(list(files))}
    for file in first_files.values():
        _refuse_part_of_table(file, file.parent())


def _refuse_part_of_table(part: Location, folder: Location) -> None:
    """Refuse a part of a table that lacks the list of current files, in the table's folder.

    Args:
        part: the folder or file that the user named.
        folder: the folder, or the folder of the file: a table, Iceberg's `data`, or a partition such as `day=3`.

    Raises:
        DataError: a folder above the part is a table.
        StorageUnavailable: the storage does not answer.
    """
    while "=" in folder.name:
        folder = folder.parent()
    for table in (folder, folder.parent()) if folder.name == "data" else (folder,):
        if table != part and _is_table(table):
            raise DataError(f"{part} is a part of the table {table} and may hold deleted rows: name {table}")


def _is_table(folder: Location) -> bool:
    metadata = folder.child("metadata")
    try:
        return any(folder.child(name).is_folder() for name in ("_delta_log", ".hoodie")) or (
            metadata.is_folder()
            and any(entry.location.name.endswith(".metadata.json") for entry in metadata.list())
        )
    except StorageUnavailable:
        raise
    except StorageError:  # the user may be allowed to read the named file, but nothing beside it
        return False


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
    """Return the names of the Arrow files that `state.json` lists; empty if it lists none.

    Raises:
        DataError: another file selects some of their rows.
    """
    try:
        state = orjson.loads(dataset.child("state.json").read_bytes())
        data_files = {str(file["filename"]) for file in state["_data_files"]}
        index_files = sorted(str(file["filename"]) for file in state.get("_indices_data_files") or ())
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()
    if index_files:
        raise DataError(
            f"{dataset} has only the rows that {index_files[0]} selects, but its files also hold others: save it "
            "again (datasets: load_from_disk(path).flatten_indices().save_to_disk(new_path))"
        )
    return data_files


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
        # Only the table's own path is encoded: a partition's folder is named `site=a%20b`.
        root = delta_table.table_uri.removeprefix("file://")
        names = {posixpath.relpath(uri.removeprefix("file://"), root) for uri in delta_table.file_uris()}
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
