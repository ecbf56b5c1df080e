"""Every accepted option of the builder changes what is built, or a warning says that it has no effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic.alias_generators import to_camel
from test_rllib_options import MODEL_SAMPLES, SAMPLES, VALUE_CLASSES

from hindcast import AlgorithmConfig, BCConfig, PPOConfig
from hindcast.api.options import options_of, schemas
from hindcast.errors import UserError
from hindcast.rllib.builder.option_names import algorithm_options
from hindcast.rllib.builder.options import OPTIONS
from option_effects import effective_options, option_effect, other_value, value_without_field

CONFIGS: dict[str, Callable[[], AlgorithmConfig]] = {
    "training": lambda: BCConfig().environment("CartPole-v1").offline_data(input_="data"),
    "recording": lambda: BCConfig().environment("CartPole-v1").offline_data(output="out"),
    "training and recording": lambda: (
        BCConfig().environment("CartPole-v1").offline_data(input_="data", output="out")
    ),
    "playing": lambda: AlgorithmConfig("DQN").environment("CartPole-v1"),
    "playing beside data": lambda: (
        AlgorithmConfig("DQN").environment("CartPole-v1").offline_data(input_={"data": 0.5, "sampler": 0.5})
    ),
    "learning online": lambda: PPOConfig().environment("CartPole-v1"),
    "learning online and recording": lambda: (
        PPOConfig().environment("CartPole-v1").offline_data(output="out")
    ),
}
METHODS = [method for method in OPTIONS if method not in VALUE_CLASSES]
VALUES: dict[str, Any] = {
    **{name: value for name, (value, *_) in SAMPLES.items()},
    "initial_checkpoint": "there",
    "iter_batches_kwargs": {"local_shuffle_seed": 3, "local_shuffle_buffer_size": 100},
}


@pytest.mark.parametrize("method", METHODS)
def test_option_without_effect_is_noted(method: str) -> None:
    values = {
        name: VALUES.get(name, value_without_field(name)) for name in OPTIONS[method] if name != "framework"
    }
    for config_name, make_config in CONFIGS.items():
        if method == "evaluation":
            values["evaluation_config"] = {"explore": "recording" not in config_name}
        for name, value in values.items():
            effect = option_effect(make_config(), method, name, value)
            assert effect != "does nothing", (config_name, name)


@pytest.mark.parametrize("algorithm", schemas())
def test_algorithm_option_without_effect_is_noted(algorithm: str) -> None:
    for name in algorithm_options(algorithm):
        option = options_of(algorithm)[to_camel(name.rstrip("_"))]
        required_option = option.get("x-only-with")
        has_effect = required_option is None or options_of(algorithm)[required_option]["default"]
        has_effect = has_effect and name != "exploration_noise"  # the config has no sampler
        effect = option_effect(make_valid_config(algorithm), "training", name, other_value(option))
        assert effect == ("has an effect" if has_effect else "is warned of"), name


@pytest.mark.parametrize("config_name", CONFIGS)
def test_model_field_without_effect_is_noted(config_name: str) -> None:
    """The model has a head, since options of heads have no effect without one."""
    model = {"head_fcnet_hiddens": [5]}
    options_before = effective_options(CONFIGS[config_name]().rl_module(model_config=model))
    for name in OPTIONS["DefaultModelConfig"]:
        value = MODEL_SAMPLES.get(name, (3,))[0]
        config = CONFIGS[config_name]()
        try:
            config.rl_module(model_config={**model, name: value})
            is_noted = any(f" {name}: " in line for line in config.replaced_options)
            assert is_noted or effective_options(config) != options_before, name
        except UserError:
            continue


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            lambda: CONFIGS["training"]().evaluation(offline_evaluation_held_out_seed=1),
            "exactly one of offline_evaluation_held_out, offline_evaluation_input is needed",
        ),
        (
            lambda: BCConfig().offline_data(input_="data").evaluation(evaluation_interval=1),
            "requires an environment to evaluate in, offline_evaluation_held_out or evaluation_gate",
        ),
        (
            lambda: (
                AlgorithmConfig("DecisionTransformer").offline_data(input_="data").training(reward_scale=2.0)
            ),
            r"which scales returns itself \(return_scale\)",
        ),
        (
            lambda: CONFIGS["training"]().evaluation(evaluation_interval=1, evaluation_duration="auto"),
            "evaluation_duration is 'auto', which requires evaluation_parallel_to_training=True",
        ),
        (
            lambda: (
                AlgorithmConfig("DQN")
                .environment("CartPole-v1")
                .offline_data(input_="data", materialize_data=False)
                .training(prioritized_replay=True)
            ),
            "materialize_data is False, but prioritized_replay draws from all data: set it to None or True",
        ),
        (
            lambda: CONFIGS["training"]().env_runners(observation_filter="nope"),
            "expected 'NoFilter' or 'MeanStdFilter'",
        ),
    ],
)
def test_contradiction_names_options_and_their_values(config: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        config().validate()


def make_valid_config(algorithm: str) -> AlgorithmConfig:
    """Return a config that can be built: with data, unless the algorithm only learns in its environment."""
    config = AlgorithmConfig(algorithm).environment("CartPole-v1")
    trains_on_data = "OfflineTraining" in schemas()[algorithm]["x-kinds"]
    return config.offline_data(input_="data") if trains_on_data else config
