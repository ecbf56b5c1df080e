"""`EpisodeReplayBuffer` and `PrioritizedEpisodeReplayBuffer`, with RLlib's interface and columnar storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from hindcast.episodes.block import Block, concat_ranges
from hindcast.episodes.columns import Columns, is_per_observation, root
from hindcast.episodes.convert import block_to_episodes, episodes_to_block
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.episodes.nested import unflatten
from hindcast.episodes.spaces import space_from_state, space_struct, space_to_state
from hindcast.pipeline.draws import Draws
from hindcast.pipeline.episode_store import EpisodeStore
from hindcast.pipeline.items import discounted_rewards, steps_ahead
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.priorities import INITIAL_PRIORITY

I64 = NDArray[np.int64]
Episodes = SingleAgentEpisode | Sequence[SingleAgentEpisode] | Block

_POWER_COLUMN: Final = "__priority__"
"""Column of the stored blocks with each step's priority to the power of alpha, so that it moves with the step."""
_BASE_COLUMNS: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)


class EpisodeReplayBuffer:
    """A buffer that draws timesteps uniformly, with replacement (RLlib's class of the same name).

    Episodes are stored in columns and drawn without a Python object per timestep. A fragment that continues a stored
    fragment is joined to its episode. Beyond a limit the oldest episodes are dropped; the newest episode always stays.

    Episodes that are drawn contain NumPy arrays, as after `SingleAgentEpisode.to_numpy`.

    Args:
        capacity: maximum number of timesteps.
        batch_size_B: number of items of a sample.
        batch_length_T: number of timesteps of an item.
        capacity_bytes: maximum bytes of all columns; None for no limit. Not in RLlib.
        seed: seed of the draws; draw number d depends on the seed and d (RLlib's cannot be seeded).
        metrics_num_episodes_for_smoothing: not used: the buffer has no metrics.

    Raises:
        ValueError: a number that is not a whole number of at least 1.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 64,
        capacity_bytes: int | None = None,
        seed: int = 0,
        metrics_num_episodes_for_smoothing: int = 100,  # noqa: ARG002
    ) -> None:
        _check_counts(capacity=capacity, batch_size_B=batch_size_B, batch_length_T=batch_length_T)
        self.capacity = capacity
        self.capacity_bytes = capacity_bytes
        self.batch_size_B = batch_size_B
        self.batch_length_T = batch_length_T
        self.sampled_timesteps = 0
        self._store = EpisodeStore(capacity, capacity_bytes)
        self._seed = seed
        self._needs = Needs(frozenset(), sampling="uniform")
        self._draws = Draws(self._needs, seed, 0)
        self._num_added = 0
        self._spaces: list[Any] = [None, None]

    def __len__(self) -> int:
        """Number of stored timesteps."""
        return self._store.num_steps

    @property
    def nbytes(self) -> int:
        """Bytes of all columns, text included."""
        return self._store.nbytes

    def add(self, episodes: Episodes) -> None:
        """Add episodes: complete ones, fragments, or a block of them (from a runner or a dataset's unit).

        Raises:
            ValueError: episodes differ in columns from each other or from the stored episodes.
        """
        block = self._to_block(episodes)
        self._store.add(block)
        self._draws.size = len(self)
        self._num_added += block.num_steps

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = None,
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        sample_episodes: bool = False,
        to_numpy: bool = True,
        lookback: int = 1,
        min_batch_length_T: int = 0,
    ) -> dict[str, Any] | list[SingleAgentEpisode]:
        """Draw items.

        Args:
            num_items: B, like `batch_size_B`; set only one of them.
            batch_size_B: B; the buffer's `batch_size_B` if None.
            batch_length_T: T; the buffer's `batch_length_T` if None, and 1 for episodes.
            n_step: for episodes of one step, the number of steps that each covers, or fewer at the end of its episode
                (RLlib never draws items with fewer); a pair (a, b) draws a number from a to b - 1 for each item.
            gamma: discount of the rewards of n steps.
            include_infos: add the infos of the observations to episodes.
            include_extra_model_outputs: add the model's further outputs to episodes.
            sample_episodes: return episodes instead of arrays.
            to_numpy: always True, since the buffer stores arrays.
            lookback: for episodes of several steps, the maximum number of preceding steps to include.
            min_batch_length_T: for episodes of several steps, the minimum number of steps from the beginning of an
                item to the end of the stored episode.

        Returns:
            `[B, T, ...]` arrays `obs`, `actions`, `rewards`, `is_first`, `is_last`, `is_terminated`, `is_truncated`.
            At the end of an episode, the row continues with the beginning of another episode. Each observation has the
            reward that came with it, or 0 for an episode's first observation, and the action taken after it; an
            episode's final observation repeats the last action.
            With `sample_episodes`, B episodes of at most T steps; episodes of one step also have `n_step` and `weights`
            (all 1).

        Raises:
            ValueError: the buffer is empty, or arguments contradict each other.
        """
        if not to_numpy:
            raise ValueError("to_numpy is False, but the buffer stores arrays: leave it out")
        count = self._resolve_num_items(num_items, batch_size_B)
        length = batch_length_T or (1 if sample_episodes else self.batch_length_T)
        if n_step is not None and not (sample_episodes and length == 1):
            raise ValueError(
                "n_step requires episodes of one step: pass sample_episodes=True, batch_length_T=1"
            )
        if not sample_episodes:
            return self._sample_rows(count, length)
        leaves = self._select_leaves(include_infos, include_extra_model_outputs)
        if length > 1:
            return self._sample_fragments(count, length, lookback, min_batch_length_T, leaves)
        return self._sample_transitions(count, n_step, gamma, leaves)

    def get_num_episodes(self) -> int:
        """Return the number of stored episodes."""
        return self._store.num_episodes

    def get_num_episodes_evicted(self) -> int:
        """Return the number of evicted episodes."""
        return self._store.num_evicted

    def get_num_timesteps(self) -> int:
        """Return the number of stored timesteps."""
        return len(self)

    def get_sampled_timesteps(self) -> int:
        """Return the number of timesteps drawn so far."""
        return self.sampled_timesteps

    def get_added_timesteps(self) -> int:
        """Return the number of timesteps added so far."""
        return self._num_added

    def get_state(self) -> dict[str, Any]:
        """Return all that the next sample depends on, except the arguments of the constructor other than the seed.

        The state consists of arrays, lists of text, and numbers, so no pickle is needed.
        """
        return {
            "episodes": {
                name: array.tolist() if array.dtype == object else array.copy()
                for name, array in self._store.arrays().items()
            },
            "spaces": [None if space is None else space_to_state(space) for space in self._spaces],
            "num_episodes_evicted": self._store.num_evicted,
            "seed": self._seed,
            "draws": self._draws.num_drawn,
            "added_timesteps": self._num_added,
            "sampled_timesteps": self.sampled_timesteps,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue like the buffer of `state`, with its seed; capacities and batch sizes do not change."""
        arrays = {
            name: np.array(values, dtype=object if isinstance(values, list) else None)
            for name, values in state["episodes"].items()
        }
        self._store.load(arrays, int(state["num_episodes_evicted"]))
        self._spaces = [None if space is None else space_from_state(space) for space in state["spaces"]]
        self._seed = int(state["seed"])
        self._draws = Draws(self._needs, self._seed, len(self))
        self._draws.num_drawn = int(state["draws"])
        self._num_added = int(state["added_timesteps"])
        self.sampled_timesteps = int(state["sampled_timesteps"])

    def _to_block(self, episodes: Episodes) -> Block:
        if isinstance(episodes, Block):
            return episodes
        episodes = [episodes] if isinstance(episodes, SingleAgentEpisode) else list(episodes)
        if episodes and self._spaces == [None, None]:
            self._spaces = [episodes[0].observation_space, episodes[0].action_space]
        return episodes_to_block(episodes)

    def _resolve_num_items(self, num_items: int | None, batch_size_B: int | None) -> int:
        """Return the number of items to draw, after checking that there are any."""
        if num_items is not None and batch_size_B is not None:
            raise ValueError("num_items and batch_size_B have the same meaning: set one of them")
        if not len(self):
            raise ValueError("the buffer is empty: add episodes before sampling")
        return num_items or batch_size_B or self.batch_size_B

    def _select_leaves(self, include_infos: bool, include_outputs: bool) -> list[str]:
        """Return the leaves that drawn episodes have."""
        included = {*_BASE_COLUMNS, *([Columns.INFOS] if include_infos else [])}
        excluded = (Columns.INFOS, _POWER_COLUMN)
        names = self._store.blocks[0].columns
        return [
            leaf for leaf in names if root(leaf) in included or (include_outputs and leaf not in excluded)
        ]

    def _sample_transitions(
        self,
        count: int,
        n_step: int | tuple[int, int] | None,
        gamma: float,
        leaves: Sequence[str],
        beta: float = 0.0,
    ) -> list[SingleAgentEpisode]:
        """Draw `count` transitions of n steps, as episodes of one step."""
        if n_step not in (None, 1) and Columns.DELTA_T in self._store.blocks[0].columns:
            raise ValueError(
                "n_step is over 1, but the episodes have durations of steps (delta_t), which it does not discount by: "
                "leave n_step out, or draw episodes of several steps"
            )
        self.sampled_timesteps += count
        steps, extra_columns = self._draws.next(count, beta)
        weights = extra_columns.get(Columns.WEIGHTS, torch.ones(count))
        # A pair (a, b) means a <= n < b, as in `sample`; max_n is 0 if n is fixed.
        min_n, max_n = n_step if isinstance(n_step, tuple) else (n_step or 1, 0)
        n = np.full(count, min_n)
        if max_n:
            n += (self._draws.take_uniforms(count).numpy() * (max_n - min_n)).astype(np.int64)
        index = self._store.index
        episode = np.searchsorted(index.start + index.length, steps.numpy(), side="right")
        t = steps.numpy() - index.start[episode]
        fragments = self._store.cut_fragments(episode, t, np.minimum(n, index.length[episode] - t), leaves)
        return block_to_episodes(_n_step_transitions(fragments, gamma, weights.numpy()), *self._spaces)

    def _sample_fragments(
        self, count: int, length: int, lookback: int, min_length: int, leaves: Sequence[str]
    ) -> list[SingleAgentEpisode]:
        """Draw `count` episodes of up to `length` steps, with up to `lookback` steps before them."""
        lengths = self._store.index.length
        if lengths.max() < min_length:
            raise ValueError(
                f"min_batch_length_T is {min_length}, but the longest stored episode has {lengths.max()} steps"
            )
        num_starts = np.maximum(lengths - max(min_length, 1) + 1, 0)
        ends = num_starts.cumsum()
        start_index = (self._draws.take_uniforms(count).numpy() * ends[-1]).astype(np.int64)
        episode = np.searchsorted(ends, start_index, side="right")
        t = start_index - (ends - num_starts)[episode]
        num_before, num_after = np.minimum(lookback, t), np.minimum(length, lengths[episode] - t)
        self.sampled_timesteps += int(num_after.sum())
        fragments = self._store.cut_fragments(episode, t - num_before, num_before + num_after, leaves)
        episodes = block_to_episodes(fragments, *self._spaces)
        return [
            episode_fragment.slice(slice(lookback_steps, None), len_lookback_buffer=lookback_steps)
            for episode_fragment, lookback_steps in zip(episodes, num_before.tolist(), strict=True)
        ]

    def _sample_rows(self, count: int, length: int) -> dict[str, Any]:
        """Draw rows of adjacent observations with their rewards and actions, `[count, length, ...]`."""
        self.sampled_timesteps += count * length
        index = self._store.index
        stops = index.start + index.length
        fragments: list[tuple[int, int, int]] = []
        position = 0
        while position < count * length:
            step = int(self._draws.next(1)[0])
            episode_index = int(np.searchsorted(stops, step, side="right"))
            offset = position % length
            first_t = 0 if offset else step - int(index.start[episode_index])
            size = min(int(index.length[episode_index]) + 1 - first_t, length - offset)
            fragments.append((episode_index, first_t, size))
            position += size
        episode_indices, first_ts, sizes = np.array(fragments).T
        episode, t = np.repeat(episode_indices, sizes), concat_ranges(first_ts, sizes)
        is_first = np.zeros(position, dtype=np.bool_)
        is_first[sizes.cumsum() - sizes] = True
        is_final = t == index.length[episode]
        start = index.start[episode]
        rows = {
            Columns.OBS: index.obs_start[episode] + t,
            Columns.ACTIONS: start + t - is_final,
            Columns.REWARDS: start + np.maximum(t - 1, 0),
        }
        columns = {
            leaf: self._store.rows(leaf, rows[root(leaf)]) for leaf in self._select_leaves(False, False)
        }
        columns[Columns.REWARDS][t == 0] = 0
        columns |= {"is_first": is_first, "is_last": np.append(is_first[1:], True)}
        columns |= {
            f"is_{name}": is_final & getattr(index, name)[episode] for name in ("terminated", "truncated")
        }
        batched = {name: column.reshape(count, length, *column.shape[1:]) for name, column in columns.items()}
        structs = {Columns.OBS: space_struct(self._spaces[0]), Columns.ACTIONS: space_struct(self._spaces[1])}
        roots = dict.fromkeys(map(root, batched))
        return {name: unflatten(batched, name, structs.get(name)) for name in roots}


def _check_counts(**counts: Any) -> None:
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, Integral) or int(count) < 1:
            raise ValueError(f"{name} is {count!r}; it must be a whole number of at least 1")


class PrioritizedEpisodeReplayBuffer(EpisodeReplayBuffer):
    """A buffer that draws timesteps in proportion to priorities (arXiv 1511.05952; RLlib's class of the same name).

    Args:
        capacity: maximum number of timesteps.
        batch_size_B: number of items of a sample.
        batch_length_T: always 1; items of several timesteps have no priority.
        alpha: exponent of the priorities; 0 draws uniformly.
        capacity_bytes: maximum bytes of all columns; None for no limit. Not in RLlib.
        seed: seed of the draws.
        metrics_num_episodes_for_smoothing: not used: the buffer has no metrics.

    Raises:
        ValueError: a capacity below 1, a batch_length_T other than 1, or an alpha that is not a number of at least 0.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 1,
        alpha: float = 1.0,
        capacity_bytes: int | None = None,
        seed: int = 0,
        metrics_num_episodes_for_smoothing: int = 100,  # noqa: ARG002
    ) -> None:
        _check_single_steps(batch_length_T)
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not alpha >= 0:
            raise ValueError(f"alpha is {alpha!r}; it must be a number of at least 0")
        super().__init__(
            capacity, batch_size_B=batch_size_B, batch_length_T=1, capacity_bytes=capacity_bytes, seed=seed
        )
        self._needs = Needs(frozenset(), sampling="prioritized", alpha=alpha)
        self._draws = Draws(self._needs, seed, 0)
        self._max_priority = INITIAL_PRIORITY

    def add(self, episodes: Episodes, weight: float | None = None) -> None:
        """Add episodes; see `EpisodeReplayBuffer.add`.

        Args:
            episodes: as in that method.
            weight: initial priority of their steps; None takes the maximum priority so far.
        """
        block = self._to_block(episodes)
        power = self._draws.priorities.to_power(self._max_priority if weight is None else weight)
        # The store may drop and join episodes; as a column, priorities move with their steps.
        self._store_priorities()
        super().add(
            block.with_columns({**block.columns, _POWER_COLUMN: np.full(block.num_steps, power, np.float32)})
        )
        self._load_priorities()

    def sample(  # type: ignore[override]
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = None,
        beta: float = 0.0,
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
    ) -> list[SingleAgentEpisode]:
        """Draw episodes of one step, see `EpisodeReplayBuffer.sample`.

        Args:
            num_items, batch_size_B, n_step, gamma, include_infos, include_extra_model_outputs: as in that method.
            batch_length_T: 1 or None.
            beta: exponent of the items' `weights`: 0 gives weights of 1, and 1 corrects the bias of the priorities
                entirely. The maximum weight of all stored timesteps is 1.

        Raises:
            ValueError: as in that method; or `batch_length_T` is over 1, or beta is negative.
        """
        _check_single_steps(batch_length_T or 1)
        if beta < 0:
            raise ValueError(f"beta is {beta}; it must be at least 0")
        count = self._resolve_num_items(num_items, batch_size_B)
        leaves = self._select_leaves(include_infos, include_extra_model_outputs)
        return self._sample_transitions(count, n_step, gamma, leaves, beta)

    def update_priorities(self, priorities: ArrayLike, module_id: str | None = None) -> None:  # noqa: ARG002
        """Set the priorities of the items drawn last, `[B]`, usually TD errors; signs are ignored.

        Args:
            priorities: one for each item, in the order of the sample.
            module_id: not used: there is one agent.

        Raises:
            ValueError: nothing was drawn since episodes were added or priorities set, there is not exactly one priority
                per item, or a priority is NaN or infinite.
        """
        values = np.asarray(priorities, dtype=np.float64)
        items = self._draws.pending_items
        if items is None:
            raise ValueError(
                "update_priorities sets the priorities of the items drawn last: call it after sample and before add"
            )
        if values.shape != items.shape or not np.isfinite(values).all():
            raise ValueError(
                f"{len(items)} items were drawn last, but priorities have shape {list(values.shape)}; "
                "pass a finite one for each item"
            )
        self._draws.prioritise(torch.from_numpy(values))
        self._max_priority = max(self._max_priority, float(np.abs(values).max()))

    def get_state(self) -> dict[str, Any]:
        """See `EpisodeReplayBuffer.get_state`; the state also contains alpha and the priorities."""
        items = self._draws.pending_items
        self._store_priorities()
        return super().get_state() | {
            "alpha": self._needs.alpha,
            "max_priority": self._max_priority,
            "last_sampled": None if items is None else items.numpy().copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """See `EpisodeReplayBuffer.set_state`; alpha is also restored."""
        self._needs = replace(self._needs, alpha=float(state["alpha"]))
        super().set_state(state)
        self._max_priority = float(state["max_priority"])
        if len(self):
            self._load_priorities()
        if state["last_sampled"] is not None:
            self._draws.pending_items = torch.tensor(state["last_sampled"])

    def _store_priorities(self) -> None:
        """Write the priorities into their column of the blocks."""
        powers, first_step = self._draws.priorities.powers.numpy(), 0
        for block in self._store.blocks:
            block.columns[_POWER_COLUMN][:] = powers[first_step : first_step + block.num_steps]
            first_step += block.num_steps

    def _load_priorities(self) -> None:
        """Read the priorities back from their column of the blocks."""
        self._draws.set_powers(torch.from_numpy(self._store.rows(_POWER_COLUMN, np.arange(len(self)))))


def _check_single_steps(batch_length_T: int) -> None:
    if batch_length_T != 1:
        raise ValueError(f"batch_length_T is {batch_length_T}; prioritized items are single timesteps")


def _n_step_transitions(fragments: Block, gamma: float, weights: NDArray[np.float32]) -> Block:
    """Convert each fragment of n steps to an episode of one step, with columns `n_step` and `weights`.

    The step has the first observation and action, the discounted sum of the rewards, and the last observation as the
    next one.

    Args:
        fragments: F fragments.
        gamma: the discount.
        weights: `[F]`.
    """
    n = fragments.length
    obs_rows = (fragments.obs_start[:, None] + np.stack([np.zeros_like(n), n], 1)).ravel()
    columns = {
        leaf: column[obs_rows if is_per_observation(leaf) else fragments.start]
        for leaf, column in fragments.columns.items()
    }
    rewards, max_n = fragments.columns[Columns.REWARDS], int(n.max())
    ahead = steps_ahead(torch.from_numpy(n), max_n)
    # float64, like the rewards of `Needs.n_step`.
    n_step_rewards = discounted_rewards(torch.from_numpy(rewards.astype(np.float64)), ahead, max_n, gamma)
    columns[Columns.REWARDS] = n_step_rewards.numpy()[fragments.start].astype(rewards.dtype)
    columns |= {Columns.N_STEP: n, Columns.WEIGHTS: weights}
    return replace(fragments, columns=columns, length=np.ones_like(n))
