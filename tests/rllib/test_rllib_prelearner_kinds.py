"""Each method of a pre-learner in RLlib's form works on each kind of data, in each way to write the class.

All kinds hold the same episodes, so that a training must read the same transitions.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from hindcast import (
    SCHEMA,
    ConnectorV2,
    DQNConfig,
    DQNTorchLearner,
    EpisodeReplayBuffer,
    MARWILConfig,
    OfflineData,
    OfflinePreLearner,
    PrioritizedEpisodeReplayBuffer,
    RLlibCallback,
    SingleAgentEpisode,
)
from hindcast.datasets.curate.operations import convert_data
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.target import Target
from hindcast.errors import DataError, SpecError, UserCodeError, UserError
from hindcast.rllib.builder.config import AlgorithmConfig
from hindcast.run.execute import FileReferences
from hindcast.run.inputs import open_inputs, resolve_inputs
from hindcast.storage.location import resolve
from support import MemoryReporter

SPACES = (gym.spaces.Box(-99, 99, (2,), np.float32), gym.spaces.Discrete(20))
THIS_FILE = Path(__file__)
LENGTHS = (3, 1, 7)
NUM_STEPS = sum(LENGTHS)
KINDS: Mapping[str, Mapping[str, Any]] = {
    "table": {},
    "recording": {},
    "messagepack": {},
    "rllib": {"input_read_episodes": True},
    "sample_batch": {"input_read_sample_batches": True},
    "text": {"input_read_method": "read_text"},
    "images": {"input_read_method": "read_images"},
}
"""Kind of data -> its options."""


def make_rows() -> dict[str, Any]:
    """Return three episodes whose steps have their number as action."""
    rng = np.random.default_rng(0)
    observations = [rng.normal(size=(length + 1, 2)).astype(np.float32) for length in LENGTHS]
    last_steps = np.cumsum(LENGTHS) - 1
    return {
        "eps_id": np.repeat([f"e{index}" for index in range(3)], LENGTHS).astype(object),
        "t": np.concatenate([np.arange(length) for length in LENGTHS]),
        "obs": np.concatenate([values[:-1] for values in observations]),
        "new_obs": np.concatenate([values[1:] for values in observations]),
        "actions": np.arange(NUM_STEPS),
        "rewards": rng.normal(size=NUM_STEPS),
        "terminateds": np.isin(np.arange(NUM_STEPS), last_steps),
        "truncateds": np.zeros(NUM_STEPS, np.bool_),
    }


ROWS = make_rows()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the episodes as each kind, in a folder of its name."""
    folder = tmp_path_factory.mktemp("kinds")
    for kind in KINDS:
        (folder / kind).mkdir()
    columns = {name: values.tolist() for name, values in ROWS.items()}
    # pandas and Ray turn the nulls of a recording without agents and infos into NaN.
    missing = {name: [np.nan] * NUM_STEPS for name in ("agent_id", "module_id", "infos")}
    pq.write_table(pa.table({**columns, **missing}), folder / "table" / "rows.parquet")
    table = Reading((str(folder / "table"),))
    convert_data(table, Target(resolve(folder / "recording"), "Episodes"))
    convert_data(table, Target(resolve(folder / "messagepack"), "MessagePack"))
    cells = pq.read_table(next((folder / "messagepack").glob("*.parquet")), columns=["item"])
    pq.write_table(cells, folder / "rllib" / "episodes.parquet")
    fragments = [(0, 3), (3, 4), (4, 6), (6, NUM_STEPS)]  # the last episode has two fragments
    with (folder / "sample_batch" / "batches.json").open("w") as file:
        for start, stop in fragments:
            batch = {name: values[start:stop] for name, values in columns.items()}
            file.write(json.dumps({"type": "SampleBatch", **batch}) + "\n")
    (folder / "text" / "steps.txt").write_text("\n".join(map(str, range(NUM_STEPS))))
    for step in range(NUM_STEPS):
        Image.new("L", (2, 2), step).save(folder / "images" / f"{step}.png")
    return folder


def to_rows(batch: Any) -> Any:
    """Return rows of timesteps: those that text or images name, or the batch itself."""
    if "text" in batch:
        return {name: values[[int(text) for text in batch["text"]]] for name, values in ROWS.items()}
    if "image" in batch:
        return {name: values[[int(image[0, 0]) for image in batch["image"]]] for name, values in ROWS.items()}
    return batch


def scale_rewards(episodes: list[SingleAgentEpisode], scale: float) -> dict[str, Any]:
    for episode in episodes:
        episode.set_rewards(new_data=[scale * float(reward) for reward in episode.get_rewards()])
    return {"episodes": episodes}


class MapsAs260(OfflinePreLearner):
    """Calls `super()` as in RLlib 2.60."""

    def _map_to_episodes(self, batch, to_numpy=False, scale=1.0, **kwargs):
        return scale_rewards(super()._map_to_episodes(to_rows(batch), to_numpy)["episodes"], scale)


class MapsAs240(OfflinePreLearner):
    """Calls `super()` with all arguments of RLlib 2.40."""

    def _map_to_episodes(  # noqa: PLR0917
        self,
        is_multi_agent,
        batch,
        schema=SCHEMA,
        to_numpy=False,
        input_compress_columns=None,
        observation_space=None,
        action_space=None,
        scale=1.0,
    ):
        assert (observation_space, action_space) == SPACES
        episodes = super()._map_to_episodes(
            is_multi_agent,
            to_rows(batch),
            schema,
            to_numpy,
            input_compress_columns,
            observation_space=observation_space,
            action_space=action_space,
        )
        return scale_rewards(episodes["episodes"], scale)


class MapsAny(OfflinePreLearner):
    """Passes on any arguments by name."""

    def _map_to_episodes(self, *args, scale=1.0, **kwargs):
        kwargs["batch"] = to_rows(kwargs["batch"])
        return scale_rewards(super()._map_to_episodes(*args, **kwargs)["episodes"], scale)


class MapsStatically(OfflinePreLearner):
    """Is static, as on the page, and calls the base class."""

    @staticmethod
    def _map_to_episodes(is_multi_agent, batch, schema=SCHEMA, to_numpy=False, scale=1.0, **kwargs):
        episodes = OfflinePreLearner._map_to_episodes(is_multi_agent, to_rows(batch), schema, to_numpy)
        return scale_rewards(episodes["episodes"], scale)


class Calls(OfflinePreLearner):
    """Changes a module's batch."""

    def __init__(self, config, scale=1.0, **kwargs):
        super().__init__(config=config, **kwargs)
        self.scale = scale

    def __call__(self, batch):
        result = super().__call__(to_rows(batch))
        return {**result, "default_policy/rewards": result["default_policy/rewards"] * self.scale}


class MapsSampleBatches(OfflinePreLearner):
    def _map_sample_batch_to_episode(self, is_multi_agent, batch, scale=1.0, **kwargs):
        episodes = super()._map_sample_batch_to_episode(is_multi_agent, batch, **kwargs)["episodes"]
        return scale_rewards(episodes, scale)


class UnpacksItems(OfflinePreLearner):
    """Unpacks episodes as RLlib's recorder packs them, as RLlib's own `__call__` does."""

    def __init__(self, config, scale=1.0, **kwargs):
        super().__init__(config=config, **kwargs)
        self.scale = scale

    def __call__(self, batch):
        result = super().__call__({"item": batch["item"]})
        return {**result, "default_policy/rewards": result["default_policy/rewards"] * self.scale}


EPISODE_KINDS = ("recording", "messagepack", "rllib")
HOOKS: Mapping[type[OfflinePreLearner], tuple[str, ...]] = {
    MapsAs260: tuple(KINDS),
    MapsAs240: tuple(KINDS),
    MapsAny: tuple(KINDS),
    MapsStatically: tuple(KINDS),
    Calls: tuple(KINDS),
    MapsSampleBatches: ("sample_batch",),
    UnpacksItems: EPISODE_KINDS,
}
"""Class -> the kinds of data that it maps."""
CASES = [(hook, kind) for hook, kinds in HOOKS.items() for kind in kinds]


def make_config(data: Path, kind: str, **options: Any) -> AlgorithmConfig:
    config = DQNConfig().environment(observation_space=SPACES[0], action_space=SPACES[1])
    config.offline_data(input_=str(data / kind), **KINDS[kind], **options)
    return config.training(train_batch_size_per_learner=NUM_STEPS)


def open_training_data(config: AlgorithmConfig) -> Dataset:
    training = config.plan().training
    assert training is not None
    (opened_input,) = open_inputs(training, resolve_inputs(training, FileReferences({})))
    return opened_input.dataset


def read_transitions(config: AlgorithmConfig) -> dict[str, Any]:
    """Return the transitions that the training reads, in the order of their actions."""
    dataset = open_training_data(config)
    (block,) = (dataset.read(unit) for unit in dataset.units)
    order = np.argsort(block.columns["actions"], kind="stable")
    return {
        "obs": block.columns["obs"][block.obs_row][order],
        "new_obs": block.columns["obs"][block.obs_row + 1][order],
        "actions": block.columns["actions"][order],
        "rewards": block.columns["rewards"][order],
        "terminateds": block.step_flags(block.terminated)[order],
        "lengths": block.length,
    }


def check_transitions(transitions: Mapping[str, Any], cls: type[OfflinePreLearner], scale: float) -> None:
    has_single_steps = cls in (Calls, UnpacksItems)
    for name in ("obs", "actions", "terminateds", *([] if has_single_steps else ["new_obs"])):
        np.testing.assert_allclose(transitions[name], ROWS[name], rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(transitions["rewards"], scale * ROWS["rewards"], rtol=1e-6)
    assert sorted(transitions["lengths"]) == ([1] * NUM_STEPS if has_single_steps else sorted(LENGTHS))


@pytest.mark.parametrize(("cls", "kind"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_method_maps_whole_decoded_episodes_of_any_kind(
    cls: type[OfflinePreLearner], kind: str, data: Path
) -> None:
    config = make_config(data, kind, prelearner_class=cls)
    check_transitions(read_transitions(config), cls, 1.0)
    # Other arguments change the result, again in the same process.
    config.offline_data(prelearner_kwargs={"scale": 3.0})
    for _ in range(2):
        check_transitions(read_transitions(config), cls, 3.0)


@pytest.mark.parametrize("cls", HOOKS)
def test_class_of_a_script_maps_like_one_of_a_module(cls: type[OfflinePreLearner], data: Path) -> None:
    kind = HOOKS[cls][0]  # on all kinds below, together with other classes
    script_class = type(cls.__name__, (cls,), {"__module__": "__main__"})
    # A notebook's cell that runs twice defines another class of the same name.
    for scale in (2.0, 0.5):
        options = {"prelearner_kwargs": {"scale": scale}, "input_read_batch_size": 2}
        config = make_config(data, kind, prelearner_class=script_class, **options)
        check_transitions(read_transitions(config), cls, scale)
        script_class = type(cls.__name__, (cls,), {"__module__": "__main__"})


class Reads240(OfflinePreLearner):
    """Passes RLlib 2.40's arguments by position, and collects what it gets."""

    configs: list[Any] = []
    num_rows: list[int] = []

    def __init__(  # noqa: PLR0917
        self, config, learner=None, locality_hints=None, spaces=None, module_spec=None, module_state=None
    ):
        super().__init__(config, learner, locality_hints, spaces, module_spec, module_state)
        assert (self.observation_space, self.action_space) == spaces == SPACES
        self.configs.append(config)

    def _map_to_episodes(self, batch, to_numpy=False, **kwargs):
        self.num_rows.append(len(batch["obs"]))
        return super()._map_to_episodes(batch, to_numpy)


NAMES_THAT_RLLIB_READS = """
    episode_lookback_horizon ignore_final_observation input_ input_filesystem input_filesystem_kwargs
    input_read_batch_size input_read_episodes input_read_method input_read_method_kwargs input_read_sample_batches
    is_multi_agent iter_batches_kwargs map_batches_kwargs materialize_data materialize_mapped_data model_config
    num_learners policies_to_train prelearner_buffer_class prelearner_buffer_kwargs prelearner_class
    prelearner_use_recorded_module_states rl_module_spec train_batch_size_per_learner
"""
"""Attributes of the config that RLlib 2.60's `OfflineData` and `OfflinePreLearner` read."""


def test_config_of_a_prelearner_has_rllibs_names_and_the_values_that_were_set(data: Path) -> None:
    options = {
        "input_read_batch_size": 4,
        "input_compress_columns": ["obs"],
        "map_batches_kwargs": {"concurrency": (1, 3), "num_cpus": 2, "memory": 2**30},
        "materialize_data": True,
        "dataset_num_iters_per_learner": 7,
        "prelearner_buffer_class": CountingBuffer,
        "prelearner_buffer_kwargs": {"capacity": 50},
        "prelearner_class": Reads240,
    }
    config = make_config(data, "table", **options).training(lr=0.5)
    config.rl_module(model_config={"max_seq_len": 3, "lstm_cell_size": 5})
    Reads240.configs.clear()
    Reads240.num_rows.clear()
    open_training_data(config)
    config = Reads240.configs[0]
    assert Reads240.num_rows == [4, 7]  # the first two episodes, the third one
    assert [name for name in NAMES_THAT_RLLIB_READS.split() if not hasattr(config, name)] == []
    options["map_batches_kwargs"] = {"concurrency": [1, 3], "num_cpus": 2, "memory": 2**30}
    assert {name: config[name] for name in options} == options
    assert (config.lr, config["lr"], config.get("lr"), "lr" in config) == (0.5, 0.5, 0.5, True)
    assert config.to_dict()["lr"] == 0.5
    assert config.beta == 0.0  # RLlib's default of an option that the algorithm lacks here
    model = config.model_config
    assert (model["use_lstm"], model["max_seq_len"], model["lstm_cell_size"]) == (False, 3, 5)
    with pytest.raises(KeyError, match="the config has no 'no_such' here; it has "):
        config["no_such"]


def test_error_on_the_format_names_the_option_that_was_set(data: Path) -> None:
    config = make_config(data, "table", input_read_sample_batches=True)
    with pytest.raises(
        DataError,
        match="does not have the format SampleBatch: change `input_read_sample_batches`, or leave it out",
    ):
        config.build_algo()


class WithoutKwargs(OfflinePreLearner):
    def _map_to_episodes(self, batch, to_numpy=False):
        return super()._map_to_episodes(batch, to_numpy)


def test_prelearner_argument_without_parameter_is_refused(data: Path) -> None:
    config = make_config(data, "table", prelearner_class=WithoutKwargs)
    check_transitions(read_transitions(config), WithoutKwargs, 1.0)
    config.offline_data(prelearner_kwargs={"no_such": 1})
    with pytest.raises(
        SpecError, match=r"^prelearner_kwargs has 'no_such', but no method of WithoutKwargs has a parameter"
    ):
        config.build_algo()


class CountingBuffer(EpisodeReplayBuffer):
    calls: list[tuple[str, int]] = []

    def add(self, episodes):
        self.calls.append(("add", sum(map(len, episodes))))
        super().add(episodes)

    def sample(self, num_items=None, **kwargs):
        self.calls.append(("sample", num_items))
        return super().sample(num_items, **kwargs)


class Postprocesses(OfflinePreLearner):
    """Keeps items with an action below 5."""

    def _map_to_episodes(self, batch, **kwargs):
        return super()._map_to_episodes(to_rows(batch), **kwargs)

    def _postprocess_and_sample(self, episodes):
        items = super()._postprocess_and_sample(episodes)
        return [item for item in items if item.get_actions(0) < 5]


@pytest.mark.parametrize("kind", KINDS)
def test_buffer_of_any_class_draws_the_items(kind: str, data: Path) -> None:
    CountingBuffer.calls.clear()
    own_class = {"prelearner_class": Postprocesses} if kind in ("text", "images") else {}
    config = make_config(data, kind, prelearner_buffer_class=CountingBuffer, **own_class)
    config.training(train_batch_size_per_learner=40)
    first, second = (read_transitions(config) for _ in range(2))
    assert CountingBuffer.calls == [("add", NUM_STEPS), ("sample", 40)]
    if not own_class:
        assert len(first["actions"]) == 40
        assert len(set(first["actions"].tolist())) > 5
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name])
    for name in ("obs", "new_obs", "rewards", "terminateds"):
        np.testing.assert_allclose(first[name], ROWS[name][first["actions"]], rtol=1e-6, err_msg=name)


class RaisesOnSample(EpisodeReplayBuffer):
    def sample(self, num_items=None, **kwargs):
        return 1 // 0


class SamplesNumbers(EpisodeReplayBuffer):
    def sample(self, num_items=None, **kwargs):
        return [1, 2]


class SamplesNothing(EpisodeReplayBuffer):
    def sample(self, num_items=None, **kwargs):
        return None


class SamplesNoEpisodes(EpisodeReplayBuffer):
    def sample(self, num_items=None, **kwargs):
        return []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prelearner_buffer_class": dict}, "^prelearner_buffer_class is 'dict', which has no method add: "),
        (
            {"prelearner_buffer_kwargs": {"no_such": 1}},
            "^prelearner_buffer_kwargs: EpisodeReplayBuffer refuses them: .* unexpected .* 'no_such'$",
        ),
        (
            {"prelearner_buffer_class": CountingBuffer, "prelearner_buffer_kwargs": {"no_such": 1}},
            "^prelearner_buffer_kwargs: CountingBuffer refuses them: .* 'no_such'$",
        ),
        ({"prelearner_buffer_kwargs": {"capacity": "x"}}, "capacity is 'x'; it must be a whole number of at"),
        ({"prelearner_buffer_kwargs": {"capacity": 0}}, "capacity is 0; it must be a whole number of at"),
        ({"prelearner_buffer_kwargs": {"batch_size_B": 1.5}}, r"batch_size_B is 1\.5; it must be a whole"),
        (
            {
                "prelearner_buffer_class": PrioritizedEpisodeReplayBuffer,
                "prelearner_buffer_kwargs": {"alpha": "x"},
            },
            "alpha is 'x'; it must be a number of at least 0",
        ),
        (
            {"prelearner_buffer_class": RaisesOnSample},
            rf"RaisesOnSample\.sample raised ZeroDivisionError at {THIS_FILE}:\d+: ",
        ),
        (
            {"prelearner_buffer_class": SamplesNumbers},
            rf"SamplesNumbers\.sample at {THIS_FILE}:\d+ returned a list with values of type int; it must",
        ),
        (
            {"prelearner_buffer_class": SamplesNoEpisodes},
            "no rows that form an episode after the pre-learner's buffer .*:SamplesNoEpisodes: its sample must",
        ),
        (
            {"prelearner_buffer_class": SamplesNothing},
            rf"SamplesNothing\.sample at {THIS_FILE}:\d+ returned a NoneType; it must return a Block",
        ),
    ],
)
def test_invalid_buffer_is_refused_in_one_sentence(options: dict[str, Any], message: str, data: Path) -> None:
    with pytest.raises(UserError, match=message) as error:
        make_config(data, "recording", **options).build_algo()
    assert "\n" not in str(error.value)


def test_buffer_accepts_rllibs_arguments(data: Path) -> None:
    arguments = {
        "capacity": 9,
        "batch_size_B": 2,
        "batch_length_T": 1,
        "metrics_num_episodes_for_smoothing": 3,
    }
    assert len(read_transitions(make_config(data, "table", prelearner_buffer_kwargs=arguments))["actions"])


def test_capacity_of_the_buffer_limits_what_is_drawn(data: Path) -> None:
    config = make_config(data, "recording", prelearner_buffer_kwargs={"capacity": 7})
    assert set(read_transitions(config)["actions"].tolist()) <= set(range(4, NUM_STEPS))


def test_buffer_is_not_drawn_from_before_the_first_valid_episode(data: Path) -> None:
    class KeepsThirdEpisode(OfflinePreLearner):
        def _validate_episodes(self, episodes):
            return [episode for episode in super()._validate_episodes(episodes) if 3 in episode.get_actions()]

    class SamplesIterator(EpisodeReplayBuffer):
        def sample(self, **kwargs):
            return iter(super().sample(**kwargs))

    options = {"prelearner_class": KeepsThirdEpisode, "prelearner_buffer_class": SamplesIterator}
    actions = read_transitions(make_config(data, "recording", input_read_batch_size=1, **options))["actions"]
    assert 3 in actions
    assert 0 not in actions


def test_override_of_sampling_changes_the_items(data: Path) -> None:
    config = make_config(data, "recording", prelearner_class=Postprocesses)
    assert set(read_transitions(config)["actions"].tolist()) <= set(range(5))


class MapsRandomly(OfflinePreLearner):
    """As the page's pre-learner of images: random actions of a space, and random rewards."""

    @staticmethod
    def _map_to_episodes(is_multi_agent, batch, action_space=None, **kwargs):
        import random

        return {
            "episodes": [
                SingleAgentEpisode(
                    observations=[obs, obs],
                    actions=[action_space.sample()],
                    rewards=[random.random() + np.random.normal()],
                    terminated=True,
                    len_lookback_buffer=0,
                )
                for obs in to_rows(batch)["obs"]
            ]
        }


@pytest.mark.parametrize("kind", KINDS)
def test_random_prelearner_repeats_its_episodes_for_a_seed(
    kind: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for index, seed in enumerate((1, 1, 2)):
        monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path / str(index)))  # nothing is prepared yet
        config = make_config(data, kind, prelearner_class=MapsRandomly).debugging(seed=seed)
        results.append(read_transitions(config)["rewards"])
    assert len(set(results[0])) == NUM_STEPS
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


def test_random_prelearner_draws_anew_for_files_of_the_same_name(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(root: Path, index: int) -> list[float]:
        monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path / str(index)))
        config = make_config(data, "table", prelearner_class=MapsRandomly).offline_data(
            input_=str(root / "*/a.parquet")
        )
        return sorted(read_transitions(config)["rewards"].tolist())

    for folder, part in (("x", slice(0, 5)), ("y", slice(5, 10))):
        (tmp_path / "data" / folder).mkdir(parents=True)
        columns = {name: values[part].tolist() for name, values in ROWS.items()}
        pq.write_table(pa.table(columns), tmp_path / "data" / folder / "a.parquet")
    rewards = draw(tmp_path / "data", 0)
    assert len(set(rewards)) == len(rewards) == 10
    (tmp_path / "data").rename(tmp_path / "moved")
    assert draw(tmp_path / "moved", 1) == rewards


@pytest.mark.parametrize(("config_class", "options"), [(MARWILConfig, {}), (DQNConfig, {"n_step": 3})])
def test_batches_of_single_timesteps_are_refused_for_returns(
    data: Path, config_class: type[AlgorithmConfig], options: dict[str, Any]
) -> None:
    config = (
        config_class().environment(observation_space=SPACES[0], action_space=SPACES[1]).training(**options)
    )
    config.offline_data(input_=str(data / "table"), prelearner_class=Calls)
    with pytest.raises(
        SpecError, match=r"returns separate timesteps, but the algorithm computes .*returns over whole"
    ):
        config.build_algo()


@pytest.mark.parametrize("kind", ["table", "sample_batch"])
def test_rows_without_ids_get_the_same_ids_when_prepared_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {name: values.tolist() for name, values in ROWS.items() if name != "eps_id"}
    (tmp_path / kind).mkdir()
    if kind == "table":
        pq.write_table(pa.table(columns), tmp_path / kind / "rows.parquet")
    else:
        text = "".join(json.dumps({"type": "SampleBatch", **columns}) + "\n" for _ in range(2))
        (tmp_path / kind / "batches.json").write_text(text)
    results = []
    for index in range(2):
        monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path / str(index)))  # nothing is prepared yet
        dataset = open_training_data(make_config(tmp_path, kind, prelearner_class=MapsAs260))
        results.append(dataset.episode_table().eps_id.tolist())
    assert results[0] == results[1]
    assert len(set(results[0])) == {"table": NUM_STEPS, "sample_batch": 2}[kind]


def raise_key_error(self: Any, batch: Any, **kwargs: Any) -> Any:
    return batch["no_such_column"]


def pass_several_agents(self: Any, batch: Any, **kwargs: Any) -> Any:
    return OfflinePreLearner._map_to_episodes(self, batch=batch, is_multi_agent=True)


MISTAKES: list[tuple[str, Callable[..., Any], str]] = [
    ("_map_to_episodes", raise_key_error, "'no_such_column'"),
    ("_map_to_episodes", pass_several_agents, "is_multi_agent is True, but there is only one agent"),
    ("__call__", lambda self, batch: None, "returned a NoneType; it must return"),
    ("__call__", lambda self, batch: {"rewards": []}, "it must contain 'default_policy'"),
    (
        "_map_to_episodes",
        lambda self, batch, **kwargs: [1],
        "returned a list with values of type int; it must",
    ),
    (
        "_postprocess_and_sample",
        lambda self, episodes: [1],
        "returned a list with values of type int; it must",
    ),
    ("_postprocess_and_sample", lambda self, episodes: None, "returned a NoneType; it must return"),
    ("_validate_episodes", lambda self, episodes: episodes[0].no_such_thing, "no_such_thing"),
]


@pytest.mark.parametrize(
    ("mistake", "kind"), list(itertools.product(MISTAKES, ("table", "recording", "rllib")))
)
def test_mistake_in_a_method_names_the_users_line(
    mistake: tuple[str, Callable[..., Any], str], kind: str, data: Path
) -> None:
    method, function, expected = mistake
    cls = type("Broken", (OfflinePreLearner,), {method: function})
    with pytest.raises(UserCodeError) as error:
        read_transitions(make_config(data, kind, prelearner_class=cls))
    message = str(error.value)
    assert expected in message
    assert f"{THIS_FILE}:" in message
    assert "\n" not in message


SCALE = 2.0


class MapsByGlobal(OfflinePreLearner):
    def _map_to_episodes(self, batch, **kwargs):
        return scale_rewards(super()._map_to_episodes(batch, **kwargs)["episodes"], SCALE)


class ConstructedByGlobal(OfflinePreLearner):
    def __init__(self, config, **kwargs):
        super().__init__(config=config, **kwargs)
        self.scale = SCALE

    def _map_to_episodes(self, batch, **kwargs):
        return scale_rewards(super()._map_to_episodes(batch, **kwargs)["episodes"], self.scale)


class ScalesBuffer(EpisodeReplayBuffer):
    def add(self, episodes):
        super().add(scale_rewards(episodes, SCALE)["episodes"])


class ScalesRewards(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        scale_rewards(episodes, SCALE)
        return batch


class CallsOnly(OfflinePreLearner):
    def __call__(self, batch):
        return super().__call__(batch)


@pytest.mark.parametrize(
    "options",
    [
        {"prelearner_class": MapsByGlobal},
        {"prelearner_class": ConstructedByGlobal},
        {"prelearner_buffer_class": ScalesBuffer},
        {"prelearner_class": CallsOnly, "learner_connector": ScalesRewards},
    ],
    ids=["mapper", "constructor", "buffer", "connector"],
)
def test_data_are_prepared_again_if_a_value_of_the_users_code_changes(
    options: dict[str, Any], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(data, "table")
    if connector := options.get("learner_connector"):
        config.training(learner_connector=connector)
    config.offline_data(**{name: value for name, value in options.items() if name != "learner_connector"})
    totals = {}
    for scale in (2.0, 3.0, 2.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        folder = open_training_data(config).units[0].parts[0].path
        totals.setdefault(scale, []).append((folder, np.abs(read_transitions(config)["rewards"]).sum()))
    (first, again), (other,) = totals[2.0], totals[3.0]
    assert first == again
    assert other[1] == pytest.approx(1.5 * first[1])


CELL = """
from hindcast import OfflinePreLearner

class MyPreLearner(OfflinePreLearner):
    def _map_to_episodes(self, batch, **kwargs):
        return scale_rewards(super()._map_to_episodes(batch, **kwargs)["episodes"], {scale})
"""


def test_cell_that_runs_again_uses_the_prepared_data_unless_it_was_edited(data: Path) -> None:
    folders = []
    for scale in (2, 2, 3, 2):
        scope: dict[str, Any] = {"__name__": "__main__", "scale_rewards": scale_rewards}
        exec(CELL.replace("{scale}", str(scale)), scope)
        config = make_config(data, "table", prelearner_class=scope["MyPreLearner"])
        folders.append(open_training_data(config).units[0].parts[0].path)
    assert folders[0] == folders[1] == folders[3] != folders[2]


LOCK = threading.Lock()


class Locks(OfflinePreLearner):
    def _map_to_episodes(self, batch, **kwargs):
        with LOCK:
            return super()._map_to_episodes(batch, **kwargs)


def test_data_are_not_reused_and_a_note_says_so_if_code_uses_a_lock(data: Path) -> None:
    config = make_config(data, "table", prelearner_class=Locks)
    training = config.plan().training
    assert training is not None
    reporter = MemoryReporter()
    folders = set()
    for _ in range(2):
        (opened_input,) = open_inputs(training, resolve_inputs(training, FileReferences({})), reporter)
        folders.add(opened_input.dataset.units[0].parts[0].path)
    assert len(folders) == 2
    assert "Locks uses LOCK, a _thread.lock, so a change" in "".join(reporter.notes)


class HalvesSamples(OfflineData):
    def sample(self, num_samples, return_iterator=False, num_shards=1):
        batch = super().sample(num_samples, return_iterator, num_shards)
        columns = batch["default_policy"]
        columns["rewards"] = columns["rewards"] / 2
        return batch


class LogsRewards(DQNTorchLearner):
    def compute_loss_for_module(self, *, batch, **kwargs):
        self.metrics.log_value("mean_reward", batch["rewards"].mean())
        return 2 * super().compute_loss_for_module(batch=batch, **kwargs)


class AddsToResult(RLlibCallback):
    def on_train_result(self, *, result, **kwargs):
        result["mean_reward"] = result["learners"]["default_policy"]["mean_reward"]


def make_customised_config(data: Path, kind: str, scale: float) -> AlgorithmConfig:
    """Make a config with new classes of `__main__`, as a script or a notebook's cell that runs again defines them."""
    mapper, connector, offline_data, learner, callback = (
        type(cls.__name__, (cls,), {"__module__": "__main__"})
        for cls in (MapsAs260, ScalesRewards, HalvesSamples, LogsRewards, AddsToResult)
    )
    config = make_config(data, kind, prelearner_class=mapper, prelearner_kwargs={"scale": scale})
    config.offline_data(offline_data_class=offline_data, dataset_num_iters_per_learner=1)
    return config.training(learner_connector=connector, learner_class=learner).callbacks(callback)


@pytest.mark.parametrize("kind", KINDS)
def test_all_customised_classes_of_a_script_work_together_twice_in_a_process(kind: str, data: Path) -> None:
    for scale in (3.0, 5.0):
        with make_customised_config(data, kind, scale).build_algo() as algo:
            assert algo.offline_data is not None
            batch = {leaf: tensor.numpy() for leaf, tensor in algo.offline_data.next().items()}
            result = algo.train()
        expected = ROWS["rewards"][batch["actions"]] * scale * SCALE / 2
        np.testing.assert_allclose(batch["rewards"], expected, rtol=1e-5)
        # A batch has each timestep once.
        assert result["mean_reward"] == pytest.approx(ROWS["rewards"].mean() * scale * SCALE / 2, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["table", "sample_batch"])
def test_customised_classes_of_a_script_train_alike_on_two_learners(kind: str, data: Path) -> None:
    results = []
    for num_learners in (1, 2):
        config = make_customised_config(data, kind, scale=3.0).learners(num_learners=num_learners)
        with config.training(train_batch_size_per_learner=10 // num_learners).build_algo() as algo:
            results.append([algo.train()["mean_reward"] for _ in range(2)])
    assert results[1] == pytest.approx(results[0], rel=1e-4)
