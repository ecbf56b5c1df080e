"""`EpisodeReplayBuffer` and `PrioritizedEpisodeReplayBuffer`, with RLlib's interface, over columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from hindcast.episodes.block import PER_EPISODE, Block
from hindcast.episodes.columns import Columns, per_observation, root
from hindcast.episodes.convert import block_to_episodes, episodes_to_block
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.episodes.nested import unflatten
from hindcast.episodes.spaces import space_from_state, space_struct, space_to_state
from hindcast.pipeline.episode_store import EpisodeStore, Found
from hindcast.pipeline.priorities import FIRST, Priorities
from hindcast.pipeline.rng import Uniforms

I64 = NDArray[np.int64]
Episodes = SingleAgentEpisode | Sequence[SingleAgentEpisode] | Block

_POWER: Final = "__priority__"
"""A column of the stored blocks: each step's priority to the power of alpha. It moves with its episode."""
_ALWAYS: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)


class EpisodeReplayBuffer:
    """Episodes to draw from, uniformly over timesteps and with replacement (RLlib's class of the same name).

    Episodes are kept in columns, and drawn without a Python object per timestep. A fragment that continues one that
    is held becomes part of its episode. Where a limit is exceeded, the oldest episodes are dropped; the newest
    always stays.

    Episodes that are drawn are in NumPy mode.

    Args:
        capacity: most timesteps.
        batch_size_B: items of a sample.
        batch_length_T: timesteps of an item.
        capacity_bytes: most bytes of all columns; None for no such bound. Not in RLlib.
        seed: of the draws; number d of them follows from the seed and d (RLlib's cannot be seeded).

    Raises:
        ValueError: a capacity below 1.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 64,
        capacity_bytes: int | None = None,
        seed: int = 0,
    ) -> None:
        self.capacity = capacity
        self.capacity_bytes = capacity_bytes
        self.batch_size_B = batch_size_B
        self.batch_length_T = batch_length_T
        self.sampled_timesteps = 0
        self._store = EpisodeStore(capacity, capacity_bytes)
        self._seed = seed
        self._uniforms = Uniforms(seed, "buffer")
        self._draws = 0
        self._added = 0
        self._spaces: list[Any] = [None, None]

    def __len__(self) -> int:
        """Timesteps held."""
        return self._store.num_steps

    @property
    def nbytes(self) -> int:
        """Bytes of all columns, text included."""
        return self._store.nbytes

    def add(self, episodes: Episodes) -> None:
        """Add episodes: complete ones, fragments, or a block of them (of a runner, of a dataset's unit).

        Raises:
            ValueError: episodes that differ in columns, from each other or from those that are held.
        """
        block = self._block_of(episodes)
        self._store.add(block)
        self._added += block.num_steps

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
        lookback: int = 1,
        min_batch_length_T: int = 0,
    ) -> dict[str, Any] | list[SingleAgentEpisode]:
        """Draw items.

        Args:
            num_items: B, as `batch_size_B`; give one of them.
            batch_size_B: B; the buffer's own if None.
            batch_length_T: T; the buffer's own if None, and 1 for episodes.
            n_step: of episodes of one step: the steps that each covers, fewer where its episode ends before
                (RLlib never draws those); from a to below b where this is a pair.
            gamma: discount of the n steps' rewards.
            include_infos: episodes have the infos of their observations.
            include_extra_model_outputs: episodes have the model's further outputs.
            sample_episodes: give episodes instead of arrays.
            lookback: of episodes of several steps: so many steps before, where there are any.
            min_batch_length_T: of episodes of several steps: draw only steps with so many left of their episode.

        Returns:
            `[B, T, ...]` arrays `obs`, `actions`, `rewards`, `is_first`, `is_last`, `is_terminated`, `is_truncated`.
            Where an episode ends, its row continues with another one from its beginning. An observation comes with
            the reward that came with it and the action that followed: 0, and the last action again, where none is.
            Or B episodes of at most T steps; those of one step also have `n_step` and `weights` (all 1).

        Raises:
            ValueError: nothing is held, or what is asked for contradicts itself.
        """
        count = self._count(num_items, batch_size_B)
        length = batch_length_T or (1 if sample_episodes else self.batch_length_T)
        if n_step is not None and not (sample_episodes and length == 1):
            raise ValueError("n_step is of episodes of one step: pass sample_episodes=True, batch_length_T=1")
        if not sample_episodes:
            self.sampled_timesteps += count * length
            return self._rows(count, length)
        names = self._names(include_infos, include_extra_model_outputs)
        if length > 1:
            return self._slices(count, length, lookback, min_batch_length_T, names)
        self.sampled_timesteps += count
        return self._items(self._uniform(count), n_step, gamma, names, np.ones(count, np.float32))

    def get_num_episodes(self) -> int:
        """Episodes held."""
        return self._store.num_episodes

    def get_num_episodes_evicted(self) -> int:
        """Episodes that have left."""
        return self._store.evicted

    def get_num_timesteps(self) -> int:
        """Timesteps held."""
        return len(self)

    def get_sampled_timesteps(self) -> int:
        """Timesteps drawn so far."""
        return self.sampled_timesteps

    def get_added_timesteps(self) -> int:
        """Timesteps added so far."""
        return self._added

    def get_state(self) -> dict[str, Any]:
        """All that the next sample depends on: arrays, lists of text, numbers. No part needs pickle."""
        return {
            "blocks": [_state_of(block) for block in self._store.blocks],
            "spaces": [None if space is None else space_to_state(space) for space in self._spaces],
            "num_episodes_evicted": self._store.evicted,
            "seed": self._seed,
            "draws": self._draws,
            "added_timesteps": self._added,
            "sampled_timesteps": self.sampled_timesteps,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue as the buffer that `state` was taken from, with its seed; the bounds stay this one's."""
        self._store.replace(
            [_block_from(each) for each in state["blocks"]], int(state["num_episodes_evicted"])
        )
        self._spaces = [None if each is None else space_from_state(each) for each in state["spaces"]]
        self._seed, self._draws = int(state["seed"]), int(state["draws"])
        self._uniforms = Uniforms(self._seed, "buffer")
        self._added = int(state["added_timesteps"])
        self.sampled_timesteps = int(state["sampled_timesteps"])

    def _block_of(self, episodes: Episodes) -> Block:
        if isinstance(episodes, Block):
            return episodes
        episodes = [episodes] if isinstance(episodes, SingleAgentEpisode) else list(episodes)
        if episodes and self._spaces == [None, None]:
            self._spaces = [episodes[0].observation_space, episodes[0].action_space]
        return episodes_to_block(episodes)

    def _count(self, num_items: int | None, batch_size_B: int | None) -> int:
        if num_items is not None and batch_size_B is not None:
            raise ValueError("num_items and batch_size_B are the same: give one of them")
        if not len(self):
            raise ValueError("the buffer is empty: add episodes before sampling")
        return num_items or batch_size_B or self.batch_size_B

    def _next(self, count: int) -> NDArray[np.float64]:
        """`[count]` numbers from 0 to below 1, the next of the stream."""
        found = self._uniforms.take(self._draws, count)
        self._draws += count
        return found

    def _uniform(self, count: int) -> I64:
        return (self._next(count) * len(self)).astype(np.int64)

    def _names(self, infos: bool, outputs: bool) -> list[str]:
        """The columns of episodes that are drawn."""
        wanted = {*_ALWAYS, Columns.INFOS} if infos else {*_ALWAYS}
        others = (Columns.INFOS, _POWER)
        names = list(self._store.blocks[0].columns)
        return [name for name in names if root(name) in wanted or (outputs and name not in others)]

    def _items(
        self,
        drawn: I64,
        n_step: int | tuple[int, int] | None,
        gamma: float,
        names: Sequence[str],
        weights: NDArray[np.float32],
    ) -> list[SingleAgentEpisode]:
        """Transitions of n steps that begin with the steps `drawn`, as episodes of one step."""
        lowest, end = n_step if isinstance(n_step, tuple) else (n_step or 1, 0)
        n = np.full(len(drawn), lowest)
        if end:
            n += (self._next(len(drawn)) * (end - lowest)).astype(np.int64)
        found = list(self._store.find(drawn))
        parts = [_transitions(part, names, n[part.places], gamma, weights[part.places]) for part in found]
        places = np.concatenate([part.places for part in found])
        return block_to_episodes(Block.concat(parts).take(np.argsort(places)), *self._spaces)

    def _slices(
        self, count: int, length: int, lookback: int, least: int, names: Sequence[str]
    ) -> list[SingleAgentEpisode]:
        lengths = self._lengths()
        longest = int(lengths.max())
        if longest < least:
            raise ValueError(
                f"min_batch_length_T is {least}, and the longest episode held has {longest} steps"
            )
        allowed = np.maximum(lengths - max(least, 1) + 1, 0)
        ends = allowed.cumsum()
        drawn = (self._next(count) * ends[-1]).astype(np.int64)
        of = np.searchsorted(ends, drawn, side="right")
        begins, first = (lengths.cumsum() - lengths)[of], drawn - (ends - allowed)[of]
        found: list[SingleAgentEpisode] = []
        for begin, step in zip(begins, first.tolist(), strict=True):
            ((block, _, rows),) = self._store.find(np.array([begin]))
            own = block.with_columns({name: block.columns[name] for name in names})
            (whole,) = block_to_episodes(own.take(block.episode_of_step[rows]), *self._spaces)
            found.append(whole.slice(slice(step, step + length), len_lookback_buffer=lookback))
        self.sampled_timesteps += sum(map(len, found))
        return found

    def _lengths(self) -> I64:
        """`[N]` steps of each episode."""
        return np.concatenate([block.length for block in self._store.blocks])

    def _rows(self, count: int, length: int) -> dict[str, Any]:
        """`[count, length, ...]` adjacent observations with what came before and after them."""
        lengths = self._lengths()
        ends = lengths.cumsum()
        steps = np.empty(count * length, dtype=np.int64)
        t, total = np.empty_like(steps), np.empty_like(steps)
        is_first = np.zeros(count * length, dtype=np.bool_)
        place = 0
        while place < len(steps):
            drawn = int(self._uniform(1)[0])
            episode = int(np.searchsorted(ends, drawn, side="right"))
            begin, own = int(ends[episode] - lengths[episode]), int(lengths[episode])
            into = place % length
            first = 0 if into else drawn - begin
            stop = place + min(own + 1 - first, length - into)
            t[place:stop] = np.arange(first, first + stop - place)
            steps[place:stop], total[place:stop], is_first[place] = begin, own, True
            place = stop
        steps += np.minimum(t, total - 1)
        found = list(self._store.find(steps))
        inverse = np.argsort(np.concatenate([part.places for part in found]))
        parts = [_places(part, t[part.places]) for part in found]
        columns = {name: np.concatenate([part[name] for part in parts])[inverse] for name in parts[0]}
        columns["is_first"] = is_first
        columns["is_last"] = np.append(is_first[1:], True)
        shaped = {name: column.reshape(count, length, *column.shape[1:]) for name, column in columns.items()}
        structs = {Columns.OBS: space_struct(self._spaces[0]), Columns.ACTIONS: space_struct(self._spaces[1])}
        roots = dict.fromkeys(map(root, shaped))
        return {name: unflatten(shaped, name, structs.get(name)) for name in roots}


class PrioritizedEpisodeReplayBuffer(EpisodeReplayBuffer):
    """Draws timesteps in proportion to their priorities (arXiv 1511.05952; RLlib's class of the same name).

    Args:
        capacity: most timesteps.
        batch_size_B: items of a sample.
        batch_length_T: 1; items of several timesteps have no priority.
        alpha: exponent of the priorities, 0 draws uniformly.
        capacity_bytes: most bytes of all columns; None for no such bound. Not in RLlib.
        seed: of the draws.

    Raises:
        ValueError: a capacity below 1, a batch_length_T other than 1, or a negative alpha.
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
    ) -> None:
        if batch_length_T != 1:
            raise ValueError(
                f"batch_length_T is {batch_length_T}; items drawn by priority are single timesteps"
            )
        if alpha < 0:
            raise ValueError(f"alpha is {alpha}; it must be at least 0")
        super().__init__(
            capacity, batch_size_B=batch_size_B, batch_length_T=1, capacity_bytes=capacity_bytes, seed=seed
        )
        self._alpha = alpha
        self._priorities = Priorities(1, alpha)
        self._greatest = FIRST
        self._last_sampled: I64 | None = None

    def add(self, episodes: Episodes, weight: float | None = None) -> None:
        """Take episodes in; see `EpisodeReplayBuffer.add`.

        Args:
            episodes: as there.
            weight: their steps' first priority; the greatest so far if None.
        """
        block = self._block_of(episodes)
        power = self._priorities.power(self._greatest if weight is None else weight)
        self._keep_priorities()
        super().add(
            block.with_columns({**block.columns, _POWER: np.full(block.num_steps, power, np.float32)})
        )
        self._take_priorities()
        self._last_sampled = None

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
            num_items, batch_size_B, n_step, gamma, include_infos, include_extra_model_outputs: as there.
            batch_length_T: 1 or None.
            beta: how much of the bias the items' `weights` take back, 1 for all of it; the greatest weight of any
                timestep held is 1.

        Raises:
            ValueError: as there; or several timesteps, or a negative beta.
        """
        count = self._count(num_items, batch_size_B)
        if batch_length_T not in (None, 1):
            raise ValueError(
                f"batch_length_T is {batch_length_T}; items drawn by priority are single timesteps"
            )
        if beta < 0:
            raise ValueError(f"beta is {beta}; it must be at least 0")
        drawn, likelier = self._priorities.draw(torch.from_numpy(self._next(count)))
        self.sampled_timesteps += count
        self._last_sampled = drawn.numpy()
        names = self._names(include_infos, include_extra_model_outputs)
        weights = (likelier**-beta).numpy().astype(np.float32)
        return self._items(self._last_sampled, n_step, gamma, names, weights)

    def update_priorities(self, priorities: ArrayLike, module_id: str | None = None) -> None:  # noqa: ARG002
        """Give the items that were drawn last their priorities, `[B]`, mostly errors, whose signs do not count.

        Args:
            priorities: in the order of the sample.
            module_id: not used: there is one agent.

        Raises:
            ValueError: nothing was drawn since episodes were added or priorities given, or there is not one priority
                for each item, or one is NaN or infinite.
        """
        given = np.asarray(priorities, dtype=np.float64)
        if self._last_sampled is None:
            raise ValueError(
                "priorities are of the items drawn last: sample before update_priorities, and add after"
            )
        if given.shape != self._last_sampled.shape or not np.isfinite(given).all():
            raise ValueError(
                f"there are {len(self._last_sampled)} items drawn last, and priorities of shape {list(given.shape)}; "
                "give a finite one for each"
            )
        self._priorities.set(torch.from_numpy(self._last_sampled), torch.from_numpy(given))
        self._greatest = max(self._greatest, float(np.abs(given).max()))
        self._last_sampled = None

    def get_state(self) -> dict[str, Any]:
        """See `EpisodeReplayBuffer.get_state`."""
        self._keep_priorities()
        if len(self):
            self._take_priorities()  # sums as a buffer that takes the state over makes them
        last = None if self._last_sampled is None else self._last_sampled.copy()
        return super().get_state() | {
            "alpha": self._alpha,
            "max_priority": self._greatest,
            "last_sampled": last,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """See `EpisodeReplayBuffer.set_state`."""
        super().set_state(state)
        self._alpha = float(state["alpha"])
        self._priorities = Priorities(1, self._alpha)
        self._greatest = float(state["max_priority"])
        self._last_sampled = None if state["last_sampled"] is None else np.array(state["last_sampled"])
        if len(self):
            self._take_priorities()

    def _keep_priorities(self) -> None:
        """Write the priorities into their column."""
        powers, first = self._priorities.powers.numpy(), 0
        for block in self._store.blocks:
            block.columns[_POWER][:] = powers[first : first + block.num_steps]
            first += block.num_steps

    def _take_priorities(self) -> None:
        powers = np.concatenate([block.columns[_POWER] for block in self._store.blocks])
        self._priorities = Priorities(len(powers), self._alpha)
        self._priorities.put(torch.from_numpy(powers))


def _transitions(
    found: Found, names: Sequence[str], n: I64, gamma: float, weights: NDArray[np.float32]
) -> Block:
    """Steps of a block as episodes of one step, each over at most n steps."""
    block, _, rows = found
    episode = block.episode_of_step[rows]
    t = rows - block.start[episode]
    n = np.minimum(n, block.length[episode] - t)
    observed = (block.obs_row[rows][:, None] + np.stack([np.zeros_like(n), n], 1)).ravel()
    columns = {name: block.columns[name][observed if per_observation(name) else rows] for name in names}
    columns[Columns.REWARDS] = _discounted(block.columns[Columns.REWARDS], rows, n, gamma)
    is_end = t + n == block.length[episode]
    return Block(
        columns={**columns, Columns.N_STEP: n, Columns.WEIGHTS: weights},
        length=np.ones(len(rows), dtype=np.int64),
        eps_id=block.eps_id[episode],
        t_started=block.t_started[episode] + t,
        terminated=block.terminated[episode] & is_end,
        truncated=block.truncated[episode] & is_end,
    )


def _discounted(rewards: NDArray[Any], rows: I64, n: I64, gamma: float) -> NDArray[Any]:
    total = rewards[rows].astype(np.float64)
    for k in range(1, int(n.max(initial=1))):
        covered = k < n
        total[covered] += gamma**k * rewards[rows[covered] + k]
    return total.astype(rewards.dtype)


def _places(found: Found, t: I64) -> dict[str, NDArray[Any]]:
    """Observations t of the steps' episodes with the rewards before and the actions after them."""
    block, _, rows = found
    episode = block.episode_of_step[rows]
    is_final = t == block.length[episode]
    columns = {name: column for name, column in block.columns.items() if root(name) in _ALWAYS}
    picked = {
        name: column[block.obs_row[rows] + is_final if per_observation(name) else rows]
        for name, column in columns.items()
    }
    rewards = block.columns[Columns.REWARDS]
    before = rewards[np.maximum(rows - 1 + is_final, 0)]
    picked[Columns.REWARDS] = np.where(t > 0, before, np.zeros_like(before))
    picked["is_terminated"] = is_final & block.terminated[episode]
    picked["is_truncated"] = is_final & block.truncated[episode]
    return picked


def _state_of(block: Block) -> dict[str, Any]:
    text = block.details
    return {
        "columns": {
            name: column.tolist() if column.dtype == object else column.copy()
            for name, column in block.columns.items()
        },
        "eps_id": block.eps_id.tolist(),
        "details": None if text is None else text.tolist(),
        **{name: getattr(block, name).copy() for name in PER_EPISODE},
    }


def _block_from(state: Mapping[str, Any]) -> Block:
    columns = {
        name: np.array(column, dtype=object) if isinstance(column, list) else column.copy()
        for name, column in state["columns"].items()
    }
    return Block(
        columns=columns,
        eps_id=np.array(state["eps_id"], dtype=object),
        details=None if state["details"] is None else np.array(state["details"], dtype=object),
        **{name: state[name].copy() for name in PER_EPISODE},
    )
