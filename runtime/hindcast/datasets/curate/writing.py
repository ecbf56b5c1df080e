"""Write a dataset in any format exactly once: range by range, then read back."""

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
from hindcast.datasets.sources import check_listed_files
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
"""Minimum size of a range in memory, so that small files do not make many commits."""
_TEXT_GROWTH = 4  # text takes about this many times the bytes of arrays
_UNITS_PER_TASK = 8
"""Number of units that a worker reads back at a time."""


@dataclass(frozen=True)
class WriteResult:
    """The result of writing.

    Attributes:
        state: AlreadyFinished if an earlier call wrote everything.
        folder: location of the written dataset.
        format: one of `WRITTEN_FORMATS`.
        episodes: number of episodes.
        timesteps: number of their timesteps.
        files: number of files.
        bytes: size of the files.
        checksum: `Content.checksum`, the same in every format.
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
    """Check the dataset and the target, as `write` does before it writes anything.

    Raises:
        OutputConflict: the folder holds something else.
        DataError: there are no episodes to write.
    """
    if not dataset.num_episodes:
        raise DataError(f"the selection has no episodes to write to {target.folder}: select at least one")
    is_claimed(target, dataset.digest)  # raises if the folder holds something else


def write(
    dataset: Dataset,
    target: Target,
    origin: Mapping[str, Any] | None = None,
    hooks: Hooks = NO_HOOKS,
) -> WriteResult:
    """Write all episodes, in order; if a call is interrupted or killed, the next one resumes.

    Args:
        dataset: the episodes.
        target: the folder and its format.
        origin: fields of a recording's manifest that also hold for the copy; none by default.
        hooks: notified of progress; `check` may stop the work.

    Raises:
        OutputConflict: the folder holds something else, or another process writes to it.
        DataError: there are no episodes, the format cannot hold the data, or the data read back differ (then the files
            are deleted, unless an earlier call had finished them).
        StorageError: the folder cannot be written; complete ranges remain and count when a later call resumes.
    """
    start_time = time.monotonic()
    check_target(dataset, target)
    state_folder = target.folder.child(FOLDER)
    with sole_writer(state_folder) as guard:
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
        # Files are compared even if an earlier call wrote everything, since they may have changed after it.
        difference = _find_difference(dataset.spec, content, target, hooks)
        if difference:
            if not is_finished:
                clear_dataset(target.folder, keep=(LOCK,))
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
    """The dataset and the target; it is sent to workers."""

    dataset: Dataset
    target: Target
    check: Callable[[], None]  # in a worker's process this is a copy that never raises


def _write_ranges(dataset: Dataset, target: Target, hooks: Hooks) -> None:
    commits = read_commits(target.folder)
    remove_orphans(target.folder, commits.values())
    ranges = _divide_into_ranges(dataset, target)
    remaining_ranges = [
        (range_index, episodes) for range_index, episodes in enumerate(ranges) if range_index not in commits
    ]
    num_done_steps = sum(commit.timesteps for commit in commits.values())
    hooks.progress("Writing", num_done_steps, dataset.num_steps)
    job = _Job(dataset, target, hooks.check)
    num_workers = choose_num_workers(
        len(remaining_ranges), dataset.nbytes * len(remaining_ranges) // len(ranges)
    )
    has_lost_details = False
    for commit, loses_details in map_unordered(_write_range, job, remaining_ranges, num_workers, hooks.check):
        has_lost_details |= loses_details
        write_commit(target.folder, commit)
        num_done_steps += commit.timesteps
        hooks.progress("Writing", num_done_steps, dataset.num_steps)
    if has_lost_details:
        hooks.note(
            f"{target.format} cannot store episode details (ids of agents and modules, times, custom data), so they "
            "were dropped: Episodes, MessagePack, Columns and JSON keep them"
        )


def _divide_into_ranges(dataset: Dataset, target: Target) -> list[range]:
    """Divide all episodes into ranges of about the size of a file."""
    # With `rows_per_file`, a range ends at a multiple of that number, so that only the last file may have fewer rows.
    min_bytes = max(_MIN_RANGE_BYTES, target.file_bytes // (_TEXT_GROWTH if target.is_text else 1))
    rows_per_file = target.rows_per_file if target.has_episode_rows else None
    boundaries, size, end = [0], 0, 0
    for unit in dataset.units:
        size += unit.nbytes
        end += len(unit.lengths)
        boundary = end - end % rows_per_file if rows_per_file else end
        if size >= min_bytes and boundary > boundaries[-1]:
            boundaries.append(boundary)
            size = 0
    if boundaries[-1] < dataset.num_episodes:
        boundaries.append(dataset.num_episodes)
    return [range(first, stop) for first, stop in pairwise(boundaries)]


def _write_range(job: _Job, numbered_range: tuple[int, range]) -> tuple[Commit, bool]:
    """Write the files of one range; return their commit, and whether episode details were dropped."""
    target, content, loses_details = job.target, Content(), False
    range_index, episodes = numbered_range
    dataset = job.dataset.select(episodes)

    def read_blocks() -> Iterator[Block]:
        nonlocal content, loses_details
        for unit in dataset.units:
            job.check()
            stored_block = dataset.read(unit)
            block = stored_block if target.keeps_details else stored_block.without_details()
            loses_details |= block.details is not stored_block.details
            content += Content.from_block(block)
            yield block

    commit = target.write_range(dataset.spec, range_index, episodes.start, read_blocks())
    return commit.model_copy(update={"content": content.to_json()}), loses_details


def _find_difference(spec: DataSpec, content: Content, target: Target, hooks: Hooks) -> str | None:
    """Read the target back, and describe how it differs from the written spec and content; None if it does not.

    Raises:
        DataError: a file was changed since it was written.
    """
    with _read_back(target, hooks) as stored_dataset:
        stored_content, units = Content(), range(len(stored_dataset.units))
        slices = [units[i : i + _UNITS_PER_TASK] for i in units[::_UNITS_PER_TASK]]
        hooks.progress("Verifying", 0, content.timesteps)
        num_workers = choose_num_workers(len(slices), stored_dataset.nbytes)
        for slice_content in map_unordered(
            _compute_content, stored_dataset, slices, num_workers, hooks.check
        ):
            stored_content += slice_content
            hooks.progress("Verifying", min(stored_content.timesteps, content.timesteps), content.timesteps)
        return content.difference(stored_content) or stored_dataset.spec.difference(spec)


@contextmanager
def _read_back(target: Target, hooks: Hooks) -> Iterator[Dataset]:
    """Open the data in the target's folder, comparing each file with its checksum.

    Exported layouts are prepared in the cache, as files of other tools are.
    """
    try:
        if not target.is_exported:
            yield open_dataset(target.folder, verify=True)
            return
        manifest = read_manifest(target.folder)
        assert manifest is not None
        check_listed_files(target.folder, manifest.files, verify=True)
        hooks.check()
        cache = cache_folder().child(f"verify-{uuid.uuid4().hex[:8]}")
        try:
            yield open_data(Reading((target.folder,)), cache=str(cache), hooks=Hooks(check=hooks.check))
        finally:
            cache.delete()
    except DataError as error:
        error.locate(remedy=f"--replace writes {target.folder} again")
        raise


def _compute_content(dataset: Dataset, units: range) -> Content:
    return sum((Content.from_block(dataset.read(dataset.units[i])) for i in units), Content())


def _difference_error(target: Target, difference: str, is_finished: bool) -> DataError:
    """Make the error for data that differ when read back; unless an earlier call wrote the files, they are deleted."""
    problem = f"the data read back from {target.folder} have {difference}"
    if is_finished:
        return DataError(f"{problem}: run the command again with --replace")
    return DataError(
        f"{target.format} cannot hold these data: {problem}; the files were deleted; choose another format"
    )
