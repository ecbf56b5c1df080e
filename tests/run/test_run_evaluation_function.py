"""Evaluation functions of the user's, in our form and in RLlib's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hindcast import BCConfig
from hindcast.api.environment import EnvironmentSpec
from hindcast.errors import SpecError, UserCodeError, UserError
from hindcast.run.training_evaluation import EvaluationFunction
from hindcast.user_code import register_object
from support import make_policy

HERE = Path(__file__)
CARTPOLE = {"id": "CartPole-v1"}


def ours(policy: Any, environment: Any, seed: int) -> dict[str, Any]:
    return {"episode_return_mean": 1.0, "environment": environment.id}


def rllibs(algorithm: Any, eval_workers: Any) -> tuple[dict[str, Any], int, int]:
    (episodes,) = eval_workers.foreach_env_runner(lambda runner: runner.sample(num_episodes=3))
    metrics = eval_workers.local_env_runner.get_metrics()
    assert metrics["num_episodes"] == 3
    steps = sum(map(len, episodes))
    return {"env_runners": metrics, "of": algorithm}, steps, steps


def metrics_alone(algo: Any, workers: Any) -> dict[str, Any]:
    return {"episode_return_mean": 2.0}


def nothing(algorithm: Any, eval_workers: Any) -> None:
    return None


def two(algorithm: Any, eval_workers: Any) -> Any:
    return {}, 3


def not_json(policy: Any, environment: Any, seed: int) -> Any:
    return {"policy": policy}


def text(policy: Any, environment: Any, seed: int) -> Any:
    return {"episode_return_mean": "much"}


def raises(algorithm: Any, eval_workers: Any) -> Any:
    raise ZeroDivisionError("no episodes at all")


def alone(policy: Any) -> Any:
    return {}


def results(function: Any) -> dict[str, Any]:
    made = EvaluationFunction(register_object(function), EnvironmentSpec(**CARTPOLE), explore=False)
    return made(make_policy(CARTPOLE), 0, "the algorithm")


def test_the_forms_are_told_apart() -> None:
    assert results(ours) == {"env_runners": {"episode_return_mean": 1.0, "environment": "CartPole-v1"}}
    found = results(rllibs)
    assert found["of"] == "the algorithm"
    assert found["env_runners"]["num_env_steps"] == 3 * found["env_runners"]["episode_len_mean"]
    assert results(metrics_alone) == {"env_runners": {"episode_return_mean": 2.0}}


@pytest.mark.parametrize(
    ("function", "error", "sentence"),
    [
        (
            nothing,
            UserCodeError,
            "at {file} returned a NoneType; it must return (metrics, env_steps, agent_steps), or",
        ),
        (
            two,
            UserCodeError,
            "at {file} returned (dict, int); it must return (metrics, env_steps, agent_steps), or",
        ),
        (
            not_json,
            UserCodeError,
            "at {file} returned metrics that are not JSON (Type is not JSON serializable: Policy)",
        ),
        (text, UserCodeError, "at {file} returned episode_return_mean 'much'; it must be a number."),
        (raises, UserCodeError, "raised ZeroDivisionError at {file}: no episodes at all"),
        (
            alone,
            SpecError,
            "({file}) takes (policy), expected (policy, environment, seed), or RLlib's (algorithm, ",
        ),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(
    function: Any, error: type[UserError], sentence: str
) -> None:
    with pytest.raises(error) as raised:
        results(function)
    said = re.escape(sentence).replace(r"\{file\}", rf"{re.escape(str(HERE))}:\d+")
    assert re.search(
        rf"^spec\.evaluation\.customFunction '__main__:{function.__name__}' .*{said}", str(raised.value)
    )


def test_python_users_read_the_options_name(tmp_path: Path) -> None:
    config = BCConfig().environment("CartPole-v1").evaluation(custom_evaluation_function=alone)
    with pytest.raises(SpecError, match=r"^custom_evaluation_function '\w+:alone' \("):
        config.offline_data(input_=str(tmp_path)).build_algo()
