"""Checks of a resource: mistakes that a run would refuse are refused when the resource is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from hindcast.api import validate_resource
from hindcast.errors import SpecError

SAMPLER_INPUT: dict[str, Any] = {"input": [{"sampler": {}}]}
MEAN_STD_FILTER: dict[str, Any] = {"model": {"observationFilter": "MeanStd"}}
PRIORITIZED_REPLAY: dict[str, Any] = {"config": {"prioritizedReplay": True}}
DATA_AND_SAMPLER_INPUT: dict[str, Any] = {
    "input": [{"path": "data", "weight": 1}, {"sampler": {}, "weight": 1}]
}
CHECKPOINT: dict[str, Any] = {"initialCheckpoint": "runs/clone"}

INVALID_TRAININGS = [
    ("BC", {"config": {"lr": [[5, 1.0]]}}, "config.lr: the schedule starts at timestep 5, expected 0"),
    ("BC", {"config": {"lr": []}}, "config.lr has 0 entries, expected at least 1"),
    ("DQN", {"config": {"epsilon": 1.5}}, "config.epsilon is 1.5, expected at most 1 or a list"),
    (
        "DQN",
        {"config": {"epsilon": [[0, 1.5]]}},
        "config.epsilon: the schedule has the value 1.5, expected a probability of at most 1",
    ),
    (
        "DecisionTransformer",
        {"config": {"embedSize": 130, "numHeads": 4}},
        "config.embedSize is 130, expected a multiple of spec.config.numHeads, 4",
    ),
    (
        "FQL",
        {"config": {"actionChunk": 257}},
        "config.actionChunk is 257, expected at most spec.config.trainBatchSizePerLearner, 256",
    ),
    (
        "BC",
        {"model": {"recurrent": "LSTM"}, "config": {"trainBatchSizePerLearner": 16}},
        "model.maxSeqLen is 20, expected at most spec.config.trainBatchSizePerLearner, 16",
    ),
    (
        "IQL",
        {"model": {"distribution": "Deterministic"}},
        "model.distribution is 'Deterministic', which IQL cannot train: use Auto, Categorical, Gaussian, "
        "SquashedGaussian, BoundedGaussian",
    ),
    (
        "DiscreteCQL",
        {"model": {"moduleClass": "own:Module"}},
        "model.moduleClass does not apply to DiscreteCQL, which builds its own policy: leave it out",
    ),
    (
        "DQN",
        SAMPLER_INPUT | MEAN_STD_FILTER,
        "model.observationFilter is MeanStd, which computes its statistics from recorded data, but there are no "
        "recorded data: leave it out, and scale observations in a wrapper of the environment",
    ),
    (
        "DQN",
        PRIORITIZED_REPLAY | {"pipeline": {"residency": "Streaming"}},
        "pipeline.residency is Streaming, but spec.config.prioritizedReplay draws from all data: set it to Auto or "
        "Resident",
    ),
    (
        "DQN",
        PRIORITIZED_REPLAY | {"pipeline": {"sampling": "WithReplacement"}},
        "pipeline.sampling is WithReplacement, but spec.config.prioritizedReplay draws by priority: leave it out",
    ),
    (
        "FQL",
        {"learners": {"compile": True}},
        "learners.compile is true, but torch.compile does not support the losses of FQL: leave it out",
    ),
    (
        "own:Algorithm",
        SAMPLER_INPUT | MEAN_STD_FILTER,
        "model.observationFilter is MeanStd, which computes its statistics from recorded data, but there are no "
        "recorded data: leave it out, and scale observations in a wrapper of the environment",
    ),
]
UNCHECKED_PATHS = (
    "model",
    "model.recurrent",
    "model.distribution",
    "model.observationFilter",
    "input",
    "pipeline.residency",
)
"""Fields that the checks read before their types are validated."""
INVALID_EXPERTS = [
    (
        {"config": {"minibatchSize": 5000}},
        "config.minibatchSize is 5000, expected at most spec.policy.train.config.trainBatchSizePerLearner, 4000",
    ),
    (
        {"algorithm": "SAC"} | MEAN_STD_FILTER,
        "model.observationFilter is MeanStd, which computes its statistics from recorded data, but there are no "
        "recorded data: leave it out, and scale observations in a wrapper of the environment",
    ),
    (
        {"model": {"distribution": "SquashedDeterministic"}},
        "model.distribution is 'SquashedDeterministic', which PPO cannot train: use Auto, Categorical, Gaussian, "
        "SquashedGaussian, BoundedGaussian",
    ),
]


def make_resource(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    environment = {"environment": {"id": "CartPole-v1"}}
    return {
        "apiVersion": "hindcast.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": "test"},
        "spec": environment | spec,
    }


def make_training(algorithm: str, change: dict[str, Any]) -> dict[str, Any]:
    spec = {"algorithm": algorithm, "input": [{"path": "data"}], "stop": {"updates": 1}}
    return make_resource("OfflineTraining", spec | change)


def make_expert_recording(change: dict[str, Any]) -> dict[str, Any]:
    policy = {"train": {"stop": {"iterations": 1}} | change}
    spec = {"policy": policy, "duration": {"episodes": 1}, "output": {"path": "data"}}
    return make_resource("OfflineRecording", spec)


@pytest.mark.parametrize(("algorithm", "change", "message"), INVALID_TRAININGS)
def test_training_with_fields_that_do_not_fit_its_algorithm_is_refused(
    algorithm: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as error:
        validate_resource(make_training(algorithm, change))
    assert str(error.value) == f"spec.{message}"


@pytest.mark.parametrize(("change", "message"), INVALID_EXPERTS)
def test_expert_with_fields_that_do_not_fit_its_algorithm_is_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as error:
        validate_resource(make_expert_recording(change))
    assert str(error.value) == f"spec.policy.train.{message}"


@pytest.mark.parametrize(
    ("algorithm", "change"),
    [
        ("DQN", DATA_AND_SAMPLER_INPUT | MEAN_STD_FILTER),
        ("DQN", SAMPLER_INPUT | MEAN_STD_FILTER | CHECKPOINT),
        ("DQN", SAMPLER_INPUT | PRIORITIZED_REPLAY | {"pipeline": {"residency": "Streaming"}}),
        ("DQN", PRIORITIZED_REPLAY | {"pipeline": {"residency": "Resident"}}),
        ("DQN", {"pipeline": {"residency": "Streaming"}, "learners": {"compile": True}}),
        ("own:Algorithm", {"model": {"moduleClass": "own:Module", "recurrent": "LSTM"}}),
        ("DQN", {"config": {"epsilon": [[0, 1], [10_000, 0.05]]}}),
    ],
)
def test_training_with_fields_that_fit_its_algorithm_is_accepted(
    algorithm: str, change: dict[str, Any]
) -> None:
    assert validate_resource(make_training(algorithm, change))


@pytest.mark.parametrize("change", [MEAN_STD_FILTER, {"algorithm": "DQN"} | MEAN_STD_FILTER | CHECKPOINT])
def test_expert_with_fields_that_fit_its_algorithm_is_accepted(change: dict[str, Any]) -> None:
    assert validate_resource(make_expert_recording(change))


@pytest.mark.parametrize("value", ["text", 1.5, [], [[]], {"a": []}])
@pytest.mark.parametrize("path", UNCHECKED_PATHS)
def test_value_of_wrong_type_is_refused_in_a_sentence(path: str, value: Any) -> None:
    *parents, field_name = path.split(".")
    change: dict[str, Any] = {field_name: value}
    for name in reversed(parents):
        change = {name: change}
    for algorithm in ("BC", "IQL", "DQN"):
        with pytest.raises(SpecError, match=rf"^spec\.{path}"):
            validate_resource(make_training(algorithm, change))
