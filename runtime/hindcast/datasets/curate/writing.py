"""Writes a dataset in any format, exactly once: range by range, and read back at the end."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from hindcast.datasets.content import Content
from hindcast.datasets.curate.target import Target, claim, clear, is_claimed
from hindcast.datasets.curate.verifying import verify
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.watch import NOBODY, Watch
from hindcast.datasets.writer import BlockWriter
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.commits import (
    Commit,
    exported_files,
    file_stem,
    read_commits,
    remove_orphans,
    write_commit,
)
from hindcast.formats.dataset_folder.manifest import FOLDER, Manifest, read_manifest, write_manifest
from hindcast.formats.entries import FileEntry
from hindcast.storage.lease import sole_writer
from hindcast.worker_processes import count_workers, each

_RANGE_BYTES = 32 << 20
_TEXT_GROWS = 4


@dataclass(frozen=True)
class Written:
    """The result of writing.

    Attributes:
        state: AlreadyFinished if nothing was left to write.
        folder: where.
        format: one of `FORMATS`.
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
    watch: Watch = NOBODY,
) -> Written:
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
    begun = time.monotonic()
    check_target(dataset, target)
    state = target.folder.child(FOLDER)
    with sole_writer(state) as guard:
        target = replace(target, folder=target.folder.guarded(guard))
        claim(target, dataset.digest)
        finished = read_manifest(target.folder) is not None
        if not finished:
            _write_ranges(dataset, target, watch)
        commits = read_commits(target.folder).values()
        files = tuple(file for commit in commits for file in commit.files)
        if not finished:
            spec = dataset.spec.to_json()
            manifest = Manifest(**(origin or {}), layout=target.layout, spec=spec, files=files)
            write_manifest(target.folder, manifest)
        content = Content()
        for commit in commits:
            assert commit.content is not None
            content += Content.from_json(commit.content)
        difference = verify(dataset.spec, content, target, watch)
        if difference:
            raise _refusal(target, difference, finished)
    return Written(
        state="AlreadyFinished" if finished else "Succeeded",
        folder=str(target.folder),
        format=target.format,
        episodes=content.episodes,
        timesteps=content.timesteps,
        files=len(files),
        bytes=sum(file.bytes for file in files),
        checksum=content.checksum,
        seconds=time.monotonic() - begun,
    )


class _Range(NamedTuple):
    """Consecutive episodes of a dataset, from the first to the one before `stop`; ranges are numbered from 0."""

    number: int
    first: int
    stop: int


class _Job(NamedTuple):
    """What is written and how; it goes to workers."""

    dataset: Dataset
    target: Target
    writer: str
    check: Callable[[], None]  # in a worker's process: a copy, which never stops anything


class _Made(NamedTuple):
    """A range that is written, but does not count yet."""

    range: _Range
    files: tuple[FileEntry, ...]
    content: Content
    lost_details: bool


def _write_ranges(dataset: Dataset, target: Target, watch: Watch) -> None:
    commits = read_commits(target.folder)
    remove_orphans(target.folder, keep={file.path for commit in commits.values() for file in commit.files})
    ranges = _ranges_of(dataset, target)
    left = [one for one in ranges if one.number not in commits]
    done = sum(commit.timesteps for commit in commits.values())
    watch.progress("Writing", done, dataset.num_steps)
    job = _Job(dataset, target, uuid.uuid4().hex[:8], watch.check)
    workers = count_workers(len(left), dataset.nbytes * len(left) // len(ranges))
    has_lost = False
    for made in each(_make, job, left, workers, watch.check):
        has_lost |= made.lost_details
        commit = Commit(
            range=made.range.number,
            first=made.range.first,
            episodes=made.content.episodes,
            timesteps=made.content.timesteps,
            files=made.files,
            exported=exported_files(target.layout, dataset.spec),
            content=made.content.to_json(),
        )
        write_commit(target.folder, commit)
        done += commit.timesteps
        watch.progress("Writing", done, dataset.num_steps)
    if has_lost:
        watch.note(
            f"{target.format} cannot store episode details (ids of agents and modules, times, custom data), which "
            "were left out: Episodes, MessagePack, Columns and JSON keep them"
        )
    keep = {file.path for commit in read_commits(target.folder).values() for file in commit.files}
    remove_orphans(target.folder, keep)


def _ranges_of(dataset: Dataset, target: Target) -> list[_Range]:
    """All episodes in ranges, of about the size of a file, that begin and end with units and with full files."""
    least = max(_RANGE_BYTES, target.file_bytes // (_TEXT_GROWS if target.is_text else 1))
    step = target.rows_per_file if target.is_row_an_episode else None
    cuts, size, end = [0], 0, 0
    for unit in dataset.units:
        size += unit.nbytes
        end += len(unit.lengths)
        cut = end - end % step if step else end
        if size >= least and cut > cuts[-1]:
            cuts.append(cut)
            size = 0
    if cuts[-1] < dataset.num_episodes:
        cuts.append(dataset.num_episodes)
    return [_Range(number, first, stop) for number, (first, stop) in enumerate(pairwise(cuts))]


def _make(job: _Job, wanted: _Range) -> _Made:
    """Write one range's files."""
    target, content, lost_details = job.target, Content(), False
    dataset = job.dataset.select(np.arange(wanted.first, wanted.stop))
    writer = BlockWriter(
        target.folder,
        dataset.spec,
        file_stem(wanted.number, job.writer),
        max_rows_per_file=target.rows_per_file,
        max_file_bytes=target.file_bytes,
        compression=target.compression,
        layout=target.layout,
        compress_columns=target.compress_columns,
    )
    with writer:
        for unit in dataset.units:
            job.check()
            read = dataset.read(unit)
            block = read if target.keeps_details else read.without_details()
            lost_details |= block.details is not read.details
            content += Content.of(block)
            writer.write(block)
        files = writer.close()
    return _Made(wanted, files, content, lost_details)


def _refusal(target: Target, difference: str, finished: bool) -> DataError:
    """The error for data that are not read back as they were written; what was just written is deleted."""
    what = f"what was read back from {target.folder} has {difference}"
    if finished:
        return DataError(f"{what}: run it again with --replace")
    clear(target.folder)
    return DataError(
        f"{target.format} cannot hold these data: {what}; nothing was kept; choose another format"
    )
