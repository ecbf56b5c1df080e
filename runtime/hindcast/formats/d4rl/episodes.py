"""Where D4RL's episodes end. Shape suffixes: R = rows, N = episodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hindcast.episodes.block import I64, Bool


@dataclass(frozen=True)
class Ends:
    """The ends of episodes among rows that stand in order.

    Attributes:
        terminated: `[R]` whether the environment ended the episode with this row.
        truncated: `[R]` whether it was cut off after this row.
    """

    terminated: Bool
    truncated: Bool

    def starts(self) -> I64:
        """`[N]` each episode's first row; the last episode may be unfinished."""
        ended = self.terminated | self.truncated
        after = np.flatnonzero(ended) + 1
        return np.concatenate([[0], after[after < len(ended)]]).astype(np.int64)

    @property
    def is_unfinished(self) -> bool:
        """Whether the rows stop within an episode."""
        return not (self.terminated[-1] or self.truncated[-1])


def ends_of(terminated: Bool, timeouts: Bool | None, max_episode_steps: int) -> Ends:
    """By the flags; without timeouts, an episode is also cut off after `max_episode_steps` (0: never)."""
    if timeouts is not None:
        return Ends(terminated, timeouts)
    if not max_episode_steps:
        return Ends(terminated, np.zeros_like(terminated))
    row = np.arange(len(terminated))
    first = np.zeros(len(terminated), dtype=np.int64)
    first[1:] = np.where(terminated[:-1], row[1:], 0)
    step = row - np.maximum.accumulate(first) + 1
    return Ends(terminated, (step % max_episode_steps == 0) & ~terminated)
