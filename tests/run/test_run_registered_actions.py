"""`hindcast validate` refuses the algorithms that cannot learn a registered environment's actions, as a run does."""

from pathlib import Path
from typing import Any

import pytest

from hindcast.algorithms import REGISTRY, build
from hindcast.api.model import ModelOptions
from hindcast.errors import SpecError
from hindcast.record.environments import environment_spaces
from hindcast.run.registered_actions import find_action_problem
from hindcast.run.training.trainer import build_networks
from support import training

TRAINABLE = [name for name, algorithm in REGISTRY.items() if "OfflineTraining" in algorithm.kinds]


def find_problem(tmp_path: Path, name: str, **environment: Any) -> str | None:
    resource = training(tmp_path, "data", algorithm=name, config={}, environment=environment)
    problem = find_action_problem(resource)
    return None if problem is None else str(problem)


@pytest.mark.parametrize("environment", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("name", TRAINABLE)
def test_check_agrees_with_the_networks(name: str, environment: str, tmp_path: Path) -> None:
    spaces = environment_spaces(training(tmp_path, "data", environment={"id": environment}).spec.environment)
    problem: str | None = None
    try:
        build_networks(build(name, {}), spaces, ModelOptions(fcnet_hiddens=[2]), None, seed=0)
    except SpecError as error:
        problem = str(error)
    found = find_problem(tmp_path, name, id=environment)
    # The networks see actions that are scaled to ±1, so that the space in the sentence may differ.
    assert (found is None) == (problem is None)
    assert found is None or found.partition(", not ")[0] in str(problem)


def test_cql_on_cartpole_is_referred_to_discrete_cql(tmp_path: Path) -> None:
    assert find_problem(tmp_path, "CQL", id="CartPole-v1") == (
        "spec.algorithm: CQL requires continuous actions in one float Box, not Discrete(2); "
        "use DiscreteCQL or DQN, or IQL, MARWIL or BC."
    )


@pytest.mark.parametrize(
    "environment",
    [
        {"id": "Nowhere-v1"},
        {"id": "CartPole-v1", "kwargs": {"no_such": 1}},
        {"id": "CartPole-v1", "wrappers": ["mymodule:Continuous"]},
        {"id": "toy_environments:Walk"},
    ],
)
def test_other_environments_are_left_to_the_run(environment: dict[str, Any], tmp_path: Path) -> None:
    assert find_problem(tmp_path, "CQL", **environment) is None
