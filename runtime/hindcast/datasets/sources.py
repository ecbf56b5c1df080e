"""Which data files a user's paths name: recordings, plain folders, files, globs."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple, TypeVar

from hindcast.datasets.file_index import IndexCache, IndexedFile, describe_file
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.commits import committed_files, read_commits
from hindcast.formats.dataset_folder.folder_owner import describe_progress
from hindcast.formats.dataset_folder.manifest import FOLDER, read_manifest
from hindcast.formats.entries import FileEntry
from hindcast.formats.format import is_hidden
from hindcast.formats.layouts import EXPORTED_LAYOUTS, LAYOUTS
from hindcast.formats.parquet.opening import UnknownLayoutError
from hindcast.storage.location import Entry, Location, broken_links, missing_error

_GLOB = re.compile(r"[*?\[]")
_THREADS = 8
_CHUNK = 8 << 20
_AGAIN = "copy it again or record again"

Item = TypeVar("Item")
Result = TypeVar("Result")
Reason = Literal["unreadable", "missing", "changed", "mixed-layouts"]
Refuse = Callable[[Reason, Location, DataError], None]
"""What happens with a file that cannot be used: it raises, or notes it, so that reading continues without the file."""


def raise_refusal(reason: Reason, location: Location, error: DataError) -> None:  # noqa: ARG001
    """The first file that cannot be used ends it all."""
    raise error


class DataFiles(NamedTuple):
    """What is in some places.

    Attributes:
        indexed: the data files, in a fixed order.
        unopened: files in plain folders that nobody looked into, since they are not named as Parquet is.
        unlisted: Parquet files in recordings that do not list them.
    """

    indexed_files: list[IndexedFile]
    unopened_files: list[Location]
    unlisted_files: list[Location]


def find_files(
    locations: Sequence[Location], verify: bool = False, refuse: Refuse = raise_refusal
) -> DataFiles:
    """The data files that the user's paths name; every folder is listed once, and every file opened once at most.

    Args:
        locations: files, folders (searched recursively) and globs.
        verify: whether to read every file of a recording and compare its checksum.
        refuse: called for each file that cannot be used.

    Raises:
        DataError: nothing there, no Parquet files, nothing recorded yet; what `refuse` raises.
        StorageError: storage that refuses or fails.
    """
    if not locations:
        raise DataError("no paths are given: name at least one folder or file with episodes")
    found = [_files_of(place, verify, refuse) for location in locations for place in expand_glob(location)]
    return DataFiles(
        [file for one in found for file in one.indexed_files],
        [file for one in found for file in one.unopened_files],
        [file for one in found for file in one.unlisted_files],
    )


def expand_glob(location: Location) -> list[Location]:
    """What a glob matches, sorted; the location itself if it is none."""
    base = glob_base(location)
    if base.path == location.path:
        return [location]
    matches = list(_matches(base, location.path[len(base.path) :].strip("/").split("/")))
    if not matches:
        raise DataError(f"nothing matches {location}: check the pattern")
    return matches


def glob_base(location: Location) -> Location:
    """The folder before a glob's first wildcard; the location itself if it is none."""
    wildcard = _GLOB.search(location.path)
    if wildcard is None or location.exists():
        return location
    head = location.path[: wildcard.start()].rpartition("/")[0] or location.path[: location.path[0] == "/"]
    below = location.path[len(head) :].strip("/")
    uri = location.uri.rstrip("/")
    prefix = uri[: len(uri) - len(below)]
    return Location(location.backend, head, prefix.rstrip("/") or prefix[:1])


def _matches(folder: Location, names: list[str]) -> Iterator[Location]:
    """What matches names with wildcards below a folder, listing as few folders as possible."""
    name, *rest = names
    if "**" in name:
        yield from _matches_at_any_depth(folder, _glob_pattern("/".join(names)))
        return
    pattern = _glob_pattern(name)
    for entry in folder.list():
        if not pattern.fullmatch(entry.relative_path) or is_hidden(entry.relative_path):
            continue
        if not rest:
            yield entry.location
        elif not entry.is_file:
            yield from _matches(entry.location, rest)


def _matches_at_any_depth(folder: Location, pattern: re.Pattern[str]) -> Iterator[Location]:
    """What matches below a folder; nothing inside another match."""
    found: set[str] = set()
    for entry in folder.list(recursive=True):
        is_inside = any(
            entry.relative_path[: slash.start()] in found for slash in re.finditer("/", entry.relative_path)
        )
        if pattern.fullmatch(entry.relative_path) and not is_inside and not is_hidden(entry.relative_path):
            found.add(entry.relative_path)
            yield entry.location


def _glob_pattern(glob: str) -> re.Pattern[str]:
    """`*` and `?` within a name, `[…]`, `[!…]`, and `**` over any number of folders."""
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[![^\]]+\]|\[[^!\]][^\]]*\])", glob)
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = [tokens.get(token) or _characters(token[1:-1]) for token in parts[1::2]]
    try:
        return re.compile("".join(parts))
    except re.error as error:
        raise DataError(f"the pattern {glob} cannot be read ({error}): check its brackets") from error


def _characters(listed: str) -> str:
    """Characters of which a name has one, or, after `!`, has none."""
    listed = re.sub(r"([\[\\&~|])", r"\\\1", listed)
    return f"[^/{listed[1:]}]" if listed.startswith("!") else f"[{listed}]"


def _files_of(place: Location, verify: bool, refuse: Refuse) -> DataFiles:
    if not place.exists():
        raise missing_error(place)
    if not place.is_folder():
        info = place.info()
        entry = Entry(place, place.name, info.size or 0, is_file=True, modified_ns=info.mtime_ns)
        return DataFiles(_indexed(place.parent(), [entry], refuse), [], [])
    entries = place.list(recursive=True)
    recordings = _recordings_in(entries)
    if "" in recordings:
        return _recorded(place, entries, verify, refuse)
    found: dict[str, list[IndexedFile]] = {}
    unlisted: list[Location] = []
    for recording in recordings:
        inside = [
            entry._replace(relative_path=entry.relative_path[len(recording) + 1 :])
            for entry in entries
            if entry.relative_path.startswith(f"{recording}/")
        ]
        recorded = _recorded(place.child(recording), inside, verify, refuse)
        found[recording] = recorded.indexed_files
        unlisted += recorded.unlisted_files
    for link in broken_links(entry for entry in entries if not is_hidden(entry.relative_path)):
        refuse("missing", link, missing_error(link))
    others = [entry for entry in entries if _is_plain(entry, recordings)]
    plain = [entry for entry in others if _is_parquet(entry)]
    if not plain and not recordings:
        names = ", ".join(entry.relative_path for entry in entries[:5]) or "nothing"
        raise UnknownLayoutError(f"{place} holds no Parquet files: it holds {names}")
    found.update({file.entry.path: [file] for file in _indexed(place, plain, refuse)})
    return DataFiles(
        [file for name in sorted(found) for file in found[name]],
        [entry.location for entry in others if not _is_parquet(entry)],
        unlisted,
    )


def _indexed(folder: Location, entries: list[Entry], refuse: Refuse) -> list[IndexedFile]:
    """Files that nothing describes, looked into; all must be of one layout."""
    cache = IndexCache(folder)

    def index(entry: Entry) -> IndexedFile | DataError:
        try:
            return cache.index(entry)
        except DataError as error:
            return error

    found = map_in_threads(index, entries)
    files: list[IndexedFile] = []
    for entry, file in zip(entries, found, strict=True):
        if isinstance(file, DataError):
            refuse("unreadable", entry.location, file)
        elif files and file.layout != files[0].layout:
            refuse("mixed-layouts", entry.location, _mixture(folder, files[0], file))
        else:
            files.append(file)
    cache.save()
    return files


def _mixture(folder: Location, one: IndexedFile, other: IndexedFile) -> DataError:
    return DataError(
        f"{folder} mixes layouts: {one.entry.path} is {one.layout} and {other.entry.path} is {other.layout}; "
        "keep them in separate folders, and give each as an input"
    )


def _recordings_in(entries: Iterable[Entry]) -> list[str]:
    """The folders in a recursive listing that are recordings, relative to it, sorted."""
    return sorted(
        {posixpath.dirname(entry.relative_path) for entry in entries if entry.location.name == FOLDER}
    )


def _is_parquet(entry: Entry) -> bool:
    """Whether a file is named as Parquet is."""
    return entry.is_file and entry.relative_path.endswith((".parquet", ".pq"))


def _is_plain(entry: Entry, recordings: list[str]) -> bool:
    inside = any(entry.relative_path.startswith(f"{recording}/") for recording in recordings)
    return entry.is_file and not inside and not is_hidden(entry.relative_path)


def _recorded(folder: Location, entries: list[Entry], verify: bool, refuse: Refuse) -> DataFiles:
    """The files of a recording: those of its manifest, else of its commits; never other files in the folder."""
    manifest = read_manifest(folder)
    if manifest is not None:
        if manifest.layout in EXPORTED_LAYOUTS:
            raise _is_exported(folder, manifest.layout)
        if manifest.layout not in LAYOUTS:
            raise DataError(
                f"{folder} is recorded in the layout {manifest.layout!r}: allowed are {', '.join(LAYOUTS)}"
            )
        listed, what = manifest.files, (manifest.data_spec, manifest.layout)
    else:
        commits = list(read_commits(folder).values())
        if commits and commits[0].exported is not None:
            raise _is_exported(folder, commits[0].exported.layout)
        listed = committed_files(commits)
        if not listed:
            raise DataError(
                f"{folder} is a recording that has committed no episodes yet: wait for it, or run it again"
            )
        what, far = None, describe_progress(folder, commits)
    files = listed_files(folder, listed, entries, verify, refuse)
    if what is not None:
        indexed = [IndexedFile(folder.child(file.path), file, *what, is_listed=True) for file in files]
    else:
        indexed = [file._replace(unfinished_note=far) for file in _described(folder, files, refuse)]
    known = {file.path for file in listed}
    unlisted = [
        entry.location
        for entry in entries
        if _is_parquet(entry) and not is_hidden(entry.relative_path) and entry.relative_path not in known
    ]
    return DataFiles(indexed, [], unlisted)


def listed_files(
    folder: Location,
    listed: Sequence[FileEntry],
    entries: Sequence[Entry] = (),
    verify: bool = False,
    refuse: Refuse = raise_refusal,
) -> list[FileEntry]:
    """The files that a recording lists, which are there and have their sizes.

    Args:
        folder: the recording's.
        listed: by its manifest or commits.
        entries: an earlier listing of the folder.
        verify: whether to compare their checksums too.
        refuse: called for each of the others.

    Raises:
        DataError: what `refuse` raises.
    """
    sizes = _sizes(entries)
    if any(file.path not in sizes for file in listed):
        sizes = _sizes(folder.list(recursive=True))  # it may have been committed after that listing

    def problem(file: FileEntry) -> tuple[Reason, str] | None:
        size = sizes.get(file.path)
        if size is None:
            return "missing", f"is missing, but the recording lists it: {_AGAIN}"
        if size != file.bytes:
            return "changed", f"has {size} bytes, but was recorded with {file.bytes}: {_AGAIN}"
        if verify and _checksum(folder.child(file.path)) != file.checksum:
            return "changed", f"was changed since it was recorded: {_AGAIN}"
        return None

    problems = map_in_threads(problem, listed) if verify else [problem(file) for file in listed]
    for file, found in zip(listed, problems, strict=True):
        if found is not None:
            location = folder.child(file.path)
            refuse(found[0], location, DataError(f"{location} {found[1]}"))
    return [file for file, found in zip(listed, problems, strict=True) if found is None]


def _is_exported(folder: Location, layout: str) -> UnknownLayoutError:
    return UnknownLayoutError(f"{folder} is recorded as {layout}, which is prepared before it is read")


def _described(folder: Location, files: Sequence[FileEntry], refuse: Refuse) -> list[IndexedFile]:
    """The files of commits, which do not say what they hold: the first that can be read says it for all."""
    for number, file in enumerate(files):
        location = folder.child(file.path)
        try:
            what = describe_file(location)
        except DataError as error:
            refuse("unreadable", location, error)
            continue
        return [IndexedFile(folder.child(file.path), file, *what, is_listed=True) for file in files[number:]]
    return []


def _sizes(entries: Sequence[Entry]) -> dict[str, int]:
    return {entry.relative_path: entry.size for entry in entries if entry.is_file}


def _checksum(location: Location) -> str:
    checksum = hashlib.sha256()
    with location.open_stream() as stream:
        while chunk := stream.read(_CHUNK):
            checksum.update(chunk)
    return checksum.hexdigest()


def check_distinct(locations: Iterable[Location]) -> None:
    """Make sure that no file is there twice.

    Raises:
        DataError: two paths name the same file.
    """
    seen: set[tuple[str, str]] = set()
    for location in locations:
        key = (location.backend.root, real_path(location))
        if key in seen:
            raise DataError(f"{location} is named twice by the paths: its episodes would count twice")
        seen.add(key)


def real_path(location: Location) -> str:
    """The path without links, where there can be any."""
    return os.path.realpath(location.path) if location.is_local else location.path


def map_in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """`function(item)` of each item, in order; eight at a time, since each waits for its storage."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, items))
