"""`EpisodeCallbacks`: calls the user's callbacks while episodes are played."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.columns import Columns, root
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.episodes.nested import unflatten
from hindcast.episodes.spaces import space_struct
from hindcast.metrics_logger import MetricsLogger
from hindcast.record.callbacks import FIELD, Callbacks
from hindcast.record.slots import Slots
from hindcast.user_code import calling, import_subclass, refuse_unused_overrides

_STEP_COLUMNS = frozenset({Columns.OBS, Columns.ACTIONS, Columns.REWARDS})


def make_callbacks(paths: Sequence[str]) -> list[Callbacks]:
    """Create the user's callbacks.

    Args:
        paths: "package.module:Class" of each callback.

    Raises:
        SpecError: there is no such class, it is not a `Callbacks`, or it overrides a method that is never called.
        UserCodeError: importing or creating it raised an exception.
    """
    return [_make_callback(path) for path in paths]


def select_overriding(callbacks: Sequence[Callbacks], names: Sequence[str]) -> list[Callbacks]:
    """Return the callbacks that override at least one of the methods."""
    return [
        callback
        for callback in callbacks
        if any(getattr(type(callback), name) is not getattr(Callbacks, name) for name in names)
    ]


def call_each(
    callbacks: Sequence[Callbacks],
    method: str,
    arguments: Mapping[str, Any],
    check: Callable[[], Any] = lambda: None,
) -> None:
    """Call a method of each callback, and `check` after each; errors of both name the callback.

    Raises:
        UserCodeError: a callback raised an exception, or the check failed after it.
    """
    for callback in callbacks:
        function = getattr(callback, method)
        with calling(f"{type(callback).__name__}.{method}", function):
            function(**arguments)
            check()


class EpisodeCallbacks:
    """Calls callbacks with the episodes that one set of environments plays.

    Args:
        callbacks: callbacks that override an episode method.
        runner: the environment runner, passed to each call.
        slots: the environments.
        module: the policy's network; None for a random policy.
        kwargs: keyword arguments of the environments.
        metrics: logger for metrics of the callbacks.
    """

    def __init__(
        self,
        callbacks: Sequence[Callbacks],
        *,
        runner: Any,
        slots: Slots,
        module: Any,
        kwargs: Mapping[str, Any],
        metrics: MetricsLogger,
    ) -> None:
        self._callbacks = callbacks
        self._slots = slots
        self._structs = (space_struct(slots.observation_space), space_struct(slots.action_space))
        self._episodes_by_slot: dict[int, SingleAgentEpisode] = {}
        self._keeps_samples = bool(select_overriding(callbacks, ["on_sample_end"]))
        self._samples: list[SingleAgentEpisode] = []
        self._common_arguments = {
            "env_runner": runner,
            "metrics_logger": metrics,
            "env": SimpleNamespace(envs=slots.environments, num_envs=slots.width),
            "rl_module": module,
        }
        self._call("on_environment_created", env_context=dict(kwargs))

    def create_episode(self, slot: int, eps_id: str) -> None:
        """Create the episode that will start in a slot."""
        self._episodes_by_slot[slot] = SingleAgentEpisode(
            eps_id,
            observation_space=self._slots.observation_space,
            action_space=self._slots.action_space,
        )
        self._call_for_episode("on_episode_created", slot)

    def start_episode(self, slot: int, info: Mapping[str, Any]) -> None:
        """Start the slot's episode: its environment has been reset."""
        self._episodes_by_slot[slot].add_env_reset(self._current_observation(slot), dict(info))
        self._call_for_episode("on_episode_start", slot)

    def add_step(
        self,
        slot: int,
        row: Mapping[str, NDArray[Any]],
        reward: float,
        info: Mapping[str, Any],
        end_flags: tuple[bool, bool],
    ) -> None:
        """Add a step to the slot's episode, and end the episode if a flag is set.

        Args:
            slot: slot that was stepped.
            row: column -> `[B, *shape]`, this step of all slots.
            reward: reward of the step.
            info: info of the step.
            end_flags: (terminated, truncated).
        """
        # Copies, because the slots reuse their arrays in the next step.
        step_values = {
            leaf: np.array(values[slot]) for leaf, values in row.items() if root(leaf) != Columns.OBS
        }
        outputs = {leaf: value for leaf, value in step_values.items() if root(leaf) not in _STEP_COLUMNS}
        self._episodes_by_slot[slot].add_env_step(
            self._current_observation(slot),
            unflatten(step_values, Columns.ACTIONS, self._structs[1]),
            reward,
            dict(info),
            terminated=end_flags[0],
            truncated=end_flags[1],
            extra_model_outputs=outputs,
        )
        self._call_for_episode("on_episode_step", slot)
        if any(end_flags):
            self._call_for_episode("on_episode_end", slot)
            episode = self._episodes_by_slot.pop(slot)
            if self._keeps_samples:
                self._samples.append(episode)

    def end_sample(self) -> None:
        """Call on_sample_end with all episodes since the last call; forget them, and those that still run.

        Running episodes are passed too if they have a step.
        """
        if self._keeps_samples:
            running_episodes = [episode for episode in self._episodes_by_slot.values() if len(episode)]
            self._call("on_sample_end", samples=[*self._samples, *running_episodes])
        self._samples = []
        self._episodes_by_slot.clear()

    def _current_observation(self, slot: int) -> Any:
        leaves = {leaf: np.array(rows[slot]) for leaf, rows in self._slots.observation.items()}
        return unflatten(leaves, Columns.OBS, self._structs[0])

    def _call_for_episode(self, method: str, slot: int) -> None:
        self._call(method, episode=self._episodes_by_slot[slot], env_index=slot)

    def _call(self, method: str, **arguments: Any) -> None:
        call_each(self._callbacks, method, {**self._common_arguments, **arguments})


def callback_class(path: str) -> type[Callbacks]:
    """Return the class of callbacks at a path, "package.module:Class".

    Raises:
        SpecError: the class does not exist, or has a method that nothing calls.
        UserCodeError: importing it raised.
    """
    cls = import_subclass(path, Callbacks, FIELD)
    refuse_unused_overrides(cls)
    return cls


def _make_callback(path: str) -> Callbacks:
    cls = callback_class(path)
    with calling(f"creating {cls.__name__}", cls):
        return cls()
