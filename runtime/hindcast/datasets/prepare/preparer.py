"""Prepare data in a folder of the cache, partition by partition, in this process or on Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from hindcast.datasets.assembly.autoreset import has_reset_rows
from hindcast.datasets.assembly.row_comparison import has_next_obs
from hindcast.datasets.assembly.rules import Rules
from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.hooks import Hooks
from hindcast.datasets.prepare.job import Job, Part, Progress, read_first_rows
from hindcast.datasets.prepare.partitions import (
    find_missing_partitions,
    finish,
    has_split_episodes,
    make_ordered_partitions,
    make_partition,
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


class PreparationSource(NamedTuple):
    """The data to prepare.

    Attributes:
        parts: the parts to read, in stored order.
        spec: spaces and environment, as far as they are known; no leaves.
        notes: notes for the user about the files.
        names: leaf -> the names of its elements, of complete episodes; rows have their own.
    """

    parts: list[Part]
    spec: DataSpec
    notes: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True)
class Preparer:
    """The preparation of the data of one reading.

    Rows are processed in stored order, which reads and writes them once, unless the first rows show that the rows of
    an episode are not adjacent. If later rows show this, the partitions are discarded, and rows are grouped by episode.

    Attributes:
        reading: what to read, and how.
        hooks: notified of progress; `check` may stop the preparation.
        ray_options: Ray's options for the tasks, such as `label_selector`.
    """

    reading: Reading
    hooks: Hooks
    ray_options: Mapping[str, Any]

    def prepare(self, folder: Location, source: PreparationSource) -> None:
        """Prepare the data in a folder of the cache, or resume an interrupted preparation.

        The caller holds the folder's lock.

        Raises:
            DataError: data are damaged, rows do not form complete episodes under the rules, or there are no episodes.
            StorageError: the folder cannot be written.
        """
        job = self._make_job(folder, source)
        if job.is_in_order and job.rules.is_grouped and not self._try_to_prepare_in_stored_order(job):
            _discard_partitions(folder)
            job = replace(job, is_in_order=False)
        # Makes nothing if `_try_to_prepare_in_stored_order` has made all partitions.
        self._make_partitions(job)
        finish(job, source.notes)

    def _try_to_prepare_in_stored_order(self, job: Job) -> bool:
        """Make partitions of rows in stored order; return False if they cannot be used.

        The rows of an episode were not adjacent, or there was an error, which may follow from that.
        """
        try:
            self._make_partitions(job)
        except DataError:
            # An error that does not follow from the order is raised again when rows are grouped.
            return False
        return not has_split_episodes(job.folder, job.num_partitions)

    def _make_partitions(self, job: Job) -> None:
        if job.nbytes < _MAX_LOCAL_BYTES:
            prepare_in_process(job, self._report)
        else:
            # Ray is slow to import, and small data do not need it.
            from hindcast.datasets.prepare.ray_tasks import prepare_on_ray

            prepare_on_ray(job, self._report, self.ray_options)
        if missing_partitions := find_missing_partitions(job):
            raise RuntimeError(f"partitions {missing_partitions} of {job.folder} were not prepared")

    def _report(self, done: int, total: int) -> None:
        self.hooks.check()
        self.hooks.progress("Preparing", done, total)

    def _make_job(self, folder: Location, source: PreparationSource) -> Job:
        options = self.reading.options
        first_rows, open_parts = read_first_rows(source.parts)
        first_steps = None if first_rows is None else Steps.from_rows(first_rows.with_ids(), 0)
        # Only rows without ids, t and next observations in several files depend on flags.
        depends_on_flags = (
            first_rows is not None
            and first_steps is not None
            and first_rows.eps_id is None
            and first_rows.t is None
            and not has_next_obs(first_steps)
            and len({part.path for part in source.parts}) > 1
        )
        rules = Rules(
            spec=self.reading.prepare,
            paths=[part.path for part in source.parts],
            is_filtered=bool(options.filter),
            should_repeat_final_obs=options.ignore_final_observation,
            is_grouped=first_rows is not None and first_rows.eps_id is not None,
            has_end_flags=not depends_on_flags
            or first_steps is None
            or _has_end_flags(first_steps, source.parts),
            has_reset_rows=first_steps is not None and not options.filter and has_reset_rows(first_steps),
            time_unit=1.0 if options.time is None else options.time.unit_size,
            observes_time=options.time is not None and options.time.observe,
            names=source.names if first_rows is None else first_rows.names,
        )
        spec, normalized_actions = source.spec, self.reading.actions_normalized
        if normalized_actions is not None:
            spec = replace(spec, normalized_actions=normalized_actions)
        is_in_order = (
            not rules.is_grouped
            or first_steps is None
            or _read_or_record_order(folder, first_steps.find_scattered_episode() is None)
        )
        return Job(folder, source.parts, rules, spec, is_in_order, open_parts)


def prepare_in_process(job: Job, progress: Progress) -> None:
    """Make all missing partitions in this process.

    Args:
        job: the preparation.
        progress: called before each part is read and after each partition.

    Raises:
        DataError: rows do not form complete episodes under the rules.
        StorageError: the folder cannot be written.
    """
    missing_partitions = find_missing_partitions(job)
    if not missing_partitions:
        return
    total = len(job.parts) + len(missing_partitions)
    if job.is_in_order:
        num_made = 0
        job = replace(job, on_read=lambda part_index: progress(part_index + num_made, total))
        for num_made, _ in enumerate(make_ordered_partitions(job, missing_partitions), 1):
            # All parts before the next partition have been read, or belong to partitions made earlier.
            progress(job.bounds[missing_partitions[num_made - 1] + 1] + num_made, total)
        return
    contents: dict[int, list[Steps | Block]] = {number: [] for number in missing_partitions}
    for part_index in range(len(job.parts)):
        progress(part_index, total)
        for number, chunk in job.scatter([part_index]):
            if number in contents:
                contents[number].append(chunk)
    for num_done, number in enumerate(missing_partitions):
        progress(len(job.parts) + num_done, total)
        make_partition(job, number, contents.pop(number))
    progress(total, total)


def _has_end_flags(first_steps: Steps, parts: Sequence[Part]) -> bool:
    """Return whether a flag ends any episode; rows are read until one does."""
    if first_steps.is_end.any():
        return True
    chunks = (chunk for part in parts for chunk in part.read())
    return any(isinstance(chunk, Block) or (chunk.terminated | chunk.truncated).any() for chunk in chunks)


def _read_or_record_order(folder: Location, is_in_order: bool) -> bool:
    """Return the recorded decision whether to process rows in stored order; record `is_in_order` if there is none."""
    # Recorded before the first partition, since a resumed preparation must make all other partitions in the same way.
    order_file = folder.child(FOLDER, _ORDER_FILE)
    if order_file.exists():
        return bool(orjson.loads(order_file.read_bytes())[_IN_ORDER])
    _record_order(folder, is_in_order=is_in_order)
    return is_in_order


def _discard_partitions(folder: Location) -> None:
    """Delete the partitions made in stored order."""
    # The recorded decision is kept until it is overwritten: it must be true as long as one of the partitions remains.
    clear_dataset(folder, keep=(LOCK, _ORDER_FILE))
    _record_order(folder, is_in_order=False)


def _record_order(folder: Location, *, is_in_order: bool) -> None:
    folder.child(FOLDER, _ORDER_FILE).write_bytes(orjson.dumps({_IN_ORDER: is_in_order}))
