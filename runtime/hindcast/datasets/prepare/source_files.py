"""The files of a reading that must be prepared, and digests that show whether they changed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import orjson
import pyarrow as pa

from hindcast.code_digest import digest_code
from hindcast.datasets.folder_kinds import refuse_parts_of_tables, select_live_entries
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.sources import (
    check_distinct,
    check_listed_files,
    expand_glob,
    glob_base,
    map_in_threads,
)
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.commits import read_exported_manifest
from hindcast.formats.dataset_folder.folder_owner import OWNER_FILE, read_owner
from hindcast.formats.format import Format, ReadOptions, is_hidden
from hindcast.formats.registry import FORMATS, detect_format, find_locations
from hindcast.storage.location import Entry, Location, broken_links, missing_error
from hindcast.user_code import import_object, is_registered

_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
PREPARATION_VERSION: Final = 8
"""Version of prepared data: increased when the same files would become different episodes or commits, or are refused,
and when the chunks of sorted files change, which an interrupted preparation leaves.
"""
_FINGERPRINT_BYTES: Final = 64 << 10
_RUN_OWNER_FILE: Final = re.compile(rf"(r\d+/)?{re.escape(OWNER_FILE)}")
_INTEGER: Final = re.compile(r"0|-?[1-9]\d{0,17}")


class SourceFile(NamedTuple):
    """A file, or a folder that is read as one file.

    Attributes:
        location: the file or folder.
        is_named: whether the user named it, by its path or a glob; otherwise it was found in a folder.
        keys: Hive keys, name -> value (None for null), in the names of its folders below the path that the user named.
    """

    location: Location
    is_named: bool
    keys: Mapping[str, str | None] = {}


class RecognisedFile(NamedTuple):
    """A source file with its format and the options for reading it, which include its Hive keys."""

    format: Format
    location: Location
    options: ReadOptions


def find_source_files(reading: Reading) -> list[SourceFile]:
    """Find the source files of a reading's paths, in order.

    Raises:
        DataError: a path does not exist, a folder holds no files or is a training's run, or a file is named twice or is
            a part of a table.
        StorageError: the storage fails or denies access.
    """
    source_files = [
        source_file
        for location in reading.locations
        for source_file in _find_source_files_at(reading, location)
    ]
    check_distinct(source_file.location for source_file in source_files)
    refuse_parts_of_tables(source_file.location for source_file in source_files if source_file.is_named)
    return source_files


def recognise_formats(
    source_files: list[SourceFile], reading: Reading
) -> tuple[list[RecognisedFile], list[Location]]:
    """Detect the formats of source files.

    Returns:
        The files with their formats, and the locations of the files without a known format.

    Raises:
        DataError: a file cannot be read.
    """
    formats = map_in_threads(lambda file: _detect_format(file, reading), source_files)
    types = _infer_key_types(source_files)
    recognised_files = [
        RecognisedFile(file_format, file.location, _with_keys(reading.options, file, types))
        for file, file_format in zip(source_files, formats, strict=True)
        if file_format is not None
    ]
    unknown_files = [
        file.location for file, file_format in zip(source_files, formats, strict=True) if file_format is None
    ]
    return recognised_files, unknown_files


def _infer_key_types(source_files: list[SourceFile]) -> dict[str, pa.DataType]:
    """Return the Arrow type of each key: int64 if all its values are integers in canonical form, else string."""
    values: dict[str, list[str]] = {}
    for file in source_files:
        for name, value in file.keys.items():
            texts = values.setdefault(name, [])
            if value is not None:
                texts.append(value)
    return {
        name: pa.int64() if texts and all(map(_INTEGER.fullmatch, texts)) else pa.string()
        for name, texts in values.items()
    }


def _with_keys(
    options: ReadOptions, source_file: SourceFile, types: Mapping[str, pa.DataType]
) -> ReadOptions:
    if not source_file.keys:
        return options
    keys = {name: pa.scalar(value, pa.string()).cast(types[name]) for name, value in source_file.keys.items()}
    return replace(options, keys=keys)


def files_digest(source_files: list[SourceFile], reading: Reading, note: Callable[[str], None]) -> str:
    """Compute the sha256 (hex) of the files' fingerprints and the options, which names the prepared data's folder.

    Args:
        source_files: the files.
        reading: the options.
        note: see `preparation_digest`.
    """
    fingerprints_by_file = map_in_threads(lambda file: compute_fingerprints(file.location), source_files)
    keys = [f"{i} {dict(file.keys)}" for i, file in enumerate(source_files) if file.keys]
    return preparation_digest(
        [
            *(fingerprint for file_fingerprints in fingerprints_by_file for fingerprint in file_fingerprints),
            *keys,
        ],
        reading,
        note,
    )


def preparation_digest(data: list[str], reading: Reading, note: Callable[[str], None]) -> str:
    """Compute the sha256 (hex) of data and options, including the user's code that reads and maps them.

    Args:
        data: fingerprints of the files, or the digest of a dataset.
        reading: the options.
        note: called with a note if the user's code has no digest, so that the result is random.
    """
    options = reading.options
    document = {
        "version": PREPARATION_VERSION,
        "data": data,
        "format": reading.format,
        "actionsNormalized": reading.actions_normalized,
        "prepare": reading.prepare.model_dump(
            mode="json", exclude={"cut_off_steps", "missing", "missing_indicators"}
        ),
        "schema": dict(options.schema),
        "columns": None if options.columns is None else list(options.columns),
        "filter": [term.model_dump(mode="json") for term in options.filter],
        "compressColumns": None if options.compress_columns is None else list(options.compress_columns),
        "ignoreFinalObservation": options.ignore_final_observation,
        "options": dict(options.options),
        "mapper": options.mapper,
        "code": _digest_code(options, note),
        "mapperKwargs": dict(options.mapper_kwargs),
        # Newer options are included only if they are set, so that data prepared by older versions are still found. For
        # the same reason, the training that the mapper gets keeps its old name "mapperGiven".
        **({} if options.time is None else {"time": options.time.model_dump(mode="json")}),
        **({"cutOffSteps": "Drop"} if reading.prepare.cut_off_steps == "Drop" else {}),
        **({"mapperGiven": dict(options.mapper_training)} if options.mapper_training else {}),
    }
    document = _replace_registered_paths(document)
    text = orjson.dumps(document, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=repr)
    return hashlib.sha256(text).hexdigest()


def _replace_registered_paths(value: Any) -> Any:
    """Replace paths of objects that cannot be imported by digests, since a cell that runs again gets other paths."""
    if isinstance(value, str):
        return digest_code(import_object(value, "")).value if ":" in value and is_registered(value) else value
    if isinstance(value, dict):
        return {
            _replace_registered_paths(key): _replace_registered_paths(item) for key, item in value.items()
        }
    return [_replace_registered_paths(item) for item in value] if isinstance(value, list | tuple) else value


def user_objects(options: ReadOptions) -> dict[str, Any]:
    """Return the user's mapper, reading function and what the mapper may call, by import path."""
    method = options.options.get("method")
    fields: dict[Any, str] = dict.fromkeys(options.mapper_training.get("code", ()), "spec.pipeline")
    fields |= {options.mapper: "spec.pipeline.preLearner", method: "readOptions.method"}
    return {
        path: import_object(path, field)
        for path, field in fields.items()
        if isinstance(path, str) and ":" in path
    }


def _digest_code(options: ReadOptions, note: Callable[[str], None]) -> list[str]:
    """Return the digests of the user's code."""
    digests = []
    for path, user_object in user_objects(options).items():
        digest = digest_code(user_object)
        digests.append(digest.value)
        if digest.obstacle is not None:
            name = getattr(user_object, "__name__", path)
            note(
                f"{name} uses {digest.obstacle}, so a change of its code would go unnoticed: the data are prepared "
                "again each time. To reuse prepared data, create it in a method."
            )
    return digests


def compute_fingerprints(location: Location) -> list[str]:
    """Return a fingerprint of a file, or of each file in a folder: path, size, and modification time or a hash."""
    if location.is_folder():
        return [
            _fingerprint(entry.location, entry.size, entry.modified_ns)
            for entry in location.files(recursive=True)
        ]
    info = location.info()
    return [_fingerprint(location, info.size or 0, info.mtime_ns)]


def _fingerprint(location: Location, size: int, modified_ns: int | None) -> str:
    if modified_ns is not None:
        return f"{location.path} {size} {modified_ns}"
    # If the storage reports no modification time, both ends of the file are hashed.
    with location.open() as stream:
        head = stream.read(min(size, _FINGERPRINT_BYTES))
        stream.seek(max(0, size - _FINGERPRINT_BYTES))
        return f"{location.path} {size} {hashlib.sha256(head + stream.read()).hexdigest()}"


def _find_source_files_at(reading: Reading, location: Location) -> Iterator[SourceFile]:
    base = glob_base(location)
    for match in expand_glob(location):
        if not match.exists():
            raise missing_error(match)
        if not match.is_folder():
            yield SourceFile(match, is_named=True, keys=parse_hive_keys(base, match))
            continue
        manifest = read_exported_manifest(match)
        if manifest is not None:
            files = check_listed_files(match, manifest.files)
            yield from (SourceFile(match.child(file.path), is_named=False) for file in files)
            continue
        entries = match.list(recursive=True)
        _refuse_runs(entries)
        for link in broken_links(entry for entry in entries if not is_hidden(entry.relative_path)):
            raise missing_error(link)
        locations = find_locations(select_live_entries(match, entries), reading.format)
        if not locations:
            raise DataError(f"{match} holds no files")
        yield from (
            SourceFile(nested_location, is_named=False, keys=parse_hive_keys(base, nested_location))
            for nested_location in locations
        )


def _refuse_runs(entries: Sequence[Entry]) -> None:
    """Refuse a run folder of a training, or a folder of such folders: results and checkpoints are not data."""
    for run_folder in [
        entry.location.parent() for entry in entries if _RUN_OWNER_FILE.fullmatch(entry.relative_path)
    ]:
        resource = str((read_owner(run_folder) or {}).get("resource"))
        if resource.startswith("OfflineTraining/"):
            raise DataError(
                f"{run_folder} is a run of {resource}, not data: name a dataset, such as one that it was trained on"
            )


def _detect_format(source_file: SourceFile, reading: Reading) -> Format | None:
    """Return a file's format; None if the file is not read.

    If the reading sets a format, named files have it, and so have other files that it recognises. Otherwise the format
    is detected; a file that needs a mapper is not read without one.
    """
    if reading.format != "Auto":
        file_format = FORMATS[reading.format]
        return file_format if source_file.is_named or file_format.recognises(source_file.location) else None
    detected_format = detect_format(source_file.location)
    is_unmapped = (
        detected_format is not None and not detected_format.has_timesteps and reading.options.mapper is None
    )
    return None if is_unmapped else detected_format


def parse_hive_keys(base: Location, location: Location) -> dict[str, str | None]:
    """Parse Hive keys, name -> value (None: null), from the folders between `base` and a location below it."""
    folders = location.path[len(base.path) :].strip("/").split("/")[:-1]
    return {
        unquote(name): None if value == _HIVE_NULL else unquote(value)
        for name, equals, value in (folder.partition("=") for folder in folders)
        if name and equals
    }
