"""Cut rows in stored order into episodes, by their ids or, without ids, by their flags, `t` and observations.

A partition has adjacent parts, and contains the episodes that begin in them. The last of these episodes may continue in
the following parts, and the first rows of its parts may belong to an episode of an earlier partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hindcast.datasets.assembly.autoreset import find_reset_rows
from hindcast.datasets.assembly.ordering import find_breaks_between_files, find_file_changes
from hindcast.datasets.assembly.row_comparison import follows, has_next_obs
from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.prepare.job import Job
from hindcast.episodes.block import Block, Bool
from hindcast.errors import DataError


def cut_partitions(
    job: Job, first_partition: int, stop_partition: int
) -> Iterator[tuple[int, list[Steps | Block]]]:
    """Yield the number and the contents of adjacent partitions: rows of complete episodes, and blocks of episodes.

    Their parts are read once, as a stream. In addition, the part before them is read for its last row, and the parts
    after them until the last episode ends.

    Args:
        job: the preparation.
        first_partition: number of the first partition.
        stop_partition: number of the last partition, plus one.

    Raises:
        DataError: data are damaged, or files differ.
    """
    partition, is_episode_open = first_partition, False
    contents: list[Steps | Block] = []
    previous_row = _read_row_before(job, job.bounds[first_partition])
    for part_index in range(job.bounds[first_partition], len(job.parts)):
        if part_index >= job.bounds[stop_partition] and not is_episode_open:
            break
        for chunk in job.read(part_index):
            remaining: Steps | Block
            if isinstance(chunk, Block):
                remaining, previous_row = chunk, None
            else:
                steps = Steps.from_rows(chunk.with_ids(), part_index)
                first_start = _find_first_start(steps, previous_row, job)
                previous_row = steps.take(np.array([-1]))
                if is_episode_open and first_start:
                    contents.append(steps.take(slice(first_start)))
                if first_start == len(steps):
                    continue
                remaining = steps.take(slice(first_start, None))
            while part_index >= job.bounds[partition + 1]:
                yield partition, contents
                partition, contents = partition + 1, []
                if partition == stop_partition:
                    return
            contents.append(remaining)
            is_episode_open = isinstance(remaining, Steps)
    for remaining_partition in range(partition, stop_partition):
        yield remaining_partition, contents
        contents = []


def assign_episode_ids(steps: Steps, job: Job) -> Steps:
    """Give ids to the episodes of a partition from `cut_partitions`, or check the ids that they have.

    Raises:
        DataError: the rows have ids, and the rows of an id are not adjacent.
    """
    if not job.rules.is_grouped:
        return _name_episodes(steps, job)
    if (scattered_id := steps.find_scattered_episode()) is not None:
        raise DataError(f"the rows of episode {scattered_id} are not adjacent")
    return steps


def _read_row_before(job: Job, first_part: int) -> Steps | None:
    """Return the row before a part's first row; None if there is no such row, or if a complete episode precedes it."""
    # Earlier parts may be empty. The deque keeps only the last chunk of a part while the part is read.
    for part_index in reversed(range(first_part)):
        for chunk in deque(job.read(part_index), maxlen=1):
            return (
                None
                if isinstance(chunk, Block)
                else Steps.from_rows(chunk.with_ids(), part_index).take(np.array([-1]))
            )
    return None


def _find_first_start(steps: Steps, previous_row: Steps | None, job: Job) -> int:
    """Return the index of the first row that may begin a partition; `len(steps)` if no row begins an episode."""
    is_start = _find_episode_starts(steps, previous_row, job)
    if job.rules.has_reset_rows and not job.rules.is_grouped:
        # A reset row can be told from an episode's first step only by the row before it, so it must be in the partition
        # of that row.
        is_start &= ~_find_reset_rows(steps, previous_row, job)
    episode_starts = np.flatnonzero(is_start)
    return int(episode_starts[0]) if len(episode_starts) else len(steps)


def _find_episode_starts(steps: Steps, previous_row: Steps | None, job: Job) -> Bool:
    """Return `[R]` True for the first rows of episodes; without a previous row, the first row is one of them."""
    if job.rules.is_grouped:
        is_continued = (
            previous_row is not None
            and previous_row.episode_ids[previous_row.episode[0]] == steps.episode_ids[steps.episode[0]]
        )
        return np.append(not is_continued, np.diff(steps.episode) != 0)
    if previous_row is None:
        all_steps, first_is_start = steps, np.array([True])
    else:
        all_steps = Steps.concat([previous_row, steps], job.rules.paths)
        first_is_start = np.zeros(0, dtype=np.bool_)
    count = len(all_steps)
    is_start = all_steps.is_end[:-1].copy()
    is_start |= _find_file_ends(all_steps, job)
    if all_steps.t is not None:
        is_start |= all_steps.t[1:] <= all_steps.t[:-1]
        if job.rules.should_split_gaps:
            is_start |= find_breaks_between_files(all_steps, np.arange(count), job.rules)
    elif job.rules.should_split_gaps:
        is_start |= ~follows(all_steps, np.arange(count - 1), np.arange(1, count))
    return np.append(first_is_start, is_start)


def _find_reset_rows(steps: Steps, previous_row: Steps | None, job: Job) -> Bool:
    """Return `[R]` True for rows without ids that only reset the environment."""
    if previous_row is None:
        return find_reset_rows(steps, is_grouped=False)
    return find_reset_rows(Steps.concat([previous_row, steps], job.rules.paths), is_grouped=False)[1:]


def _find_file_ends(steps: Steps, job: Job) -> Bool:
    """Return `[R - 1]` True for pairs of rows in different files, unless the second row may continue the episode.

    If the rows have `t`, all pairs may: the caller compares timesteps.
    """
    is_new_file = find_file_changes(steps, np.arange(len(steps)), job.rules)
    if job.rules.spec.episodes == "File":
        return is_new_file
    if steps.t is not None or not is_new_file.any():
        return np.zeros(len(is_new_file), dtype=np.bool_)
    if not has_next_obs(steps):
        return is_new_file & (not job.rules.has_end_flags)
    pairs = np.flatnonzero(is_new_file)
    is_new_file[pairs] = steps.next_missing[pairs] | ~follows(steps, pairs, pairs + 1)
    return is_new_file


def _name_episodes(steps: Steps, job: Job) -> Steps:
    """Name episodes by the file and the row at which they begin."""
    is_start = _find_episode_starts(steps, None, job)
    episode_ids = np.array(
        [
            f"{job.rules.paths[part]}:{row}"
            for part, row in zip(steps.part[is_start].tolist(), steps.row[is_start].tolist(), strict=True)
        ],
        dtype=object,
    )
    return replace(steps, episode=np.cumsum(is_start) - 1, episode_ids=episode_ids)
