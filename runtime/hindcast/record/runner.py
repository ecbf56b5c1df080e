"""`EnvRunner`: plays complete episodes, selected by index, in B slots at once.

Matrix kernels may round a row differently for other batch sizes and other positions of the row. So the policy always
sees all B slots, and episode i always runs in slot i mod B: its numbers depend neither on how many other episodes run
nor on which were played before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from hindcast.api.environment import EnvironmentSpec
from hindcast.datasets.validate import all_finite
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, root
from hindcast.episodes.convert import info_to_json
from hindcast.errors import UserCodeError
from hindcast.metrics_logger import MetricsLogger
from hindcast.models.policy import Actions
from hindcast.pipeline.rng import generator
from hindcast.record.callbacks import EPISODE_HOOKS
from hindcast.record.episode_callbacks import EpisodeCallbacks, make_callbacks, select_overriding
from hindcast.record.seeding import EpisodeNoise, reset_seed
from hindcast.record.slots import Slots, Trajectories, check_spaces


class Actor(Protocol):
    """A policy as a runner uses it, such as `Policy` and `RandomActor`."""

    def draw_noise(self, generator: np.random.Generator, count: int) -> NDArray[np.float32]:
        """Draw `[count, K]` noise, all randomness of `count` actions of one slot.

        Several draws in succession must equal one draw of their total count.
        """

    def act(
        self,
        obs: dict[str, NDArray[Any]],
        noise: NDArray[np.float32] | None = None,
        is_first: NDArray[np.bool_] | None = None,
        rewards: NDArray[np.float64] | None = None,
    ) -> Actions:
        """Return actions of all B slots.

        Args:
            obs: leaf -> `[B, *shape]`.
            noise: `[B, K]`; None takes the mode.
            is_first: `[B]`, whether a slot's episode starts with this step.
            rewards: `[B]`, rewards of the previous step; those of a slot whose episode starts now have no meaning.
        """


@dataclass(frozen=True)
class Episode:
    """An episode that was played.

    Attributes:
        index: index of the episode in the recording, evaluation or training.
        columns: leaf -> `[T, *shape]`, or `[T+1, *shape]` for observations and infos.
        terminated: whether the environment ended the episode.
        truncated: whether the episode was cut off.
    """

    index: int
    columns: dict[str, NDArray[Any]]
    terminated: bool
    truncated: bool

    @property
    def length(self) -> int:
        """T, the number of steps."""
        return len(self.columns[Columns.REWARDS])

    @property
    def episode_return(self) -> float:
        """Undiscounted sum of rewards."""
        return float(self.columns[Columns.REWARDS].sum())

    def find_non_finite(self) -> dict[str, int]:
        """Return column -> first timestep with a NaN or infinite number, of `rewards` and `obs` if they have any."""
        first_steps: dict[str, int] = {}
        for name, column in self.columns.items():
            if (
                root(name) in (Columns.REWARDS, Columns.OBS)
                and column.dtype.kind == "f"
                and not all_finite(column)
            ):
                t = int(np.argmin(np.isfinite(column.reshape(len(column), -1)).all(axis=1)))
                first_steps[root(name)] = min(t, first_steps.get(root(name), t))
        return first_steps


OnEpisodes = Callable[[int, list[Episode]], None]
"""Called after episodes were played for a training, with a number that increases with each call and the episodes."""


class EnvRunner:
    """Plays episodes of one environment with one policy.

    Args:
        environment: environment to play in.
        policy: acts for all slots at once.
        width: B, the number of slots.
        seed: with an episode's index it determines the episode's start and the policy's noise.
        explore: sample actions; False takes the mode of their distribution.
        records_states: episodes contain the policy's recurrent state after each step, `state_out/…`.
        callbacks: "package.module:Class" of callbacks, called with episodes.

    Attributes:
        slots: the environments.
        metrics: logger for metrics of the callbacks.
    """

    def __init__(
        self,
        environment: EnvironmentSpec,
        policy: Actor,
        width: int,
        seed: int,
        explore: bool,
        *,
        records_states: bool = False,
        callbacks: Sequence[str] = (),
    ) -> None:
        self.slots = Slots(environment, width)
        check_spaces(policy, self.slots.spaces, environment.id)
        self.metrics = MetricsLogger()
        self._callbacks: EpisodeCallbacks | None = None
        if episode_callbacks := select_overriding(make_callbacks(callbacks), EPISODE_HOOKS):
            self._callbacks = EpisodeCallbacks(
                episode_callbacks,
                runner=self,
                slots=self.slots,
                module=getattr(policy, "module", None),
                kwargs=environment.kwargs,
                metrics=self.metrics,
            )
        self._policy = policy
        self._seed = seed
        self._records_states = records_states
        self._noise = EpisodeNoise(width, policy.draw_noise) if explore else None

    def play(self, indices: Sequence[int]) -> Iterator[Episode]:
        """Play the episodes of `indices` to their ends, each in slot index mod B; yield them in order of `indices`."""
        finished_episodes: dict[int, Episode] = {}  # not yet yielded, since an earlier episode still runs
        remaining_indices = iter(indices)
        next_index = next(remaining_indices, None)
        width = self.slots.width
        queues = [iter([index for index in indices if index % width == slot]) for slot in range(width)]
        for episode in self._run_slots(queues):
            finished_episodes[episode.index] = episode
            while next_index in finished_episodes:
                yield finished_episodes.pop(next_index)
                next_index = next(remaining_indices, None)
        self._end_sample()

    def rollout(self, first_index: int, num_steps: int) -> list[Episode]:
        """Play exactly `num_steps` steps in every slot, in new episodes with indices from `first_index` on.

        A free slot takes the next index, so that every slot is busy to the end. The content of a rollout depends on
        `first_index`, `num_steps`, B and the policy. Episodes that still run at the end come last, neither
        terminated nor truncated.
        """
        # All slots share one iterator, so that each index is played once.
        episodes = list(self._run_slots([itertools.count(first_index)] * self.slots.width, num_steps))
        self._end_sample()
        return episodes

    def close(self) -> None:
        self.slots.close()

    def _reset(self, slot: int, index: int) -> dict[str, Any]:
        """Start an episode in a slot and return its info."""
        if self._callbacks:
            self._callbacks.create_episode(slot, str(index))
        info = self.slots.reset(slot, reset_seed(self._seed, "episode", index))
        if self._callbacks:
            self._callbacks.start_episode(slot, info)
        return info

    def _end_sample(self) -> None:
        if self._callbacks:
            self._callbacks.end_sample()

    def _run_slots(self, queues: Sequence[Iterator[int]], max_steps: int | None = None) -> Iterator[Episode]:
        """Yield episodes when they end; slot s plays `queues[s]`. Yield unfinished ones after `max_steps` steps."""
        slots = self.slots
        history = Trajectories(slots.width)
        infos: list[dict[int, str]] = [{} for _ in range(slots.width)]
        playing: dict[int, int] = {}
        # True for idle slots too: the policy may hold state from another runner, with another number of slots.
        is_first = np.ones(slots.width, dtype=np.bool_)
        rewards = np.zeros(slots.width, dtype=np.float64)

        def start_next_episode(slot: int) -> None:
            index = next(queues[slot], None)
            if index is None:
                return
            info = self._reset(slot, index)
            playing[slot] = index
            is_first[slot] = True
            history.begin(slot)
            infos[slot] = {0: _info_to_json(slots.name, info)} if info else {}
            if self._noise:
                self._noise.start(slot, generator(self._seed, "noise", index))

        for slot in range(slots.width):
            start_next_episode(slot)
        num_steps = 0
        while playing and num_steps != max_steps:
            num_steps += 1
            noise = self._noise.next() if self._noise else None
            actions = self._policy.act(slots.observation, noise, is_first, rewards)
            is_first[:] = False
            row: dict[str, NDArray[Any]] = {**slots.observation, **actions.actions, Columns.REWARDS: rewards}
            row |= outputs_to_record(actions, self._records_states)
            history.append(row)  # still with the rewards of the previous step; `set_last` replaces them
            ended_slots: list[tuple[int, bool, bool]] = []
            env_actions = _to_python_ints(actions.env_actions)
            for slot in playing:
                rewards[slot], terminated, truncated, info = slots.step(slot, env_actions[slot])
                if info:
                    infos[slot][history.length(slot)] = _info_to_json(slots.name, info)
                if self._callbacks:
                    self._callbacks.add_step(slot, row, rewards[slot], info, (terminated, truncated))
                if terminated or truncated:
                    ended_slots.append((slot, terminated, truncated))
            history.set_last(Columns.REWARDS, rewards)
            for slot, terminated, truncated in ended_slots:
                columns = self._episode_columns(history, slot, infos[slot])
                yield Episode(playing.pop(slot), columns, terminated, truncated)
                start_next_episode(slot)
        for slot in sorted(playing):
            if history.length(slot):
                yield Episode(playing[slot], self._episode_columns(history, slot, infos[slot]), False, False)

    def _episode_columns(
        self, history: Trajectories, slot: int, infos: dict[int, str]
    ) -> dict[str, NDArray[Any]]:
        """Return the columns of a slot's episode; observations and infos have one more row, the final one."""
        columns = history.extract(slot)
        for leaf, observation in self.slots.observation.items():
            columns[leaf] = np.concatenate([columns[leaf], observation[slot : slot + 1]])
        info_texts = np.full(len(columns[Columns.REWARDS]) + 1, "", dtype=object)
        for t, info in infos.items():
            info_texts[t] = info
        columns[Columns.INFOS] = info_texts
        return columns


def outputs_to_record(actions: Actions, records_states: bool) -> dict[str, NDArray[Any]]:
    """Return the policy's outputs that are recorded in addition to actions, with its recurrent state if requested."""
    outputs: dict[str, NDArray[Any]] = {}
    if actions.dist_inputs is not None:
        outputs[Columns.ACTION_DIST_INPUTS] = actions.dist_inputs
    if actions.logp is not None:
        outputs[Columns.ACTION_LOGP] = actions.logp
    return {**outputs, **actions.state_out} if records_states else outputs


def played_episodes_to_block(episodes: Sequence[Episode], prefix: str) -> Block:
    """Concatenate finished episodes to a block; ids are `<prefix>-<index>`."""
    names = episodes[0].columns.keys()
    return Block(
        columns={name: np.concatenate([episode.columns[name] for episode in episodes]) for name in names},
        length=np.array([episode.length for episode in episodes], dtype=np.int64),
        eps_id=np.array([episode_id(prefix, episode.index) for episode in episodes], dtype=object),
        t_started=np.zeros(len(episodes), dtype=np.int64),
        terminated=np.array([episode.terminated for episode in episodes], dtype=np.bool_),
        truncated=np.array([episode.truncated for episode in episodes], dtype=np.bool_),
    )


def episode_id(prefix: str, index: int) -> str:
    """Return the id of a recorded episode; it contains the index, so that missing episodes can be detected."""
    return f"{prefix}-{index:08d}"


def _to_python_ints(actions: Any) -> Sequence[Any]:
    """Convert integer actions to Python integers."""
    # Environments check Python integers several times faster than NumPy's.
    if isinstance(actions, np.ndarray) and actions.ndim == 1 and actions.dtype.kind == "i":
        actions = actions.tolist()
    return cast(Sequence[Any], actions)


def _info_to_json(environment: str, info: dict[str, Any]) -> str:
    try:
        return info_to_json(info)
    except TypeError as error:
        raise UserCodeError(
            f"environment {environment!r} returned an info that cannot be stored as JSON ({error}): {info!r}"
        ) from error
