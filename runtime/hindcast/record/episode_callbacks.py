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
from hindcast.pipeline.metrics_logger import MetricsLogger
from hindcast.record.callbacks import FIELD, UNSUPPORTED_HOOKS, Callbacks
from hindcast.record.slots import Slots
from hindcast.user_code import calling, import_subclass, refuse_unused_overrides

_OWN = frozenset({Columns.OBS, Columns.ACTIONS, Columns.REWARDS})


def make_callbacks(paths: Sequence[str]) -> list[Callbacks]:
    """The user's callbacks.

    Args:
        paths: "package.module:Class" of each.

    Raises:
        SpecError: there is no such class, it is not a `Callbacks`, or it overrides a method that is never called.
        UserCodeError: importing or making it raised.
    """
    return [_made(path) for path in paths]


def select_overriding(callbacks: Sequence[Callbacks], names: Sequence[str]) -> list[Callbacks]:
    """Those that override one of the methods."""
    return [
        each
        for each in callbacks
        if any(getattr(type(each), name) is not getattr(Callbacks, name) for name in names)
    ]


def call_each(
    callbacks: Sequence[Callbacks],
    method: str,
    arguments: Mapping[str, Any],
    check: Callable[[], Any] = lambda: None,
) -> None:
    """Call a method of each; `check` runs after each call, as part of it.

    Raises:
        UserCodeError: one raised, or what it left failed the check.
    """
    for each in callbacks:
        function = getattr(each, method)
        with calling(f"{type(each).__name__}.{method}", function):
            function(**arguments)
            check()


class EpisodeCallbacks:
    """Calls callbacks with the episodes that one set of environments plays.

    Args:
        callbacks: those that override a method called during play.
        module: the policy's network; None for a random policy.
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
        self._playing: dict[int, SingleAgentEpisode] = {}
        self._keeps = bool(select_overriding(callbacks, ["on_sample_end"]))
        self._samples: list[SingleAgentEpisode] = []
        self._common = {
            "env_runner": runner,
            "metrics_logger": metrics,
            "env": SimpleNamespace(envs=slots.environments, num_envs=slots.width),
            "rl_module": module,
        }
        self._call("on_environment_created", env_context=dict(kwargs))

    def create_episode(self, slot: int, eps_id: str) -> None:
        """An episode is about to begin in a slot."""
        self._playing[slot] = SingleAgentEpisode(
            eps_id,
            observation_space=self._slots.observation_space,
            action_space=self._slots.action_space,
        )
        self._of_episode("on_episode_created", slot)

    def start_episode(self, slot: int, info: Mapping[str, Any]) -> None:
        """Its environment was reset."""
        self._playing[slot].add_env_reset(self._observation(slot), dict(info))
        self._of_episode("on_episode_start", slot)

    def add_step(
        self,
        slot: int,
        row: Mapping[str, NDArray[Any]],
        reward: float,
        info: Mapping[str, Any],
        ended: tuple[bool, bool],
    ) -> None:
        """A step was made in a slot; `row` holds the policy's outputs for all, `ended` is terminated and truncated."""
        own = {leaf: np.array(values[slot]) for leaf, values in row.items() if root(leaf) != Columns.OBS}
        outputs = {leaf: value for leaf, value in own.items() if root(leaf) not in _OWN}
        self._playing[slot].add_env_step(
            self._observation(slot),
            unflatten(own, Columns.ACTIONS, self._structs[1]),
            reward,
            dict(info),
            terminated=ended[0],
            truncated=ended[1],
            extra_model_outputs=outputs,
        )
        self._of_episode("on_episode_step", slot)
        if any(ended):
            self._of_episode("on_episode_end", slot)
            episode = self._playing.pop(slot)
            if self._keeps:
                self._samples.append(episode)

    def end_sample(self) -> None:
        """All that was asked for was played; what still runs is cut off."""
        if self._keeps:
            running = [episode for episode in self._playing.values() if len(episode)]
            self._call("on_sample_end", samples=[*self._samples, *running])
        self._samples = []
        self._playing.clear()

    def _observation(self, slot: int) -> Any:
        here = {leaf: np.array(rows[slot]) for leaf, rows in self._slots.observation.items()}
        return unflatten(here, Columns.OBS, self._structs[0])

    def _of_episode(self, method: str, slot: int) -> None:
        self._call(method, episode=self._playing[slot], env_index=slot)

    def _call(self, method: str, **arguments: Any) -> None:
        call_each(self._callbacks, method, {**self._common, **arguments})


def _made(path: str) -> Callbacks:
    kind = import_subclass(path, Callbacks, FIELD)
    refuse_unused_overrides(kind, Callbacks, UNSUPPORTED_HOOKS)
    with calling(f"making {kind.__name__}", kind):
        return kind()
