"""`EpisodeStore` keeps complete episodes in columns, the oldest first, within limits."""

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

_COLUMN_PREFIX: Final = "columns/"
_MIN_MERGED_STEPS: Final = 1024
"""Blocks of up to this many steps are merged in any case."""
_MERGE_DIVISOR: Final = 8
"""A merged block holds at most an eighth of all steps: few blocks to gather from, and none that is slow to split."""


class EpisodeStore:
    """A store of episodes that drops the oldest ones beyond a limit. The newest one always stays.

    A fragment that begins where a stored fragment of the same episode ends is joined to it, and the episode then counts
    as the newest.

    Args:
        capacity: maximum number of timesteps.
        capacity_bytes: maximum bytes of all columns, text included; None for no limit.

    Attributes:
        blocks: the stored episodes, the oldest first; do not modify them.
        num_evicted: number of episodes dropped so far.

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
            ValueError: the store is empty.
        """
        if self._index is None:
            self._index = Block.concat([block.with_columns({}) for block in self.blocks])
        return self._index

    @property
    def num_episodes(self) -> int:
        """Number of stored episodes."""
        return len(self._nbytes)

    @property
    def num_steps(self) -> int:
        """Number of stored timesteps."""
        return sum(block.num_steps for block in self.blocks)

    @property
    def nbytes(self) -> int:
        """Bytes of all columns, text included."""
        return int(self._nbytes.sum())

    def add(self, block: Block) -> None:
        """Add episodes, and drop the oldest ones beyond a limit.

        Raises:
            ValueError: their columns differ from those of the stored episodes.
        """
        self._check_columns(block)
        if block.t_started.any():
            block = _join_fragments([*self._remove(self._is_continued(block)), block])
        self.blocks.append(block)
        self._nbytes = np.append(self._nbytes, _episode_bytes(block))
        self._evict()
        self._merge()
        self._index = None

    def rows(self, leaf: str, rows: I64) -> Array:
        """Return rows of a column, `[n, *shape]`; `rows` are `[n]` row numbers over all episodes."""
        columns = [block.columns[leaf] for block in self.blocks]
        ends = np.cumsum([len(column) for column in columns])
        block_of_row = np.searchsorted(ends, rows, side="right")
        values = np.empty((len(rows), *columns[0].shape[1:]), columns[0].dtype)
        for block_index in np.unique(block_of_row).tolist():
            is_in_block, column = block_of_row == block_index, columns[block_index]
            values[is_in_block] = column[rows[is_in_block] - (ends[block_index] - len(column))]
        return values

    def cut_fragments(self, episode: I64, t: I64, length: I64, leaves: Sequence[str]) -> Block:
        """Return fragments of episodes, each with the observation after its last step.

        Args:
            episode: `[n]` index of each fragment's episode.
            t: `[n]` first step of each fragment, counted from the first stored step of its episode.
            length: `[n]` number of steps of each fragment.
            leaves: the columns of the fragments.
        """
        steps, observations = self.index.rows_of_fragments(episode, t, length)
        columns = {
            leaf: self.rows(leaf, observations if is_per_observation(leaf) else steps) for leaf in leaves
        }
        return self.index.cut(episode, t, length, columns)

    def arrays(self) -> dict[str, Array]:
        """Return all episodes, for a checkpoint: `columns/<leaf>`, and the arrays of `Block` by name."""
        if not self.blocks:
            return {}
        block = Block.concat(self.blocks)
        per_episode = {name: getattr(block, name) for name in ("eps_id", "details", *PER_EPISODE_ARRAYS)}
        columns = {_COLUMN_PREFIX + leaf: column for leaf, column in block.columns.items()}
        return columns | {name: array for name, array in per_episode.items() if array is not None}

    def load(self, arrays: Mapping[str, Array], num_evicted: int) -> None:
        """Replace the stored episodes by those of a checkpoint.

        Args:
            arrays: the result of the method `arrays`; other keys are ignored.
            num_evicted: number of episodes that had been dropped before the checkpoint.
        """
        self.blocks, self.num_evicted, self._index = [], num_evicted, None
        if "length" in arrays:
            columns = {
                name.removeprefix(_COLUMN_PREFIX): array
                for name, array in arrays.items()
                if name.startswith(_COLUMN_PREFIX)
            }
            per_episode: dict[str, Any] = {name: arrays[name] for name in ("eps_id", *PER_EPISODE_ARRAYS)}
            self.blocks = [Block(columns, **per_episode, details=arrays.get("details"))]
        self._nbytes = np.concatenate([np.empty(0, dtype=np.int64), *map(_episode_bytes, self.blocks)])

    def _check_columns(self, block: Block) -> None:
        if not self.blocks:
            return
        reference = self.blocks[0]
        if differing := sorted(reference.columns.keys() ^ block.columns.keys()):
            raise ValueError(
                "the new episodes have other columns than the stored ones: only one of the two has "
                f"{', '.join(differing)}"
            )
        for name, column in block.columns.items():
            expected = reference.columns[name]
            if (column.shape[1:], column.dtype) != (expected.shape[1:], expected.dtype):
                raise ValueError(
                    f"{name!r} is {describe_array(column)} in the new episodes, but "
                    f"{describe_array(expected)} in the stored ones"
                )

    def _is_continued(self, incoming: Block) -> NDArray[np.bool_]:
        """Return a mask `[N]` of the stored episodes that are unfinished and whose ids `incoming` has."""
        incoming_ids = set(incoming.eps_id.tolist())
        stored = [
            episode
            for block in self.blocks
            for episode in zip(block.eps_id, block.terminated | block.truncated, strict=True)
        ]
        return np.array(
            [eps_id in incoming_ids and not is_over for eps_id, is_over in stored], dtype=np.bool_
        )

    def _remove(self, is_removed: NDArray[np.bool_]) -> Iterator[Block]:
        """Remove the episodes of the mask, `[N]`, and return them; only iterating over the result copies them."""
        masks = np.split(is_removed, np.cumsum([block.num_episodes for block in self.blocks[:-1]], dtype=int))
        pairs = list(zip(self.blocks, masks, strict=False))  # without blocks there is still one, empty, mask
        self.blocks = [
            block.take(np.flatnonzero(~mask)) if mask.any() else block
            for block, mask in pairs
            if not mask.all()
        ]
        self._nbytes = self._nbytes[~is_removed]
        return (block.take(np.flatnonzero(mask)) for block, mask in pairs if mask.any())

    def _evict(self) -> None:
        steps = np.concatenate([block.length for block in self.blocks])
        num_removed = _num_excess(steps, self.capacity)
        if self.capacity_bytes is not None:
            num_removed = max(num_removed, _num_excess(self._nbytes, self.capacity_bytes))
        if num_removed:
            self.num_evicted += num_removed
            self._remove(np.arange(self.num_episodes) < num_removed)

    def _merge(self) -> None:
        """Merge the newest blocks while they are of similar size, so that the number of blocks stays small."""
        max_steps = max(_MIN_MERGED_STEPS, self.num_steps // _MERGE_DIVISOR)
        while len(self.blocks) > 1:
            older, newest = self.blocks[-2:]
            if older.num_steps > 2 * newest.num_steps or older.num_steps + newest.num_steps > max_steps:
                return
            self.blocks[-2:] = [Block.concat([older, newest])]


def _num_excess(sizes: I64, limit: int) -> int:
    """Return how many leading sizes to drop so that the rest sums to at most `limit`; keep the last one."""
    remaining = sizes[::-1].cumsum()[::-1]
    return min(int(np.count_nonzero(remaining > limit)), len(sizes) - 1)


def _join_fragments(blocks: Sequence[Block]) -> Block:
    """Concatenate blocks and join the fragments of each episode, in the order of the episodes' first fragments."""
    block = Block.concat(blocks)
    _, first_index, group = np.unique(block.eps_id, return_index=True, return_inverse=True)
    block = block.take(np.argsort(first_index[group], kind="stable"))
    return join_fragments(block, find_continued(block.eps_id, block.t_started, block.length))


def _episode_bytes(block: Block) -> I64:
    """Return the bytes of each episode's columns, `[N]`, including the characters of text."""
    total = np.zeros(block.num_episodes, dtype=np.int64)
    for name, column in block.columns.items():
        has_final_row = is_per_observation(name)
        rows = block.length + has_final_row
        total += rows * (column.nbytes // max(len(column), 1))
        if column.dtype == object:
            characters = np.append(0, np.cumsum([len(text) for text in column.flat], dtype=np.int64))
            ends = rows.cumsum() * (column.size // max(len(column), 1))
            total += np.diff(characters[np.append(0, ends)])
    return total
