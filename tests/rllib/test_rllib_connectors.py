"""Connectors of RLlib's library in trainings: their arguments have effect, or one sentence refuses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hindcast
from hindcast import BCConfig, ConnectorV2, LearnerConnectorPipeline, MARWILConfig
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.errors import SpecError, UserError
from hindcast.rllib.builder.config import AlgorithmConfig
from hindcast.rllib.connectors.library import (
    AddInfosFromEpisodesToTrainBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    ComputeReturnsToGo,
    FlattenObservations,
    FrameStackingLearner,
    GeneralAdvantageEstimation,
)

NO_VALUE_TARGETS = "contains GeneralAdvantageEstimation, but BC has no value targets: leave the connector out"


class Unchanged(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        return batch


class DoubledTargets(GeneralAdvantageEstimation):
    def __call__(self, **kwargs):
        batch = super().__call__(**kwargs)
        batch["default_policy"]["value_targets"] = 2 * batch["default_policy"]["value_targets"]
        return batch


def append(
    make_connectors: Callable[[AlgorithmConfig], list[Any]], base: type[AlgorithmConfig]
) -> AlgorithmConfig:
    class Config(base):  # type: ignore[valid-type, misc]
        def build_learner_connector(self, *args, **kwargs):
            pipeline = super().build_learner_connector(*args, **kwargs)
            for connector in make_connectors(self):
                pipeline.append(connector)
            return pipeline

    return Config()


def first_batch(config: AlgorithmConfig, data: Path) -> dict[str, Any]:
    config.environment("toy_environments:Walk").training(train_batch_size_per_learner=64)
    config.offline_data(input_=str(data), dataset_num_iters_per_learner=1)
    with config.build_algo() as algo:
        assert algo.offline_data is not None
        return {leaf: tensor.numpy().copy() for leaf, tensor in algo.offline_data.next().items()}


@pytest.mark.parametrize("arguments", [{"gamma": 0.1, "lambda_": 0.0}, {"gamma": 0.9, "lambda_": 0.5}])
@pytest.mark.parametrize("after", [(), (Unchanged,)])
def test_gae_sets_the_arguments_of_value_targets(
    walks: Path, arguments: dict[str, float], after: Any
) -> None:
    expected = first_batch(MARWILConfig().training(**arguments), walks)["value_targets"]
    default = first_batch(MARWILConfig(), walks)["value_targets"]
    assert not np.allclose(expected, default)
    as_pipeline = append(
        lambda _: [GeneralAdvantageEstimation(**arguments), *(connector() for connector in after)],
        MARWILConfig,
    )
    as_name = MARWILConfig().learners(
        learner_connector={"name": "GeneralAdvantageEstimation", "kwargs": arguments}
    )
    for config in (as_pipeline, as_name):
        np.testing.assert_array_equal(first_batch(config, walks)["value_targets"], expected)


def test_gae_with_the_arguments_of_the_config_changes_nothing(walks: Path) -> None:
    config = append(
        lambda config: [GeneralAdvantageEstimation(gamma=config.gamma, lambda_=config.lambda_)], MARWILConfig
    )
    batch, default_batch = first_batch(config, walks), first_batch(MARWILConfig(), walks)
    assert batch.keys() == default_batch.keys()
    assert all(np.array_equal(batch[leaf], column) for leaf, column in default_batch.items())


def test_returns_to_go_are_a_column_of_the_batch(walks: Path) -> None:
    config = BCConfig().learners(learner_connector=ComputeReturnsToGo(gamma=0.5))
    batch = first_batch(config, walks)
    expected = first_batch(MARWILConfig().training(gamma=0.5, lambda_=1.0), walks)
    assert batch["returns_to_go"].shape == expected["value_targets"].shape


def test_returns_to_go_discount_the_time_that_steps_take() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(0.0)
    for reward, delta_t in ((1.0, 2.0), (2.0, 0.0), (4.0, 1.0)):
        episode.add_env_step(0.0, 0, reward, extra_model_outputs={"delta_t": delta_t})
    batch = ComputeReturnsToGo(gamma=0.5)(batch={}, episodes=[episode])
    (returns,) = batch["returns_to_go"][episode.id_,]
    assert returns.tolist() == [2.5, 6.0, 4.0]


@pytest.mark.parametrize(
    ("base", "connector", "message"),
    [
        (BCConfig, lambda: GeneralAdvantageEstimation(gamma=0.9, lambda_=0.5), NO_VALUE_TARGETS),
        (
            MARWILConfig,
            lambda: GeneralAdvantageEstimation(gamma=3, lambda_=1),
            "gamma is 3, expected a number from 0",
        ),
        (
            MARWILConfig,
            lambda: GeneralAdvantageEstimation(gamma=1),
            "missing 1 required keyword-only argument",
        ),
        (
            MARWILConfig,
            lambda: DoubledTargets(gamma=1, lambda_=1),
            "adds value_targets, but the algorithm computes",
        ),
        (
            BCConfig,
            lambda: DoubledTargets(gamma=1, lambda_=1),
            "connector DoubledTargets .* has no value head",
        ),
        (BCConfig, lambda: ComputeReturnsToGo(gamma=0.9), "added 'returns_to_go' beside 'default_policy'"),
        (
            BCConfig,
            lambda: FrameStackingLearner(num_frames=3),
            "Leave it out: model_config.frame_stack stacks frames",
        ),
        (
            BCConfig,
            lambda: FlattenObservations(as_learner_connector=True),
            "networks flatten observations themselves",
        ),
        (BCConfig, FlattenObservations, "as_learner_connector is False, but there are no connectors between"),
        (BCConfig, AddInfosFromEpisodesToTrainBatch, "batches only contain numbers; connectors read infos"),
        (BCConfig, lambda: BatchIndividualItems(multi_agent=True), "there is only one agent"),
        (BCConfig, lambda: AgentToModuleMapping(agent_to_module_mapping_fn=max), "there is only one agent"),
    ],
)
def test_connector_without_effect_is_refused(walks: Path, base: Any, connector: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        first_batch(append(lambda _: [connector()], base), walks)


@pytest.mark.parametrize("make", [list, lambda connectors: LearnerConnectorPipeline(connectors=connectors)])
def test_infos_are_in_the_batch_of_later_connectors(walks: Path, make: Callable[..., Any]) -> None:
    names: list[set[str]] = []

    class Names(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            names.append(set(batch))
            return batch

    connectors = make([AddInfosFromEpisodesToTrainBatch(), Names()])
    assert "infos" not in first_batch(BCConfig().learners(learner_connector=connectors), walks)
    assert "infos" in names[0]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("ComputeReturnsToGo", r"ComputeReturnsToGo with invalid arguments: .* missing .* argument: 'gamma'"),
        ({"name": "ComputeReturnsToGo", "kwargs": {"gamma": 3}}, "gamma is 3, expected a number from 0 to 1"),
        (
            {"name": "GeneralAdvantageEstimation", "kwargs": {"gamma": 1, "lambda_": "x"}},
            "lambda_ is 'x', expected",
        ),
    ],
)
def test_library_name_with_invalid_arguments_is_refused(walks: Path, entry: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        first_batch(MARWILConfig().learners(learner_connector=entry), walks)


def test_library_names_of_a_resource_have_their_classes() -> None:
    for name in (
        "ComputeReturnsToGo",
        "FlattenObservations",
        "TensorToNumpy",
        "AddInfosFromEpisodesToTrainBatch",
    ):
        assert getattr(hindcast, name).__name__ == name
    with pytest.raises(SpecError, match="is FlattenObservations, which is not needed here"):
        BCConfig().offline_data(input_="data").learners(learner_connector="FlattenObservations").to_resource()
