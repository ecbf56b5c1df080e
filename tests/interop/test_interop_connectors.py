"""The connectors of RLlib 2.60's library and those of the same names here give equal batches, value by value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import connector_cases as cases
import gymnasium as gym
import numpy as np
import pytest

import hindcast

RunScript = Callable[..., str]
TOLERANCES = {"advantages": None, "value_targets": 1e-5}
"""Column -> relative tolerance, in place of 1e-6. None: RLlib standardises them over the steps that it adds, too."""


@pytest.fixture(scope="module")
def rllib_batches(
    run_script: RunScript, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    path = tmp_path_factory.mktemp("connectors") / "batches.npz"
    run_script("rllib_connectors.py", path)
    batches: dict[str, dict[str, Any]] = {}
    for name, array in np.load(path).items():
        case, _, column = name.rpartition("/")
        batches.setdefault(case, {})[column] = array
    return batches


def make_module(space: gym.Space) -> Mapping[str, Any]:
    module = cases.make_value_network(hindcast.RLModule)(space, cases.ACTIONS, value=True)
    return {"default_policy": module}


@pytest.mark.parametrize("name", cases.CASES)
def test_connectors_give_the_same_batch(rllib_batches: dict[str, dict[str, Any]], name: str) -> None:
    batch = cases.run_case(name, hindcast, hindcast.SingleAgentEpisode, make_module)
    assert batch.keys() == rllib_batches[name].keys()
    for column, expected in rllib_batches[name].items():
        assert batch[column].shape == expected.shape
        tolerance = TOLERANCES.get(column, 1e-6)
        if tolerance is not None:
            np.testing.assert_allclose(batch[column], expected, rtol=tolerance, atol=1e-5, err_msg=column)
