"""Rows and episodes that were stored several times: told by their content, where no timestep tells."""

from __future__ import annotations

import numpy as np

from hindcast.episodes.block import I64, Bool
from hindcast.prepare.row_comparison import hashes, mix, same_rows
from hindcast.prepare.steps import Steps


def repeated_runs(steps: Steps, index: I64, heads: Bool) -> Bool:
    """`[K]` rows of runs that hold the same as an earlier run of their episode, row for row.

    Args:
        steps: rows of episodes.
        index: `[K]` rows of the steps; those of an episode stand together.
        heads: `[K]` where a run begins.
    """
    starts = np.flatnonzero(heads)
    episode = steps.episode[index[starts]]
    several = np.isin(episode, episode[1:][episode[1:] == episode[:-1]])
    repeated = np.zeros(len(index), dtype=np.bool_)
    if not several.any():
        return repeated
    stops = np.append(starts[1:], len(index))
    of_run = np.cumsum(heads) - 1
    rows = np.flatnonzero(several[of_run])
    content = np.zeros(len(index), dtype=np.uint64)
    place = (np.arange(len(index)) - starts[of_run])[rows].astype(np.uint64)
    content[rows] = mix(_contents(steps, index[rows]) ^ mix(place))
    digests = np.add.reduceat(content, starts)
    first: dict[tuple[int, int, int], slice] = {}
    for run in np.flatnonzero(several).tolist():
        own = slice(starts[run], stops[run])
        key = (int(episode[run]), own.stop - own.start, int(digests[run]))
        known = first.setdefault(key, own)
        repeated[own] = known is not own and same_rows(steps, index[known], index[own]).all()
    return repeated


def distinct_rows(steps: Steps, rows: I64) -> I64:
    """The rows, without those that hold the same as an earlier one of their episode."""
    if not len(rows):
        return rows
    content = mix(_contents(steps, rows) ^ mix(steps.episode[rows].astype(np.uint64)))
    order = np.argsort(content, kind="stable")
    ordered = rows[order]
    before, after = ordered[:-1], ordered[1:]
    twice = content[order][1:] == content[order][:-1]
    twice[twice] = (steps.episode[before] == steps.episode[after])[twice] & same_rows(
        steps, before[twice], after[twice]
    )
    return np.sort(ordered[np.append(True, ~twice)])


def _contents(steps: Steps, rows: I64) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    flags = steps.terminated[rows] * np.uint8(1) + steps.truncated[rows] * np.uint8(2)
    return hashes([*(column[rows] for column in steps.columns.values()), flags])
