"""Convert the options that `rllib train` had in 2019 to a config and stop criteria."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hindcast.errors import SpecError
from hindcast.names import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN, EVALUATION_RESULTS, TRAINING_ITERATION
from hindcast.report.results import Result
from hindcast.rllib.builder.config import AlgorithmConfig
from hindcast.rllib.builder.resources import BuildPlan

KeyPath = tuple[str, ...]
"""Keys that lead to a value of a nested result."""
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


def train_and_record(
    config: AlgorithmConfig,
    stop: Mapping[str, Any],
    folder: Path,
    *,
    checkpoint_every: int = 10,
    report: Callable[[Result], None],
) -> Result:
    """Train in this process, and record the episodes that the policy learns from, until a stop criterion holds.

    Args:
        config: a config with an `output`.
        stop: `spec.stop`.
        folder: folder of the checkpoint, from which another call resumes; its last result is in `<folder>.json`.
        checkpoint_every: iterations between checkpoints; the last state is always saved.
        report: called with the result of each iteration.

    Returns:
        The last result.

    Raises:
        SpecError: the policy plays no episodes while it trains, or never reports the metric to stop by.
        UserError: the config cannot be built.
    """
    plan = config.plan()
    _check_playing(plan, stop)
    steps = "num_env_steps_sampled_lifetime" if plan.is_online else "num_env_steps_trained_lifetime"
    returns: list[KeyPath] = [(ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN)]
    if not plan.is_online:
        returns.insert(0, (EVALUATION_RESULTS, *returns[0]))
    paths: dict[str, list[KeyPath]] = {
        "iterations": [(TRAINING_ITERATION,)],
        "timesteps": [(steps,)],
        "episode_return_mean": returns,
    }

    def is_reached(result: Result) -> bool:
        return any(_find_first(result, paths[name]) >= value for name, value in stop.items())

    result_file = folder.with_name(f"{folder.name}.json")
    result: Result = json.loads(result_file.read_text(encoding="utf-8")) if result_file.exists() else {}
    if is_reached(result):
        return result
    with config.build_algo() as algo:
        if result:
            algo.restore_from_path(folder)
        while not is_reached(result):
            result = algo.train()
            report(result)
            if is_reached(result) or algo.iteration % checkpoint_every == 0:
                algo.save_to_path(folder)
                result_file.write_text(json.dumps(result), encoding="utf-8")
    return result


def _check_playing(plan: BuildPlan, stop: Mapping[str, Any]) -> None:
    training = plan.training
    if training is None or not (plan.is_online or training.spec.sampler is not None):
        raise SpecError(
            f"output: {plan.algorithm} plays no episodes while it trains, so there is nothing to record: leave output "
            'out, or let an algorithm that can play learn from "sampler" too.'
        )
    unknown_criteria = [
        name for name in stop if name not in ("iterations", "timesteps", "episode_return_mean")
    ]
    if unknown_criteria:
        raise SpecError(f"--stop: {unknown_criteria[0]} does not apply to a training with an output.")


def _find_first(result: Result, paths: list[KeyPath]) -> float:
    """Return the first number at one of the paths of a result, or minus infinity."""
    for path in paths:
        value: Any = result
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            return float(value)
    return -math.inf


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
