"""`EpisodeStore`: complete episodes in columns, the oldest first, within bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import PER_EPISODE_ARRAYS, Block
from hindcast.episodes.columns import is_per_observation
from hindcast.formats.parquet.fragments import find_continued, join_fragments
from hindcast.formats.spec import describe_array

Array = NDArray[Any]
I64 = NDArray[np.int64]

_COLUMN: Final = "columns/"
_LEAST_MERGED: Final = 1024
_PARTS: Final = 8
"""Blocks are merged up to this part of what is held: large enough to gather from few, small enough to take apart."""


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
        self.num_evicted = 0
        self._nbytes = np.empty(0, dtype=np.int64)
        self._index: Block | None = None

    @property
    def index(self) -> Block:
        """All episodes, in order, without their columns.

        Raises:
            ValueError: none is held.
        """
        if self._index is None:
            self._index = Block.concat([block.with_columns({}) for block in self.blocks])
        return self._index

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
            block = _joined([*self._take_out(self._is_continued(block)), block])
        self.blocks.append(block)
        self._nbytes = np.append(self._nbytes, _bytes_of(block))
        self._evict()
        self._merge()
        self._index = None

    def rows(self, leaf: str, rows: I64) -> Array:
        """`[n, *shape]` rows of a column, `[n]`, numbered through all episodes."""
        columns = [block.columns[leaf] for block in self.blocks]
        ends = np.cumsum([len(column) for column in columns])
        of = np.searchsorted(ends, rows, side="right")
        found = np.empty((len(rows), *columns[0].shape[1:]), columns[0].dtype)
        for number in np.unique(of).tolist():
            places, column = of == number, columns[number]
            found[places] = column[rows[places] - (ends[number] - len(column))]
        return found

    def cut_fragments(self, episode: I64, t: I64, length: I64, leaves: Sequence[str]) -> Block:
        """Parts of episodes, each with the observation after its last step.

        Args:
            episode: `[n]` which episode each is a part of.
            t: `[n]` its first step, counted from the first one held.
            length: `[n]` its steps.
            leaves: the columns of the parts.
        """

        def gather(steps: I64, observations: I64) -> dict[str, Array]:
            return {
                leaf: self.rows(leaf, observations if is_per_observation(leaf) else steps) for leaf in leaves
            }

        return self.index.cut(episode, t, length, gather)

    def arrays(self) -> dict[str, Array]:
        """All episodes, for a checkpoint: `columns/<leaf>`, and the arrays of `Block` by their names."""
        if not self.blocks:
            return {}
        block = Block.concat(self.blocks)
        own = {name: getattr(block, name) for name in ("eps_id", "details", *PER_EPISODE_ARRAYS)}
        columns = {_COLUMN + leaf: column for leaf, column in block.columns.items()}
        return columns | {name: each for name, each in own.items() if each is not None}

    def load(self, arrays: Mapping[str, Array], evicted: int) -> None:
        """Hold the episodes of `arrays`, other keys aside, instead; so many were dropped before."""
        self.blocks, self.num_evicted, self._index = [], evicted, None
        if "length" in arrays:
            columns = {
                name.removeprefix(_COLUMN): each for name, each in arrays.items() if name.startswith(_COLUMN)
            }
            own: dict[str, Any] = {name: arrays[name] for name in ("eps_id", *PER_EPISODE_ARRAYS)}
            self.blocks = [Block(columns, **own, details=arrays.get("details"))]
        self._nbytes = np.concatenate([np.empty(0, dtype=np.int64), *map(_bytes_of, self.blocks)])

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
                    f"{name!r} is {describe_array(column)} in the episodes, and "
                    f"{describe_array(kept)} in those that are held"
                )

    def _is_continued(self, coming: Block) -> NDArray[np.bool_]:
        """`[N]` whether an episode that is held is unfinished, and `coming` has its id."""
        names = set(coming.eps_id.tolist())
        held = [
            pair
            for block in self.blocks
            for pair in zip(block.eps_id, block.terminated | block.truncated, strict=True)
        ]
        return np.array([name in names and not over for name, over in held], dtype=np.bool_)

    def _take_out(self, leaving: NDArray[np.bool_]) -> Iterator[Block]:
        """Hold these episodes, `[N]`, no longer; what they were."""
        parts = np.split(leaving, np.cumsum([block.num_episodes for block in self.blocks[:-1]], dtype=int))
        held = list(zip(self.blocks, parts, strict=False))
        self.blocks = [
            block.take(np.flatnonzero(~own)) if own.any() else block for block, own in held if not own.all()
        ]
        self._nbytes = self._nbytes[~leaving]
        return (block.take(np.flatnonzero(own)) for block, own in held if own.any())

    def _evict(self) -> None:
        steps = np.concatenate([block.length for block in self.blocks])
        leaving = _excess(steps, self.capacity)
        if self.capacity_bytes is not None:
            leaving = max(leaving, _excess(self._nbytes, self.capacity_bytes))
        if leaving:
            self.num_evicted += leaving
            self._take_out(np.arange(self.num_episodes) < leaving)

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
    _, first, which = np.unique(block.eps_id, return_index=True, return_inverse=True)
    block = block.take(np.argsort(first[which], kind="stable"))
    return join_fragments(block, find_continued(block.eps_id, block.t_started, block.length))


def _bytes_of(block: Block) -> I64:
    """`[N]` bytes of each episode's columns, with the characters of text."""
    total = np.zeros(block.num_episodes, dtype=np.int64)
    for name, column in block.columns.items():
        observed = is_per_observation(name)
        rows = block.length + observed
        total += rows * (column.nbytes // max(len(column), 1))
        if column.dtype == object:
            characters = np.append(0, np.cumsum([len(text) for text in column.flat], dtype=np.int64))
            ends = rows.cumsum() * (column.size // max(len(column), 1))
            total += np.diff(characters[np.append(0, ends)])
    return total
