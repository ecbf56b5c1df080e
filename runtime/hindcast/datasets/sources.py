"""Find the data files of a user's paths: recordings, plain folders, files and globs."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Literal, NamedTuple, TypeVar

import pyarrow.fs as pafs

from hindcast.datasets.file_index import IndexCache, IndexedFile, describe_file
from hindcast.datasets.folder_kinds import refuse_parts_of_tables, select_live_entries
from hindcast.errors import DataError, MissingDataError
from hindcast.formats.dataset_folder.commits import committed_files, read_commits
from hindcast.formats.dataset_folder.folder_owner import describe_recording_progress
from hindcast.formats.dataset_folder.index import EpisodeIndex
from hindcast.formats.dataset_folder.manifest import FOLDER, read_manifest
from hindcast.formats.entries import FileEntry
from hindcast.formats.format import has_suffix, is_hidden
from hindcast.formats.layouts import EXPORTED_LAYOUTS, LAYOUTS
from hindcast.formats.parquet.opening import PARQUET_SUFFIXES, UnknownLayoutError
from hindcast.formatting import natural_sort_key
from hindcast.storage.location import Entry, Location, broken_links, missing_error

_GLOB = re.compile(r"[*?\[]")
_NUM_THREADS = 8
_CHUNK_BYTES = 8 << 20
_REMEDY = "copy it again or record again"

Item = TypeVar("Item")
Result = TypeVar("Result")
RefusalReason = Literal["unreadable", "missing", "changed", "mixed-layouts"]
RefusalHandler = Callable[[RefusalReason, Location, DataError], None]
"""Called for a file that cannot be used. It raises the error, or records it; then the search continues."""


def raise_refusal(reason: RefusalReason, location: Location, error: DataError) -> None:  # noqa: ARG001
    """Raise the error of a file that cannot be used."""
    raise error


class DataFiles(NamedTuple):
    """The files found in some locations.

    Attributes:
        indexed_files: the data files, in a fixed order.
        unopened_files: files in plain folders that were not opened because their names have no Parquet suffix.
        unlisted_files: Parquet files in recordings that do not list them.
    """

    indexed_files: list[IndexedFile]
    unopened_files: list[Location]
    unlisted_files: list[Location]


def find_files(
    locations: Sequence[Location], verify: bool = False, refuse: RefusalHandler = raise_refusal
) -> DataFiles:
    """Find the data files of the user's paths.

    Args:
        locations: files, folders (searched recursively) and globs.
        verify: whether to read every file of a recording and compare its checksum.
        refuse: called for each file that cannot be used.

    Raises:
        DataError: a path does not exist, there are no Parquet files, nothing is recorded yet, or a file is a part of a
            table; errors of `refuse`.
        StorageError: the storage fails or denies access.
    """
    if not locations:
        raise DataError("paths is empty: name at least one folder or file with episodes")
    matches = [match for location in locations for match in expand_glob(location)]
    groups = [_find_files_at(match, verify, refuse) for match in matches]
    refuse_parts_of_tables(match for match in matches if not match.is_folder())
    return DataFiles(
        [file for group in groups for file in group.indexed_files],
        [file for group in groups for file in group.unopened_files],
        [file for group in groups for file in group.unlisted_files],
    )


def expand_glob(location: Location) -> list[Location]:
    """Return the matches of a glob in natural order; only the location itself if it has no wildcards.

    Raises:
        DataError: nothing matches, or the glob's brackets are wrong.
    """
    base = glob_base(location)
    if base.path == location.path:
        return [location]
    matches = list(_match_names(base, location.path[len(base.path) :].strip("/").split("/")))
    if not matches:
        raise MissingDataError(f"nothing matches {location}: check the pattern")
    return sorted(matches, key=lambda match: natural_sort_key(match.path))


def glob_base(location: Location) -> Location:
    """Return the folder before a glob's first wildcard; the location itself if it has no wildcards."""
    wildcard = _GLOB.search(location.path)
    # A path that exists is taken literally, although its name contains wildcards.
    if wildcard is None or location.exists():
        return location
    # Without a folder before the wildcard, the base is "/" of an absolute path, and "" of any other.
    root_path = "/" if location.path.startswith("/") else ""
    base_path = location.path[: wildcard.start()].rpartition("/")[0] or root_path
    # The URI ends with the same pattern as the path, so without the pattern it is the base's URI.
    remainder = location.path[len(base_path) :].strip("/")
    uri = location.uri.rstrip("/")
    prefix = uri[: len(uri) - len(remainder)]
    return Location(location.backend, base_path, prefix.rstrip("/") or prefix[:1])


def _match_names(folder: Location, names: list[str]) -> Iterator[Location]:
    """Yield the locations below a folder that match a path pattern, split at `/`; list as few folders as possible."""
    name, *remaining_names = names
    if "**" in name:
        yield from _match_at_any_depth(folder, _compile_glob("/".join(names)))
        return
    pattern = _compile_glob(name)
    for entry in folder.list():
        if not pattern.fullmatch(entry.relative_path) or is_hidden(entry.relative_path):
            continue
        if not remaining_names:
            yield entry.location
        elif not entry.is_file:
            yield from _match_names(entry.location, remaining_names)


def _match_at_any_depth(folder: Location, pattern: re.Pattern[str]) -> Iterator[Location]:
    """Yield the matches below a folder, except those inside another match."""
    matched_paths: set[str] = set()
    for entry in folder.list(recursive=True):
        is_in_match = any(
            entry.relative_path[: slash.start()] in matched_paths
            for slash in re.finditer("/", entry.relative_path)
        )
        if pattern.fullmatch(entry.relative_path) and not is_in_match and not is_hidden(entry.relative_path):
            matched_paths.add(entry.relative_path)
            yield entry.location


def _compile_glob(glob: str) -> re.Pattern[str]:
    """Translate a glob: `*` and `?` within a name, `[…]`, `[!…]`, and `**` over any number of folders."""
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[![^\]]+\]|\[[^!\]][^\]]*\])", glob)
    # Literal text and wildcards alternate, beginning with text.
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = [tokens.get(token) or _translate_character_class(token[1:-1]) for token in parts[1::2]]
    try:
        return re.compile("".join(parts))
    except re.error as error:
        raise DataError(f"the pattern {glob} cannot be read ({error}): check its brackets") from error


def _translate_character_class(characters: str) -> str:
    """Translate the characters between brackets; `!` at the beginning negates them."""
    characters = re.sub(r"([\[\\&~|])", r"\\\1", characters)
    return f"[^/{characters[1:]}]" if characters.startswith("!") else f"[{characters}]"


def _find_files_at(location: Location, verify: bool, refuse: RefusalHandler) -> DataFiles:
    """Find the data files of one path: a file, a recording, or a folder of recordings and other files."""
    info = location.info()
    if info.type == pafs.FileType.NotFound:
        raise missing_error(location)
    if info.type != pafs.FileType.Directory:
        entry = Entry(location, location.name, info.size or 0, is_file=True, modified_ns=info.mtime_ns)
        return DataFiles(_index_files(location.parent(), [entry], refuse)[0], [], [])
    entries = select_live_entries(location, location.list(recursive=True))
    recordings = _find_recordings(entries)
    if "" in recordings:
        return _find_recording_files(location, entries, verify, refuse)
    files_by_path: dict[str, list[IndexedFile]] = {}
    unlisted_files: list[Location] = []
    for recording in recordings:
        recording_entries = [
            entry._replace(relative_path=entry.relative_path[len(recording) + 1 :])
            for entry in entries
            if entry.relative_path.startswith(f"{recording}/")
        ]
        recording_files = _find_recording_files(location.child(recording), recording_entries, verify, refuse)
        files_by_path[recording] = recording_files.indexed_files
        unlisted_files += recording_files.unlisted_files
    for link in broken_links(entry for entry in entries if not is_hidden(entry.relative_path)):
        refuse("missing", link, missing_error(link))
    plain_entries = [entry for entry in entries if _is_plain_file(entry, recordings)]
    parquet_entries = [entry for entry in plain_entries if _is_parquet(entry)]
    if not parquet_entries and not recordings:
        names = ", ".join(entry.relative_path for entry in entries[:5]) or "nothing"
        raise UnknownLayoutError(f"holds no Parquet files: it holds {names}", path=str(location))
    indexed_files, empty_tables = _index_files(location, parquet_entries, refuse)
    files_by_path.update({file.entry.path: [file] for file in indexed_files})
    return DataFiles(
        [file for name in sorted(files_by_path, key=natural_sort_key) for file in files_by_path[name]],
        [*(entry.location for entry in plain_entries if not _is_parquet(entry)), *empty_tables],
        unlisted_files,
    )


def _index_files(
    folder: Location, entries: list[Entry], refuse: RefusalHandler
) -> tuple[list[IndexedFile], list[Location]]:
    """Index files that no recording describes; all must have the same layout.

    Returns:
        The files of episodes, and beside them tables without rows, which hold nothing.
    """
    cache = IndexCache(folder)

    def try_index(entry: Entry) -> IndexedFile | DataError:
        try:
            return cache.index(entry)
        except DataError as error:
            return error

    results = map_in_threads(try_index, entries)
    files: list[IndexedFile] = []
    empty_tables: list[Location] = []
    has_episodes = any(isinstance(result, IndexedFile) for result in results)
    for entry, file in zip(entries, results, strict=True):
        if has_episodes and isinstance(file, UnknownLayoutError) and not file.has_rows:
            empty_tables.append(entry.location)
        elif isinstance(file, DataError):
            refuse("unreadable", entry.location, file)
        elif files and file.layout != files[0].layout:
            refuse("mixed-layouts", entry.location, _mixed_layouts_error(folder, files[0], file))
        else:
            files.append(file)
    cache.save()
    return files, empty_tables


def _mixed_layouts_error(folder: Location, first: IndexedFile, second: IndexedFile) -> DataError:
    return DataError(
        f"{folder} mixes layouts: {first.entry.path} is {first.layout} and {second.entry.path} is {second.layout}; "
        "keep them in separate folders, and name each folder as a separate input"
    )


def _find_recordings(entries: Iterable[Entry]) -> list[str]:
    """Return the sorted relative paths of the recordings in a recursive listing; "" is the listed folder itself."""
    return sorted(
        {posixpath.dirname(entry.relative_path) for entry in entries if entry.location.name == FOLDER}
    )


def _is_parquet(entry: Entry) -> bool:
    """Return True for a file with a Parquet suffix."""
    return entry.is_file and has_suffix(entry.relative_path, PARQUET_SUFFIXES)


def _is_plain_file(entry: Entry, recordings: list[str]) -> bool:
    is_in_recording = any(entry.relative_path.startswith(f"{recording}/") for recording in recordings)
    return entry.is_file and not is_in_recording and not is_hidden(entry.relative_path)


def _find_recording_files(
    folder: Location, entries: list[Entry], verify: bool, refuse: RefusalHandler
) -> DataFiles:
    """Find the files that a recording's manifest lists, or else its commits; other Parquet files are unlisted."""
    manifest = read_manifest(folder)
    if manifest is not None:
        if manifest.layout in EXPORTED_LAYOUTS:
            raise _exported_error(folder, manifest.layout)
        if manifest.layout not in LAYOUTS:
            raise DataError(
                f"{folder} is recorded in the layout {manifest.layout!r}: allowed are {', '.join(LAYOUTS)}"
            )
        listed_entries, spec_and_layout = manifest.files, (manifest.data_spec, manifest.layout)
        checksum = manifest.episode_index
        episode_index = EpisodeIndex(folder.child(FOLDER), checksum) if checksum else None
    else:
        commits = list(read_commits(folder).values())
        if commits and commits[0].exported is not None:
            raise _exported_error(folder, commits[0].exported.layout)
        listed_entries = committed_files(commits)
        if not listed_entries:
            raise DataError(
                f"{folder} is a recording that has committed no episodes yet: wait for it, or run it again"
            )
        spec_and_layout, progress_note = None, describe_recording_progress(folder, commits)
    files = check_listed_files(folder, listed_entries, entries, verify, refuse)
    if spec_and_layout is not None:
        indexed_files = [
            IndexedFile(
                folder.child(file.path), file, *spec_and_layout, is_listed=True, episode_index=episode_index
            )
            for file in files
        ]
    else:
        indexed_files = [
            file._replace(unfinished_note=progress_note)
            for file in _describe_committed(folder, files, refuse)
        ]
    listed_paths = {file.path for file in listed_entries}
    unlisted_files = [
        entry.location
        for entry in entries
        if _is_parquet(entry)
        and not is_hidden(entry.relative_path)
        and entry.relative_path not in listed_paths
    ]
    return DataFiles(indexed_files, [], unlisted_files)


def check_listed_files(
    folder: Location,
    expected_files: Sequence[FileEntry],
    entries: Sequence[Entry] = (),
    verify: bool = False,
    refuse: RefusalHandler = raise_refusal,
) -> list[FileEntry]:
    """Check the files that a recording lists, and return the files that exist and are unchanged.

    Args:
        folder: folder of the recording.
        expected_files: the files in its manifest or commits.
        entries: an earlier recursive listing of the folder, if there is one.
        verify: whether to compare checksums, too.
        refuse: called for each file that is missing or changed.

    Raises:
        DataError: errors of `refuse`.
    """
    sizes = _sizes_by_path(entries)
    if any(file.path not in sizes for file in expected_files):
        # A file may have been committed after the earlier listing.
        sizes = _sizes_by_path(folder.list(recursive=True))

    def find_problem(file: FileEntry) -> tuple[RefusalReason, str] | None:
        """Return the reason to refuse a file and a clause about the file; None if it is as recorded."""
        size = sizes.get(file.path)
        if size is None:
            return "missing", f"is missing, but the recording lists it: {_REMEDY}"
        if size != file.bytes:
            return "changed", f"has {size} bytes, but was recorded with {file.bytes}: {_REMEDY}"
        if verify and _compute_checksum(folder.child(file.path)) != file.checksum:
            return "changed", f"was changed since it was recorded: {_REMEDY}"
        return None

    problems = (
        map_in_threads(find_problem, expected_files)
        if verify
        else [find_problem(file) for file in expected_files]
    )
    for file, problem in zip(expected_files, problems, strict=True):
        if problem is not None:
            location, (reason, clause) = folder.child(file.path), problem
            refuse(reason, location, DataError(f"{location} {clause}"))
    return [file for file, problem in zip(expected_files, problems, strict=True) if problem is None]


def _exported_error(folder: Location, layout: str) -> UnknownLayoutError:
    return UnknownLayoutError(
        f"{folder} is recorded as {layout}, which Hindcast must prepare before it reads it"
    )


def _describe_committed(
    folder: Location, files: Sequence[FileEntry], refuse: RefusalHandler
) -> list[IndexedFile]:
    """Return the committed files, all with the spec and layout of the first file that can be read."""
    # Unlike a manifest, commits do not contain the spec, which is the same for all files of a recording.
    for i, file in enumerate(files):
        location = folder.child(file.path)
        try:
            spec_and_layout = describe_file(location)
        except DataError as error:
            refuse("unreadable", location, error)
            continue
        return [
            IndexedFile(
                folder.child(file.path),
                file.model_copy(update={"episode_columns": None}),  # large, and not read
                *spec_and_layout,
                is_listed=True,
            )
            for file in files[i:]
        ]
    return []


def _sizes_by_path(entries: Sequence[Entry]) -> dict[str, int]:
    return {entry.relative_path: entry.size for entry in entries if entry.is_file}


def _compute_checksum(location: Location) -> str:
    checksum = hashlib.sha256()
    with location.open_stream() as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            checksum.update(chunk)
    return checksum.hexdigest()


def check_distinct(locations: Iterable[Location]) -> None:
    """Check that no file occurs twice.

    Raises:
        DataError: two paths name the same file.
    """
    seen_keys: set[tuple[str, str]] = set()
    find_real_folder = cache(os.path.realpath)
    for location in locations:
        # A folder is resolved once, not for each of its files.
        folder, _, name = location.path.rpartition("/")
        if not location.is_local or os.path.islink(location.path):  # noqa: PTH114 (a Path takes several times as long)
            path = real_path(location)
        else:
            path = f"{find_real_folder(folder or '/')}/{name}"
        key = (location.backend.root, path)
        if key in seen_keys:
            raise DataError(
                f"{location} occurs twice in the paths, so its episodes would count twice: name it once"
            )
        seen_keys.add(key)


def real_path(location: Location) -> str:
    """Resolve links in a local path; return other paths unchanged."""
    return os.path.realpath(location.path) if location.is_local else location.path


def map_in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Call the function for each item, eight at a time, and return the results in order."""
    # More threads than processors help, since threads mostly wait for the storage.
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        return list(pool.map(function, items))
