"""Every option of RLlib 2.60's configs is mapped, replaced with a warning, or refused in a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from hindcast import AlgorithmConfig
from hindcast.api.options import options_of
from hindcast.errors import UserError
from hindcast.rllib.builder.option_names import REMOVED_METHODS, check_name, is_default_of_missing_option
from hindcast.rllib.builder.options import OPTIONS, RLLIB_DEFAULTS, to_option_name
from option_effects import option_effect

RunScript = Callable[..., str]
CONTINUOUS = ("CQL", "IQL", "SAC")
ONLINE = ("PPO", "DQN", "SAC")
CONFIGS = ("AlgorithmConfig", "BC", "MARWIL", "CQL", "IQL", "DQN", "SAC", "PPO")
FIXED_VALUES = {
    "callbacks_class": "a.b:C",
    "env": "MountainCarContinuous-v0",
    "framework": "torch",
    "input_": "other",
}
"""Option -> a valid value, for options with a default that does not show what they accept."""
REFUSED_DEFAULTS = {
    **dict.fromkeys(("model", "q_model_config", "policy_model_config"), "rl_module(model_config=...)"),
    **dict.fromkeys(("tf_session_args", "local_tf_session_args"), "TensorFlow's"),
    "train_batch_size": "use train_batch_size_per_learner",
    "lr": "does not apply to CQL",  # CQL has actor_lr, critic_lr and alpha_lr, here too
    "replay_buffer_config": "replay_buffer_config: ",  # priorities, for SAC; of the old API stack, for CQL
    "num_steps_sampled_before_learning_starts": 'add "sampler" to input_',  # for CQL, from data
    "input_": "has a sampler, which",  # for algorithms that only learn from data
    **dict.fromkeys(("offline_evaluation_type", "offline_evaluation_timeout_s"), "does not apply to PPO"),
}
"""Option -> part of the message that refuses RLlib's default.

The default means something else here, or belongs to RLlib's old API stack.
"""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def rllib_options(run_script: RunScript) -> Mapping[str, Any]:
    options: Mapping[str, Any] = json.loads(run_script("rllib_options.py"))
    return options


def make_valid_config(algorithm: str) -> AlgorithmConfig:
    """Return a config that can be built: with data, unless the algorithm learns in an environment."""
    config = AlgorithmConfig("BC" if algorithm == "AlgorithmConfig" else algorithm)
    config.environment("Pendulum-v1" if algorithm in CONTINUOUS else "CartPole-v1")
    return config if algorithm in ONLINE else config.offline_data(input_="data")


def other_values(default: Any) -> list[Any]:
    """Return values of the default's type that differ from it."""
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int | float):
        return [default + 3, default / 2 + 0.01]
    if isinstance(default, str):
        return [f"{default}_other"]
    return [3, "other", True, ["other"], {"other": 1}]


@pytest.mark.parametrize("algorithm", CONFIGS)
def test_every_changed_option_has_an_effect_or_a_note(
    rllib_options: Mapping[str, Any], algorithm: str
) -> None:
    defaults = rllib_options[algorithm if algorithm == "AlgorithmConfig" else f"{algorithm}Config"]
    options_without_effect = []
    for method, options in defaults["methods"].items():
        if method in REMOVED_METHODS:
            with pytest.raises(UserError, match=REMOVED_METHODS[method][:9]):
                getattr(make_valid_config(algorithm), method)
            continue
        for name in options:
            default = defaults["attributes"].get(name)
            values = [FIXED_VALUES[name]] if name in FIXED_VALUES else other_values(default)
            effects = {}
            for value in values:
                effects[str(value)] = option_effect(make_valid_config(algorithm), method, name, value)
            # The default may be refused, but must raise no other error than a UserError.
            option_effect(make_valid_config(algorithm), method, name, default)
            if "does nothing" in effects.values() and name != "framework":
                options_without_effect.append((method, name, default, effects))
    assert options_without_effect == []


@pytest.mark.parametrize("algorithm", CONFIGS)
def test_default_options_change_nothing(rllib_options: Mapping[str, Any], algorithm: str) -> None:
    defaults = rllib_options[algorithm if algorithm == "AlgorithmConfig" else f"{algorithm}Config"]
    for method, options in defaults["methods"].items():
        for name in () if method in REMOVED_METHODS else options:
            if name not in defaults["attributes"]:
                continue
            try:
                set_options = getattr(make_valid_config(algorithm), method)
                set_options(**{name: defaults["attributes"][name]}).validate()
            except UserError as error:
                assert REFUSED_DEFAULTS.get(name, "accepted") in str(error), (method, name)


@pytest.mark.parametrize("algorithm", CONFIGS)
def test_every_changed_attribute_has_an_effect_or_a_note(
    rllib_options: Mapping[str, Any], algorithm: str
) -> None:
    """Attributes that RLlib's users read, call or assign have a value or a clear error."""
    defaults = rllib_options[algorithm if algorithm == "AlgorithmConfig" else f"{algorithm}Config"]
    uses = [
        (name, partial(getattr, make_valid_config(algorithm), name))
        for name in (*defaults["attributes"], *defaults["other_methods"])
    ]
    for name, default in defaults["attributes"].items():
        uses.append((name, partial(setattr, make_valid_config(algorithm), name, default)))
    for name, use in uses:
        try:
            use()
        except UserError as error:
            assert name in str(error)


def test_every_rllib_option_is_in_the_options_table(rllib_options: Mapping[str, Any]) -> None:
    """Except options with a leading underscore. Options of an algorithm may be in its schema instead."""
    missing = []
    for config, methods in rllib_options.items():
        algorithm = None if config == "AlgorithmConfig" else config.removesuffix("Config")
        for method, options in methods["methods"].items():
            for name in options:
                if name[0] == "_" or method in REMOVED_METHODS or name in OPTIONS.get(method, {}):
                    continue
                if method == "training":
                    if is_default_of_missing_option(algorithm, name, None):
                        continue
                    try:
                        check_name(algorithm, method, name, None)
                        continue
                    except UserError as error:
                        if re.search(r"\bis an option of ", str(error)):
                            continue
                missing.append((config, method, name))
    assert missing == []


@pytest.mark.parametrize("algorithm", CONFIGS[1:])
def test_defaults_that_differ_are_in_the_table(rllib_options: Mapping[str, Any], algorithm: str) -> None:
    attributes = rllib_options[f"{algorithm}Config"]["attributes"]
    attributes |= {
        "train_batch_size_per_learner": attributes["train_batch_size"],
        "lambda_": attributes.get("lambda"),
    }
    expected = {}
    for field, option in options_of(algorithm).items():
        name = to_option_name(field)
        rllib_default = attributes.get(name)
        # -1 marks RLlib's deprecated options; "auto" and None both leave the choice to the algorithm.
        if option["default"] != rllib_default and rllib_default not in (None, -1, "auto", "global_norm"):
            expected[name] = rllib_default
    assert RLLIB_DEFAULTS.get(algorithm, {}) == expected
