"""Prepare data in a folder of the cache, partition by partition, in this process or on Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import orjson

from hindcast.datasets.assembly.rules import Rules
from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.hooks import Hooks
from hindcast.datasets.prepare.job import Job, Part, Progress, read_first_rows
from hindcast.datasets.prepare.partitions import (
    finish,
    has_split_episodes,
    make_ordered_partitions,
    make_partition,
    missing_partitions,
)
from hindcast.datasets.prepare.reading import Reading
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.commits import clear_dataset
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.formats.spec import DataSpec
from hindcast.storage.lease import LOCK
from hindcast.storage.location import Location

_MAX_LOCAL_BYTES: Final = 256 << 20
_ORDER_FILE: Final = "partitioning.json"
_IN_ORDER: Final = "inOrder"


class Work(NamedTuple):
    """The parts to prepare, their spaces and environment, and notes for the user about the files."""

    parts: list[Part]
    spec: DataSpec
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Preparer:
    """The preparation of one input.

    Rows are processed in stored order, which reads and writes them once, unless the first part shows that the rows of
    an episode are scattered. If a later part does, the partitions are discarded, and rows are grouped by episode.
    """

    reading: Reading
    hooks: Hooks
    ray_options: Mapping[str, Any]

    def prepare(self, folder: Location, work: Work) -> None:
        """Prepare the data in a folder of the cache, or resume an interrupted preparation."""
        self.hooks.accept(work.spec)
        job = self._make_job(folder, work)
        if job.is_in_order and job.rules.is_grouped and not self._prepare_in_stored_order(job):
            _discard_partitions(folder)
            job = replace(job, is_in_order=False)
        self._make_partitions(job)
        finish(job, work.notes)

    def _prepare_in_stored_order(self, job: Job) -> bool:
        """Make partitions of rows in stored order; return False if the rows of an episode were not adjacent."""
        try:
            self._make_partitions(job)
        except DataError:  # if it is not due to the order, grouping rows by episode raises it again
            return False
        return not has_split_episodes(job.folder, job.num_partitions)

    def _make_partitions(self, job: Job) -> None:
        if job.nbytes < _MAX_LOCAL_BYTES:
            prepare_in_process(job, self._report)
        else:
            # Ray is slow to import, and small data do not need it.
            from hindcast.datasets.prepare.ray_data import prepare_on_ray

            prepare_on_ray(job, self._report, self.ray_options)
        if unmade := missing_partitions(job):
            raise RuntimeError(f"partitions {unmade} of {job.folder} were not prepared")

    def _report(self, done: int, total: int) -> None:
        self.hooks.check()
        self.hooks.progress("Preparing", done, total)

    def _make_job(self, folder: Location, work: Work) -> Job:
        options = self.reading.options
        first_rows, open_parts = read_first_rows(work.parts)
        rules = Rules(
            spec=self.reading.prepare,
            paths=[part.path for part in work.parts],
            is_filtered=bool(options.filter),
            should_zero_final_obs=options.ignore_final_observation,
            is_grouped=first_rows is not None,
        )
        spec, normalized_actions = work.spec, self.reading.actions_normalized
        if normalized_actions is not None:
            spec = replace(spec, normalized_actions=normalized_actions)
        in_order = first_rows is None or _should_keep_stored_order(
            folder, first_rows.find_scattered_episode() is None
        )
        return Job(folder, work.parts, rules, spec, in_order, open_parts)


def prepare_in_process(job: Job, progress: Progress) -> None:
    """Make all missing partitions in this process.

    Raises:
        DataError: rows do not form complete episodes under the rules.
        StorageError: the folder cannot be written.
    """
    todo = missing_partitions(job)
    if not todo:
        return
    if job.is_in_order:
        progress(0, len(todo))
        for num_done, _ in enumerate(make_ordered_partitions(job, todo), 1):
            progress(num_done, len(todo))
        return
    total = len(job.parts) + len(todo)
    contents: dict[int, list[Steps | Block]] = {number: [] for number in todo}
    for number in range(len(job.parts)):
        progress(number, total)
        for partition, part in job.scatter(number):
            if partition in contents:
                contents[partition].append(part)
    for num_done, number in enumerate(todo):
        progress(len(job.parts) + num_done, total)
        make_partition(job, number, contents.pop(number))
    progress(total, total)


def _should_keep_stored_order(folder: Location, is_in_order: bool) -> bool:
    """Decide whether rows are processed in stored order, and record it, or return the recorded decision."""
    # Recorded before the first partition, since a resumed preparation must make the others in the same way.
    order_file = folder.child(FOLDER, _ORDER_FILE)
    if order_file.exists():
        return bool(orjson.loads(order_file.read_bytes())[_IN_ORDER])
    _record_order(folder, in_order=is_in_order)
    return is_in_order


def _discard_partitions(folder: Location) -> None:
    """Delete the partitions made in stored order."""
    # The order's file is kept: if it were deleted and this process killed, the next one would take the remaining
    # partitions in stored order for grouped ones.
    clear_dataset(folder, keep=(LOCK, _ORDER_FILE))
    _record_order(folder, in_order=False)


def _record_order(folder: Location, *, in_order: bool) -> None:
    folder.child(FOLDER, _ORDER_FILE).write_bytes(orjson.dumps({_IN_ORDER: in_order}))
