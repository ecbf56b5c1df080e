"""`WindowData` holds a window's columns on the learner's device; batches are gathered from it by index.

Shape suffixes as in `Block`: N = episodes, S = steps, O = S + N observations, B = items of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hindcast.episodes.block import PER_EPISODE_ARRAYS
from hindcast.episodes.columns import Columns, is_per_observation, leaves_of, next_leaf, root
from hindcast.models.preprocessing import Preprocessing, stack_rows
from hindcast.pipeline.items import Sequences, cut_sequences, discounted_rewards, discounts, steps_ahead
from hindcast.pipeline.needs import STATE_COLUMNS, Needs

Batch = dict[str, Tensor]
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    """The settings that turn blocks into batches.

    Attributes:
        needs: columns of a batch, and how its items are cut.
        preprocessing: its observation filter is applied when blocks enter a window, its frame stack when a batch is
            gathered, so that each frame is stored once. None leaves observations as recorded.
        device: device of the columns; None is the CPU.
    """

    needs: Needs
    preprocessing: Preprocessing | None = None
    device: torch.device | None = None


@dataclass(frozen=True, eq=False)
class WindowData:
    """Episodes laid end to end, one tensor per leaf, all on one device.

    Attributes:
        columns: leaf name -> `[S, *shape]`, `[O, *shape]` for observations (filtered, not stacked).
        length: `[N]` int64, steps of each episode.
        terminated: `[N]` bool, whether the environment ended the episode.
        truncated: `[N]` bool, whether the episode was cut off.
        t_started: `[N]` int64, the timestep at which each episode starts; 0 unless it is a fragment.
        obs_row: `[S]` int64, row of each step's observation; its next observation is in the row after it.
        recipe: how batches are made.
    """

    columns: dict[str, Tensor]
    length: Tensor
    terminated: Tensor
    truncated: Tensor
    t_started: Tensor
    obs_row: Tensor
    recipe: Recipe

    @property
    def num_steps(self) -> int:
        """S, the number of steps."""
        return len(self.obs_row)

    @cached_property
    def obs_start(self) -> Tensor:
        """`[N]` first observation row of each episode."""
        sizes = self.length + 1
        return sizes.cumsum(0) - sizes

    @cached_property
    def delta_t(self) -> Tensor | None:
        """Durations of the steps `[S]` in units of time; None if each takes 1."""
        # Steps of equal length are computed by the operations for data without durations, to the last bit.
        delta_t = self.columns.get(Columns.DELTA_T)
        return None if delta_t is None or bool((delta_t == 1).all()) else delta_t

    def with_columns(self, columns: Mapping[str, Tensor]) -> WindowData:
        """Return the same episodes with further columns, `[S, ...]` each, which batches then contain."""
        needs = self.recipe.needs.with_columns(frozenset(root(leaf) for leaf in columns))
        recipe = replace(self.recipe, needs=needs)
        return replace(self, columns={**self.columns, **columns}, recipe=recipe)

    def map_observations(self, compute: Callable[[Batch], Tensor], chunk_rows: int = 1 << 14) -> Tensor:
        """Apply a network to all observations, including final ones: `[O, ...]`; for targets.

        Args:
            compute: maps observations `obs` as in batches, leaf -> `[n, ...]`, to `[n, ...]`.
            chunk_rows: maximum n, which limits the memory of a call of `compute`.
        """
        total = self.num_steps + len(self.length)
        parts: list[Tensor] = []
        for first in range(0, total, chunk_rows):
            rows = torch.arange(first, min(first + chunk_rows, total), device=self.length.device)
            parts.append(compute(self._observations(rows)))
        return torch.cat(parts)

    def map_episodes(self, compute: Callable[[Batch], Tensor], chunk_rows: int = 1 << 14) -> Tensor:
        """Apply a recurrent network to all observations, episode by episode: `[O, ...]`; for targets.

        Args:
            compute: maps observations `obs`, leaf -> `[n, L, ...]`, of n whole episodes to `[n, L, ...]`. Shorter
                episodes repeat their final observation.
            chunk_rows: maximum n·L, which limits the memory of a call of `compute`; longer episodes come alone.
        """
        # Episodes of similar length together, for little padding.
        order = self.length.argsort(stable=True)
        sizes = (self.length[order] + 1).tolist()
        result: Tensor | None = None
        first = 0
        while first < len(sizes):
            stop = first + 1
            while stop < len(sizes) and (stop + 1 - first) * sizes[stop] <= chunk_rows:
                stop += 1
            episodes, offset = order[first:stop], torch.arange(sizes[stop - 1], device=order.device)
            last = self.length[episodes].unsqueeze(1)
            rows = self.obs_start[episodes].unsqueeze(1) + torch.minimum(offset, last)
            observations = self._observations(rows.flatten())
            values = compute({leaf: column.unflatten(0, rows.shape) for leaf, column in observations.items()})
            if result is None:
                result = values.new_empty((self.num_steps + len(sizes), *values.shape[2:]))
            is_recorded = offset <= last
            result[rows[is_recorded]] = values[is_recorded]
            first = stop
        assert result is not None
        return result

    def take(self, episodes: Tensor) -> WindowData:
        """Return a window of copies of the episodes, `[n]` int64, laid end to end in that order."""
        per_episode = {name: getattr(self, name).index_select(0, episodes) for name in PER_EPISODE_ARRAYS}
        first_rows, length = self.obs_start.index_select(0, episodes), per_episode["length"]
        # Each earlier episode has one observation more than steps.
        obs_rows, step_rows = _ranges(first_rows, length + 1), _ranges(first_rows - episodes, length)
        columns = {
            leaf: column.index_select(0, obs_rows if is_per_observation(leaf) else step_rows)
            for leaf, column in self.columns.items()
        }
        positions = torch.arange(len(episodes), device=length.device)
        obs_row = torch.arange(len(step_rows), device=length.device) + positions.repeat_interleave(length)
        return WindowData(columns, **per_episode, obs_row=obs_row, recipe=self.recipe)

    def gather(self, index: Tensor) -> Batch:
        """Return a batch of the items at `index`, int64 `[B]` on the window's device, in that order.

        Items are the window's steps or sequences, in order.
        """
        seq_len = self.recipe.needs.seq_len
        return self._gather_steps(index) if seq_len is None else self._gather_sequences(index, seq_len)

    def _gather_sequences(self, index: Tensor, seq_len: int) -> Batch:
        first_step, length, burn_in, is_first = (column.index_select(0, index) for column in self._sequences)
        offset = torch.arange(seq_len, device=index.device)
        is_recorded = offset < length.unsqueeze(1)
        # Padding gathers the sequence's first step, an index that exists, and is set to zero below.
        steps = torch.where(is_recorded, first_step.unsqueeze(1) + offset, first_step.unsqueeze(1))
        batch = {
            leaf: mask(is_recorded, values.unflatten(0, is_recorded.shape))
            for leaf, values in self._gather_steps(steps.flatten()).items()
        }
        batch[Columns.LOSS_MASK] = is_recorded & (offset >= burn_in.unsqueeze(1))
        batch[Columns.SEQ_LENS] = length
        return batch | self._initial_states(first_step, is_first)

    def _initial_states(self, first_step: Tensor, is_first: Tensor) -> Batch:
        """Return the recorded states before the steps, `[B, ...]`; `is_first` marks the first steps of episodes."""
        states: Batch = {}
        for leaf in self._state_leaves:
            column, name = self.columns[leaf], root(leaf)
            if name == Columns.STATE_IN:
                states[leaf] = column.index_select(0, first_step)
            else:
                previous = column.index_select(0, (first_step - 1).clamp(min=0))
                states[Columns.STATE_IN + leaf.removeprefix(name)] = mask(~is_first, previous)
        return states

    def _gather_steps(self, index: Tensor) -> Batch:
        names = self.recipe.needs.columns
        batch = {leaf: column.index_select(0, index) for leaf, column in self._step_leaves.items()}
        rows = self.obs_row.index_select(0, index)
        if Columns.OBS in names:
            batch |= self._observations(rows)
        if Columns.NEXT_OBS in names:
            next_observations = self._observations(rows + self._steps_ahead_at(index))
            batch |= {next_leaf(leaf): column for leaf, column in next_observations.items()}
        if Columns.NEXT_ACTIONS in names:
            batch |= self._next_actions(index, batch[Columns.FOLLOWED])
        return batch

    def _next_actions(self, index: Tensor, followed: Tensor) -> Batch:
        # Without a next action, an item repeats its own (see `Needs`).
        rows = index + followed * self._steps_ahead_at(index)
        return {
            Columns.NEXT_ACTIONS + leaf.removeprefix(Columns.ACTIONS): self.columns[leaf].index_select(
                0, rows
            )
            for leaf in leaves_of(Columns.ACTIONS, self.columns)
        }

    def _observations(self, rows: Tensor) -> Batch:
        """Return observations by row, with stacked frames."""
        observations: Batch = {}
        for leaf, num_frames in self._num_frames.items():
            column = self.columns[leaf]
            if num_frames == 1:
                observations[leaf] = column.index_select(0, rows)
            else:
                observations[leaf] = stack_rows(
                    column, rows, self._first_row.index_select(0, rows), num_frames
                )
        return observations

    def _steps_ahead_at(self, index: Tensor) -> Tensor | int:
        """Return the number of steps that the items at `index` cover."""
        return 1 if self.recipe.needs.n_step == 1 else self._steps_ahead.index_select(0, index)

    @cached_property
    def _first_row(self) -> Tensor:
        """`[O]` first row of each observation's episode."""
        return torch.repeat_interleave(self.obs_start, self.length + 1)

    @cached_property
    def _sequences(self) -> Sequences:
        needs = self.recipe.needs
        assert needs.seq_len is not None
        return cut_sequences(self.length, needs.seq_len, needs.burn_in, needs.stride)

    @cached_property
    def _state_leaves(self) -> list[str]:
        """Leaves that contain the initial states of sequences."""
        if self.recipe.needs.initial_state == "zero":
            return []
        source = next(name for name in STATE_COLUMNS if name in self.recipe.needs.columns)
        return leaves_of(source, self.columns)

    @cached_property
    def _steps_ahead(self) -> Tensor:
        return steps_ahead(self.length, self.recipe.needs.n_step)

    @cached_property
    def _step_leaves(self) -> dict[str, Tensor]:
        needs = self.recipe.needs
        leaves = {
            leaf: column
            for leaf, column in self.columns.items()
            if root(leaf) in needs.columns
            and not is_per_observation(leaf)
            and leaf not in (*self._state_leaves, Columns.DELTA_T)
        }
        return leaves | self._n_step_columns(leaves) | self._derived_columns()

    def _n_step_columns(self, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the flags and rewards of items of n steps, which replace those of single steps."""
        needs = self.recipe.needs
        if needs.n_step == 1 or needs.gamma is None:
            return {}
        last_steps = torch.arange(self.num_steps, device=self.length.device) + self._steps_ahead - 1
        flags = {
            name: leaves[name][last_steps]
            for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)
            if name in leaves
        }
        if Columns.REWARDS not in leaves:
            return flags
        rewards = discounted_rewards(
            leaves[Columns.REWARDS], self._steps_ahead, needs.n_step, needs.gamma, self.delta_t
        )
        return flags | {Columns.REWARDS: rewards.float()}

    def _derived_columns(self) -> dict[str, Tensor]:
        needs = self.recipe.needs
        columns: dict[str, Tensor] = {}
        steps = torch.arange(self.num_steps, device=self.length.device)
        if Columns.T in needs.columns:
            first_t = self.t_started - (self.length.cumsum(0) - self.length)
            columns[Columns.T] = steps + torch.repeat_interleave(first_t, self.length)
        if Columns.NEXT_ACTIONS in needs.columns:
            ends = torch.repeat_interleave(self.length.cumsum(0), self.length)
            columns[Columns.FOLLOWED] = steps + (1 if needs.n_step == 1 else self._steps_ahead) < ends
        if Columns.N_STEP in needs.columns:
            columns[Columns.N_STEP] = self._steps_ahead
        if Columns.DISCOUNTS in needs.columns and needs.gamma is not None:
            columns[Columns.DISCOUNTS] = discounts(
                self.length,
                self.terminated,
                self._steps_ahead,
                needs.n_step,
                needs.gamma,
                delta_t_S=self.delta_t,
            )
        return columns

    @cached_property
    def _num_frames(self) -> dict[str, int]:
        """Leaves of observations -> the number of frames that are stacked to one observation."""
        num_frames = dict.fromkeys(leaves_of(Columns.OBS, self.columns), 1)
        preprocessing = self.recipe.preprocessing
        if preprocessing:
            num_frames |= dict.fromkeys(preprocessing.stacked_leaves, preprocessing.frame_stack)
        return num_frames


def _ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """Concatenate `range(start, start + length)` of all pairs."""
    offsets = torch.repeat_interleave(starts - (lengths.cumsum(0) - lengths), lengths)
    return offsets + torch.arange(len(offsets), device=offsets.device)


def mask(is_kept: Tensor, values: Tensor) -> Tensor:
    """Return the values where `is_kept`, and zero elsewhere; `is_kept` has the first axes of `values`."""
    return values.masked_fill(~is_kept.reshape(*is_kept.shape, *[1] * (values.dim() - is_kept.dim())), 0)


def select_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> Batch:
    """Return the tensors whose names begin with `prefix`, without the prefix."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def concat_batches(parts: Sequence[Batch]) -> Batch:
    """Concatenate batches, in order."""
    if len(parts) == 1:
        return parts[0]
    return {leaf: torch.cat([part[leaf] for part in parts]) for leaf in parts[0]}
