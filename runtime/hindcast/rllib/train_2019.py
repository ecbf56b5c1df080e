"""Convert the options that `rllib train` had in 2019 to a config and stop criteria."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hindcast.errors import SpecError
from hindcast.rllib.builder.config import AlgorithmConfig

_NEW_NAMES: Final = {"input": "input_", "lambda": "lambda_"}
_EXPLORATION_DEFAULTS: Final = {
    "exploration_final_eps": 0.02,
    "exploration_fraction": 0.1,
    "schedule_max_timesteps": 100_000,
}
"""DQN's exploration options of 2019 -> their defaults."""
_STOP_CRITERIA: Final = {
    "timesteps_total": "timesteps",
    "training_iteration": "iterations",
    "episode_reward_mean": "episode_return_mean",
    "episode_return_mean": "episode_return_mean",
}


def make_config(run: str, env: str | None, options: Mapping[str, Any]) -> AlgorithmConfig:
    """Return the config of an algorithm, from options by their names of 2019 or of today.

    Args:
        run: name or import path of the algorithm, RLlib's `--run`.
        env: id of the environment; None uses `options["env"]`.
        options: `input`, `output`, `lr` and so on.

    Raises:
        SpecError: the algorithm or an option is unknown.
    """
    config = AlgorithmConfig(run)
    config.update_from_dict(
        {
            _NEW_NAMES.get(name, name): value
            for name, value in options.items()
            if name not in _EXPLORATION_DEFAULTS
        }
    )
    if exploration := {name: value for name, value in options.items() if name in _EXPLORATION_DEFAULTS}:
        config.training(epsilon=_epsilon_schedule(exploration))
    return config if env is None else config.environment(env)


def make_stop(criteria: Mapping[str, Any]) -> dict[str, Any]:
    """Return `spec.stop`, from criteria by their names of 2019.

    Raises:
        SpecError: there are no criteria, or one is unknown.
    """
    if not criteria:
        raise SpecError(
            '--stop is missing: {"training_iteration": 100} ends the training after 100 iterations.'
        )
    for name in criteria:
        if name not in _STOP_CRITERIA:
            raise SpecError(
                f"--stop: {name} is not a stop criterion; expected one of {', '.join(_STOP_CRITERIA)}."
            )
    return {_STOP_CRITERIA[name]: value for name, value in criteria.items()}


def _epsilon_schedule(exploration: Mapping[str, Any]) -> Any:
    """Return the schedule of epsilon, as points `[timestep, epsilon]`, or its final value if it does not change.

    Epsilon falls from 1 to its final value over `exploration_fraction` of `schedule_max_timesteps`.
    """
    final_epsilon, fraction, timesteps = (
        exploration.get(name, default) for name, default in _EXPLORATION_DEFAULTS.items()
    )
    for name, value in exploration.items():
        # `bool` is a subclass of `int`.
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SpecError(f"{name} is {value!r}, expected a number.")
    return [[0, 1.0], [round(fraction * timesteps), final_epsilon]] if fraction * timesteps else final_epsilon
