"""Users' evaluation functions, with Hindcast's or RLlib's signature."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hindcast import BCConfig
from hindcast.api.environment import EnvironmentSpec
from hindcast.errors import SpecError, UserCodeError, UserError
from hindcast.run.evaluation.environment_evaluation import EvaluationFunction
from hindcast.user_code import register_object
from support import make_policy

THIS_FILE = Path(__file__)
CARTPOLE = {"id": "CartPole-v1"}


def hindcast_signature(policy: Any, environment: Any, seed: int) -> dict[str, Any]:
    return {"episode_return_mean": 1.0, "environment": environment.id}


def rllib_signature(algorithm: Any, eval_workers: Any) -> tuple[dict[str, Any], int, int]:
    (episodes,) = eval_workers.foreach_env_runner(lambda runner: runner.sample(num_episodes=3))
    metrics = eval_workers.local_env_runner.get_metrics()
    assert metrics["num_episodes"] == 3
    steps = sum(map(len, episodes))
    return {"env_runners": metrics, "algorithm": algorithm}, steps, steps


def returns_metrics_only(algo: Any, workers: Any) -> dict[str, Any]:
    return {"episode_return_mean": 2.0}


def returns_none(algorithm: Any, eval_workers: Any) -> None:
    return None


def returns_pair(algorithm: Any, eval_workers: Any) -> Any:
    return {}, 3


def returns_policy(policy: Any, environment: Any, seed: int) -> Any:
    return {"policy": policy}


def returns_text(policy: Any, environment: Any, seed: int) -> Any:
    return {"episode_return_mean": "high"}


def raises(algorithm: Any, eval_workers: Any) -> Any:
    raise ZeroDivisionError("no episodes at all")


def takes_policy_only(policy: Any) -> Any:
    return {}


def call_evaluation_function(function: Any) -> dict[str, Any]:
    evaluation_function = EvaluationFunction(
        register_object(function), EnvironmentSpec(**CARTPOLE), explore=False
    )
    return evaluation_function(make_policy(CARTPOLE), 0, "the algorithm")


def test_parameters_select_hindcast_or_rllib_signature() -> None:
    assert call_evaluation_function(hindcast_signature) == {
        "env_runners": {"episode_return_mean": 1.0, "environment": "CartPole-v1"}
    }
    metrics = call_evaluation_function(rllib_signature)
    assert metrics["algorithm"] == "the algorithm"
    assert metrics["env_runners"]["num_env_steps"] == 3 * metrics["env_runners"]["episode_len_mean"]
    assert call_evaluation_function(returns_metrics_only) == {"env_runners": {"episode_return_mean": 2.0}}


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (
            returns_none,
            UserCodeError,
            "at {file} returned a NoneType; it must return (metrics, env_steps, agent_steps), or",
        ),
        (
            returns_pair,
            UserCodeError,
            "at {file} returned (dict, int); it must return (metrics, env_steps, agent_steps), or",
        ),
        (
            returns_policy,
            UserCodeError,
            "at {file} returned metrics that are not JSON (Type is not JSON serializable: Policy)",
        ),
        (returns_text, UserCodeError, "at {file} returned episode_return_mean 'high'; it must be a number."),
        (raises, UserCodeError, "raised ZeroDivisionError at {file}: no episodes at all"),
        (
            takes_policy_only,
            SpecError,
            "({file}) takes (policy), expected (policy, environment, seed), or RLlib's (algorithm, ",
        ),
    ],
)
def test_invalid_function_is_reported_with_line(function: Any, error: type[UserError], message: str) -> None:
    with pytest.raises(error) as error_info:
        call_evaluation_function(function)
    pattern = re.escape(message).replace(r"\{file\}", rf"{re.escape(str(THIS_FILE))}:\d+")
    assert re.search(
        rf"^spec\.evaluation\.customFunction: '__main__:{function.__name__}' .*{pattern}",
        str(error_info.value),
    )


def test_error_of_python_config_names_option(tmp_path: Path) -> None:
    config = BCConfig().environment("CartPole-v1").evaluation(custom_evaluation_function=takes_policy_only)
    with pytest.raises(SpecError, match=r"^custom_evaluation_function: '\w+:takes_policy_only' \("):
        config.offline_data(input_=str(tmp_path)).build_algo()
