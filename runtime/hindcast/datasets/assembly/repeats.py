"""Rows and episodes that were stored several times: told by their content, where no timestep tells."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from hindcast.datasets.assembly.row_comparison import hashes, mix, same_rows, with_flags
from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.content import canonical, leaf_numbers
from hindcast.datasets.repeats import find_repeats
from hindcast.episodes.block import I64, Bool


def repeated_runs(steps: Steps, index: I64, heads: Bool) -> Bool:
    """`[K]` rows of runs that hold the same as an earlier run of their episode, row for row.

    Args:
        steps: rows of episodes.
        index: `[K]` rows of the steps; those of an episode stand together.
        heads: `[K]` where a run begins.
    """
    starts = np.flatnonzero(heads)
    stops = np.append(starts[1:], len(index))

    def contents(several: Sequence[int]) -> Mapping[int, Hashable]:
        runs = [index[starts[run] : stops[run]] for run in several]
        return dict(zip(several, _contents(steps, runs), strict=True))

    repeats = find_repeats(dict(enumerate(steps.episode[index[starts]].tolist())), contents)
    repeated = np.zeros(len(starts), dtype=np.bool_)
    repeated[repeats.same] = True
    return repeated[np.cumsum(heads) - 1]


def distinct_rows(steps: Steps, rows: I64) -> I64:
    """The rows, without those that hold the same as an earlier one of their episode."""
    if not len(rows):
        return rows
    held = hashes([canonical(name, column[rows]) for name, column in with_flags(steps).items()])
    content = mix(held ^ mix(steps.episode[rows].astype(np.uint64)))
    order = np.argsort(content, kind="stable")
    ordered = rows[order]
    before, after = ordered[:-1], ordered[1:]
    twice = content[order][1:] == content[order][:-1]
    twice[twice] = (steps.episode[before] == steps.episode[after])[twice] & same_rows(
        steps, before[twice], after[twice]
    )
    return np.sort(ordered[np.append(True, ~twice)])


def _contents(steps: Steps, runs: Sequence[I64]) -> list[Hashable]:
    """What runs of rows hold, wherever they stand."""
    index = np.concatenate(runs)
    stops = np.cumsum([len(run) for run in runs])
    bounds = [("", stop - len(run), stop) for run, stop in zip(runs, stops.tolist(), strict=True)]
    columns = with_flags(steps).items()
    return list(zip(*(leaf_numbers(name, column[index], bounds) for name, column in columns), strict=True))
