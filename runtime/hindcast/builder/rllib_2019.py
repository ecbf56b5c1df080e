"""The options of `rllib train` in 2019, as a config and as stop criteria."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hindcast.builder.config import AlgorithmConfig
from hindcast.errors import SpecError

_RENAMED: Final = {"input": "input_", "lambda": "lambda_"}
_EXPLORATION: Final = {
    "exploration_final_eps": 0.02,
    "exploration_fraction": 0.1,
    "schedule_max_timesteps": 100_000,
}
"""DQN's options of its exploration, with the defaults that they had."""
_ENDS: Final = {
    "timesteps_total": "timesteps",
    "training_iteration": "iterations",
    "episode_reward_mean": "episode_return_mean",
    "episode_return_mean": "episode_return_mean",
}


def make_config(run: str, env: str | None, options: Mapping[str, Any]) -> AlgorithmConfig:
    """The config of an algorithm with options by their names, of 2019 or of today.

    Args:
        env: the environment; None is `options["env"]`.
        options: `input`, `output`, `lr` and so on.

    Raises:
        SpecError: there is no such algorithm or option.
    """
    config = AlgorithmConfig(run)
    config.update_from_dict(
        {_RENAMED.get(name, name): value for name, value in options.items() if name not in _EXPLORATION}
    )
    if given := {name: value for name, value in options.items() if name in _EXPLORATION}:
        config.training(epsilon=_epsilon(given))
    return config if env is None else config.environment(env)


def make_stop(criteria: Mapping[str, Any]) -> dict[str, Any]:
    """`spec.stop`, from criteria by their names of 2019.

    Raises:
        SpecError: there are none, or one is not a stop criterion.
    """
    if not criteria:
        raise SpecError(
            '--stop is missing: {"training_iteration": 100} ends the training after 100 iterations.'
        )
    for name in criteria:
        if name not in _ENDS:
            raise SpecError(f"--stop: {name} is not a stop criterion; expected one of {', '.join(_ENDS)}.")
    return {_ENDS[name]: value for name, value in criteria.items()}


def _epsilon(given: Mapping[str, Any]) -> Any:
    """The schedule of random actions: from all to the final share, in a fraction of the schedule's timesteps."""
    final, fraction, timesteps = (given.get(name, default) for name, default in _EXPLORATION.items())
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SpecError(f"{name} is {value!r}, expected a number.")
    return [[0, 1.0], [round(fraction * timesteps), final]] if fraction * timesteps else final
