"""`AlgorithmConfig`: mapped options set their fields, replaced options are noted, refused ones raise."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pytest
import torch
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from hindcast import (
    AlgorithmConfig,
    BCConfig,
    BCTorchLearner,
    CQLConfig,
    DefaultModelConfig,
    EpisodeReplayBuffer,
    MARWILConfig,
    MultiRLModuleSpec,
    OfflineData,
    OfflinePreLearner,
    PPOConfig,
    PrioritizedEpisodeReplayBuffer,
    RLModule,
    RLModuleSpec,
)
from hindcast.api import OfflineRecording, OfflineTraining, spec_hash
from hindcast.api.input import PrepareSpec, Sampler
from hindcast.api.loading import validate_resource
from hindcast.api.options import options_of, schemas
from hindcast.errors import SpecError
from hindcast.models.rl_module import PolicyModule
from hindcast.record.callbacks import EPISODE_HOOKS, TRAINING_HOOKS
from hindcast.rllib.builder.options import OPTIONS, TYPES, Option, option_table, to_option_name
from hindcast.storage.user_files import find_filesystem
from module_toys import Net
from option_effects import value_without_field
from support import CARTPOLE, record, recording

HOOKS = (*EPISODE_HOOKS, *TRAINING_HOOKS)
LEARNER_PATH = "hindcast.rllib.learners:BCTorchLearner"
CALLBACKS_MODULE = "hindcast.rllib.callbacks"

ROOT = Path(__file__).parents[2]

OBSERVATIONS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)

OFFLINE_EVALUATION_DATA = ("offline_evaluation_held_out", "offline_evaluation_input")
"""Options for the data of an offline evaluation, which requires one of them."""

VALUE_CLASSES = ("DefaultModelConfig", "RLModuleSpec")
"""Keys of `OPTIONS` that are classes of option values, not methods."""

DEFAULT_SAMPLER = Sampler().model_dump(by_alias=True)

# Option -> (value, expected value of a training's field, expected value of a recording's field); None: no such field.
SAMPLES: dict[str, tuple[Any, Any, Any]] = {
    "env": ("Acrobot-v1", "Acrobot-v1", "Acrobot-v1"),
    "env_config": ({"size": (1, 2)}, {"size": [1, 2]}, {"size": [1, 2]}),
    "observation_space": (
        OBSERVATIONS,
        {"type": "Box", "low": -1.0, "high": 1.0, "shape": [3], "dtype": "float32"},
        None,
    ),
    "action_space": (
        gym.spaces.Discrete(2),
        {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"},
        None,
    ),
    "normalize_actions": (False, False, False),
    "clip_actions": (True, True, True),
    "wrappers": (["FlattenObservation"], *[[{"name": "FlattenObservation", "kwargs": {}}]] * 2),
    "reward_scale": (10.0, 10.0, None),
    "reward_shift": (-1.0, -1.0, None),
    "reward_clip": (2.0, 2.0, None),
    "reward_normalize": ("returnRange", "ReturnRange", None),
    "max_episode_steps": (20, 20, 20),
    "num_env_runners": (3, None, 3),
    "num_envs_per_env_runner": (4, None, 4),
    "num_cpus_per_env_runner": (2, None, 2.0),
    "memory_per_env_runner": ("2Gi", None, "2Gi"),
    "explore": (False, None, False),
    "observation_filter": ("MeanStdFilter", "MeanStd", "MeanStd"),
    "burnin_len": (5, 5, None),
    "initial_checkpoint": ("somewhere", "somewhere", "somewhere"),
    "sampler": ({"timesteps_per_update": 0.5}, {**DEFAULT_SAMPLER, "timestepsPerUpdate": 0.5}, None),
    "num_steps_sampled_before_learning_starts": (500, 500, None),
    "replay_buffer_config": ({"capacity": 50}, {**DEFAULT_SAMPLER, "capacity": 50}, None),
    "input_top": (0.1, 0.1, None),
    "input_prepare": (
        {"gaps": "Split", "cut_off_steps": "Drop"},
        {**PrepareSpec().model_dump(by_alias=True), "gaps": "Split", "cutOffSteps": "Drop"},
        None,
    ),
    "input_time": (
        {"column": "day", "unit": "Day"},
        {"column": "day", "unit": "Day", "observe": False},
        None,
    ),
    "callbacks_class": ("own:Watching", ["own:Watching"], ["own:Watching"]),
    **{name: ("own:heard", *[[f"{CALLBACKS_MODULE}:{name}.own.heard"]] * 2) for name in HOOKS},
    "learner_class": (BCTorchLearner, LEARNER_PATH, None),
    "learner_connector": (
        "AddNextObservationsFromEpisodesToTrainBatch",
        [{"name": "AddNextObservationsFromEpisodesToTrainBatch", "kwargs": {}}],
        None,
    ),
    "num_learners": (2, 2, None),
    "num_cpus_per_learner": (4, 4.0, None),
    "num_gpus_per_learner": (1, 1.0, None),
    "memory_per_learner": ("4Gi", "4Gi", None),
    "torch_compile_learner": (True, True, None),
    "input_": (["a", "b"], ["a", "b"], None),
    "input_read_schema": ({"obs": "o_t"}, {"obs": "o_t"}, None),
    "input_read_method_kwargs": (
        {"columns": ["obs"], "delimiter": ";", "concurrency": 2},
        {"columns": ["obs"], "readOptions": {"delimiter": ";"}},
        None,
    ),
    "input_read_method": ("read_json", "JSON", None),
    "input_read_sample_batches": (True, "SampleBatch", None),
    "input_compress_columns": (["obs"], ["obs"], None),
    "actions_in_input_normalized": (False, False, None),
    "ignore_final_observation": (True, True, None),
    "input_filesystem": ("gcs", "gs://data", None),
    "map_batches_kwargs": (
        {"concurrency": 3, "num_cpus": 2},
        {"replicas": 3, "cpus": 2.0, "gpus": 0.0},
        None,
    ),
    "dataset_num_iters_per_learner": (7, 7, None),
    "materialize_data": (True, "Resident", None),
    "materialize_mapped_data": (False, "Streaming", None),
    "prelearner_class": (OfflinePreLearner, "hindcast.rllib.prelearner:RLlibPreLearner", None),
    "prelearner_kwargs": ({"a": 1}, {"a": 1}, None),
    "prelearner_use_recorded_module_states": (True, "Recorded", None),
    "prelearner_buffer_class": (
        EpisodeReplayBuffer,
        "hindcast.rllib.replay_buffer:EpisodeReplayBuffer",
        None,
    ),
    "prelearner_buffer_kwargs": ({"capacity": 9}, {"capacity": 9}, None),
    "offline_data_class": (OfflineData, "hindcast.rllib.offline_data:RLlibOfflineData", None),
    "sampling": ("WithReplacement", "WithReplacement", None),
    "window_steps": (128, 128, None),
    "window_bytes": ("1Mi", "1Mi", None),
    "resident_budget": ("2Mi", "2Mi", None),
    "disk_cache": ("2Gi", "2Gi", None),
    "validate_data": (False, False, None),
    "input_evaluation": (["is", "wis"], ["is", "wis"], None),
    "output": ("there", None, "there"),
    "output_write_episodes": (False, None, "Columns"),
    "output_write_method": ("write_csv", None, "CSV"),
    "output_format": ("SampleBatch", None, "SampleBatch"),
    "output_encoding": ("MessagePack", None, "MessagePack"),
    "output_max_rows_per_file": (25, None, 25),
    "output_max_file_size": (2.0**20, None, "1048576"),
    "output_filesystem": ("s3", None, "s3://out"),
    "output_compress_columns": (["obs"], None, ["obs"]),
    "output_recurrent_states": (True, None, True),
    "output_compression": ("zstd", None, "zstd"),
    "input_filesystem_kwargs": ({}, None, None),
    "output_filesystem_kwargs": ({}, None, None),
    "output_write_method_kwargs": ({"compression": "zstd"}, None, None),
    "output_on_existing": ("Fail", None, "Fail"),
    "evaluation_interval": (3, 3, None),
    "evaluation_duration": (5, 5, {"episodes": 5}),
    "evaluation_duration_unit": ("timesteps", "Timesteps", {"timesteps": 10}),
    "evaluation_num_env_runners": (2, 2, 2),
    "evaluation_parallel_to_training": (True, True, None),
    "evaluation_sample_timeout_s": (9, 9.0, None),
    "evaluation_config": ({"explore": False}, False, False),
    "evaluation_gate": (
        {"returns": {"low": 0, "high": 9}, "by": 1},
        {
            "returns": {"low": 0.0, "high": 9.0},
            "by": 1.0,
            "error": 0.05,
            "candidates": 1,
            "explore": False,
        },
        None,
    ),
    "evaluation_reference_returns": ({"random": 20, "expert": 500}, {"random": 20.0, "expert": 500.0}, None),
    "offline_evaluation_interval": (2, 2, None),
    "offline_evaluation_held_out": (0.2, 0.2, None),
    "offline_evaluation_held_out_seed": (4, 4, None),
    "offline_evaluation_set_aside": (0.3, 0.3, None),
    "offline_evaluation_input": ("held", ["held"], None),
    "offline_evaluation_type": ("pdis", ["pdis"], None),
    "off_policy_estimation_methods": (
        {"a": {"type": "WeightedImportanceSampling"}, "b": {"type": "dr"}},
        ["wis", "dr"],
        None,
    ),
    "offline_evaluation_explore": (True, True, None),
    "offline_evaluation_gamma": (0.5, 0.5, None),
    "offline_evaluation_clip": (2, 2.0, None),
    "offline_evaluation_model_updates": (50, 50, None),
    "custom_evaluation_function": ("my.module:evaluate", "my.module:evaluate", None),
    "model_config": ({"fcnet_hiddens": (8, 8)}, {"fcnetHiddens": [8, 8]}, {"fcnetHiddens": [8, 8]}),
    "rl_module_spec": (
        RLModuleSpec(module_class=Net, model_config={"units": (8, 8)}),
        {"moduleClass": "module_toys:Net", "moduleOptions": {"units": [8, 8]}},
        {"moduleClass": "module_toys:Net", "moduleOptions": {"units": [8, 8]}},
    ),
    "seed": (11, 11, 11),
}
MAPPED_OPTIONS = {
    name: option
    for options in OPTIONS.values()
    for name, option in options.items()
    if option.kind == "mapped" and option.method not in VALUE_CLASSES
}
EXPANDED = {"input_filesystem_kwargs", "output_filesystem_kwargs", "output_write_method_kwargs"}
"""Options with tests of their own: their values are arguments that set several fields."""
MODEL_SAMPLES: dict[str, tuple[Any, Any]] = {
    "fcnet_hiddens": ([8], [8]),
    "fcnet_activation": ("swish", "silu"),
    "conv_filters": ([[16, (4, 4), 2]], [[16, 4, 2]]),
    "conv_activation": ("tanh", "tanh"),
    "head_fcnet_hiddens": ([4], [4]),
    "free_log_std": (True, True),
    "log_std_clip_param": (3.0, 3.0),
    "vf_share_layers": (True, True),
    "log_std_min": (-5.0, -5.0),
    "log_std_max": (2.0, 2.0),
    "distribution": ("gaussian", "Gaussian"),
    "observation_filter": ("MeanStdFilter", "MeanStd"),
    "frame_stack": (4, 4),
    "use_lstm": (True, "LSTM"),
    "recurrent": ("gru", "GRU"),
    "lstm_cell_size": (8, 8),
    "max_seq_len": (30, 30),
    "conv_padding": ("same", "same"),
    "dropout": (0.5, 0.5),
    "fcnet_use_layernorm": (True, True),
    "preset": ("rllib", "RLlib"),
    **{
        role: (
            {"fcnet_activation": "swish", "fcnet_use_layernorm": True},
            {"fcnetActivation": "silu", "layerNorm": True},
        )
        for role in ("policy", "critics")
    },
    **{
        f"{part}_{kind}_initializer": ("uniform_", {"name": "uniform", "kwargs": {}})
        for part in ("fcnet", "conv", "head_fcnet", "lstm")
        for kind in ("kernel", "bias")
    },
}


def options_with_field(kind: str) -> list[str]:
    """Return the options that set a field of a "training" or "recording" alone."""
    return [name for name, option in MAPPED_OPTIONS.items() if getattr(option, kind) and name not in EXPANDED]


def field_value(resource: Any, field: str) -> Any:
    """Return the value of a field, by its YAML name."""
    value = resource.model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]
    if field.startswith("input."):
        value, field = value["input"][0], field.removeprefix("input.")
    for step in field.split("."):
        value = value[step]
    return value


def set_option(config: AlgorithmConfig, option: Option, value: Any) -> AlgorithmConfig:
    return getattr(config, option.method)(**{option.name: value})


def bc_config() -> BCConfig:
    return BCConfig().environment("CartPole-v1").offline_data(input_="data")


def sampler_config() -> AlgorithmConfig:
    return AlgorithmConfig("DQN").environment("CartPole-v1")


def recorder_config() -> PPOConfig:
    return PPOConfig().environment("CartPole-v1").offline_data(output="out")


def test_samples_cover_the_table() -> None:
    assert set(SAMPLES) == set(MAPPED_OPTIONS)
    option_names = {name for name, option in OPTIONS["DefaultModelConfig"].items() if option.kind == "mapped"}
    argument_names = {f"{name}_kwargs" for name in MODEL_SAMPLES if name.endswith("initializer")}
    assert MODEL_SAMPLES.keys() | argument_names == option_names


YAML_NAMES = {
    step
    for options in OPTIONS.values()
    for option in options.values()
    for field in (option.training, option.recording)
    for step in field.split(".")
    if step != step.lower()
} | {to_camel(name) for model in (PrepareSpec, Sampler) for name in model.model_fields if "_" in name}
YAML_WORDS = re.compile(r"\b(?:true|false|is empty|a mapping)\b")
"""Values as YAML writes them."""
INVALID_VALUES = (
    *(-1, 1.5, float("nan"), True, "no such value", "\0"),
    *({}, {"no_such_entry": 1}, {"no_such_entry": object()}, [], [None], [[1]], object, object()),
)


def messages_on(make_config: Callable[[], AlgorithmConfig], method: str, name: str) -> list[str]:
    """Return the messages of the errors that invalid values of an option cause."""
    messages = []
    for value in INVALID_VALUES:
        try:
            getattr(make_config(), method)(**{name: value}).to_resource()
        except SpecError as error:
            messages += str(error).splitlines()
    return messages


def assert_names_option(name: str, messages: Iterable[str]) -> None:
    """Check that each message names the option, or an entry of its value, and no field of a resource."""
    for message in messages:
        assert name in message, message
        assert "spec." not in message, message
        assert YAML_NAMES.isdisjoint(re.findall(r"\w+", message)), message
        assert not YAML_WORDS.search(re.sub(r"'[^']*'|<.*?>", "", message)), message


@pytest.mark.parametrize("name", sorted(MAPPED_OPTIONS.keys() - {"learner_class"}))
def test_error_on_option_names_it(name: str) -> None:
    option = MAPPED_OPTIONS[name]
    bases = [
        make for make, field in ((bc_config, option.training), (recorder_config, option.recording)) if field
    ]
    if option.training.startswith("input.sampler"):
        bases = [sampler_config]
    elif name == "output_compress_columns":
        bases = [lambda: recorder_config().offline_data(output_format="SampleBatch")]
    elif option.training.startswith("evaluation.offline."):
        bases = [lambda: bc_config().evaluation(offline_evaluation_input="held")]
    messages = [message for base in bases for message in messages_on(base, option.method, name)]
    assert messages
    assert_names_option(name, messages)


@pytest.mark.parametrize("name", MODEL_SAMPLES)
def test_error_on_model_option_names_it(name: str) -> None:
    def make_config(**options: Any) -> AlgorithmConfig:
        return bc_config().rl_module(model_config=options)

    messages = messages_on(lambda: SimpleNamespace(set_field=make_config), "set_field", name)
    assert messages
    assert_names_option(f"model_config.{name}", messages)


@pytest.mark.parametrize("algorithm", schemas())
def test_error_on_option_of_algorithm_names_it(algorithm: str) -> None:
    paths = {"output": "out"} if algorithm == "PPO" else {"input_": "data"}
    for field in options_of(algorithm):
        name = to_option_name(field)
        messages = messages_on(
            lambda: AlgorithmConfig(algorithm).environment("CartPole-v1").offline_data(**paths),
            "training",
            name,
        )
        assert messages, name
        assert_names_option(name, messages)


@pytest.mark.parametrize("name", options_with_field("training"))
def test_option_sets_its_field_of_a_training(name: str) -> None:
    option, (value, expected, _) = MAPPED_OPTIONS[name], SAMPLES[name]
    config = sampler_config() if option.training.startswith("input.sampler") else bc_config()
    if name == "num_envs_per_env_runner":
        config.evaluation(evaluation_interval=1)
        expected = value
    if name == "evaluation_config":
        config.evaluation(evaluation_interval=1)
    if option.training.startswith("evaluation.offline.") and name not in OFFLINE_EVALUATION_DATA:
        config.evaluation(offline_evaluation_held_out=0.1)
    resource = set_option(config, option, value).to_resource()
    if name == "input_":
        assert [source.path for source in resource.spec.input] == expected
    elif name == "input_read_method_kwargs":
        assert resource.spec.input[0].columns == expected["columns"]
        assert resource.spec.input[0].read_options == expected["readOptions"]
    elif name in ("model_config", "rl_module_spec"):
        assert {field: field_value(resource, f"model.{field}") for field in expected} == expected
    else:
        assert field_value(resource, option.training) == expected


@pytest.mark.parametrize("name", options_with_field("recording"))
def test_option_sets_its_field_of_a_recording(name: str) -> None:
    option, (value, _, expected) = MAPPED_OPTIONS[name], SAMPLES[name]
    config = recorder_config()
    if name == "output_compress_columns":
        config.offline_data(output_format="SampleBatch")
    resource = set_option(config, option, value).to_resource()
    if name in ("model_config", "rl_module_spec"):
        assert {field: field_value(resource, f"policy.train.model.{field}") for field in expected} == expected
    else:
        assert field_value(resource, option.recording) == expected


@pytest.mark.parametrize("name", MODEL_SAMPLES)
def test_model_field_sets_its_field(name: str) -> None:
    value, expected = MODEL_SAMPLES[name]
    resource = bc_config().rl_module(model_config={name: value}).to_resource()
    assert field_value(resource, OPTIONS["DefaultModelConfig"][name].training) == expected
    resource_of_class = bc_config().rl_module(model_config=DefaultModelConfig(**{name: value})).to_resource()
    assert field_value(resource_of_class, OPTIONS["DefaultModelConfig"][name].training) == expected


REPLACED_OPTIONS = [
    (option.method, name)
    for options in OPTIONS.values()
    for name, option in options.items()
    if option.kind == "replaced" and option.method not in (*VALUE_CLASSES, "framework")
]
REFUSED_OPTIONS = [
    option
    for options in OPTIONS.values()
    for option in options.values()
    if option.kind == "refused" and option.method not in VALUE_CLASSES
]


def test_most_specific_output_option_takes_precedence() -> None:
    config = recorder_config().offline_data(output_write_episodes=False, output_compress_columns=["obs"])
    assert config.to_resource().spec.output.compress_columns == []  # Parquet compresses all of them
    config = recorder_config().offline_data(output_write_episodes=True, output_write_method="write_parquet")
    assert config.to_resource().spec.output.format == "Episodes"
    config.offline_data(output_write_method="write_json")
    assert config.to_resource().spec.output.format == "JSON"
    config.offline_data(output_format="Columns")
    assert config.to_resource().spec.output.format == "Columns"


@pytest.mark.parametrize(("method", "name"), REPLACED_OPTIONS)
def test_replaced_option_has_no_effect_and_is_noted(method: str, name: str) -> None:
    config = bc_config()
    resource_before = config.to_resource()
    value = {"prefetch_batches": 5} if name == "iter_batches_kwargs" else value_without_field(name)
    getattr(config, method)(**{name: value})
    assert config.to_resource() == resource_before
    assert [line for line in config.replaced_options if line.startswith(f"{name}: ")]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("input_read_method_kwargs", {"override_num_blocks": 9}, "Hindcast chooses the size of blocks"),
        ("input_read_method_kwargs", {"concurrency": 9}, "Hindcast chooses the size of blocks"),
        ("map_batches_kwargs", {"zero_copy_batch": True}, "shared memory"),
    ],
)
def test_entry_without_effect_is_noted(option: str, value: Any, message: str) -> None:
    config = bc_config().offline_data(**{option: value})
    (line,) = config.replaced_options
    assert line.startswith(f"{option}: {next(iter(value))}: ")
    assert message in line
    assert bc_config().offline_data(**{option: dict.fromkeys(value)}).replaced_options == []


@pytest.mark.parametrize("output_format", ["Columns", "Episodes", "JSON", "SampleBatch"])
def test_output_compress_columns_without_sample_batch_is_noted(output_format: str) -> None:
    config = recorder_config().offline_data(output_compress_columns=["obs"], output_format=output_format)
    notes = [line for line in config.replaced_options if line.startswith("output_compress_columns: ")]
    assert bool(notes) == (output_format != "SampleBatch")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            lambda: bc_config().offline_data(output_compression="zstd"),
            "output_compression: only applies to recordings, but no",
        ),
        (
            lambda: BCConfig().environment("CartPole-v1").offline_data(output="out", window_steps=8),
            "window_steps: only applies to trainings, but no input_ is set",
        ),
        (
            lambda: PPOConfig().environment("CartPole-v1").learners(num_gpus_per_learner=1),
            "num_gpus_per_learner: PPO learns from its own samples, in this process",
        ),
        (
            lambda: bc_config().offline_data(map_batches_kwargs={"concurrency": 2}),
            "map_batches_kwargs: has no effect on one machine",
        ),
        (
            lambda: bc_config().offline_data(materialize_data=True, materialize_mapped_data=False),
            "materialize_mapped_data: has no effect: materialize_data keeps the data in memory",
        ),
        (
            lambda: bc_config().evaluation(evaluation_interval=1, evaluation_parallel_to_training=True),
            "evaluation_parallel_to_training: one process evaluates; set evaluation_num_env_runners for more",
        ),
        (
            lambda: bc_config().evaluation(evaluation_interval=1, evaluation_sample_timeout_s=3),
            "evaluation_sample_timeout_s: only has an effect with evaluation_parallel_to_training",
        ),
        (
            lambda: bc_config().offline_data(input_time={"column": "day"}),
            "input_time: has no effect on this training: the loss of BC has no discount",
        ),
    ],
)
def test_option_without_effect_is_noted_with_its_reason(config: Any, message: str) -> None:
    (line,) = config().replaced_options
    assert line.startswith(message)


def test_times_that_are_observed_or_discount_are_not_noted() -> None:
    time = {"column": "day"}
    assert bc_config().offline_data(input_time={**time, "observe": True}).replaced_options == []
    assert MARWILConfig().offline_data(input_="data", input_time=time).replaced_options == []


def test_options_at_their_defaults_are_not_noted() -> None:
    config = bc_config().learners(num_learners=0).offline_data(map_batches_kwargs={"num_cpus": 1})
    config.offline_data(materialize_data=True).env_runners(batch_mode=None)
    assert config.replaced_options == []


@pytest.mark.parametrize("option", REFUSED_OPTIONS, ids=lambda option: f"{option.method}-{option.name}")
def test_refused_option_raises_with_reason(option: Option) -> None:
    with pytest.raises(SpecError, match=option.name) as refusal:
        set_option(bc_config(), option, 3)
    assert option.remark in str(refusal.value)
    set_option(bc_config(), option, None)


def test_refused_model_field_raises_unless_at_its_default() -> None:
    with pytest.raises(
        SpecError, match="lstm_use_prev_action is True: the recurrent layer only gets observations"
    ):
        bc_config().rl_module(model_config=DefaultModelConfig(lstm_use_prev_action=True)).to_resource()
    with pytest.raises(SpecError, match=r"model_config\.lstm_use_prev_reward is True"):
        bc_config().rl_module(model_config={"lstm_use_prev_reward": True}).to_resource()
    bc_config().rl_module(model_config={"lstm_use_prev_action": False}).to_resource()


def test_lstm_options_of_rllib_set_the_model() -> None:
    config = bc_config().training(burnin_len=3).offline_data(prelearner_use_recorded_module_states=True)
    config.rl_module(model_config=DefaultModelConfig(use_lstm=True, lstm_cell_size=64))
    model = config.to_resource().spec.model
    assert (model.recurrent, model.cell_size, model.max_seq_len) == ("lstm", 64, 20)
    assert (model.burn_in, model.initial_state) == (3, "recorded")
    assert config.plan().model == model
    assert config.replaced_options == []
    config.rl_module(model_config=DefaultModelConfig(use_lstm=True, recurrent="gru"))
    assert config.to_resource().spec.model.recurrent == "gru"
    config.rl_module(model_config=DefaultModelConfig(max_seq_len=30))
    assert config.replaced_options == [
        "burnin_len: has no effect without model_config.use_lstm",
        "prelearner_use_recorded_module_states: has no effect without model_config.use_lstm",
        "model_config: max_seq_len: has no effect without model_config.use_lstm",
    ]


class TestMistakes:
    @pytest.mark.parametrize(
        ("method", "options", "message"),
        [
            ("training", {"lr": "fast"}, "lr is 'fast', expected a number"),
            ("training", {"lr": [[0, 1e-3], [10]]}, "lr[1] has 1 entry, expected at least 2"),
            (
                "training",
                {"train_batch_size_per_learner": 0},
                "batch_size_per_learner is 0, expected at least 1",
            ),
            ("env_runners", {"num_env_runners": "two"}, "num_env_runners is 'two', expected"),
            ("learners", {"num_learners": "two"}, "num_learners is 'two', expected"),
            ("environment", {"env": 3}, "env is 3: expected an id"),
            ("offline_data", {"map_batches_kwargs": 2}, "expected a dictionary"),
            (
                "offline_data",
                {"map_batches_kwargs": {"batch_size": 1}},
                "map_batches_kwargs: 'batch_size' is not an option here",
            ),
            (
                "offline_data",
                {"map_batches_kwargs": {"concurrency": (1, 2, 3)}},
                "map_batches_kwargs: concurrency is (1, 2, 3), expected a number, or the minimum and maximum",
            ),
            (
                "offline_data",
                {"iter_batches_kwargs": {"collate_fn": print}},
                "iter_batches_kwargs: 'collate_fn' is not an option here",
            ),
            ("offline_data", {"input_filesystem": "nfs"}, "input_filesystem is 'nfs'"),
            ("offline_data", {"input_filesystem": {}}, "input_filesystem is {}: put it in the path"),
            (
                "offline_data",
                {"input_filesystem": pafs.LocalFileSystem()},
                "input_filesystem is a LocalFileSystem, which a resource cannot contain: write paths as URIs",
            ),
            ("offline_data", {"input_": [3]}, "input_ contains 3, expected a path"),
            ("offline_data", {"input_": len}, "input_ contains <built-in function len>, expected a path"),
            (
                "offline_data",
                {"input_": {"sampler": 0.5, "a": 0.5}},
                "input_ has a sampler, which BC cannot learn from; a sampler is for CQL, DQN",
            ),
            (
                "offline_data",
                {"input_read_episodes": True, "input_read_sample_batches": True},
                "input_read_sample_batches and input_read_episodes are both True",
            ),
            (
                "offline_data",
                {"prelearner_class": f"{__name__}:Net", "prelearner_kwargs": {"f": len}},
                "prelearner_kwargs contains a builtin_function_or_method at 'f', expected text, numbers",
            ),
            (
                "offline_data",
                {"prelearner_class": type("Mine", (), {})},
                "Mine cannot be imported by name, and a resource can only contain names",
            ),
            (
                "offline_data",
                {"input_evaluation": "counterfactual"},
                "input_evaluation contains 'counterfactual', expected some of 'simulation', 'is'",
            ),
            ("offline_data", {"input_evaluation": 3}, "input_evaluation contains '3', expected some of"),
            (
                "offline_data",
                {"input_evaluation": {"a": {"type": "is", "k": 1}}},
                "input_evaluation['a'] contains 'k', but only accepts type",
            ),
            ("evaluation", {"evaluation_duration": "auto"}, "is 'auto', which requires "),
            ("evaluation", {"evaluation_num_env_runners": "two"}, "evaluation_num_env_runners is 'two'"),
            ("evaluation", {"evaluation_config": 3}, "evaluation_config is 3, expected a dictionary"),
            (
                "evaluation",
                {"evaluation_config": {"env_config": 3}},
                "env_config is 3, expected a dictionary",
            ),
            (
                "evaluation",
                {"evaluation_config": {"gamma": 1}},
                "contains 'gamma', but only accepts explore, env and env_config",
            ),
            (
                "evaluation",
                {"evaluation_interval": 1, "evaluation_config": {"env_config": {"reward": len}}},
                "env_config contains a builtin_function_or_method at 'reward'",
            ),
            (
                "evaluation",
                {"offline_evaluation_type": "dr"},
                "offline_evaluation_type is 'dr', expected one of 'eval_loss', 'is', 'pdis'",
            ),
            (
                "evaluation",
                {"off_policy_estimation_methods": {"a": {"type": "dr", "q_model_config": {}}}},
                "off_policy_estimation_methods['a'] contains 'q_model_config', but only accepts type",
            ),
            (
                "evaluation",
                {"offline_evaluation_interval": 1},
                "exactly one of offline_evaluation_held_out, offline_evaluation_input is needed",
            ),
            ("rl_module", {"model_config": 3}, "model_config is an int"),
            (
                "rl_module",
                {"model_config": {"fcnet_hidden": [8]}},
                "model_config.fcnet_hidden is not a field; did you mean 'fcnet_hiddens'?",
            ),
            (
                "rl_module",
                {"model_config": {"conv_filters": [[4, 3, 1, "same"], [4, 3, 1, "valid"]]}},
                "mixes 'same' and 'valid': all layers",
            ),
            (
                "rl_module",
                {"model_config": {"conv_filters": [[4, 3, 1, 2]]}},
                "model_config.conv_padding is 2",
            ),
            (
                "rl_module",
                {"model_config": {"fcnet_kernel_initializer": "glorot"}},
                "is 'glorot', which is not an initialiser; expected one of: constant, ",
            ),
            (
                "rl_module",
                {"model_config": {"fcnet_kernel_initializer": 3}},
                "model_config.fcnet_kernel_initializer is 3",
            ),
            (
                "rl_module",
                {"model_config": {"fusionnet_kernel_initializer_kwargs": {"a": 1}}},
                "one encoder processes all observations",
            ),
            ("rl_module", {"rl_module_spec": 3}, "rl_module_spec is an int, expected an RLModuleSpec"),
            (
                "rl_module",
                {"rl_module_spec": RLModuleSpec(type("Mine", (RLModule,), {}))},
                "Mine cannot be imported by name, and a resource can only contain names",
            ),
            (
                "rl_module",
                {"rl_module_spec": RLModuleSpec(Net, {"units": object()})},
                "model_config of module_toys:Net is not JSON",
            ),
            (
                "rl_module",
                {"rl_module_spec": RLModuleSpec(Net, catalog_class=object)},
                "there are no catalogs; build the layers in setup()",
            ),
            (
                "rl_module",
                {"rl_module_spec": RLModuleSpec(Net, load_state_path="there")},
                "load_state_path is 'there': use initial_checkpoint",
            ),
            (
                "rl_module",
                {"rl_module_spec": MultiRLModuleSpec(rl_module_specs={"p1": RLModuleSpec(Net)})},
                "rl_module_specs has 'p1', expected one module (several agents are not available yet)",
            ),
            (
                "rl_module",
                {"rl_module_spec": RLModuleSpec("Net")},
                "rl_module_spec.module_class is 'Net', expected \"package.module:Name\"",
            ),
            (
                "rl_module",
                {"rl_module_spec": {"modul_class": Net}},
                "'modul_class' is not a field; did you mean 'module_class'?",
            ),
        ],
    )
    def test_invalid_value_raises_one_sentence(
        self, method: str, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(SpecError) as error:
            getattr(bc_config(), method)(**options).to_resource()
        assert message in str(error.value)

    @pytest.mark.parametrize(
        ("env_config", "problem"),
        [
            ({"reward": lambda _: 0.0}, "a function at 'reward'"),
            ({"limits": [1, {"of": object()}]}, "an object at 'limits.1.of'"),
            ({"names": {"a"}}, "a set at 'names'"),
        ],
    )
    def test_env_config_that_is_not_json_raises_with_remedy(
        self, env_config: dict[str, Any], problem: str
    ) -> None:
        with pytest.raises(SpecError) as error:
            bc_config().environment("CartPole-v1", env_config=env_config).plan()
        remedy = "use it in the function that you pass to register_env"
        assert f"env_config contains {problem}, which a resource cannot contain: {remedy}" in str(error.value)

    @pytest.mark.parametrize(
        ("mistake", "message"),
        [
            (
                lambda: BCConfig().evaluation(evaluation_intervall=3),
                "evaluation_intervall is not an option; did you mean 'evaluation_interval'?",
            ),
            (
                lambda: BCConfig().env_runners(num_workers=2),
                "env_runners(num_workers=2): RLlib renamed it; use num_env_runners",
            ),
            (
                lambda: BCConfig().update_from_dict({"num_workers": 2}),
                "RLlib renamed it; use num_env_runners",
            ),
            (
                lambda: BCConfig().env_runners(num_rolout_worker=2),
                "num_rolout_worker is not an option; allowed: batch_mode",
            ),
            (lambda: BCConfig().environment(lr=1e-3), "lr is an option of training()"),
            (lambda: BCConfig().training(seed=1), "seed is an option of debugging()"),
            (lambda: BCConfig().training(fcnet_hiddens=[8]), "a field of rl_module(model_config="),
            (
                lambda: BCConfig().training(clip_param=0.2),
                "clip_param does not apply to BC; it is an option of PPO",
            ),
            (lambda: BCConfig().framework("tf2"), "framework is 'tf2'"),
            (lambda: AlgorithmConfig("CB"), "algorithm is 'CB', which is not an algorithm"),
            (lambda: AlgorithmConfig(algo_class=object), "AlgorithmConfig has no argument algo_class"),
            (lambda: AlgorithmConfig().plan(), "AlgorithmConfig() has no algorithm: start with BCConfig()"),
            (lambda: AlgorithmConfig().to_resource(), "AlgorithmConfig() has no algorithm"),
            (lambda: AlgorithmConfig().training(lrr=1), "lrr is not an option; did you mean 'lr'?"),
            (lambda: BCConfig().training(learning_rate=3.0), "did you mean 'lr'"),
            (lambda: setattr(BCConfig(), "learning_rate", 3.0), "did you mean 'lr'"),
            (lambda: bc_config().update_from_dict({"framework": "tf2"}), "framework is 'tf2'"),
            (lambda: bc_config().update_from_dict({"imput_": "a"}), "did you mean 'input_'"),
            (lambda: BCConfig().rollouts(num_workers=2), "rollouts(): RLlib renamed it; use env_runners()"),
            (lambda: BCConfig().serialize(), "serialize(): to_dict() returns the options"),
            (lambda: BCConfig().no_such(), "no_such is not an option of a config"),
            (lambda: BCConfig().python_environment(), "python_environment(): processes inherit"),
            (lambda: BCConfig().experimental(), "experimental(): does not apply"),
            (lambda: BCConfig().build_lerner(), "build_lerner is not an option of a config"),
            (lambda: BCConfig().clip_param, "clip_param does not apply to BC; it is an option of PPO"),
            (lambda: BCConfig()["lrr"], "lrr is not an option of a config; did you mean 'lr'?"),
            (lambda: setattr(BCConfig(), "lrr", 1), "lrr is not an option of a config; did you mean 'lr'?"),
            (lambda: setattr(BCConfig(), "training", 1), "training is not an option of a config"),
            (lambda: setattr(BCConfig(), "fcnet_hiddens", [8]), "fcnet_hiddens is a field of rl_module("),
            (
                lambda: setattr(BCConfig(), "my_param", 3),
                'custom options require a custom algorithm, AlgorithmConfig("package.module:Class")',
            ),
            (lambda: BCConfig.overrides(lrr=1), "lrr is not an option of a config; did you mean 'lr'?"),
            (lambda: BCConfig().validate(), "input_ is missing"),
            (lambda: BCConfig().to_resource(), "input_ is missing"),
            (lambda: PPOConfig().offline_data(output="o").to_resource(), "env is missing"),
            (lambda: PPOConfig().environment("CartPole-v1").to_resource(), "add .offline_data(output=...)"),
            (
                lambda: PPOConfig().environment("CartPole-v1").offline_data(input_="a").plan(),
                "input_ does not apply",
            ),
            (
                lambda: recorder_config().offline_data(output_write_method="write_avro").to_resource(),
                "output_write_method is 'write_avro', expected one of 'write_parquet', 'write_json', 'write_csv'",
            ),
            (
                lambda: recorder_config().offline_data(output=["a", "b"]).to_resource(),
                "output is ['a', 'b'], expected one path: a recording writes to one folder",
            ),
            (
                lambda: bc_config().env_runners(num_envs_per_env_runner="two").validate(),
                "num_envs_per_env_runner is 'two'",
            ),
            (
                lambda: recorder_config().env_runners(num_env_runners="two").validate(),
                "num_env_runners is 'two', expected",
            ),
            (
                lambda: recorder_config().evaluation(evaluation_config={"env_config": {"a": 1}}).validate(),
                "to evaluate in another environment, use custom_evaluation_function",
            ),
            (
                lambda: sampler_config().evaluation(evaluation_config={"env_config": {"a": 1}}).validate(),
                "the policy also plays in this environment to learn",
            ),
            (
                lambda: sampler_config().offline_data(input_="a").training(sampler={"capacity": 5}).plan(),
                'configure the sampler: add "sampler" to input_',
            ),
            (lambda: sampler_config().training(sampler=3).plan(), "sampler is 3, expected a dictionary"),
            (
                lambda: sampler_config().training(sampler={"episodes": 3}).to_resource(),
                "sampler: 'episodes' is not an option here",
            ),
            (lambda: AlgorithmConfig("DQN").to_resource(), "input_ is missing"),
            (
                lambda: AlgorithmConfig("DQN").offline_data(input_="sampler").to_resource(),
                "env is missing: name the environment to play in",
            ),
            (
                lambda: BCConfig().offline_data(input_="a").evaluation(evaluation_interval=1).to_resource(),
                "requires an environment to evaluate in",
            ),
            (
                lambda: BCConfig().environment(env_config={"a": 1}).offline_data(input_="a").to_resource(),
                "env is missing: name the environment that the other options apply to",
            ),
        ],
    )
    def test_mistake_raises_one_sentence(self, mistake: Any, message: str) -> None:
        with pytest.raises(SpecError) as error:
            mistake()
        assert message in str(error.value)

    @pytest.mark.parametrize("name", ["build_env_to_module_connector", "get_default_rl_module_spec"])
    def test_unused_override_raises_one_sentence(self, name: str) -> None:
        config_class = type("Mine", (BCConfig,), {name: lambda *_: None})
        with pytest.raises(SpecError, match=f"^Mine overrides {name}, which is never called: "):
            config_class()

    def test_all_mistakes_are_reported_together(self) -> None:
        config = bc_config().training(lr="fast", grad_clip=-1.0).evaluation(evaluation_interval="often")
        with pytest.raises(SpecError) as error:
            config.to_resource()
        assert [line.split(" is ")[0] for line in str(error.value).splitlines()] == [
            "evaluation_interval",
            "grad_clip",
            "lr",
        ]


def test_rllib_example_equals_yaml() -> None:
    config = (
        BCConfig()
        .environment(env="CartPole-v1")
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=1024, lr=8e-4)
        .offline_data(
            input_=["data"],
            input_read_episodes=True,
            input_read_batch_size=512,
            map_batches_kwargs={"concurrency": 2, "num_cpus": 1},
            iter_batches_kwargs={"prefetch_batches": 2, "local_shuffle_buffer_size": None},
            dataset_num_iters_per_learner=1,
        )
        .evaluation(evaluation_interval=3, evaluation_duration=5, evaluation_parallel_to_training=True)
    )
    yaml = validate_resource(
        {
            "apiVersion": "hindcast.dev/v1alpha1",
            "kind": "OfflineTraining",
            "metadata": {"name": "clone"},
            "spec": {
                "algorithm": "BC",
                "config": {"trainBatchSizePerLearner": 1024, "lr": 8e-4},
                "environment": {"id": "CartPole-v1"},
                "input": [{"path": "data"}],
                "pipeline": {
                    "dataWorkers": {"replicas": 2, "cpus": 1},
                    "prefetchBatches": 2,
                    "datasetNumItersPerLearner": 1,
                },
                "evaluation": {"interval": 3, "duration": 5, "parallelToTraining": True},
                "stop": {"episodeReturnMean": 450},
            },
        }
    )
    assert config.to_resource("clone", stop={"episode_return_mean": 450}) == yaml


def test_lambda_option_has_an_underscore() -> None:
    resource = recorder_config().training(lambda_=0.9).to_resource()
    assert resource.spec.policy.train.config == {"lambda": 0.9}


FIELD = pc.field


@pytest.mark.parametrize(
    ("expression", "terms"),
    [
        (FIELD("agent_id") == "agent_1", [("agent_id", "==", "agent_1")]),
        (FIELD("a b") != 'x) and (y == "1\n"', [("a b", "!=", 'x) and (y == "1\n"')]),
        (FIELD("r") > 0.5, [("r", ">", 0.5)]),
        (pc.scalar(3) <= FIELD("t"), [("t", ">=", 3)]),
        (FIELD("ok") == pc.scalar(True), [("ok", "==", True)]),
        (FIELD("t").isin(list(range(50))), [("t", "in", list(range(50)))]),
        (
            (FIELD("a") == 1) & (FIELD("b") < 2) & pc.and_(FIELD("c") >= 3, FIELD("d") == "x"),
            [("a", "==", 1), ("b", "<", 2), ("c", ">=", 3), ("d", "==", "x")],
        ),
        ((FIELD("a") == 1) | (FIELD("a") == 2) | FIELD("a").isin([3]), [("a", "in", [1, 2, 3])]),
        (~((FIELD("a") != 1) | FIELD("ok")), [("a", "==", 1), ("ok", "==", False)]),
        (~(~(FIELD("a") == 1) & (FIELD("a") != 2)) & FIELD("ok"), [("a", "in", [1, 2]), ("ok", "==", True)]),
    ],
    ids=str,
)
def test_pyarrow_expression_becomes_filter_terms(expression: Any, terms: list[tuple[str, str, Any]]) -> None:
    resource = bc_config().offline_data(input_read_method_kwargs={"filter": expression}).to_resource()
    assert [(term.column, term.op, term.value) for term in resource.spec.input[0].filter] == terms


@pytest.mark.parametrize(
    "expression",
    [
        (FIELD("a") == 1) | (FIELD("b") == 2),
        ~(FIELD("a") < 1),
        ~FIELD("a").isin([1]),
        (FIELD("a") < 1) | (FIELD("a") == 2),
        ~((FIELD("a") == 1) & (FIELD("b") == 2)),
        FIELD("a") > FIELD("b"),
        FIELD("a") + 1 > 2,
        FIELD("obs", "camera") > 1,
        FIELD(0) == 1,
        FIELD("a") == pa.scalar(b"x"),
        FIELD("a").is_valid(),
        FIELD("a\nb") == 1,
        FIELD("a").cast("int32") == 1,
    ],
    ids=str,
)
def test_unsupported_expression_raises_one_sentence(expression: Any) -> None:
    with pytest.raises(
        SpecError, match=r"(?s)^input_read_method_kwargs: the filter .* is not a list of comparisons"
    ):
        bc_config().offline_data(input_read_method_kwargs={"filter": expression}).to_resource()


WRONG_TYPES = {
    "bool": ("yes", "False", "x", 2, 1.0),
    "int": ("x", True, 1.5, -2),
    "count": ("x", True, 1.5, -1, 0),
    "float": ("x", True, -0.5, float("nan")),
    "str": (3, True),
    "dict": ("x", 3),
}


@pytest.mark.parametrize("name", TYPES)
def test_option_without_a_field_refuses_other_types(name: str) -> None:
    method = next(method for method in OPTIONS if name in OPTIONS[method])
    for value in WRONG_TYPES[TYPES[name]]:
        with pytest.raises(SpecError, match=rf"^{name} is {re.escape(repr(value))}, expected "):
            getattr(bc_config(), method)(**{name: value}).validate()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"compression": "zstd"}, {"compression": "zstd"}),
        ({"num_rows_per_file": 7, "concurrency": 2}, {"max_rows_per_file": 7}),
        ({"max_rows_per_file": 7, "mode": "overwrite"}, {"max_rows_per_file": 7, "on_existing": "Replace"}),
    ],
)
def test_write_method_arguments_set_the_output(options: dict[str, Any], expected: dict[str, Any]) -> None:
    config = recorder_config().offline_data(output_write_method_kwargs=options)
    output = config.to_resource().spec.output
    assert {name: getattr(output, name) for name in expected} == expected
    assert ["concurrency" in line for line in config.replaced_options] == [True] * ("concurrency" in options)


def test_filesystem_arguments_construct_the_file_system(tmp_path: Path) -> None:
    arguments = {
        "access_key": "a",
        "secret_key": "b",
        "region": "eu-central-1",
        "endpoint_override": "localhost:1",
    }
    config = bc_config().offline_data(input_filesystem="s3", input_filesystem_kwargs=arguments)
    training = config.plan().training
    assert training is not None
    assert [source.path for source in training.spec.input] == [
        source.path for source in config.plan().training.spec.input
    ]
    scheme = str(training.spec.input[0].path).partition("://")[0]
    assert find_filesystem(scheme) == pafs.S3FileSystem(**arguments)
    with pytest.raises(
        SpecError, match="input_filesystem is a S3FileSystem, which a resource cannot contain"
    ):
        config.to_resource()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_filesystem_kwargs": {"a": 1}}, "set input_filesystem to one of 'gcs', 's3', 'abs'"),
        (
            {"input_filesystem": "s3", "input_filesystem_kwargs": {"a": 1}},
            "S3FileSystem raised TypeError: .*'a'",
        ),
        (
            {"map_batches_kwargs": {"ray_remote_args": {"num_cpu": 1}}},
            "ray_remote_args: 'num_cpu' is not an option",
        ),
        ({"materialize_data": True, "materialize_mapped_data": True}, "are both True: set one of them"),
        ({"input_": {"a": 0.5, "b": 0.6}}, r"input_ has weights that sum to 1\.1, expected 1"),
        ({"input_": {"a": 0.33, "b": 0.33, "c": 0.33}}, r"sum to 0\.99"),
        ({"input_": {"a": 1.0, "b": 0.0}}, r"input_\['b'\] is 0\.0, expected a number above 0"),
        ({"input_": {"a": "0.5", "b": 0.5}}, r"input_\['a'\] is '0\.5', expected a number"),
        ({"input_": {"a": True}}, r"input_\['a'\] is True, expected a number"),
        (
            {"input_read_schema": {"o_t": "obs", "actions": "a_t"}},
            "input_read_schema maps 'o_t' to 'obs', the wrong way around: write 'obs' first",
        ),
        (
            {"input_read_sample_batches": True, "input_read_method": "read_csv"},
            "input_read_sample_batches is True, but input_read_method is 'read_csv'",
        ),
        ({"input_read_method": "read_parket"}, "not a read method of Ray Data; did you mean 'read_parquet'"),
        (
            {"input_read_method": "read_avro", "input_read_method_kwargs": {"nope": 1}},
            "input_read_method_kwargs: 'nope' is not an option here; allowed: ",
        ),
        (
            {"map_batches_kwargs": {"num_cpus": 1, "ray_remote_args": {"num_cpus": 2}}},
            "num_cpus is 1, but 2 in ray_remote_args",
        ),
        ({"map_batches_kwargs": {"concurrency": (8, 4)}}, r"concurrency is \(8, 4\), whose first number"),
        ({"map_batches_kwargs": {"zero_copy_batch": "yes"}}, "zero_copy_batch is 'yes', expected True or"),
        ({"iter_batches_kwargs": {"prefetch_batches": "x"}}, "prefetch_batches is 'x', expected a whole"),
        ({"iter_batches_kwargs": {"prefetch_batches": -1}}, "expected a whole number of at least 0"),
        ({"iter_batches_kwargs": {"local_shuffle_buffer_size": 0}}, "expected a whole number above 0"),
        ({"input_read_method_kwargs": {"override_num_blocks": "x"}}, "override_num_blocks is 'x', expected"),
    ],
)
def test_contradicting_data_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        bc_config().offline_data(**options).validate()


def test_ray_remote_args_set_the_data_workers() -> None:
    config = bc_config().offline_data(
        map_batches_kwargs={"ray_remote_args": {"num_cpus": 3}, "concurrency": 2}
    )
    workers = config.to_resource().spec.pipeline.data_workers
    assert (workers.cpus, workers.replicas) == (3.0, 2)


def fields_of(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the paths of a model's fields by YAML names, of sections that options set as a whole only the section's."""
    for name, info in model.model_fields.items():
        field = (*path, info.alias or name)
        sections = [] if ".".join(field) in OPTION_FIELDS else list(models_in(info.annotation))
        yield from (
            (path for section in sections for path in fields_of(section, field))
            if sections
            else [".".join(field)]
        )


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


OPTION_FIELDS = {
    field
    for option in [
        *MAPPED_OPTIONS.values(),
        *OPTIONS["DefaultModelConfig"].values(),
        *OPTIONS["RLModuleSpec"].values(),
    ]
    for field in (option.training, option.recording)
} | {"input.columns", "input.filter", "input.readOptions", "input.weight", "input.path", "duration"}
OTHER_SETTERS = {
    "stop": "to_resource(stop=)",
    "policy": "to_resource(policy=)",
    "config": "training()",
    "customConfig": "training()",
    "learners.device": "num_gpus_per_learner=0",
    "pipeline.prefetchBatches": "nothing: the field has no effect",
    **dict.fromkeys(("cluster", "runPolicy", "checkpoint", "revision", "suspend"), "to_resource(spec=)"),
}
"""Field that is not an option's -> what sets it."""


@pytest.mark.parametrize("resource", [OfflineTraining, OfflineRecording])
def test_every_field_of_a_resource_can_be_set_in_python(resource: Any) -> None:
    fields = set(fields_of(resource.model_fields["spec"].annotation))
    setters = (*OPTION_FIELDS, *OTHER_SETTERS)
    assert [
        field for field in fields if not any(f"{field}.".startswith(f"{name}.") for name in setters if name)
    ] == []


@pytest.mark.parametrize("make_config", [bc_config, recorder_config])
def test_sections_of_a_resource_are_set_by_name(make_config: Callable[[], AlgorithmConfig]) -> None:
    sections = {
        "cluster": {"nodeSelector": {"disk": "fast"}},
        "runPolicy": {"backoffLimit": 2},
        "revision": 3,
    }
    plain, resource = make_config().to_resource(), make_config().to_resource(spec=sections)
    assert resource.spec.cluster.node_selector == {"disk": "fast"}
    assert (resource.spec.run_policy.backoff_limit, resource.spec.revision) == (2, 3)
    assert spec_hash(resource) == spec_hash(plain)
    with pytest.raises(SpecError, match="spec has 'pipeline', expected some of cluster, runPolicy"):
        make_config().to_resource(spec={"pipeline": {}})
    with pytest.raises(SpecError, match="runPolicy"):
        make_config().to_resource(spec={"runPolicy": {"backoffLimit": -2}})


def test_resource_of_data_and_output_is_refused() -> None:
    config = bc_config().offline_data(output="out")
    config.validate()
    with pytest.raises(SpecError, match="a resource either trains or records"):
        config.to_resource()


def test_input_weights_mix_sources() -> None:
    resource = bc_config().offline_data(input_={"a": 0.4, "b": 0.6}).to_resource()
    assert [(source.path, source.weight) for source in resource.spec.input] == [("a", 0.4), ("b", 0.6)]


def test_sampler_with_or_without_files_is_an_input() -> None:
    """As in RLlib's documentation of 2019."""
    mixed_config = sampler_config().offline_data(
        input_={"a": 0.4, "b": 0.3, "sampler": 0.3}, input_read_schema={"obs": "o"}
    )
    spec = mixed_config.training(replay_buffer_config={"capacity": 50}).to_resource().spec
    assert [(entry.path, entry.weight) for entry in spec.input] == [("a", 0.4), ("b", 0.3), (None, 0.3)]
    assert [entry.schema_map for entry in spec.input] == [{"obs": "o"}, {"obs": "o"}, {}]
    assert spec.sampler.capacity == 50
    assert (
        sampler_config().to_resource().spec.input
        == sampler_config().offline_data(input_="sampler").to_resource().spec.input
    )
    expert = sampler_config().offline_data(output="out").to_resource()
    assert expert.spec.policy.train.algorithm == "DQN"


def test_concurrency_range_sets_data_workers() -> None:
    resource = bc_config().offline_data(map_batches_kwargs={"concurrency": (2, 6)}).to_resource()
    assert resource.spec.pipeline.data_workers.interval == (2, 6)


def test_zero_gpus_set_the_cpu() -> None:
    assert bc_config().learners(num_gpus_per_learner=0).to_resource().spec.learners.device == "cpu"
    assert bc_config().to_resource().spec.learners.device == "auto"


def test_runner_observation_filter_is_kept_with_a_model_config() -> None:
    config = (
        bc_config()
        .env_runners(observation_filter="MeanStdFilter")
        .rl_module(model_config=DefaultModelConfig())
    )
    assert config.to_resource().spec.model.observation_filter == "meanStd"


def test_default_model_config_shares_layers_as_rllib() -> None:
    assert bc_config().rl_module(model_config=DefaultModelConfig()).to_resource().spec.model.vf_share_layers
    assert not bc_config().to_resource().spec.model.vf_share_layers


class TestModelConfig:
    @pytest.mark.parametrize("name", ["orthogonal_", "orthogonal", torch.nn.init.orthogonal_])
    def test_initialiser_with_arguments_sets_its_field(self, name: Any) -> None:
        initializer = {"conv_kernel_initializer": name, "conv_kernel_initializer_kwargs": {"gain": 2}}
        config = bc_config().rl_module(model_config=DefaultModelConfig(**initializer))
        field = config.to_resource().spec.model.conv_kernel_initializer
        assert (field.name, field.kwargs) == ("orthogonal", {"gain": 2})
        copied_config = BCConfig.from_dict(config.to_dict())
        assert copied_config.to_resource() == config.to_resource()

    def test_arguments_without_initialiser_are_noted(self) -> None:
        config = bc_config().rl_module(model_config={"fcnet_bias_initializer_kwargs": {"val": 1}})
        assert config.replaced_options == [
            "model_config: fcnet_bias_initializer_kwargs: has no effect without fcnet_bias_initializer"
        ]

    @pytest.mark.parametrize(
        ("model_config", "padding"),
        [
            ({"conv_filters": [[4, 3, 1]]}, "same"),
            ({"conv_filters": [[4, 3, 1, "valid"], [4, [3, 3], 1, "valid"]]}, "valid"),
            ({"conv_filters": [[4, 3, 1]], "conv_padding": "valid"}, "valid"),
            ({"conv_filters": None}, "valid"),
        ],
    )
    def test_conv_filters_set_the_padding(self, model_config: dict[str, Any], padding: str) -> None:
        for config in (model_config, DefaultModelConfig(**model_config)):
            assert bc_config().rl_module(model_config=config).to_resource().spec.model.conv_padding == padding

    def test_layernorm_of_heads_follows_the_encoder(self) -> None:
        config = bc_config().rl_module(model_config={"head_fcnet_hiddens": [8], "fcnet_use_layernorm": True})
        assert config.replaced_options == [
            "model_config: head_fcnet_use_layernorm: heads are normalised if the encoder is"
        ]
        config.rl_module(
            model_config=DefaultModelConfig(fcnet_use_layernorm=True, head_fcnet_use_layernorm=True)
        )
        assert config.replaced_options == []


class TestModuleSpec:
    def test_module_spec_and_model_config_are_combined(self) -> None:
        config = bc_config().rl_module(
            rl_module_spec=RLModuleSpec("module_toys:Net", {"units": np.int64(9)}),
            model_config={"max_seq_len": 30, "observation_filter": "MeanStdFilter"},
        )
        model = config.to_resource().spec.model
        assert (model.module_class, model.module_options) == ("module_toys:Net", {"units": 9})
        assert (model.max_seq_len, model.observation_filter) == (30, "meanStd")
        assert config.plan().model == model
        assert config.replaced_options == []

    def test_other_forms_of_module_spec_are_accepted(self) -> None:
        spec = RLModuleSpec("module_toys:RLlibModule", {"h": 9, "max_seq_len": 7})
        multi_spec = MultiRLModuleSpec(rl_module_specs={"default_policy": spec})
        model = bc_config().rl_module(rl_module_spec=multi_spec).to_resource().spec.model
        assert model.module_class == "module_toys:RLlibModule"
        assert (model.module_options, model.max_seq_len) == ({"h": 9, "max_seq_len": 7}, 7)
        default_spec = RLModuleSpec(PolicyModule, {"fcnet_hiddens": [8]})
        resource = bc_config().rl_module(rl_module_spec=default_spec).to_resource()
        assert resource.spec.model.fcnet_hiddens == [8]

    @pytest.mark.parametrize("module_class", [None, Net])
    def test_default_model_config_in_spec_is_that_of_rl_module(self, module_class: Any) -> None:
        spec = RLModuleSpec(module_class, DefaultModelConfig(fcnet_hiddens=[8]))
        assert bc_config().rl_module(rl_module_spec=spec).to_resource().spec.model.fcnet_hiddens == [8]
        spec_config = bc_config().rl_module(rl_module_spec=RLModuleSpec(model_config={"fcnet_hiddens": [8]}))
        assert spec_config.to_resource().spec.model.fcnet_hiddens == [8]

    def test_fields_that_follow_from_the_config_are_noted(self) -> None:
        spec = RLModuleSpec(Net, observation_space=OBSERVATIONS, inference_only=True)
        notes = bc_config().rl_module(rl_module_spec=spec).replaced_options
        assert [note.split(":")[1].strip() for note in notes] == ["observation_space", "inference_only"]

    def test_to_dict_contains_the_module_spec(self) -> None:
        options = bc_config().rl_module(rl_module_spec=RLModuleSpec(Net, {"units": 9})).to_dict()
        assert options["rl_module_spec"] == {"module_class": "module_toys:Net", "model_config": {"units": 9}}
        copied_config = BCConfig.from_dict(options)
        assert copied_config.to_resource().spec.model.module_options == {"units": 9}


def test_copies_are_independent() -> None:
    config = bc_config()
    config_copy = config.copy().training(lr=1e-2)
    assert config_copy["lr"] == 1e-2
    assert config.get("lr") is None


def test_containers_are_copied_into_the_config() -> None:
    hiddens, env_config, model = [8], {"sizes": ({"a": [1]},)}, DefaultModelConfig(fcnet_hiddens=[8])
    config = bc_config().environment("CartPole-v1", env_config=env_config)
    config.rl_module(model_config={"fcnet_hiddens": hiddens})
    options, frozen = config.to_dict(), config.copy(copy_frozen=True)
    network_config = bc_config().rl_module(model_config=model)
    hiddens.append(4)
    model.fcnet_hiddens.append(4)
    env_config["sizes"][0]["a"].append(2)
    config.to_dict()["env_config"].clear()
    config.copy().env_config["b"] = 2
    frozen.env_config["b"] = 2
    frozen.get("env_config")["b"] = 2
    assert config.to_dict() == frozen.to_dict() == options
    assert options["env_config"] == {"sizes": ({"a": [1]},)}
    assert network_config.model_config.fcnet_hiddens == options["model_config"]["fcnet_hiddens"] == [8]


def test_other_objects_are_not_copied() -> None:
    shared_object, files = object(), pafs.LocalFileSystem()
    config = (
        bc_config()
        .environment(Net, env_config={"held": [shared_object]})
        .offline_data(input_filesystem=files)
    )
    for config_copy in (config, config.copy(), BCConfig.from_dict(config.to_dict())):
        assert config_copy.env_config["held"][0] is shared_object
        assert (config_copy.env, config_copy.input_filesystem) == (Net, files)
        assert config_copy.input_filesystem is files


def test_config_subclass_may_override_init() -> None:
    class SmallConfig(BCConfig):
        def __init__(self, algo_class: Any = None) -> None:
            super().__init__(algo_class=algo_class)
            self.lr = 0.5

    class FixedConfig(BCConfig):
        def __init__(self) -> None:
            super().__init__()

    config_copy = SmallConfig().copy().offline_data(input_="a")
    assert (type(config_copy), config_copy.lr, SmallConfig().get("input_")) == (SmallConfig, 0.5, None)
    assert FixedConfig().copy(copy_frozen=True).copy(copy_frozen=False).training(lr=0.1).lr == 0.1


def test_resource_contains_all_callback_classes() -> None:
    first_path, second_path = (
        f"{CALLBACKS_MODULE}:{name}" for name in ("Callbacks", "on_train_result.builtins.print")
    )
    resource = bc_config().callbacks(first_path, second_path).to_resource()
    assert resource.spec.callbacks == [first_path, second_path]
    assert resource == bc_config().callbacks([first_path, second_path]).to_resource()
    assert resource == bc_config().callbacks(first_path, callbacks_class=second_path).to_resource()
    assert bc_config().callbacks(first_path).callbacks_class == first_path


def test_options_are_attributes() -> None:
    config = bc_config()
    assert BCConfig.overrides(explore=False) == {"explore": False}
    config.lr, config.input_, config.env = 0.5, "other", "Acrobot-v1"
    assert (config.lr, config.input_, config["env"]) == (0.5, "other", "Acrobot-v1")
    assert config.to_resource() == BCConfig.from_dict(config.to_dict()).to_resource()
    assert config.to_resource().spec.config == {"lr": 0.5}
    assert (BCConfig().lr, PPOConfig()["lambda_"], BCConfig().input_) == (1e-4, 1.0, None)
    for name in ("rollouts", "serialize", "no_such", "lrr"):
        assert not hasattr(config, name)
    assert pickle.loads(pickle.dumps(config)).lr == 0.5


def test_frozen_config_raises_on_changes() -> None:
    config = bc_config()
    config.freeze()
    for config_copy in (config, config.copy(), config.copy(copy_frozen=True)):
        with pytest.raises(SpecError, match=r"the config is frozen: change config\.copy"):
            config_copy.lr = 0.5
    assert config.copy(copy_frozen=False).training(lr=0.5).lr == 0.5


def test_options_without_algorithm_are_copied_to_one() -> None:
    config = AlgorithmConfig().environment("CartPole-v1").training(lr=0.1).offline_data(input_="data")
    assert config.lr == 0.1
    assert BCConfig.from_dict(config.to_dict()).to_resource() == bc_config().training(lr=0.1).to_resource()


def test_from_dict_inverts_to_dict() -> None:
    config = bc_config().training(lr=1e-2).rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[8]))
    options = pickle.loads(pickle.dumps(config.to_dict()))
    assert BCConfig().update_from_dict(options).to_resource() == config.to_resource()


def test_custom_algorithm_accepts_any_option() -> None:
    config = AlgorithmConfig("mine.algorithms:Clone").offline_data(input_="a").training(my_weight=2, lr=0.1)
    assert config.to_resource().spec.custom_config == {"myWeight": 2, "lr": 0.1}
    config.training(frame_stack=4)  # the algorithm's option, although a model config has a field of that name
    assert config.to_resource().spec.custom_config["frameStack"] == 4
    assert config.training(grad_clip_by="norm").replaced_options == [
        "grad_clip_by: has no effect without grad_clip"
    ]


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [("DecisionTransformer", "grad_clip"), ("MARWIL", "weight_clip"), ("MARWIL", "targets_every")],
)
def test_none_turns_off_an_option_that_is_on_by_default(algorithm: str, name: str) -> None:
    config = AlgorithmConfig(algorithm).environment("CartPole-v1").offline_data(input_="data")
    assert config.training(**{name: None}).to_resource().spec.config == {to_camel(name): None}
    assert config.plan().config == {to_camel(name): None}
    assert bc_config().training(grad_clip=None).to_resource().spec.config == {}


def test_option_with_required_option_by_default_is_not_noted() -> None:
    config = AlgorithmConfig("DecisionTransformer").environment("CartPole-v1").offline_data(input_="data")
    assert config.training(grad_clip_by="norm").replaced_options == []
    notes = ["grad_clip_by: has no effect without grad_clip"]
    assert config.training(grad_clip=None).replaced_options == notes
    assert bc_config().training(grad_clip_by="global_norm").replaced_options == []


def test_custom_algorithm_may_have_a_refused_option() -> None:
    config = AlgorithmConfig("mine.algorithms:Clone").offline_data(input_="a").training(noisy=True, v_min=-1)
    assert config.to_resource().spec.custom_config == {"noisy": True, "vMin": -1}
    with pytest.raises(SpecError, match=r"training\(noisy=True\): there are no noisy layers"):
        AlgorithmConfig("DQN").training(noisy=True)


def test_refused_option_at_rllib_default_is_accepted() -> None:
    options = [option for method_options in OPTIONS.values() for option in method_options.values()]
    for option in options:
        if option.default is not None:
            config = PPOConfig().update_from_dict({option.name: option.default})
            assert config.replaced_options == []
            with pytest.raises(SpecError, match=re.escape(option.remark)):
                config.update_from_dict({option.name: not option.default})


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("SAC", {"lr": None, "num_epochs": 1, "target_entropy": "auto"}),
        ("CQL", {"twin_q": True, "minibatch_size": None, "target_network_update_freq": 0}),
        ("BC", {"beta": 0.0, "vf_coeff": 1.0, "gamma": 0.99, "train_batch_size_per_learner": None}),
        ("MARWIL", {"optimizer": {}, "learner_config_dict": {}, "hiddens": [256], "vf_share_layers": -1}),
    ],
)
def test_missing_option_at_rllib_default_is_accepted(algorithm: str, options: dict[str, Any]) -> None:
    config = AlgorithmConfig(algorithm).environment("Pendulum-v1").offline_data(input_="data")
    plan_before = config.plan()
    assert config.training(**options).plan() == plan_before
    assert config.replaced_options == []


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        ("SAC", {"lr": 1e-3}, "lr does not apply to SAC; it is an option of BC"),
        ("BC", {"n_step": 3}, "n_step does not apply to BC; it is an option of CQL"),
        ("BC", {"n_step": np.ones(2)}, "n_step does not apply to BC"),
        ("DQN", {"v_min": -1}, "num_quantiles needs no bounds"),
        ("SAC", {"target_entropy": "other"}, "target_entropy is 'other'"),
        ("SAC", {"lrr": None}, "lrr is not an option"),
    ],
)
def test_missing_option_at_another_value_raises(
    algorithm: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        AlgorithmConfig(algorithm).environment("Pendulum-v1").training(**options).validate()


class TestInputEvaluation:
    """RLlib's option of 2019 and its later form, a dictionary."""

    @pytest.mark.parametrize(
        "value",
        [["is", "wis"], {"is": {"type": "is"}, "wis": {"type": "WeightedImportanceSampling"}}, ("is", "wis")],
    )
    def test_estimates_use_held_out_episodes_in_every_iteration(self, value: Any) -> None:
        offline = bc_config().offline_data(input_evaluation=value).to_resource().spec.evaluation.offline
        assert (offline.estimates, offline.interval, offline.held_out) == (["is", "wis"], 1, 0.1)

    def test_simulation_evaluates_in_every_iteration(self) -> None:
        evaluation = bc_config().offline_data(input_evaluation="simulation").to_resource().spec.evaluation
        assert (evaluation.interval, evaluation.offline) == (1, None)
        combined_evaluation = (
            bc_config().offline_data(input_evaluation=["simulation", "dr"]).to_resource().spec.evaluation
        )
        assert (combined_evaluation.interval, combined_evaluation.offline.estimates) == (1, ["dr"])

    def test_direct_options_take_precedence(self) -> None:
        config = bc_config().offline_data(input_evaluation=["is", "simulation"])
        config.evaluation(offline_evaluation_input="held", offline_evaluation_interval=5)
        config.evaluation(off_policy_estimation_methods=["dr"], evaluation_interval=2)
        evaluation = config.to_resource().spec.evaluation
        offline = evaluation.offline
        assert (evaluation.interval, offline.interval, offline.estimates) == (2, 5, ["dr"])
        assert (offline.held_out, offline.input) == (None, ["held"])

    @pytest.mark.parametrize("value", [None, [], {}])
    def test_empty_value_evaluates_nothing(self, value: Any) -> None:
        assert bc_config().offline_data(input_evaluation=value).to_resource() == bc_config().to_resource()


class TestReplayBufferConfig:
    @pytest.mark.parametrize(
        "buffer_type", ["PrioritizedEpisodeReplayBuffer", PrioritizedEpisodeReplayBuffer]
    )
    def test_buffer_type_sets_prioritized_replay(self, buffer_type: Any) -> None:
        buffer = {"type": buffer_type, "capacity": 50, "alpha": 0.5, "beta": 0.3}
        spec = sampler_config().training(replay_buffer_config=buffer).to_resource().spec
        assert spec.sampler.capacity == 50
        assert spec.config == {
            "prioritizedReplay": True,
            "prioritizedReplayAlpha": 0.5,
            "prioritizedReplayBeta": 0.3,
        }
        config = sampler_config().training(replay_buffer_config=buffer, prioritized_replay_beta=0.9)
        assert config.to_resource().spec.config["prioritizedReplayBeta"] == 0.9

    @pytest.mark.parametrize("algorithm", ["DQN", "SAC"])
    def test_buffer_without_priorities_draws_uniformly(self, algorithm: str) -> None:
        config = AlgorithmConfig(algorithm).environment("Pendulum-v1")
        config.training(replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 50})
        assert (config.to_resource().spec.sampler.capacity, config.to_resource().spec.config) == (50, {})

    @pytest.mark.parametrize(
        ("algorithm", "value", "message"),
        [
            (
                "SAC",
                {"type": "PrioritizedEpisodeReplayBuffer"},
                "SAC draws uniformly, without priorities: set type to",
            ),
            ("DQN", {"type": "EpisodeReplayBuffer", "alpha": 1}, "alpha is an option of PrioritizedEpisode"),
            ("DQN", {"type": "MultiAgentReplayBuffer"}, "type is 'MultiAgentReplayBuffer', expected 'Epis"),
            ("DQN", {"type": None}, "type is 'None', expected 'EpisodeReplayBuffer' or"),
            ("DQN", {"capacitty": 3}, "'capacitty' is not an option here; did you mean 'capacity'?"),
            ("DQN", 3, "replay_buffer_config is 3, expected a dictionary"),
        ],
    )
    def test_unsupported_value_raises(self, algorithm: str, value: Any, message: str) -> None:
        config = AlgorithmConfig(algorithm).environment("Pendulum-v1").training(replay_buffer_config=value)
        with pytest.raises(SpecError, match=re.escape(message)):
            config.validate()
        assert isinstance(config.replaced_options, list)


def test_environment_of_evaluation_config_is_used() -> None:
    overrides = {"env": "Acrobot-v1", "env_config": {"size": 2}, "explore": True}
    config = bc_config().environment(env_config={"size": 1, "wind": 3})
    spec = config.evaluation(evaluation_config=overrides, evaluation_interval=1).to_resource().spec
    assert (spec.environment.id, spec.environment.kwargs) == ("Acrobot-v1", {"size": 2, "wind": 3})
    assert spec.evaluation.explore is True


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MARWILConfg", r"Hindcast has no MARWILConfg; did you mean 'MARWILConfig'\?"),
        ("ImpalaConfig", "Hindcast has no ImpalaConfig: DQN, PPO, SAC learn in an environment, BC, "),
    ],
)
def test_import_of_unknown_config_raises(name: str, message: str) -> None:
    with pytest.raises(ImportError, match=message):
        exec(f"from hindcast import {name}")


def test_missing_module_of_a_class_is_to_be_put_beside_the_script() -> None:
    config = bc_config().environment("CartPole-v1").offline_data(prelearner_class="no.such:Class")
    message = (
        "^prelearner_class is 'no.such:Class': there is no module 'no'; install it, put it beside your script"
    )
    with pytest.raises(SpecError, match=message):
        config.build_algo()


def test_config_reports_global_batch_size_and_whether_it_is_offline() -> None:
    config = BCConfig().training(train_batch_size_per_learner=64).learners(num_learners=3)
    assert (config.total_train_batch_size, config.is_offline) == (192, False)
    assert config.offline_data(input_="data").is_offline
    assert AlgorithmConfig().total_train_batch_size is None


def test_docs_page_contains_the_option_table() -> None:
    page = (ROOT / "docs" / "from-rllib.md").read_text()
    assert option_table() in page, "run `make crds`"


def test_import_does_not_import_slow_packages() -> None:
    """A config does not import torch either, which takes a second."""
    code = (
        "import sys, hindcast; print({'torch', 'ray', 'numpy', 'pydantic'} & {*sys.modules})\n"
        "hindcast.BCConfig; print({'torch', 'ray', 'pyarrow'} & {*sys.modules})"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["set()", "set()"]


def test_algorithm_that_does_not_match_actions_names_no_option(tmp_path: Path) -> None:
    config = CQLConfig().environment("CartPole-v1").offline_data(input_=[str(tmp_path)])
    record(recording(tmp_path, environment=CARTPOLE))
    with pytest.raises(SpecError, match=r"^CQL requires continuous actions"):
        config.build()
