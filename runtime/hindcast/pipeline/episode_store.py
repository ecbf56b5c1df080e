"""`EpisodeStore`: complete episodes in columns, the oldest first, within bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import per_observation
from hindcast.formats.parquet.fragments import find_continued, join
from hindcast.formats.spec import kind_of

I64 = NDArray[np.int64]

_LEAST_MERGED: Final = 1024
_PARTS: Final = 8
"""Blocks are merged up to this part of what is held: large enough to gather from few, small enough to take apart."""


class Found(NamedTuple):
    """Steps of one block.

    Attributes:
        block: which.
        places: `[n]` their places among those asked for.
        rows: `[n]` their rows in the block's columns of steps.
    """

    block: Block
    places: I64
    rows: I64


class EpisodeStore:
    """Episodes as they come; the oldest are dropped if a limit is exceeded. The newest one always stays.

    A fragment that begins where another one of its episode ends is joined to it, and the episode counts as new.

    Args:
        capacity: most timesteps.
        capacity_bytes: most bytes of all columns, text included; None for no such bound.

    Attributes:
        blocks: what is held, in order; not to be changed.
        evicted: episodes that were dropped.

    Raises:
        ValueError: a capacity below 1.
    """

    def __init__(self, capacity: int, capacity_bytes: int | None = None) -> None:
        for name, bound in {"capacity": capacity, "capacity_bytes": capacity_bytes}.items():
            if bound is not None and bound < 1:
                raise ValueError(f"{name} is {bound}; it must be at least 1")
        self.capacity = capacity
        self.capacity_bytes = capacity_bytes
        self.blocks: list[Block] = []
        self.evicted = 0
        self._nbytes = np.empty(0, dtype=np.int64)

    @property
    def num_episodes(self) -> int:
        """Held now."""
        return len(self._nbytes)

    @property
    def num_steps(self) -> int:
        """Held now."""
        return sum(block.num_steps for block in self.blocks)

    @property
    def nbytes(self) -> int:
        """Bytes of all columns, text included."""
        return int(self._nbytes.sum())

    def add(self, block: Block) -> None:
        """Add episodes, and drop the oldest where a limit is exceeded.

        Raises:
            ValueError: their columns are not those of the episodes held.
        """
        self._refuse_others(block)
        if block.t_started.any():
            block = _joined([*self._take_out(block.eps_id), block])
        self.blocks.append(block)
        self._nbytes = np.append(self._nbytes, _bytes_of(block))
        self._evict()
        self._merge()

    def replace(self, blocks: Sequence[Block], evicted: int) -> None:
        """Hold these instead."""
        self.blocks = list(blocks)
        self._nbytes = np.concatenate([np.empty(0, dtype=np.int64), *map(_bytes_of, blocks)])
        self.evicted = evicted

    def find(self, steps: I64) -> Iterator[Found]:
        """The blocks that hold these steps, numbered through all blocks in order."""
        ends = np.cumsum([block.num_steps for block in self.blocks])
        of = np.searchsorted(ends, steps, side="right")
        for number in np.unique(of).tolist():
            places = np.flatnonzero(of == number)
            block = self.blocks[number]
            yield Found(block, places, steps[places] - (int(ends[number]) - block.num_steps))

    def _refuse_others(self, block: Block) -> None:
        if not self.blocks:
            return
        held = self.blocks[0]
        if differing := sorted(held.columns.keys() ^ block.columns.keys()):
            raise ValueError(
                f"the episodes differ in columns from those that are held: only one of them has {', '.join(differing)}"
            )
        for name, column in block.columns.items():
            kept = held.columns[name]
            if (column.shape[1:], column.dtype) != (kept.shape[1:], kept.dtype):
                raise ValueError(
                    f"{name!r} is {kind_of(column)} in the episodes, and {kind_of(kept)} in those that are held"
                )

    def _take_out(self, eps_id: NDArray[np.object_]) -> list[Block]:
        """The unfinished episodes with these ids, which are no longer held."""
        wanted, found, kept, remains = set(eps_id.tolist()), [], [], []
        for block in self.blocks:
            over = block.terminated | block.truncated
            is_continued = (
                np.array([name in wanted for name in block.eps_id.tolist()], dtype=np.bool_) & ~over
            )
            remains.append(~is_continued)
            if not is_continued.any():
                kept.append(block)
                continue
            found.append(block.take(np.flatnonzero(is_continued)))
            if not is_continued.all():
                kept.append(block.take(np.flatnonzero(~is_continued)))
        if found:
            self.blocks, self._nbytes = kept, self._nbytes[np.concatenate(remains)]
        return found

    def _evict(self) -> None:
        steps = np.concatenate([block.length for block in self.blocks])
        leaving = _excess(steps, self.capacity)
        if self.capacity_bytes is not None:
            leaving = max(leaving, _excess(self._nbytes, self.capacity_bytes))
        self._nbytes = self._nbytes[leaving:]
        self.evicted += leaving
        while leaving and leaving >= self.blocks[0].num_episodes:
            leaving -= self.blocks.pop(0).num_episodes
        if leaving:
            first = self.blocks[0]
            self.blocks[0] = first.take(np.arange(leaving, first.num_episodes))

    def _merge(self) -> None:
        """Join the newest blocks while the older of them is not far larger: there are few then."""
        most = max(_LEAST_MERGED, self.num_steps // _PARTS)
        while len(self.blocks) > 1:
            older, newest = self.blocks[-2:]
            if older.num_steps > 2 * newest.num_steps or older.num_steps + newest.num_steps > most:
                return
            self.blocks[-2:] = [Block.concat([older, newest])]


def _excess(sizes: I64, most: int) -> int:
    """How many of the first must go so that the sum of the rest is at most `most`; the last one stays."""
    remaining = sizes[::-1].cumsum()[::-1]
    return min(int(np.count_nonzero(remaining > most)), len(sizes) - 1)


def _joined(blocks: Sequence[Block]) -> Block:
    """One block, in which the fragments of an episode are one."""
    block = Block.concat(blocks)
    numbers: dict[Any, int] = {}
    group = np.array([numbers.setdefault(name, len(numbers)) for name in block.eps_id.tolist()])
    block = block.take(np.argsort(group, kind="stable"))
    return join(block, find_continued(block.eps_id, block.t_started, block.length))


def _bytes_of(block: Block) -> I64:
    """`[N]` bytes of each episode's columns, with the characters of text."""
    total = np.zeros(block.num_episodes, dtype=np.int64)
    for name, column in block.columns.items():
        observed = per_observation(name)
        rows = block.length + observed
        total += rows * (column.nbytes // max(len(column), 1))
        if column.dtype == object:
            characters = np.append(0, np.cumsum([len(text) for text in column.flat], dtype=np.int64))
            ends = rows.cumsum() * (column.size // max(len(column), 1))
            total += np.diff(characters[np.append(0, ends)])
    return total
