"""Custom connectors, losses, pre-learners and readers in RLlib's forms, which other processes cannot import."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from hindcast import (
    SCHEMA,
    BCConfig,
    BCTorchLearner,
    ConnectorV2,
    DefaultModelConfig,
    DQNConfig,
    LearnerConnectorPipeline,
    MultiAgentBatch,
    OfflineData,
    OfflinePreLearner,
    SingleAgentEpisode,
)
from hindcast.errors import SpecError, UserCodeError
from hindcast.rllib.builder.config import AlgorithmConfig
from hindcast.rllib.connectors.library import (
    AddColumnsFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    BatchIndividualItems,
    FrameStackingLearner,
    NumpyToTensor,
    default_connectors,
)

LINES = ["the cat sat", "a dog ran far", "the dog sat"]
VOCABULARY = {token: index for index, token in enumerate(sorted({*" ".join(LINES).split(" ")}))}


pytestmark = pytest.mark.usefixtures("cache")


class ScaleObservations(ConnectorV2):
    """Scales observations, adds a column, and uses every argument."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, scale=1.0, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.scale = scale

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        assert self.input_observation_space.shape == (4,)
        assert self.input_action_space.n == 3
        module = rl_module["default_policy"]
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            observations = torch.from_numpy(episode.get_observations(slice(0, len(episode))))
            logits = module.forward_inference({"obs": observations})["action_dist_inputs"]
            self.add_n_batch_items(batch, "before", logits.numpy(), len(episode), episode)
            for t in range(len(episode)):
                episode.set_observations(new_data=episode.get_observations(t) * self.scale, at_indices=t)
        shared_data["scale"] = self.scale
        metrics.log_value("timesteps", sum(map(len, episodes)), reduce="sum")
        return batch


class ShiftTensors(ConnectorV2):
    """Shifts tensors, since it runs after RLlib's default connectors."""

    def __call__(self, *, batch, shared_data, **kwargs):
        assert shared_data["scale"] == 3.0
        for name in ("obs", "new_obs"):
            batch["default_policy"][name] = batch["default_policy"][name] + 1.0
        return batch


class PipelineConfig(BCConfig):
    def build_learner_connector(self, input_observation_space, input_action_space, device=None):
        spaces = {
            "input_observation_space": input_observation_space,
            "input_action_space": input_action_space,
        }
        pipeline = super().build_learner_connector(**spaces, device=device)
        pipeline.prepend(AddOneTsToEpisodesAndTruncate())
        next_observations = AddNextObservationsFromEpisodesToTrainBatch()
        pipeline.insert_after(AddObservationsFromEpisodesToBatch, next_observations)
        return pipeline


class AppendedConnectorConfig(PipelineConfig):
    def build_learner_connector(self, *args, **kwargs):
        pipeline = super().build_learner_connector(*args, **kwargs)
        pipeline.append(ShiftTensors())
        return pipeline


@pytest.mark.parametrize("name", [type(connector).__name__ for connector in default_connectors()])
def test_removal_of_a_default_connector_is_refused(walks: Path, name: str) -> None:
    class Config(BCConfig):
        def build_learner_connector(self, *args, **kwargs):
            pipeline = super().build_learner_connector(*args, **kwargs)
            pipeline.remove(name)
            return pipeline

    with pytest.raises(SpecError, match=f"^learner_connector lacks {name}, a default connector"):
        training_config(walks, Config).build_algo()


def training_config(
    walks: Path, config_class: type[AlgorithmConfig] = BCConfig, **options: Any
) -> AlgorithmConfig:
    config = config_class().environment("toy_environments:Walk")
    config.training(train_batch_size_per_learner=16, **options)
    return config.offline_data(input_=str(walks), dataset_num_iters_per_learner=1)


def first_batch(config: AlgorithmConfig) -> dict[str, torch.Tensor]:
    with config.build_algo() as algo:
        assert algo.offline_data is not None
        return {leaf: tensor.clone() for leaf, tensor in algo.offline_data.next().items()}


def make_connector(observation_space: gym.Space, action_space: gym.Space) -> ConnectorV2:
    return ScaleObservations(scale=3.0)


@pytest.mark.parametrize(
    "connector",
    [
        make_connector,
        {"name": ScaleObservations, "kwargs": {"scale": 3.0}},
        ScaleObservations(scale=3.0),
        lambda observations, actions: [ScaleObservations(observations, actions, scale=3.0)],
        lambda *spaces: LearnerConnectorPipeline(connectors=[ScaleObservations(*spaces, scale=3.0)]),
    ],
)
def test_connector_in_any_form_gives_the_same_batches(walks: Path, connector: Any) -> None:
    default_batch = first_batch(training_config(walks))
    batch = first_batch(training_config(walks, learner_connector=connector))
    assert torch.equal(batch["obs"], 3 * default_batch["obs"])
    assert batch["before"].shape == (16, 3)
    assert {*batch} - {*default_batch} == {"before"}


def test_results_contain_metrics_of_connectors(walks: Path) -> None:
    with training_config(walks, learner_connector=ScaleObservations).build_algo() as algo:
        data = algo.offline_data
        assert data is not None
        assert algo.train()["learner_connector"] == {"timesteps": data.epoch_size}
        assert "learner_connector" not in algo.train()  # the data stay in memory and are not read again


def test_override_of_build_learner_connector_is_used(walks: Path) -> None:
    default_batch = first_batch(training_config(walks))
    batch = first_batch(training_config(walks, PipelineConfig))
    assert {*batch} - {*default_batch} == {"new_obs"}
    assert torch.equal(batch["obs"], default_batch["obs"])


def test_connector_after_default_ones_gets_tensors(walks: Path) -> None:
    default_batch = first_batch(training_config(walks, PipelineConfig))
    config = training_config(walks, AppendedConnectorConfig, learner_connector=make_connector)
    batch = first_batch(config)
    torch.testing.assert_close(batch["obs"], 3 * default_batch["obs"] + 1)
    with pytest.raises(SpecError, match="build_learner_connector cannot be imported by name"):
        config.to_resource()


class ChangeOnlyObs(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        batch["default_policy"]["obs"] = 2 * batch["default_policy"]["obs"]
        return batch


def test_connector_that_changes_obs_without_new_obs_raises(walks: Path) -> None:
    class AppendedConnectorDQNConfig(DQNConfig):
        def build_learner_connector(self, *args, **kwargs):
            pipeline = super().build_learner_connector(*args, **kwargs)
            pipeline.append(ChangeOnlyObs())
            return pipeline

    with pytest.raises(
        UserCodeError, match=r"connector ChangeOnlyObs at .*: ?\d* ?changed 'obs' .* no 'new_obs'"
    ):
        first_batch(training_config(walks, AppendedConnectorDQNConfig))


class PenalisedBC(BCTorchLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        arguments = {"module_id": module_id, "config": config, "batch": batch, "fwd_out": fwd_out}
        bc_loss = super().compute_loss_for_module(**arguments)
        penalty = fwd_out["action_dist_inputs"].square().mean()
        self.metrics.log_value((module_id, "penalty"), penalty, window=1)
        return bc_loss + config.lr * penalty


@pytest.mark.parametrize("cls", [int, BCConfig, "builtins:int"])
def test_other_class_is_refused_as_no_learner(cls: Any, walks: Path) -> None:
    with pytest.raises(
        SpecError, match=r"^learner_class is '.*', which is not a learner of BC: derive it from"
    ):
        training_config(walks, learner_class=cls).validate()


@pytest.mark.parametrize("name", ["PenalisedBC", "My_Learner", "_3", "L" * 41])
def test_learner_class_may_have_any_name_and_be_defined_again(walks: Path, name: str) -> None:
    for _ in range(2):
        training_config(walks, learner_class=type(name, (BCTorchLearner,), {})).validate()


class LogsSumMetric(BCTorchLearner):
    def compute_loss_for_module(self, *, module_id, **arguments):
        self.metrics.log_dict({"one": 1.0}, key=module_id, window=1)
        self.metrics.log_value("updates", 1, reduce="sum")
        return super().compute_loss_for_module(module_id=module_id, **arguments)


def test_metric_of_a_loss_that_is_not_averaged_raises(walks: Path) -> None:
    message = "metric 'updates': reduce is 'sum', but metrics of updates are averaged"
    config = training_config(walks, learner_class=LogsSumMetric)
    with config.build_algo() as algo, pytest.raises(UserCodeError, match=message):
        algo.train()


def test_learner_class_has_its_own_loss(walks: Path, tmp_path: Path) -> None:
    with training_config(walks).build_algo() as algo:
        bc_metrics = algo.train()["learners"]["default_policy"]
    config = training_config(walks, learner_class=PenalisedBC)
    with config.build_algo() as algo:
        custom_metrics = algo.train()["learners"]["default_policy"]
        checkpoint = algo.save_to_path(tmp_path / "saved")
        expected = algo.train()["learners"]["default_policy"]
    expected_loss = bc_metrics["total_loss"] + 1e-4 * custom_metrics["penalty"]
    assert custom_metrics["total_loss"] == pytest.approx(expected_loss, rel=1e-5)
    with config.build_algo() as algo:
        algo.restore_from_path(checkpoint)
        assert algo.train()["learners"]["default_policy"] == expected


class TextPreLearner(OfflinePreLearner):
    """As in RLlib's documentation: converts text to frames, with its own connector pipeline."""

    def __init__(  # noqa: PLR0917
        self,
        config,
        learner=None,
        spaces=None,
        module_spec=None,
        module_state=None,
        vocabulary=None,
        **kwargs,
    ):
        self.spaces = spaces
        self.vocabulary = vocabulary
        self._module = module_spec.build()
        self._learner_connector = LearnerConnectorPipeline(
            connectors=[FrameStackingLearner(num_frames=4)],
            input_action_space=module_spec.action_space,
            input_observation_space=module_spec.observation_space,
        )
        self._learner_connector.append(AddObservationsFromEpisodesToBatch(as_learner_connector=True))
        self._learner_connector.append(AddColumnsFromEpisodesToTrainBatch())
        self._learner_connector.append(BatchIndividualItems(multi_agent=False))
        self._learner_connector.append(NumpyToTensor(as_learner_connector=True))

    def __call__(self, batch):
        episodes = TextPreLearner._map_to_episodes(
            is_multi_agent=False,
            batch=batch,
            to_numpy=True,
            observation_space=None,
            action_space=self.spaces[1],
            vocabulary=self.vocabulary,
        )["episodes"]
        batch = self._learner_connector(rl_module=self._module, batch={}, episodes=episodes, shared_data={})
        num_steps = sum(episode.env_steps() for episode in episodes)
        return {"batch": MultiAgentBatch(dict(batch), env_steps=num_steps)}

    @staticmethod
    def _map_to_episodes(  # noqa: PLR0917
        is_multi_agent: bool,
        batch: dict[str, Any],
        schema: dict[str, str] = SCHEMA,
        to_numpy: bool = False,
        input_compress_columns: list[str] | None = None,
        observation_space: Any = None,
        action_space: Any = None,
        vocabulary: dict[str, int] | None = None,
        **kwargs: Any,
    ) -> dict[str, list[SingleAgentEpisode]]:
        episodes = []
        for text in batch["text"]:
            encoded = [vocabulary[token] for token in text.split(" ")]
            one_hot = np.eye(len(vocabulary), dtype=np.float32)[encoded][..., None, None]
            episode = SingleAgentEpisode(
                id_=uuid.uuid4().hex,
                observations=list(one_hot),
                observation_space=observation_space,
                actions=encoded[1:],
                action_space=action_space,
                rewards=[0.0] * (len(encoded) - 2) + [1.0],
                terminated=True,
                len_lookback_buffer=0,
            )
            episodes.append(episode.to_numpy())
        return {"episodes": episodes}


def test_prelearner_that_returns_batches_is_trained_on(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "this.txt").write_text("\n".join(LINES))
    size = len(VOCABULARY)
    config = (
        BCConfig()
        .environment(
            observation_space=gym.spaces.Box(0.0, 1.0, (size, 1, 4), np.float32),
            action_space=gym.spaces.Discrete(size),
        )
        .offline_data(
            input_=str(folder),
            input_read_method="read_text",
            prelearner_class=TextPreLearner,
            prelearner_kwargs={"vocabulary": VOCABULARY},
        )
        .rl_module(model_config=DefaultModelConfig(conv_filters=[[16, 4, 2], [32, 4, 2]]))
        .training(train_batch_size_per_learner=7)
    )
    batch = first_batch(config)
    expected = sorted(VOCABULARY[token] for line in LINES for token in line.split(" ")[1:])
    assert sorted(batch["actions"].tolist()) == expected
    assert batch["obs"].shape == (7, size, 1, 4)
    assert batch["obs"][..., 3].sum(dim=(1, 2)).tolist() == [1.0] * 7  # the last frame is the preceding token


class ReversingPreLearner(OfflinePreLearner):
    """Converts each batch to an episode in reverse order, with its first observation repeated as the final one."""

    def _map_sample_batch_to_episode(self, is_multi_agent, batch, **kwargs):
        return {
            "episodes": [
                SingleAgentEpisode(
                    observations=np.float32([*observations[::-1], observations[0]]),
                    actions=actions[::-1].tolist(),
                    rewards=[0.5] * len(actions),
                    terminated=True,
                    len_lookback_buffer=0,
                )
                for observations, actions in zip(batch["obs"], batch["actions"], strict=True)
            ]
        }


def sample_batch_config(folder: Path) -> AlgorithmConfig:
    """Write three batches of four timesteps, with the timestep's index as observation and action, and read them."""
    folder.mkdir()
    with (folder / "batches.json").open("w") as file:
        for start in (0, 4, 8):
            steps = range(start, start + 4)
            batch = {"obs": [[step] * 4 for step in steps], "actions": [*steps], "rewards": [1.0] * 4}
            file.write(json.dumps({"type": "SampleBatch", **batch}) + "\n")
    spaces = gym.spaces.Box(-99.0, 99.0, (4,), np.float32), gym.spaces.Discrete(12)
    config = DQNConfig().environment(observation_space=spaces[0], action_space=spaces[1])
    config.offline_data(input_=str(folder), prelearner_class=ReversingPreLearner)
    return config.training(train_batch_size_per_learner=12)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
def test_prelearner_of_sample_batches_is_trained_on(tmp_path: Path) -> None:
    config = sample_batch_config(tmp_path / "batches").offline_data(input_read_sample_batches=True)
    batch = first_batch(config)
    next_obs = dict(zip(batch["actions"].tolist(), batch["new_obs"][:, 0].tolist(), strict=True))
    assert torch.equal(batch["obs"][:, 0], batch["actions"].float())
    # In reverse order, the next observation of a step is the preceding one.
    assert next_obs == {step: step - 1 if step % 4 else step for step in range(12)}
    assert set(batch["rewards"].tolist()) == {0.5}


def test_sample_batches_without_their_option_raise(tmp_path: Path) -> None:
    message = (
        r"batches holds \.json files, but without a named format only Parquet is read: set input_read_method, or "
        r"input_read_sample_batches=True if they are RLlib's batches\.$"
    )
    with pytest.raises(SpecError, match=message):
        first_batch(sample_batch_config(tmp_path / "batches"))


def read_numpy_episodes(path: str, episodes: int) -> Iterator[dict[str, Any]]:
    """Yield the timesteps of each file; a custom read method."""
    for index in range(episodes):
        observations = np.load(Path(path) / f"{index}.npy")
        num_steps = len(observations) - 1
        yield {
            "eps_id": [str(index)] * num_steps,
            "t": list(range(num_steps)),
            "obs": observations[:-1],
            "new_obs": observations[1:],
            "actions": [index] * num_steps,
            "rewards": [1.0] * num_steps,
            "terminateds": [False] * (num_steps - 1) + [True],
            "truncateds": [False] * num_steps,
        }


class SingleStepPreLearner(OfflinePreLearner):
    """Overrides an instance method, and reads the column `data` of `read_numpy`."""

    def _map_to_episodes(self, batch, to_numpy=False, **kwargs):
        assert self.observation_space.shape == (4,)
        return {
            "episodes": [
                SingleAgentEpisode(
                    uuid.uuid4().hex,
                    observations=[row, row],
                    actions=[self.action_space.n - 1],
                    rewards=[1.0],
                    terminated=True,
                    len_lookback_buffer=0,
                )
                for row in batch["data"]
            ]
        }


class CustomOfflineData(OfflineData):
    def __init__(self, config):
        import ray.data

        self.config = config
        self.path = config.input_
        self.data = ray.data.read_numpy(self.path).map(lambda row: {"data": row["data"] * 2})


def save_arrays(folder: Path) -> tuple[AlgorithmConfig, list[np.ndarray]]:
    folder.mkdir()
    arrays = [np.random.default_rng(index).normal(size=(6, 4)).astype(np.float32) for index in range(3)]
    for index, array in enumerate(arrays):
        np.save(folder / f"{index}.npy", array)
    config = BCConfig().environment("toy_environments:Walk")
    return config.offline_data(input_=str(folder), validate_data=False), arrays


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
def test_read_method_may_be_a_function(tmp_path: Path) -> None:
    config, arrays = save_arrays(tmp_path / "numbers")
    config.offline_data(input_read_method=read_numpy_episodes, input_read_method_kwargs={"episodes": 3})
    batch = first_batch(config.training(train_batch_size_per_learner=15))
    order = torch.argsort(batch["obs"][:, 0])
    expected = torch.from_numpy(np.concatenate([array[:-1] for array in arrays]))
    assert torch.equal(batch["obs"][order], expected[torch.argsort(expected[:, 0])])
    with pytest.raises(
        SpecError, match="'read_nump', which is not a read method of Ray Data; did you mean 'read_numpy'"
    ):
        config.copy().offline_data(input_read_method="read_nump").build_algo()


@pytest.mark.soak
@pytest.mark.minutes
@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
def test_ray_data_methods_read_by_name_or_in_a_class(tmp_path: Path) -> None:
    config, arrays = save_arrays(tmp_path / "numbers")
    config.training(train_batch_size_per_learner=18)
    config.offline_data(prelearner_class=SingleStepPreLearner)
    by_name = config.copy().offline_data(input_read_method="read_numpy")
    by_class = config.copy().offline_data(offline_data_class=CustomOfflineData)
    expected_obs = np.sort(np.concatenate(arrays)[:, 0])
    for reader_config, factor in ((by_name, 1), (by_class, 2)):
        obs = first_batch(reader_config)["obs"][:, 0].numpy()
        np.testing.assert_array_equal(np.sort(obs), factor * expected_obs)
