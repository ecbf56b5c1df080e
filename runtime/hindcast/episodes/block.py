"""`Block`: many episodes in columnar form, which moves through the pipeline.

Shape suffixes: N = episodes, S = steps of all episodes together, O = S + N observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.columns import EMPTY_INFO, Columns, is_per_observation
from hindcast.episodes.details import NO_DETAILS

I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

PER_EPISODE_ARRAYS: Final = ("length", "t_started", "terminated", "truncated")
"""Names of a block's arrays with one number per episode."""


@dataclass(frozen=True, eq=False)
class Block:
    """Episodes laid end to end, one array per leaf.

    `columns[leaf]` is `[S, *shape]`, and `[O, *shape]` for observations and infos: each episode includes
    its final observation, so the next observation of a step is the row after its own. Fixed-shape leaves keep
    their source dtype; text and JSON leaves are object arrays of `str`.

    Attributes:
        columns: leaf name -> array, see above.
        length: `[N]` steps of each episode (or fragment).
        eps_id: `[N]` episode ids, object array of `str`.
        t_started: `[N]` timestep at which the episode (fragment) starts; 0 for a complete episode.
        terminated: `[N]` whether the environment ended the episode with the last of these steps.
        truncated: `[N]` whether the episode was cut off (time limit) after the last of these steps.
        details: `[N]` data of each episode in addition to its steps, encoded by `episodes.details`, object array of
            `str`; None if all are empty.
        logged_metrics: metrics that the user's code logged in the pipeline (`MetricsLogger.drain`); reported once, and
            not copied to other blocks of these episodes (by `take`, `cut` or `concat` of several blocks).
    """

    columns: dict[str, NDArray]
    length: I64
    eps_id: NDArray[np.object_]
    t_started: I64
    terminated: Bool
    truncated: Bool
    details: NDArray[np.object_] | None = None
    logged_metrics: Sequence[Any] = ()

    @property
    def num_episodes(self) -> int:
        """Number of episodes, N."""
        return len(self.length)

    @cached_property
    def num_steps(self) -> int:
        """Number of steps of all episodes, S."""
        return int(self.length.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of all columns (object arrays count their pointers only)."""
        return sum(column.nbytes for column in self.columns.values())

    @cached_property
    def start(self) -> I64:
        """`[N]` row of each episode's first step."""
        return _compute_starts(self.length)

    @cached_property
    def obs_start(self) -> I64:
        """`[N]` row of each episode's first observation."""
        return self.start + np.arange(self.num_episodes)

    @cached_property
    def episode_of_step(self) -> I64:
        """`[S]` index of the episode that each step belongs to."""
        return np.repeat(np.arange(self.num_episodes), self.length)

    @cached_property
    def obs_row(self) -> I64:
        """`[S]` row of each step's observation; its next observation is the row after."""
        return np.arange(self.num_steps) + self.episode_of_step

    @property
    def t(self) -> I64:
        """`[S]` timestep of each step in its episode."""
        return np.arange(self.num_steps) - np.repeat(self.start - self.t_started, self.length)

    def step_flags(self, per_episode: Bool) -> Bool:
        """Return `[S]` flags of steps: the episode's flag (`terminated`, `truncated`) at its last step, else False."""
        flags = np.zeros(self.num_steps, dtype=np.bool_)
        # an episode without steps has no last step: its index would be another episode's
        nonempty = self.length > 0
        flags[(self.start + self.length - 1)[nonempty]] = per_episode[nonempty]
        return flags

    def rows_of(self, leaf: str, episode: int) -> slice:
        """Return the rows of one episode in a leaf's column."""
        num_steps = int(self.length[episode])
        if is_per_observation(leaf):
            first = int(self.obs_start[episode])
            return slice(first, first + num_steps + 1)
        first = int(self.start[episode])
        return slice(first, first + num_steps)

    def with_columns(self, columns: dict[str, NDArray]) -> Block:
        """Return the same episodes with other columns."""
        return replace(self, columns=columns)

    def without_details(self) -> Block:
        """Return the same episodes without their details."""
        return replace(self, details=None)

    def take(self, episodes: I64 | Sequence[int]) -> Block:
        """Return a new block of these episodes, in this order (copies)."""
        indices = np.asarray(episodes, dtype=np.int64)
        return self.cut(indices, np.zeros_like(indices), self.length[indices])

    def cut(self, episode: I64, t: I64, length: I64, columns: dict[str, NDArray] | None = None) -> Block:
        """Cut fragments out of episodes, each with the observation after its last step.

        A fragment has the details of its episode.

        Args:
            episode: `[n]` index of each fragment's episode.
            t: `[n]` first step of each fragment, counted from the episode's first step in the block.
            length: `[n]` number of steps of each fragment.
            columns: the fragments' columns; by default, copies of the block's.
        """
        if columns is None:
            steps, observations = self.rows_of_fragments(episode, t, length)
            columns = {
                leaf: column[observations if is_per_observation(leaf) else steps]
                for leaf, column in self.columns.items()
            }
        # only the fragment with the last step of its episode has the flags
        is_end = t + length == self.length[episode]
        return Block(
            columns=columns,
            length=length,
            eps_id=self.eps_id[episode],
            t_started=self.t_started[episode] + t,
            terminated=self.terminated[episode] & is_end,
            truncated=self.truncated[episode] & is_end,
            details=None if self.details is None else self.details[episode],
        )

    def rows_of_fragments(self, episode: I64, t: I64, length: I64) -> tuple[I64, I64]:
        """Return the rows of the steps and of the observations of fragments, see `cut`."""
        steps = concat_ranges(self.start[episode] + t, length)
        return steps, concat_ranges(self.obs_start[episode] + t, length + 1)

    @classmethod
    def concat(cls, blocks: Sequence[Block]) -> Block:
        """Concatenate blocks, in order. Infos and details that only some blocks have are empty in the others.

        Raises:
            ValueError: there are no blocks, or they differ in columns.
        """
        if not blocks:
            raise ValueError("concat requires at least one block")
        if len(blocks) == 1:  # saves a copy
            return blocks[0]
        if any(Columns.INFOS in block.columns for block in blocks):
            blocks = [_with_infos_column(block) for block in blocks]
        names = blocks[0].columns.keys()
        for block in blocks[1:]:
            if block.columns.keys() != names:
                raise ValueError(f"blocks differ in columns: {sorted(names)} and {sorted(block.columns)}")
        episode_arrays: dict[str, Any] = {
            name: np.concatenate([getattr(block, name) for block in blocks])
            for name in ("eps_id", *PER_EPISODE_ARRAYS)
        }
        columns = {name: np.concatenate([block.columns[name] for block in blocks]) for name in names}
        return cls(columns, **episode_arrays, details=_concat_details(blocks))


def _with_infos_column(block: Block) -> Block:
    if Columns.INFOS in block.columns:
        return block
    infos = np.full(block.num_steps + block.num_episodes, EMPTY_INFO, dtype=object)
    return block.with_columns({**block.columns, Columns.INFOS: infos})


def _concat_details(blocks: Sequence[Block]) -> NDArray[np.object_] | None:
    if all(block.details is None for block in blocks):
        return None
    return np.concatenate(
        [
            np.full(block.num_episodes, NO_DETAILS, dtype=object) if block.details is None else block.details
            for block in blocks
        ]
    )


def _compute_starts(lengths: I64) -> I64:
    """Return where each range starts if ranges of these lengths are laid end to end."""
    ends = np.cumsum(lengths)
    return ends - lengths


def concat_ranges(starts: I64, lengths: I64) -> I64:
    """Concatenate `range(start, start + length)` of all pairs."""
    total = int(lengths.sum())
    offsets = np.repeat(starts - _compute_starts(lengths), lengths)
    return offsets + np.arange(total)
