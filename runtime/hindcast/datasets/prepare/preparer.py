"""Fills a folder of the cache with prepared data: partition by partition, in this process or on Ray."""

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
from hindcast.formats.dataset_folder.commits import clear_dataset, committed_ranges
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.formats.spec import DataSpec
from hindcast.storage.lease import LOCK
from hindcast.storage.location import Location

_HERE_BYTES: Final = 256 << 20
_ORDER_FILE: Final = "partitioning.json"
_OLD_ORDER_FILE: Final = "dealing.json"
"""Its name in caches that development versions began."""
_IN_ORDER: Final = "inOrder"


class Work(NamedTuple):
    """What is prepared, and what a user should know about how it was found."""

    parts: list[Part]
    spec: DataSpec
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Preparer:
    """Prepares one input.

    Rows are taken in stored order, which reads and writes them once, unless the first part shows that the rows of an
    episode are scattered. If that turns out later, what was made is discarded, and rows are grouped by episode.
    """

    reading: Reading
    hooks: Hooks
    ray_options: Mapping[str, Any]

    def prepare(self, folder: Location, work: Work) -> None:
        """Fill a folder of the cache, or resume filling it."""
        self.hooks.accept(work.spec)
        job = self._job(folder, work)
        if job.is_in_order and job.rules.is_grouped and not self._is_made_in_order(job):
            _discard_order(folder)
            job = replace(job, is_in_order=False)
        self._make_partitions(job)
        finish(job, work.notes)

    def _is_made_in_order(self, job: Job) -> bool:
        """Make partitions of rows in stored order; whether the rows of each episode were adjacent."""
        try:
            self._make_partitions(job)
        except DataError:  # reported once the rows are grouped by episode
            return False
        return not has_split_episodes(job.folder, job.num_partitions)

    def _make_partitions(self, job: Job) -> None:
        if job.nbytes < _HERE_BYTES:
            prepare_in_process(job, self._report)
        else:
            from hindcast.datasets.prepare.ray_data import prepare_on_ray

            prepare_on_ray(job, self._report, self.ray_options)
        if left := missing_partitions(job):
            raise RuntimeError(f"partitions {left} of {job.folder} were not made")

    def _report(self, done: int, total: int) -> None:
        self.hooks.check()
        self.hooks.progress("Preparing", done, total)

    def _job(self, folder: Location, work: Work) -> Job:
        options = self.reading.options
        first, begun = read_first_rows(work.parts)
        rules = Rules(
            spec=self.reading.prepare,
            paths=[part.path for part in work.parts],
            is_filtered=bool(options.filter),
            should_zero_final_obs=options.ignore_final_observation,
            is_grouped=first is not None,
        )
        spec, normalized = work.spec, self.reading.actions_normalized
        if normalized is not None:
            spec = replace(spec, normalized_actions=normalized)
        in_order = first is None or _begins_in_order(folder, first.find_scattered_episode() is None)
        return Job(folder, work.parts, rules, spec, in_order, begun)


def prepare_in_process(job: Job, progress: Progress) -> None:
    """Make all missing partitions in this process.

    Raises:
        DataError: rows that do not form complete episodes under the rules.
        StorageError: it cannot be written.
    """
    todo = missing_partitions(job)
    if not todo:
        return
    if job.is_in_order:
        progress(0, len(todo))
        for done, _ in enumerate(make_ordered_partitions(job, todo), 1):
            progress(done, len(todo))
        return
    total = len(job.parts) + len(todo)
    found: dict[int, list[Steps | Block]] = {number: [] for number in todo}
    for number in range(len(job.parts)):
        progress(number, total)
        for partition, part in job.scatter(number):
            if partition in found:
                found[partition].append(part)
    for done, number in enumerate(todo):
        progress(len(job.parts) + done, total)
        make_partition(job, number, found.pop(number))
    progress(total, total)


def _begins_in_order(folder: Location, may_be: bool) -> bool:
    """Whether rows are taken in stored order; recorded in the folder before anything is made, and kept on resuming."""
    for name in (_ORDER_FILE, _OLD_ORDER_FILE):
        location = folder.child(FOLDER, name)
        if location.exists():
            return bool(orjson.loads(location.read_bytes())[_IN_ORDER])
    if committed_ranges(folder):  # by a version that always grouped rows by episode
        return False
    _record_order(folder, in_order=may_be)
    return may_be


def _discard_order(folder: Location) -> None:
    """Delete what was made of rows in stored order."""
    # The old file stays too: without it, a process that is killed here would leave rows in stored order that the next
    # one takes for grouped ones.
    clear_dataset(folder, keep=(LOCK, _ORDER_FILE, _OLD_ORDER_FILE))
    _record_order(folder, in_order=False)


def _record_order(folder: Location, *, in_order: bool) -> None:
    folder.child(FOLDER, _ORDER_FILE).write_bytes(orjson.dumps({_IN_ORDER: in_order}))
