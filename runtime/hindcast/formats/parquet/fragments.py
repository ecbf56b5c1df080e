"""Splitting long episodes into fragments in adjacent rows, and joining them.

A fragment is a part of an episode. It has the episode's `eps_id`, and its `t_started` is its own first timestep. Its
final observation is also the next fragment's first observation. Only the last fragment has the flags.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import is_per_observation
from hindcast.episodes.details import NO_DETAILS


def split_long_episodes(
    block: Block, nbytes: NDArray[np.int64], max_episode_bytes: int
) -> Iterator[tuple[Block, bool]]:
    """Split a block: long episodes into fragments, each a block of its own; the episodes between them stay together.

    An episode of one step is never split.

    Args:
        block: complete episodes.
        nbytes: `[N]` bytes of each episode.
        max_episode_bytes: size above which an episode is cut into fragments with equal numbers of steps (± 1),
            on average at most half this size.

    Yields:
        A block, and whether it is a fragment that continues the last episode of the block before.
    """
    start = 0
    for episode in np.flatnonzero((nbytes > max_episode_bytes) & (block.length > 1)).tolist():
        if episode > start:
            yield block.take(range(start, episode)), False
        num_fragments = min(math.ceil(nbytes[episode] / (max_episode_bytes / 2)), int(block.length[episode]))
        yield from _iter_fragments(block, episode, num_fragments)
        start = episode + 1
    if start == 0:
        yield block, False
    elif start < block.num_episodes:
        yield block.take(range(start, block.num_episodes)), False


def _iter_fragments(block: Block, episode: int, num_fragments: int) -> Iterator[tuple[Block, bool]]:
    bounds = [int(block.length[episode]) * i // num_fragments for i in range(num_fragments + 1)]
    for start, stop in pairwise(bounds):
        yield block.cut(np.array([episode]), np.array([start]), np.array([stop - start])), start > 0


def join_fragments(block: Block, continued: NDArray[np.bool_]) -> Block:
    """Join the fragments of a block.

    Args:
        block: rows as stored.
        continued: `[N]` whether a row continues the episode of the row before; False for the first row.
    """
    if not continued.any():
        return block
    first_rows = np.flatnonzero(~continued)
    last_rows = np.append(first_rows[1:], block.num_episodes) - 1
    shared_rows = block.obs_start[continued]  # the row before has the same observation and info
    return Block(
        columns={
            leaf: np.delete(column, shared_rows, axis=0) if is_per_observation(leaf) else column
            for leaf, column in block.columns.items()
        },
        length=np.add.reduceat(block.length, first_rows),
        eps_id=block.eps_id[first_rows],
        t_started=block.t_started[first_rows],
        terminated=block.terminated[last_rows],
        truncated=block.truncated[last_rows],
        details=None if block.details is None else _latest_details(block.details, first_rows, last_rows),
    )


def _latest_details(
    details: NDArray[np.object_], first_rows: NDArray[np.int64], last_rows: NDArray[np.int64]
) -> NDArray[np.object_]:
    """Return the details of each episode, from the last of its fragments that has details."""
    texts = [
        next((detail for detail in details[first : last + 1][::-1] if detail), NO_DETAILS)
        for first, last in zip(first_rows, last_rows, strict=True)
    ]
    return np.array(texts, dtype=object)


def find_continued(
    eps_id: NDArray[np.object_], t_started: NDArray[np.int64], length: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return `[N]` whether each row continues the row before: the same episode, from the timestep where it ended."""
    is_continuation = np.zeros(len(length), dtype=np.bool_)
    is_adjacent = (t_started[1:] > 0) & (t_started[1:] == t_started[:-1] + length[:-1])
    is_continuation[1:] = is_adjacent & (eps_id[1:] == eps_id[:-1]).astype(np.bool_)
    return is_continuation
