"""Rows in stored order, cut into episodes where their ids or, without ids, their ends say so.

A partition is a run of parts. The episodes that begin in it are its own; the last one may continue in the parts that
follow, and the first rows may belong to an episode of the parts before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hindcast.datasets.assembly.ordering import torn
from hindcast.datasets.assembly.row_comparison import follows
from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.prepare.job import Job
from hindcast.episodes.block import Block, Bool
from hindcast.errors import DataError
from hindcast.formats.rows import Rows


class Parts:
    """Reads a job's parts. The last one is kept, since a partition ends where the next one begins."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._number = -1
        self._found: list[Steps | Block] = []
        self._last: dict[int, list[Steps | None]] = {}

    def read(self, number: int) -> list[Steps | Block]:
        """What a part holds, in order.

        Raises:
            DataError: damaged data.
        """
        if number != self._number:
            self._found = [
                found if isinstance(found, Block) else self._steps(found, number)
                for found in self.job.read(number)
            ]
            self._number = number
            self._last[number] = _last_row(self._found)
        return self._found

    def row_before(self, number: int) -> Steps | None:
        """The row before a part's first; None if there is none, or an episode ends there."""
        for earlier in reversed(range(number)):
            if earlier not in self._last:
                self.read(earlier)
            for last in self._last[earlier]:
                return last
        return None

    def _steps(self, rows: Rows, number: int) -> Steps:
        if not self.job.rules.is_grouped:
            rows = replace(rows, eps_id=np.full(len(rows), "", dtype=object))
        return Steps.of(rows, number)


def episodes_in_order(parts: Parts, partition: int) -> Iterator[Steps | Block]:
    """What begins in a partition: complete episodes' rows, as one, and blocks.

    Raises:
        DataError: damaged data, files that differ, or an id whose rows are not adjacent.
    """
    job = parts.job
    first, stop = job.bounds[partition], job.bounds[partition + 1]
    own: list[Steps] = []
    before = parts.row_before(first)
    for number, found in _from(parts, first):
        if isinstance(found, Block):
            before = None
            if number >= stop:
                break
            yield found
            continue
        if number >= stop and not own:
            break
        heads = _heads(found, before, job)
        before = found.take(np.array([len(found) - 1]))
        if number >= stop and heads.any():
            own.append(found.take(np.arange(int(np.argmax(heads)))))
            break
        if own or heads.any():
            own.append(found if own else found.take(np.arange(int(np.argmax(heads)), len(found))))
    own = [part for part in own if len(part)]
    if own:
        together = Steps.concat(own, job.rules.paths)
        yield _adjacent(together) if job.rules.is_grouped else _named(together, job)


def _from(parts: Parts, first: int) -> Iterator[tuple[int, Steps | Block]]:
    for number in range(first, len(parts.job.parts)):
        for found in parts.read(number):
            yield number, found


def _last_row(found: list[Steps | Block]) -> list[Steps | None]:
    """The last row of a part; None if it ends with complete episodes; nothing of an empty part."""
    return [
        None if isinstance(last, Block) else last.take(np.array([len(last) - 1])).compact()
        for last in found[-1:]
    ]


def _heads(steps: Steps, before: Steps | None, job: Job) -> Bool:
    """`[R]` rows with which an episode begins."""
    if job.rules.is_grouped:
        continues = before is not None and before.names[before.episode[0]] == steps.names[steps.episode[0]]
        return np.append(not continues, np.diff(steps.episode) != 0)
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


def _adjacent(steps: Steps) -> Steps:
    """The rows, once it is certain that those of each id are adjacent.

    Raises:
        DataError: they do not.
    """
    if (apart := steps.torn_apart()) is not None:
        raise DataError(f"the rows of episode {apart} are not adjacent")
    return steps


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
