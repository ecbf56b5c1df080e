"""Writes a dataset in any format, exactly once: range by range, and read back at the end."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from hindcast.datasets.content import Content
from hindcast.datasets.curate.claim import claim, is_claimed
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.file_index import cache_folder
from hindcast.datasets.hooks import NO_HOOKS, Hooks
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.sources import listed_files
from hindcast.datasets.target import Target
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.commits import (
    Commit,
    clear_dataset,
    committed_files,
    read_commits,
    remove_orphans,
    write_commit,
)
from hindcast.formats.dataset_folder.manifest import FOLDER, Manifest, read_manifest, write_manifest
from hindcast.formats.spec import DataSpec
from hindcast.storage.lease import LOCK, sole_writer
from hindcast.worker_processes import choose_num_workers, map_unordered

_MIN_RANGE_BYTES = 32 << 20
_TEXT_GROWTH = 4
_UNITS_PER_TASK = 8


@dataclass(frozen=True)
class WriteResult:
    """The result of writing.

    Attributes:
        state: AlreadyFinished if nothing was left to write.
        folder: where.
        format: one of `WRITTEN_FORMATS`.
        episodes: how many, of so many `timesteps`.
        files: how many, of so many `bytes` in all.
        checksum: of the content (`Content.checksum`): the same in every format.
        seconds: wall time.
    """

    state: Literal["Succeeded", "AlreadyFinished"]
    folder: str
    format: str
    episodes: int
    timesteps: int
    files: int
    bytes: int
    checksum: str
    seconds: float


def check_target(dataset: Dataset, target: Target) -> None:
    """Refuse what `write` would refuse before it writes anything.

    Raises:
        OutputConflict: the folder holds something else.
        DataError: nothing to write.
    """
    if not dataset.num_episodes:
        raise DataError(f"no episodes are left to write to {target.folder}: select other ones")
    is_claimed(target, dataset.digest)


def write(
    dataset: Dataset,
    target: Target,
    origin: Mapping[str, Any] | None = None,
    hooks: Hooks = NO_HOOKS,
) -> WriteResult:
    """Write all episodes, in order; if a call is stopped, in whatever way, the next one resumes.

    Args:
        dataset: what.
        target: where and how.
        origin: fields of a recording's manifest that hold for the copy; none by default.
        watch: notified of progress; may stop it.

    Raises:
        OutputConflict: the folder holds something else, or another process writes there.
        DataError: nothing to write; what the format cannot hold; what is read back is not what was written.
        StorageError: the folder cannot be written; complete ranges are kept, and count when it resumes.
    """
    start_time = time.monotonic()
    check_target(dataset, target)
    state = target.folder.child(FOLDER)
    with sole_writer(state) as guard:
        target = replace(target, folder=target.folder.with_guard(guard))
        claim(target, dataset.digest)
        is_finished = read_manifest(target.folder) is not None
        if not is_finished:
            _write_ranges(dataset, target, hooks)
        commits = read_commits(target.folder).values()
        files = committed_files(commits)
        if not is_finished:
            remove_orphans(target.folder, commits)
            spec = dataset.spec.to_json()
            manifest = Manifest(**(origin or {}), layout=target.layout, spec=spec, files=files)
            write_manifest(target.folder, manifest)
        content = Content()
        for commit in commits:
            assert commit.content is not None
            content += Content.from_json(commit.content)
        difference = _find_difference(dataset.spec, content, target, hooks)
        if difference:
            raise _difference_error(target, difference, is_finished)
    return WriteResult(
        state="AlreadyFinished" if is_finished else "Succeeded",
        folder=str(target.folder),
        format=target.format,
        episodes=content.episodes,
        timesteps=content.timesteps,
        files=len(files),
        bytes=sum(file.bytes for file in files),
        checksum=content.checksum,
        seconds=time.monotonic() - start_time,
    )


class _Job(NamedTuple):
    """What is written and how; it goes to workers."""

    dataset: Dataset
    target: Target
    check: Callable[[], None]  # in a worker's process: a copy, which never stops anything


def _write_ranges(dataset: Dataset, target: Target, watch: Hooks) -> None:
    commits = read_commits(target.folder)
    remove_orphans(target.folder, commits.values())
    ranges = _divide_into_ranges(dataset, target)
    remaining_ranges = [(number, episodes) for number, episodes in enumerate(ranges) if number not in commits]
    num_done_steps = sum(commit.timesteps for commit in commits.values())
    watch.progress("Writing", num_done_steps, dataset.num_steps)
    job = _Job(dataset, target, watch.check)
    workers = choose_num_workers(len(remaining_ranges), dataset.nbytes * len(remaining_ranges) // len(ranges))
    has_lost_details = False
    for commit, loses_details in map_unordered(_write_range, job, remaining_ranges, workers, watch.check):
        has_lost_details |= loses_details
        write_commit(target.folder, commit)
        num_done_steps += commit.timesteps
        watch.progress("Writing", num_done_steps, dataset.num_steps)
    if has_lost_details:
        watch.note(
            f"{target.format} cannot store episode details (ids of agents and modules, times, custom data), which "
            "were left out: Episodes, MessagePack, Columns and JSON keep them"
        )


def _divide_into_ranges(dataset: Dataset, target: Target) -> list[range]:
    """All episodes in ranges, of about the size of a file, that begin and end with units and with full files."""
    min_bytes = max(_MIN_RANGE_BYTES, target.file_bytes // (_TEXT_GROWTH if target.is_text else 1))
    step = target.rows_per_file if target.has_episode_rows else None
    boundaries, size, end = [0], 0, 0
    for unit in dataset.units:
        size += unit.nbytes
        end += len(unit.lengths)
        boundary = end - end % step if step else end
        if size >= min_bytes and boundary > boundaries[-1]:
            boundaries.append(boundary)
            size = 0
    if boundaries[-1] < dataset.num_episodes:
        boundaries.append(dataset.num_episodes)
    return [range(first, stop) for first, stop in pairwise(boundaries)]


def _write_range(job: _Job, numbered_range: tuple[int, range]) -> tuple[Commit, bool]:
    """Write one range's files: the commit that will make them count, and whether details were left out."""
    target, content, loses_details = job.target, Content(), False
    number, episodes = numbered_range
    dataset = job.dataset.select(episodes)

    def blocks() -> Iterator[Block]:
        nonlocal content, loses_details
        for unit in dataset.units:
            job.check()
            read = dataset.read(unit)
            block = read if target.keeps_details else read.without_details()
            loses_details |= block.details is not read.details
            content += Content.from_block(block)
            yield block

    commit = target.write_range(dataset.spec, number, episodes.start, blocks())
    return commit.model_copy(update={"content": content.to_json()}), loses_details


def _find_difference(spec: DataSpec, content: Content, target: Target, watch: Hooks) -> str | None:
    """How what is read back differs from the spec and content that were written, in words; None if it does not.

    Raises:
        DataError: a file that was changed since it was written.
    """
    with _read_back(target, watch) as read_dataset:
        read_content, units = Content(), range(len(read_dataset.units))
        slices = [units[i : i + _UNITS_PER_TASK] for i in units[::_UNITS_PER_TASK]]
        watch.progress("Verifying", 0, content.timesteps)
        workers = choose_num_workers(len(slices), read_dataset.nbytes)
        for part in map_unordered(_content_of, read_dataset, slices, workers, watch.check):
            read_content += part
            watch.progress("Verifying", min(read_content.timesteps, content.timesteps), content.timesteps)
        return content.difference(read_content) or read_dataset.spec.difference(spec)


@contextmanager
def _read_back(target: Target, watch: Hooks) -> Iterator[Dataset]:
    """The data in the target's folder, each file compared with its checksum.

    Exported layouts are prepared for it, in the cache, like files of other tools.
    """
    try:
        if not target.is_exported:
            yield open_dataset(target.folder, verify=True)
            return
        manifest = read_manifest(target.folder)
        assert manifest is not None
        listed_files(target.folder, manifest.files, verify=True)
        watch.check()
        cache = cache_folder().child(f"verify-{uuid.uuid4().hex[:8]}")
        try:
            yield open_data(Reading((target.folder,)), cache=str(cache), hooks=Hooks(check=watch.check))
        finally:
            cache.delete()
    except DataError as error:
        raise DataError(f"{error} (--replace writes {target.folder} again)") from error


def _content_of(dataset: Dataset, units: range) -> Content:
    return sum((Content.from_block(dataset.read(dataset.units[number])) for number in units), Content())


def _difference_error(target: Target, difference: str, is_finished: bool) -> DataError:
    """The error for data that are not read back as they were written; what was just written is deleted."""
    problem = f"what was read back from {target.folder} has {difference}"
    if is_finished:
        return DataError(f"{problem}: run it again with --replace")
    clear_dataset(target.folder, keep=(LOCK,))
    return DataError(
        f"{target.format} cannot hold these data: {problem}; nothing was kept; choose another format"
    )
