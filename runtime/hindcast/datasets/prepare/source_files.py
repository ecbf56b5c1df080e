"""Which foreign files a reading names, and fingerprints that show whether they changed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from urllib.parse import unquote

import orjson
import pyarrow as pa

from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.sources import check_distinct, expand_glob, glob_base, listed_files, map_in_threads
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.commits import read_exported_manifest
from hindcast.formats.dataset_folder.folder_owner import OWNER_FILE, read_owner
from hindcast.formats.format import Format, ReadOptions, is_hidden
from hindcast.formats.media.mapping import mapper_digest
from hindcast.formats.registry import FORMATS, detect_format, find_locations
from hindcast.storage.location import Entry, Location, broken_links, missing_error
from hindcast.user_code import import_object, source_digest

_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
VERSION: Final = 3
"""Of what prepare makes: raised when the same files would become other episodes, or commits others."""
_MAPPED_FORMATS: Final = ("Text", "Images", "Binary")
_FINGERPRINT_BYTES: Final = 64 << 10
_RUN_MARK: Final = re.compile(rf"(r\d+/)?{re.escape(OWNER_FILE)}")
_WHOLE_NUMBER: Final = re.compile(r"0|-?[1-9]\d{0,17}")


class SourceFile(NamedTuple):
    """A file, or a folder that is read as one.

    Attributes:
        location: where.
        is_named: the user named it; it was not found in a folder.
        keys: columns stored in the names of its folders, below what the user named.
    """

    location: Location
    is_named: bool
    keys: Mapping[str, str | None] = {}


class RecognisedFile(NamedTuple):
    """A place, what it is, and how it is read."""

    format: Format
    location: Location
    options: ReadOptions


def find_source_files(reading: Reading) -> list[SourceFile]:
    """The places that the paths name, in order.

    Raises:
        DataError: nothing is there, or something is named twice.
        StorageError: storage that refuses or fails.
    """
    source_files = [place for location in reading.locations for place in _find_at(reading, location)]
    check_distinct(place.location for place in source_files)
    return source_files


def recognise_formats(
    source_files: list[SourceFile], reading: Reading
) -> tuple[list[RecognisedFile], list[Location]]:
    """The places with their formats, and those of no known format in folders of data.

    Raises:
        DataError: a file that was named and is of no known format.
    """
    formats = map_in_threads(lambda place: _detect(place, reading), source_files)
    types = _key_types(source_files)
    recognised_files = [
        RecognisedFile(form, place.location, _with_keys(reading.options, place, types))
        for place, form in zip(source_files, formats, strict=True)
        if form is not None
    ]
    unrecognised = [place.location for place, form in zip(source_files, formats, strict=True) if form is None]
    return recognised_files, unrecognised


def _key_types(source_files: list[SourceFile]) -> dict[str, pa.DataType]:
    """Of each key: int64 where all its values are whole numbers as they would be written, else text."""
    values: dict[str, list[str]] = {}
    for place in source_files:
        for name, value in place.keys.items():
            values.setdefault(name, []).extend([] if value is None else [value])
    return {
        name: pa.int64() if texts and all(map(_WHOLE_NUMBER.fullmatch, texts)) else pa.string()
        for name, texts in values.items()
    }


def _with_keys(
    options: ReadOptions, source_file: SourceFile, types: Mapping[str, pa.DataType]
) -> ReadOptions:
    if not source_file.keys:
        return options
    keys = {name: pa.scalar(value, pa.string()).cast(types[name]) for name, value in source_file.keys.items()}
    return replace(options, keys=keys)


def files_digest(source_files: list[SourceFile], reading: Reading) -> str:
    """sha256 (hex) of what prepare is given: files as they are, and options."""
    prints_by_file = map_in_threads(lambda place: fingerprints(place.location), source_files)
    keys = [f"{number} {dict(place.keys)}" for number, place in enumerate(source_files) if place.keys]
    return preparation_digest([*(one for several in prints_by_file for one in several), *keys], reading)


def preparation_digest(data: list[str], reading: Reading) -> str:
    """sha256 (hex) of what identifies data, and of the options; the code of a class among them counts."""
    options = reading.options
    document = {
        "version": VERSION,
        "data": data,
        "format": reading.format,
        "actionsNormalized": reading.actions_normalized,
        "prepare": reading.prepare.model_dump(mode="json", exclude={"cut_off_steps"}),
        "schema": dict(options.schema),
        "columns": None if options.columns is None else list(options.columns),
        "filter": [term.model_dump(mode="json") for term in options.filter],
        "compressColumns": None if options.compress_columns is None else list(options.compress_columns),
        "ignoreFinalObservation": options.ignore_final_observation,
        "options": dict(options.options),
        "mapper": options.mapper,
        "mapperSource": mapper_digest(options),
        "mapperKwargs": dict(options.mapper_kwargs),
        # Options that came later count where they are set, so that what was prepared before them stays found.
        **({"cutOffSteps": "Drop"} if reading.prepare.cut_off_steps == "Drop" else {}),
        **({"mapperGiven": dict(options.mapper_training)} if options.mapper_training else {}),
        **_method_source(options),
    }
    text = orjson.dumps(document, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=repr)
    return hashlib.sha256(text).hexdigest()


def _method_source(options: ReadOptions) -> dict[str, str]:
    """The code of the user's function that reads."""
    method = options.options.get("method")
    if not isinstance(method, str) or ":" not in method:
        return {}
    return {"methodSource": source_digest(import_object(method, "readOptions.method"))}


def fingerprints(location: Location) -> list[str]:
    """Path, size and time of change of a file, or of each in a folder; both ends if there is no such time."""
    if location.is_folder():
        return [
            _fingerprint(entry.location, entry.size, entry.modified_ns)
            for entry in location.files(recursive=True)
        ]
    info = location.info()
    return [_fingerprint(location, info.size or 0, info.mtime_ns)]


def _fingerprint(location: Location, size: int, modified: int | None) -> str:
    if modified is not None:
        return f"{location.path} {size} {modified}"
    with location.open() as stream:
        head = stream.read(min(size, _FINGERPRINT_BYTES))
        stream.seek(max(0, size - _FINGERPRINT_BYTES))
        return f"{location.path} {size} {hashlib.sha256(head + stream.read()).hexdigest()}"


def _find_at(reading: Reading, location: Location) -> Iterator[SourceFile]:
    base = glob_base(location)
    for match in expand_glob(location):
        if not match.exists():
            raise missing_error(match)
        if not match.is_folder():
            yield SourceFile(match, is_named=True, keys=hive_keys(base, match))
            continue
        exported = read_exported_manifest(match)
        if exported is not None:
            listed = listed_files(match, exported.files)
            yield from (SourceFile(match.child(file.path), is_named=False) for file in listed)
            continue
        entries = match.list(recursive=True)
        _check_not_run(entries)
        for link in broken_links(entry for entry in entries if not is_hidden(entry.relative_path)):
            raise missing_error(link)
        locations = find_locations(entries, reading.format)
        if not locations:
            raise DataError(f"{match} holds no files")
        yield from (SourceFile(one, is_named=False, keys=hive_keys(base, one)) for one in locations)


def _check_not_run(entries: Sequence[Entry]) -> None:
    """Refuse the folder of a training's run, or of its runs: results and checkpoints are not data."""
    for run in [entry.location.parent() for entry in entries if _RUN_MARK.fullmatch(entry.relative_path)]:
        resource = str((read_owner(run) or {}).get("resource"))
        if resource.startswith("OfflineTraining/"):
            raise DataError(
                f"{run} is a run of {resource}, not data: name a dataset, such as one that it was trained on"
            )


def _detect(source_file: SourceFile, reading: Reading) -> Format | None:
    if reading.format != "Auto":
        file_format = FORMATS[reading.format]
        return file_format if source_file.is_named or file_format.recognises(source_file.location) else None
    detected = detect_format(source_file.location)
    is_unmapped = detected is not None and detected.name in _MAPPED_FORMATS and reading.options.mapper is None
    return None if is_unmapped else detected


def hive_keys(base: Location, location: Location) -> dict[str, str | None]:
    """Name -> value (None: null) of the folders between `base`, which the user named, and a location below it."""
    folders = location.path[len(base.path) :].strip("/").split("/")[:-1]
    parts = [folder.partition("=") for folder in folders]
    return {
        unquote(name): None if value == _HIVE_NULL else unquote(value)
        for name, equals, value in parts
        if name and equals
    }
