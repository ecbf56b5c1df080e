"""Rows of vector environments that only reset, as Gymnasium writes them since 1.0 (`AutoresetMode.NEXT_STEP`).

After the row that ends an episode comes a row with the episode's last observation, whose action is ignored, whose
reward is 0, and whose next observation is the first one of the next episode.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hindcast.datasets.assembly.row_comparison import follows, has_next_obs
from hindcast.datasets.assembly.steps import Steps
from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import Columns

_MAX_CHANCE: Final = 0.01
"""Rows after an end count as resets only if the probability that all of them have reward 0 by chance is lower."""


def has_reset_rows(steps: Steps) -> bool:
    """Return whether every row after an episode's end only resets the environment.

    Args:
        steps: some of the data's rows, in stored order. Rows with one id come from one environment; without ids, all
            rows do.
    """
    rewards = steps.columns.get(Columns.REWARDS)
    if steps.t is not None or rewards is None or rewards.ndim > 1 or not has_next_obs(steps):
        return False
    index = np.argsort(steps.episode, kind="stable")
    rows = index[1:][_find_ends(steps, index)]
    if not len(rows) or not find_reset_rows(steps, is_grouped=True)[rows].all():
        return False
    # A reset leads to another observation: if one does not, the observations show nothing, since all may be equal. If
    # other rewards are 0, too, the rows may be ordinary ones, in the middle of a longer episode that was cut.
    other_rewards = np.delete(rewards, rows)
    return (
        not follows(steps, rows, rows).any() and float((other_rewards == 0).mean()) ** len(rows) < _MAX_CHANCE
    )


def find_reset_rows(steps: Steps, *, is_grouped: bool) -> Bool:
    """Return `[R]` True for rows after an episode's end that begin with its last observation and have no reward.

    Args:
        steps: rows in stored order.
        is_grouped: whether rows are grouped by ids.
    """
    index = np.argsort(steps.episode, kind="stable") if is_grouped else np.arange(len(steps))
    ends = _find_ends(steps, index) if is_grouped else steps.is_end[:-1]
    is_reset = np.zeros(len(steps), dtype=np.bool_)
    is_reset[index[1:]] = ends & follows(steps, index[:-1], index[1:])
    return is_reset & (steps.columns[Columns.REWARDS] == 0)


def _find_ends(steps: Steps, index: I64) -> Bool:
    """Return `[R - 1]` True for rows in order that end an episode and are followed by a row of the same id."""
    return steps.is_end[index][:-1] & (np.diff(steps.episode[index]) == 0)
