"""`EnvRunner`: plays complete episodes, given by index, in B slots at once.

Matrix kernels may round a row by the size of the batch and by the row's place in it. So the policy always sees all B
slots, and episode i always runs in slot i mod B: its numbers depend neither on how many others still run nor on which
were played before it.
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
from hindcast.episodes.columns import Columns
from hindcast.episodes.convert import info_to_json
from hindcast.errors import UserCodeError
from hindcast.models.policy import Actions
from hindcast.pipeline.metrics_logger import MetricsLogger
from hindcast.pipeline.rng import generator
from hindcast.record.callbacks import EPISODE_HOOKS
from hindcast.record.episode_callbacks import EpisodeCallbacks, make_callbacks, select_overriding
from hindcast.record.seeding import EpisodeNoise, reset_seed
from hindcast.record.slots import Slots, Trajectories, check_spaces


class Actor(Protocol):
    """What a runner needs of a policy; `Policy` and `RandomActor` are ones."""

    def draw_noise(self, generator: np.random.Generator, count: int) -> NDArray[np.float32]:
        """`[count, K]` noise, all the randomness of `count` actions of one slot: the same in one draw as in several."""

    def act(
        self,
        obs: dict[str, NDArray[Any]],
        noise: NDArray[np.float32] | None = None,
        is_first: NDArray[np.bool_] | None = None,
        rewards: NDArray[np.float64] | None = None,
    ) -> Actions:
        """Actions of all B slots; `noise` is `[B, K]`, None for the mode, and `rewards` `[B]` of the step before."""


@dataclass(frozen=True)
class Episode:
    """One finished episode: `columns[leaf]` is `[T, *shape]`, `[T+1, *shape]` for observations and infos."""

    index: int
    columns: dict[str, NDArray[Any]]
    terminated: bool
    truncated: bool

    @property
    def length(self) -> int:
        """T."""
        return len(self.columns[Columns.REWARDS])

    @property
    def episode_return(self) -> float:
        """Undiscounted sum of rewards."""
        return float(self.columns[Columns.REWARDS].sum())

    @property
    def first_non_finite(self) -> int | None:
        """The first timestep whose reward is NaN or infinite; None if there is none."""
        rewards = self.columns[Columns.REWARDS]
        return None if all_finite(rewards) else int(np.argmin(np.isfinite(rewards)))


OnEpisodes = Callable[[int, list[Episode]], None]
"""Called with what was played for a training: its place, which is higher each time, and the episodes."""


class EnvRunner:
    """Plays episodes of one environment with one policy.

    Args:
        policy: acts for all slots at once.
        width: B, slots.
        seed: with an episode's index it fixes the episode's start and the policy's noise.
        explore: sample from the policy; False takes its mode.
        states: episodes have the policy's recurrent state after each step, `state_out/…`.
        callbacks: "package.module:Class" of callbacks, called with episodes.

    Attributes:
        slots: the environments.
        metrics: what callbacks log.
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
        check_spaces(policy, self.slots)
        self.metrics = MetricsLogger()
        self._callbacks: EpisodeCallbacks | None = None
        if overridden := select_overriding(make_callbacks(callbacks), EPISODE_HOOKS):
            self._callbacks = EpisodeCallbacks(
                overridden,
                runner=self,
                slots=self.slots,
                module=getattr(policy, "module", None),
                kwargs=environment.kwargs,
                metrics=self.metrics,
            )
        self._policy = policy
        self._seed = seed
        self._states = records_states
        self._noise = EpisodeNoise(width, policy.draw_noise) if explore else None

    def play(self, indices: Sequence[int]) -> Iterator[Episode]:
        """Play the episodes of `indices` to their ends, each in slot index mod B, and yield them in that order."""
        waiting: dict[int, Episode] = {}
        order = iter(indices)
        wanted = next(order, None)
        width = self.slots.width
        queues = [iter([index for index in indices if index % width == slot]) for slot in range(width)]
        for episode in self._finished(queues):
            waiting[episode.index] = episode
            while wanted in waiting:
                yield waiting.pop(wanted)
                wanted = next(order, None)
        self._say_played()

    def rollout(self, first: int, steps: int) -> list[Episode]:
        """Exactly `steps` steps in every slot, from fresh episodes numbered from `first`.

        A free slot takes the next number, so that every slot is busy to the end: a rollout is always made completely,
        and its content follows from `first`, `steps`, B and the policy. What is still running at the end comes last,
        neither terminated nor truncated.
        """
        episodes = list(self._finished([itertools.count(first)] * self.slots.width, steps))
        self._say_played()
        return episodes

    def close(self) -> None:
        self.slots.close()

    def _reset(self, slot: int, index: int) -> dict[str, Any]:
        """Start an episode in a slot; its info."""
        if self._callbacks:
            self._callbacks.create_episode(slot, str(index))
        info = self.slots.reset(slot, reset_seed(self._seed, "episode", index))
        if self._callbacks:
            self._callbacks.start_episode(slot, info)
        return info

    def _say_played(self) -> None:
        if self._callbacks:
            self._callbacks.end_sample()

    def _finished(self, queues: Sequence[Iterator[int]], most_steps: int | None = None) -> Iterator[Episode]:
        """Episodes as they end, those of slot s from `queues[s]`; after `most_steps` steps also what is left."""
        slots = self.slots
        history = Trajectories(slots.width)
        infos: list[dict[int, str]] = [{} for _ in range(slots.width)]
        playing: dict[int, int] = {}
        # Of idle slots too: the policy may have played elsewhere, in another number of slots.
        is_first = np.ones(slots.width, dtype=np.bool_)
        rewards = np.zeros(slots.width, dtype=np.float64)

        def start(slot: int) -> None:
            index = next(queues[slot], None)
            if index is None:
                return
            info = self._reset(slot, index)
            playing[slot] = index
            is_first[slot] = True
            history.begin(slot)
            infos[slot] = {0: _json(slots.name, info)} if info else {}
            if self._noise:
                self._noise.start(slot, generator(self._seed, "noise", index))

        for slot in range(slots.width):
            start(slot)
        steps = 0
        while playing and steps != most_steps:
            steps += 1
            noise = self._noise.next() if self._noise else None
            acted = self._policy.act(slots.observation, noise, is_first, rewards)
            is_first[:] = False
            row: dict[str, NDArray[Any]] = {**slots.observation, **acted.actions, Columns.REWARDS: rewards}
            row |= outputs_to_record(acted, self._states)
            history.append(row)
            ended: list[tuple[int, bool, bool]] = []
            env_actions = _plain(acted.env_actions)
            for slot in playing:
                rewards[slot], terminated, truncated, info = slots.step(slot, env_actions[slot])
                if info:
                    infos[slot][history.length(slot)] = _json(slots.name, info)
                if self._callbacks:
                    self._callbacks.add_step(slot, row, rewards[slot], info, (terminated, truncated))
                if terminated or truncated:
                    ended.append((slot, terminated, truncated))
            history.set_last(Columns.REWARDS, rewards)
            for slot, terminated, truncated in ended:
                columns = self._cut(history, slot, infos[slot])
                yield Episode(playing.pop(slot), columns, terminated, truncated)
                start(slot)
        for slot in sorted(playing):
            if history.length(slot):
                yield Episode(playing[slot], self._cut(history, slot, infos[slot]), False, False)

    def _cut(self, history: Trajectories, slot: int, infos: dict[int, str]) -> dict[str, NDArray[Any]]:
        """The slot's columns; observations and infos have one row more than the steps: the final one."""
        columns = history.extract(slot)
        for leaf, current in self.slots.observation.items():
            columns[leaf] = np.concatenate([columns[leaf], current[slot : slot + 1]])
        text = np.full(len(columns[Columns.REWARDS]) + 1, "", dtype=object)
        for t, info in infos.items():
            text[t] = info
        columns[Columns.INFOS] = text
        return columns


def outputs_to_record(acted: Actions, records_states: bool) -> dict[str, NDArray[Any]]:
    """What is recorded of a policy's answer in addition to its actions; with `states` also its recurrent state."""
    outputs: dict[str, NDArray[Any]] = {}
    if acted.dist_inputs is not None:
        outputs[Columns.ACTION_DIST_INPUTS] = acted.dist_inputs
    if acted.logp is not None:
        outputs[Columns.ACTION_LOGP] = acted.logp
    return {**outputs, **acted.state_out} if records_states else outputs


def episodes_to_block(episodes: Sequence[Episode], prefix: str) -> Block:
    """Finished episodes as one block; ids are `<prefix>-<index>`."""
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
    """The id of a recorded episode; the index in it makes the set of episodes checkable."""
    return f"{prefix}-{index:08d}"


def _plain(actions: Any) -> Sequence[Any]:
    """Integer actions as Python's own, which environments check several times faster than NumPy's."""
    if isinstance(actions, np.ndarray) and actions.ndim == 1 and actions.dtype.kind == "i":
        actions = actions.tolist()
    return cast(Sequence[Any], actions)


def _json(environment: str, info: dict[str, Any]) -> str:
    try:
        return info_to_json(info)
    except TypeError as error:
        raise UserCodeError(
            f"environment {environment!r} gave an info that cannot be stored as JSON ({error}): {info!r}"
        ) from error
