"""Which foreign files a reading stands for, and what tells that they are still the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import orjson

from hindcast.errors import DataError
from hindcast.foreign.format import Format
from hindcast.foreign.formats import FORMATS, format_of, places
from hindcast.foreign.media.mapping import mapper_source
from hindcast.prepare.reading import Reading
from hindcast.store.filesystem import Location, missing, resolve
from hindcast.store.manifest import FOLDER
from hindcast.store.sources import check_distinct, expand
from hindcast.store.text.recordings import text_recording

VERSION: Final = 2
"""Of what prepare makes: raised when the same files would become other episodes, or commits others."""
_THREADS: Final = 8
_MAPPED: Final = ("Text", "Images", "Binary")
_ENDS: Final = 64 << 10


class Place(NamedTuple):
    """A file, or a folder that is read as one.

    Attributes:
        location: where.
        is_named: the user named it; it was not found in a folder.
    """

    location: Location
    is_named: bool


class Found(NamedTuple):
    """A place and what it is."""

    format: Format
    location: Location


def find(reading: Reading) -> list[Place]:
    """The places that the paths stand for, in order.

    Raises:
        DataError: nothing is there, or something is named twice.
        StorageError: storage that refuses or fails.
    """
    found = [place for path in reading.paths for place in _places(reading, resolve(path, reading.filesystem))]
    check_distinct(place.location for place in found)
    return found


def recognised(found: list[Place], reading: Reading) -> tuple[list[Found], list[Location]]:
    """The places with their formats, and those that are none of them and lie in a folder of data.

    Raises:
        DataError: a file that was named and is of no known format.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        formats = list(pool.map(lambda place: _format(place, reading), found))
    known = [
        Found(form, place.location) for place, form in zip(found, formats, strict=True) if form is not None
    ]
    others = [place.location for place, form in zip(found, formats, strict=True) if form is None]
    return known, others


def is_recorded(place: Location) -> bool:
    """Whether a place is a recording that is opened as it is: of any layout but text."""
    return place.child(FOLDER).exists() and text_recording(place) is None


def digest(found: list[Place], reading: Reading) -> str:
    """sha256 (hex) of what prepare is given: files as they are, and options."""
    with ThreadPoolExecutor(_THREADS) as pool:
        prints = list(pool.map(lambda place: fingerprints(place.location), found))
    return digest_of([one for several in prints for one in several], reading)


def digest_of(data: list[str], reading: Reading) -> str:
    """sha256 (hex) of what identifies data, and of the options; the code of a class among them counts."""
    options = reading.options
    document = {
        "version": VERSION,
        "data": data,
        "format": reading.format,
        "actionsNormalized": reading.actions_normalized,
        "prepare": reading.prepare.model_dump(mode="json"),
        "schema": dict(options.schema),
        "columns": None if options.columns is None else list(options.columns),
        "filter": [term.model_dump(mode="json") for term in options.filter],
        "compressColumns": None if options.compress_columns is None else list(options.compress_columns),
        "ignoreFinalObservation": options.ignore_final_observation,
        "options": dict(options.options),
        "mapper": options.mapper,
        "mapperSource": mapper_source(options),
        "mapperKwargs": dict(options.mapper_kwargs),
    }
    text = orjson.dumps(document, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=repr)
    return hashlib.sha256(text).hexdigest()


def fingerprints(location: Location) -> list[str]:
    """Path, size and time of change of a file, or of each in a folder; both ends where there is no such time."""
    if location.is_folder():
        return [
            _fingerprint(entry.location, entry.size, entry.modified)
            for entry in location.files(recursive=True)
        ]
    info = location.info()
    return [_fingerprint(location, info.size or 0, info.mtime_ns)]


def _fingerprint(location: Location, size: int, modified: int | None) -> str:
    if modified is not None:
        return f"{location.path} {size} {modified}"
    with location.fs.open_input_file(location.path) as stream:
        head = stream.read(min(size, _ENDS))
        stream.seek(max(0, size - _ENDS))
        return f"{location.path} {size} {hashlib.sha256(head + stream.read()).hexdigest()}"


def _places(reading: Reading, location: Location) -> Iterator[Place]:
    for place in expand(location):
        if not place.exists():
            raise missing(place)
        if not place.is_folder():
            yield Place(place, is_named=True)
            continue
        written = text_recording(place)
        if written is not None:
            yield from (Place(place.child(file.path), is_named=False) for file in written.files)
            continue
        inside = places(place.list(recursive=True), reading.format)
        if not inside:
            raise DataError(f"{place} holds no files")
        yield from (Place(one, is_named=False) for one in inside)


def _format(place: Place, reading: Reading) -> Format | None:
    if reading.format != "Auto":
        form = FORMATS[reading.format]
        return form if place.is_named or form.recognises(place.location) else None
    found = format_of(place.location)
    is_unmapped = found is not None and found.name in _MAPPED and reading.options.mapper is None
    return None if is_unmapped else found
