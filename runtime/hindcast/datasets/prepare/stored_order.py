"""Cut rows in stored order into episodes, by their ids or, without ids, by their ends.

A partition is a run of parts and contains the episodes that begin in them. Its last episode may continue in the
following parts, and its first rows may belong to an episode of the previous partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hindcast.datasets.assembly.ordering import breaks_between_files
from hindcast.datasets.assembly.row_comparison import follows
from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.prepare.job import Job
from hindcast.episodes.block import Block, Bool
from hindcast.errors import DataError
from hindcast.formats.rows import Rows


def cut_partitions(job: Job, first: int, stop: int) -> Iterator[tuple[int, list[Steps | Block]]]:
    """Yield the number and the content of adjacent partitions: rows of complete episodes, and blocks.

    Their parts are read once, as a stream. In addition, the part before them is read for its last row, and the parts
    after them as far as the last episode continues.

    Args:
        job: the preparation.
        first: number of the first partition.
        stop: number of the partition after the last.

    Raises:
        DataError: data are damaged, or files differ.
    """
    number, is_open = first, False
    contents: list[Steps | Block] = []
    row_before = _row_before(job, job.bounds[first])
    for part in range(job.bounds[first], len(job.parts)):
        if part >= job.bounds[stop] and not is_open:
            break
        for chunk in job.read(part):
            rest: Steps | Block
            if isinstance(chunk, Block):
                rest, row_before = chunk, None
            else:
                steps = _to_steps(job, chunk, part)
                head_rows = np.flatnonzero(_find_heads(steps, row_before, job))
                head = int(head_rows[0]) if len(head_rows) else len(steps)
                row_before = steps.take(np.array([-1]))
                if is_open and head:
                    contents.append(steps.take(slice(head)))
                if head == len(steps):
                    continue
                rest = steps.take(slice(head, None))
            while part >= job.bounds[number + 1]:
                yield number, contents
                number, contents = number + 1, []
                if number == stop:
                    return
            contents.append(rest)
            is_open = isinstance(rest, Steps)
    for last in range(number, stop):
        yield last, contents
        contents = []


def assign_episode_ids(steps: Steps, job: Job) -> Steps:
    """Complete the rows of a partition from `cut_partitions` with the ids of their episodes.

    Raises:
        DataError: the rows of an id are not adjacent.
    """
    if not job.rules.is_grouped:
        return _name_episodes(steps, job)
    if (scattered_id := steps.find_scattered_episode()) is not None:
        raise DataError(f"the rows of episode {scattered_id} are not adjacent")
    return steps


def _row_before(job: Job, first: int) -> Steps | None:
    """Return the row before a part's first row; None if there is no row, or a complete episode."""
    # Of a part only the last rows are kept while it is read.
    for part in reversed(range(first)):
        for chunk in deque(job.read(part), maxlen=1):
            return None if isinstance(chunk, Block) else _to_steps(job, chunk, part).take(np.array([-1]))
    return None


def _to_steps(job: Job, rows: Rows, part: int) -> Steps:
    if not job.rules.is_grouped:
        rows = replace(rows, eps_id=np.full(len(rows), "", dtype=object))
    return Steps.from_rows(rows, part)


def _find_heads(steps: Steps, row_before: Steps | None, job: Job) -> Bool:
    """Return `[R]` True for the first rows of episodes."""
    if job.rules.is_grouped:
        continues = (
            row_before is not None
            and row_before.episode_ids[row_before.episode[0]] == steps.episode_ids[steps.episode[0]]
        )
        return np.append(not continues, np.diff(steps.episode) != 0)
    if row_before is None:
        all_steps, first_head = steps, np.array([True])
    else:
        all_steps = Steps.concat([row_before, steps], job.rules.paths)
        first_head = np.zeros(0, dtype=np.bool_)
    count = len(all_steps)
    is_cut = all_steps.is_end[:-1].copy()
    if all_steps.t is not None:
        is_cut |= all_steps.t[1:] <= all_steps.t[:-1]
        if job.rules.should_split_gaps:
            is_cut |= breaks_between_files(all_steps, np.arange(count), job.rules)
    elif job.rules.should_split_gaps:
        is_cut |= ~follows(all_steps, np.arange(count - 1), np.arange(1, count))
    return np.append(first_head, is_cut)


def _name_episodes(steps: Steps, job: Job) -> Steps:
    """Name episodes by the file and the row at which they begin."""
    is_head = _find_heads(steps, None, job)
    episode_ids = np.array(
        [
            f"{job.rules.paths[piece]}:{row}"
            for piece, row in zip(steps.piece[is_head].tolist(), steps.row[is_head].tolist(), strict=True)
        ],
        dtype=object,
    )
    return replace(steps, episode=np.cumsum(is_head) - 1, episode_ids=episode_ids)
