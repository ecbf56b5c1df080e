"""Evaluation functions in RLlib's form: `f(algorithm, eval_workers)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from hindcast.api.environment import EnvironmentSpec
from hindcast.models.policy import Policy
from hindcast.names import ENV_RUNNER_RESULTS
from hindcast.rllib.runner_groups import EnvRunnerGroup, LocalEnvRunner
from hindcast.run.evaluation.environment_evaluation import NUM_ARGUMENTS, accepts_positional, metrics_to_json
from hindcast.user_code import Misuse

_ALGORITHM_PARAMETERS: Final = ("algorithm", "algo")
_NUM_RLLIB_ARGUMENTS: Final = 2


def adapt(
    function: Callable[..., Any], environment: EnvironmentSpec, explore: bool
) -> Callable[[Policy, int, Any], dict[str, Any]] | None:
    """Convert an evaluation function in RLlib's form, see `FunctionAdapter`; return None for any other function.

    The parameters of the function show whether it is in RLlib's form.
    """
    if not _has_rllib_signature(function):
        return None

    def evaluate(policy: Policy, seed: int, algorithm: Any) -> dict[str, Any]:
        runner = LocalEnvRunner(environment, policy, seed, explore)
        try:
            return _parse_results(function(algorithm, EnvRunnerGroup(runner)))
        finally:
            runner.close()

    return evaluate


def _has_rllib_signature(function: Callable[..., Any]) -> bool:
    """Return True if the first parameter is `algorithm` or `algo`, or only RLlib's two arguments fit."""
    if next(iter(inspect.signature(function).parameters), None) in _ALGORITHM_PARAMETERS:
        return True
    # A function that also accepts Hindcast's arguments, such as f(*args), gets these.
    return not accepts_positional(function, NUM_ARGUMENTS) and accepts_positional(
        function, _NUM_RLLIB_ARGUMENTS
    )


def _parse_results(result: Any) -> dict[str, Any]:
    """Convert RLlib's `(metrics, env_steps, agent_steps)`, or metrics alone, to results under `env_runners`.

    `agent_steps` is ignored: there is one agent.
    """
    expected = "(metrics, env_steps, agent_steps), or a dictionary of metrics"
    step_count: dict[str, int] = {}
    if isinstance(result, tuple):
        if len(result) != 3 or not isinstance(result[1], int) or not isinstance(result[2], int):
            types = ", ".join(type(element).__name__ for element in result)
            raise Misuse(f"returned ({types}); it must return {expected}.")
        result, env_steps, _ = result
        step_count = {"num_env_steps": env_steps}
    metrics = metrics_to_json(result, expected)
    if isinstance(env_runner_results := metrics.get(ENV_RUNNER_RESULTS), Mapping):
        return {**metrics, ENV_RUNNER_RESULTS: {**step_count, **env_runner_results}}
    return {ENV_RUNNER_RESULTS: {**step_count, **metrics}}
