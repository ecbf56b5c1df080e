"""Rows that do not say which episode they belong to: in stored order, cut where an episode ends.

A partition is a run of parts. The episodes that begin in it are its own; the last one may go on in the parts that
follow, and the first rows may belong to an episode of the parts before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hindcast.episodes.block import Block, Bool
from hindcast.foreign.rows import Rows
from hindcast.prepare.job import Job
from hindcast.prepare.ordering import torn
from hindcast.prepare.row_comparison import follows
from hindcast.prepare.steps import Steps


def episodes_of(job: Job, partition: int) -> Iterator[Steps | Block]:
    """What begins in a partition: whole episodes' rows, as one, and blocks.

    Raises:
        DataError: damaged data, or files that differ.
    """
    first, stop = job.bounds[partition], job.bounds[partition + 1]
    own: list[Steps] = []
    before = _last_row(job, first)
    for number, found in _following(job, first):
        if isinstance(found, Block):
            before = None
            if number >= stop:
                break
            yield found
            continue
        heads = _heads(found, before, job)
        before = found.take(np.array([len(found) - 1]))
        if number >= stop and not own:
            break
        if number >= stop and heads.any():
            own.append(found.take(np.arange(int(np.argmax(heads)))))
            break
        if own or heads.any():
            own.append(found if own else found.take(np.arange(int(np.argmax(heads)), len(found))))
    own = [part for part in own if len(part)]
    if own:
        yield _named(Steps.concat(own, job.rules.paths), job)


def _following(job: Job, first: int) -> Iterator[tuple[int, Steps | Block]]:
    for number in range(first, len(job.parts)):
        for found in job.read(number):
            yield number, found if isinstance(found, Block) else _anonymous(found, number)


def _last_row(job: Job, first: int) -> Steps | None:
    """The row before a part; None where there is none, or an episode ends there."""
    for number in reversed(range(first)):
        found = list(job.read(number))
        if found and isinstance(found[-1], Rows):
            return _anonymous(found[-1], number).take(np.array([len(found[-1]) - 1]))
        if found:
            return None
    return None


def _anonymous(rows: Rows, piece: int) -> Steps:
    return Steps.of(replace(rows, eps_id=np.full(len(rows), "", dtype=object)), piece)


def _heads(steps: Steps, before: Steps | None, job: Job) -> Bool:
    """`[R]` rows with which an episode begins."""
    if before is None:
        joined, heads = steps, np.array([True])
    else:
        joined, heads = Steps.concat([before, steps], job.rules.paths), np.zeros(0, dtype=np.bool_)
    count = len(joined)
    cut = joined.ended[:-1].copy()
    if joined.t is not None:
        cut |= np.diff(joined.t) <= 0
        if job.rules.splits:
            cut |= torn(joined, np.arange(count), job.rules)
    elif job.rules.splits:
        cut |= ~follows(joined, np.arange(count - 1), np.arange(1, count))
    return np.append(heads, cut)


def _named(steps: Steps, job: Job) -> Steps:
    """The rows with ids for their episodes: file and row at which each begins."""
    heads = _heads(steps, None, job)
    names = np.array(
        [
            f"{job.rules.paths[piece]}:{row}"
            for piece, row in zip(steps.piece[heads].tolist(), steps.row[heads].tolist(), strict=True)
        ],
        dtype=object,
    )
    return replace(steps, episode=np.cumsum(heads) - 1, names=names)
