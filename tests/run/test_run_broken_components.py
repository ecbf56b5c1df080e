"""Errors in custom components name file and line, on one machine and in the status of a cluster."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import broken_components
from hindcast.cluster.outcome import classify
from hindcast.errors import UserError
from support import train, training

LOSS_MESSAGE = "returned a loss of optimiser 'critic' that "

RANDOM_STEPS = (
    "GlobalNumpyNoise",
    "PythonNoise",
    "TorchNoise",
    "NoisyEpisodes",
    "noisy_pipeline",
    "NoisyBatch",
    "NoisyPreLearner",
    "NoisyPreLearnerCall",
)
"""Components that draw from global generators, which are seeded for each of their calls."""
ALGORITHMS = {
    "NaNLoss": (
        "the loss of optimiser 'critic' became NaN in update 5 in algorithm NaNLoss at",
        "def losses",
    ),
    "WrongShape": (LOSS_MESSAGE + "has shape [32]: a loss is a scalar", "def losses"),
    "LossWithoutParameters": (LOSS_MESSAGE + "depends on no parameter", "def losses"),
    "LossOfOtherNetwork": (LOSS_MESSAGE + "depends on none of its parameters", "def losses"),
    "LossOfUnknownOptimiser": (
        "returned a loss of optimiser 'critics'; its optimisers are ['critic', 'policy']",
        "def losses",
    ),
    "ReturnsDict": ("returned dict instead of Losses: return Losses", "def losses"),
    "NumberAsLoss": (LOSS_MESSAGE + "is a float", "def losses"),
    "WideMetric": ("returned a metric 'value' of shape [32]: a metric is a scalar tensor", "def losses"),
    "WidePriorities": ("returned priorities of shape [32, 4] for a batch of 32 items", "def losses"),
    "NumberAsPriority": ("returned priorities as a float", "def losses"),
    "UnusedNetwork": (
        "trains the network 'critic' with optimiser 'policy', but no loss of that optimiser has used it",
        "class UnusedNetwork",
    ),
    "SharedParameters": ("gives optimisers 'policy' and 'critic' the same parameter", "def optimisers"),
    "NoPolicy": ('returned networks that are not an nn.ModuleDict with a "policy"', "def networks"),
    "RaisesInLosses": ("algorithm RaisesInLosses raised KeyError at", 'return batch["rewards"]'),
    "RaisesInStages": ("between stages", "raise ArithmeticError"),
    "RaisesAfterUpdate": ("algorithm RaisesAfterUpdate raised KeyError at", 'nets["target"]'),
    "ModifiesGraphInPlace": ("modified by an inplace operation", "def losses"),
    "AlgorithmWithoutLosses": ("raised TypeError at", "class AlgorithmWithoutLosses"),
    "RaisesInLoss": ("RaisesInLoss.compute_loss_for_module raised KeyError at", 'batch["rewards"]'),
    "WideLoss": ("returned a loss of shape [32]: a loss is a scalar tensor", "def compute_loss_for_module"),
    "ShortTargets": ("returned 'values' of shape", "def targets"),
    "NumpyTargets": ("returned 'values' as an ndarray for a window of", "def targets"),
    "TensorTargets": ("returned a Tensor; it must return a dictionary", "def targets"),
    "ChangingTargets": ("of the networks: learners would differ, since each computes", "def targets"),
    "RaisingTargets": ("RaisingTargets.targets raised KeyError at", 'window.columns["values"]'),
}
CONNECTORS = {
    "RaisingConnector": ("connector RaisingConnector raised KeyError at", "no_such_column"),
    "DropsEpisode": ("their number and lengths must stay as recorded", "def __call__"),
    "ReturnsColumns": ("returned a dict; it must return a Block", "def __call__"),
    "NarrowObservations": (
        "returned 'obs' of shape [3], but it had shape [4]: the network expects the",
        "def __call__",
    ),
    "ShortColumn": ("returned 1 items in column 'extra' of the batch; expected", "def __call__"),
    "RaisingEpisodeConnector": (
        "connector RaisingEpisodeConnector raised AttributeError at",
        "no_such_thing",
    ),
    "ReturnsNothing": ("returned a NoneType; it must return the batch, a dictionary", "def __call__"),
    "ChangesEnds": ("changed 'terminateds'; the ends of episodes must stay as recorded", "def __call__"),
    "HalfBatch": ("returned 'actions' of shape [16]; the batch has 32 items", "def __call__"),
    "ReturnsList": ("returned a list; it must return the batch", "def __call__"),
    "NumpyBatch": ("returned 'actions' as an ndarray; a batch holds tensors", "def __call__"),
    "RaisingBatch": ("connector RaisingBatch raised KeyError at", 'batch["observations"]'),
}
PIPELINES = {
    "RaisingPreLearner": ("RaisingPreLearner._map_to_episodes raised LookupError at", "raise LookupError"),
    "ShorterPreLearner": ("their number and lengths must stay as recorded", "def _map_to_episodes"),
    "HalfSample": ("returned 'actions' of shape [16]; the batch has 32 items", "def sample"),
}
COMPONENTS = {**ALGORITHMS, **CONNECTORS, **PIPELINES}
"""Name in `broken_components` -> (part of the message, part of the line that the message names)."""


def algorithm_spec(path: str) -> dict[str, Any]:
    return {"algorithm": path, "config": {}, "customConfig": {"trainBatchSizePerLearner": 32}}


def make_spec(name: str) -> dict[str, Any]:
    path = f"broken_components:{name}"
    if name in ALGORITHMS:
        return algorithm_spec(path)
    if name in CONNECTORS or (name in RANDOM_STEPS and "PreLearner" not in name):
        return {"pipeline": {"connectors": [path]}}
    return {"pipeline": {"offlineData" if name == "HalfSample" else "preLearner": path}}


@pytest.mark.parametrize("name", COMPONENTS)
def test_broken_component_is_reported_with_line(name: str, walks: Path, tmp_path: Path) -> None:
    expected, line = COMPONENTS[name]
    with pytest.raises(UserError) as error:
        train(training(tmp_path, walks, stop={"iterations": 1}, **make_spec(name)))
    message = str(error.value)
    assert expected in message
    assert "\n" not in message
    outcome = classify(error.value)  # what the status of a cluster shows
    reason = "InvalidData" if name == "NaNLoss" else "UserCodeFailed"  # a NaN may come from the data
    assert (outcome.state, outcome.reason, outcome.message) == ("Failed", reason, message)
    location = re.search(re.escape(str(Path(broken_components.__file__))) + r":(\d+)", message)
    assert location is not None, message
    assert line in Path(broken_components.__file__).read_text().splitlines()[int(location[1]) - 1]


def test_unused_network_and_constant_attribute_are_accepted(walks: Path, tmp_path: Path) -> None:
    train(training(tmp_path, walks, **algorithm_spec("broken_components:ValidAlgorithm")))


@pytest.mark.parametrize("name", RANDOM_STEPS)
def test_random_component_repeats_its_batches_and_leaves_generators_alone(
    name: str, walks: Path, tmp_path: Path
) -> None:
    losses = []
    for index, seed in enumerate((0, 0, 1)):
        states = random.getstate(), str(np.random.get_state())
        resource = training(
            tmp_path / str(index), walks, seed=seed, stop={"iterations": 1}, **make_spec(name)
        )
        losses.append(train(resource).metrics["loss"])
        assert (random.getstate(), str(np.random.get_state())) == states
    assert losses[0] == losses[1] != losses[2]
