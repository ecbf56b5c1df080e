"""Long episodes as several adjacent rows, and back.

A fragment is an episode cut out of another: the same `eps_id`, `t_started` where it starts, and its own final
observation, which is the first one of the fragment after it. Only the last fragment carries the flags.
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
    """The block in pieces: runs of ordinary episodes, and each fragment of an episode that is too long.

    Args:
        block: complete episodes.
        nbytes: `[N]` bytes of each.
        episode_bytes: an episode of more is cut into fragments of at most half of this.

    Yields:
        A piece, and whether it continues the episode of the piece before.
    """
    start = 0
    for long in np.flatnonzero((nbytes > episode_bytes) & (block.length > 1)).tolist():
        if long > start:
            yield block.take(range(start, long)), False
        count = min(math.ceil(nbytes[long] / (episode_bytes / 2)), int(block.length[long]))
        yield from _fragments(block, long, count)
        start = long + 1
    if start == 0:
        yield block, False
    elif start < block.num_episodes:
        yield block.take(range(start, block.num_episodes)), False


def _fragments(block: Block, episode: int, count: int) -> Iterator[tuple[Block, bool]]:
    bounds = [int(block.length[episode]) * i // count for i in range(count + 1)]
    for first, last in pairwise(bounds):
        yield block.cut(np.array([episode]), np.array([first]), np.array([last - first])), first > 0


def join_fragments(block: Block, continued: NDArray[np.bool_]) -> Block:
    """The block with its fragments joined.

    Args:
        block: rows as stored.
        continued: `[N]` whether the row continues the one before.
    """
    if not continued.any():
        return block
    heads = np.flatnonzero(~continued)
    tails = np.append(heads[1:], block.num_episodes) - 1
    shared = block.obs_start[continued]  # what comes with it is better known to the row before
    return Block(
        columns={
            leaf: np.delete(column, shared, axis=0) if is_per_observation(leaf) else column
            for leaf, column in block.columns.items()
        },
        length=np.add.reduceat(block.length, heads),
        eps_id=block.eps_id[heads],
        t_started=block.t_started[heads],
        terminated=block.terminated[tails],
        truncated=block.truncated[tails],
        details=None if block.details is None else _newest(block.details, heads, tails),
    )


def _newest(
    details: NDArray[np.object_], heads: NDArray[np.int64], tails: NDArray[np.int64]
) -> NDArray[np.object_]:
    """Of each episode the details of its last fragment that has any."""
    newest = [
        next((text for text in details[head : tail + 1][::-1] if text), NO_DETAILS)
        for head, tail in zip(heads, tails, strict=True)
    ]
    return np.array(newest, dtype=object)


def find_continued(
    eps_id: NDArray[np.object_], t_started: NDArray[np.int64], length: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """`[N]` which rows continue the row before: the same episode, where that one stopped."""
    continued = np.zeros(len(length), dtype=np.bool_)
    adjacent = (t_started[1:] > 0) & (t_started[1:] == t_started[:-1] + length[:-1])
    continued[1:] = adjacent & (eps_id[1:] == eps_id[:-1]).astype(np.bool_)
    return continued
