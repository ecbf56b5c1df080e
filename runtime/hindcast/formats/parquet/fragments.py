"""Splitting long episodes into fragments in adjacent rows, and joining them.

A fragment is a part of an episode with the same `eps_id`, with `t_started` at its start, and with its own final
observation, which is also the first one of the next fragment. Only the last fragment has the flags.
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
    block: Block, nbytes: NDArray[np.int64], episode_bytes: int
) -> Iterator[tuple[Block, bool]]:
    """Split a block: runs of ordinary episodes, and each fragment of an episode that is too long.

    Args:
        block: complete episodes.
        nbytes: `[N]` bytes of each episode.
        episode_bytes: size above which an episode is cut into fragments of at most half this size.

    Yields:
        A part, and whether it continues the last episode of the part before.
    """
    start = 0
    for episode in np.flatnonzero((nbytes > episode_bytes) & (block.length > 1)).tolist():
        if episode > start:
            yield block.take(range(start, episode)), False
        count = min(math.ceil(nbytes[episode] / (episode_bytes / 2)), int(block.length[episode]))
        yield from _fragments(block, episode, count)
        start = episode + 1
    if start == 0:
        yield block, False
    elif start < block.num_episodes:
        yield block.take(range(start, block.num_episodes)), False


def _fragments(block: Block, episode: int, count: int) -> Iterator[tuple[Block, bool]]:
    bounds = [int(block.length[episode]) * i // count for i in range(count + 1)]
    for first, last in pairwise(bounds):
        yield block.cut(np.array([episode]), np.array([first]), np.array([last - first])), first > 0


def join_fragments(block: Block, continued: NDArray[np.bool_]) -> Block:
    """Join the fragments of a block.

    Args:
        block: rows as stored.
        continued: `[N]` whether the row continues the one before.
    """
    if not continued.any():
        return block
    heads = np.flatnonzero(~continued)
    tails = np.append(heads[1:], block.num_episodes) - 1
    shared_rows = block.obs_start[continued]  # the row before has the same observation, with its info
    return Block(
        columns={
            leaf: np.delete(column, shared_rows, axis=0) if is_per_observation(leaf) else column
            for leaf, column in block.columns.items()
        },
        length=np.add.reduceat(block.length, heads),
        eps_id=block.eps_id[heads],
        t_started=block.t_started[heads],
        terminated=block.terminated[tails],
        truncated=block.truncated[tails],
        details=None if block.details is None else _latest_details(block.details, heads, tails),
    )


def _latest_details(
    details: NDArray[np.object_], heads: NDArray[np.int64], tails: NDArray[np.int64]
) -> NDArray[np.object_]:
    """Return for each episode the details of its last fragment with details."""
    texts = [
        next((detail for detail in details[head : tail + 1][::-1] if detail), NO_DETAILS)
        for head, tail in zip(heads, tails, strict=True)
    ]
    return np.array(texts, dtype=object)


def find_continued(
    eps_id: NDArray[np.object_], t_started: NDArray[np.int64], length: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return `[N]` whether each row continues the row before: the same episode, from where that row ends."""
    is_continuation = np.zeros(len(length), dtype=np.bool_)
    adjacent = (t_started[1:] > 0) & (t_started[1:] == t_started[:-1] + length[:-1])
    is_continuation[1:] = adjacent & (eps_id[1:] == eps_id[:-1]).astype(np.bool_)
    return is_continuation
