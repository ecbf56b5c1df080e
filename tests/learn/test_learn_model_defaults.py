"""Defaults of networks: each algorithm's own, below the user's options; and how they are described."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hindcast.algorithms import REGISTRY, build
from hindcast.api.model import LayerOptions, ModelOptions, ModelSpec
from hindcast.errors import SpecError
from hindcast.learn.model_defaults import complete_model, differences_from_rllib
from hindcast.models.network_text import describe_networks
from hindcast.record.environments import Spaces
from hindcast.run.training.trainer import Networks, build_networks

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
BOUNDED = gym.spaces.Box(-2, 2, (1,), np.float32)
UNBOUNDED = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
DISCRETE = gym.spaces.Discrete(2)
LAYERS = {
    "fcnet_hiddens": st.lists(st.integers(1, 9), max_size=2),
    "fcnet_activation": st.sampled_from(["tanh", "relu", "gelu"]),
    "layer_norm": st.booleans(),
    "dropout": st.sampled_from([0.0, 0.25]),
}
USER_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        **LAYERS,
        "policy": st.fixed_dictionaries({}, optional=LAYERS),
        "critics": st.fixed_dictionaries({}, optional=LAYERS),
        "free_log_std": st.booleans(),
        "observation_filter": st.sampled_from(["none", "meanStd"]),
        "frame_stack": st.sampled_from([1, 2]),
        "preset": st.just("rllib"),
    },
)


def new_networks(name: str, space: gym.Space[Any] = BOUNDED, **model: Any) -> Networks:
    return build_networks(
        build(name, {}), Spaces(OBS, space), ModelOptions.model_validate(model), None, seed=0
    )


@pytest.mark.parametrize("name", REGISTRY)
@given(options=USER_OPTIONS)
@settings(max_examples=25, deadline=None)
def test_option_of_the_user_precedes_that_of_the_algorithm(name: str, options: dict[str, Any]) -> None:
    """Precedence: the user's for one network, the user's for all, the algorithm's for one, the algorithm's, RLlib's."""
    model = complete_model(build(name, {}), ModelOptions.model_validate(options), BOUNDED)
    defaults = ModelOptions() if "preset" in options else build(name, {}).model_defaults(BOUNDED)
    for role in ("policy", "critics"):
        layers = model.for_network(role)
        for option in LAYERS:
            candidates = (
                options.get(role, {}).get(option),
                options.get(option),
                getattr(getattr(defaults, role), option),
                getattr(defaults, option),
                getattr(ModelSpec(), option),
            )
            assert getattr(layers, option) == next(value for value in candidates if value is not None)
        assert layers.policy == layers.critics == LayerOptions()
    for option in ("free_log_std", "observation_filter", "frame_stack"):
        if option in options:
            assert getattr(model, option) == options[option]


@pytest.mark.parametrize("name", REGISTRY)
def test_preset_is_the_network_of_rllib_for_every_algorithm(name: str) -> None:
    algorithm = build(name, {})
    assert complete_model(algorithm, ModelOptions(preset="rllib"), BOUNDED) == ModelSpec()
    assert differences_from_rllib(algorithm, ModelOptions(preset="rllib"), BOUNDED) is None


@pytest.mark.parametrize(
    ("name", "networks"),
    {
        "CQL": {
            "policy": "3-256-256-256-2, relu, SquashedGaussian with log std from -20 to 2, 133,122 parameters",
            "critics": "4-256-256-256-1, relu, 2 members, 266,242 parameters",
        },
        "IQL": {
            "policy": "3-256-256-1, relu, BoundedGaussian with free log std from -5 to 2, 67,074 parameters",
            "value": "3-256-256-1, relu, 67,073 parameters",
            "critics": "4-256-256-1, relu, 2 members, 134,658 parameters",
        },
        "ReBRAC": {
            "policy": "3-256-256-256-1, relu, SquashedDeterministic, 132,865 parameters",
            "critics": "4-256-256-256-1, relu, layer norm, 2 members, 269,314 parameters",
        },
        "TD3BC": {
            "policy": "3-256-256-1, relu, SquashedDeterministic, 67,073 parameters",
            "critics": "4-256-256-1, relu, 2 members, 134,658 parameters",
        },
    }.items(),
)
def test_networks_are_the_papers_by_default(name: str, networks: dict[str, str]) -> None:
    descriptions = describe_networks(new_networks(name).nets)
    assert {net: descriptions[net] for net in networks} == networks


def test_distribution_follows_the_bounds_of_actions() -> None:
    distributions = [
        complete_model(build("IQL", {}), ModelOptions(), space).distribution
        for space in (BOUNDED, UNBOUNDED, DISCRETE, gym.spaces.Dict(a=BOUNDED, b=DISCRETE), None)
    ]
    assert distributions == ["boundedGaussian", "auto", "auto", "boundedGaussian", "auto"]


def test_option_for_one_network_changes_no_other() -> None:
    nets = describe_networks(new_networks("IQL", policy={"dropout": 0.1, "fcnet_hiddens": [8]}).nets)
    assert nets["policy"].startswith("3-8-1, relu, dropout 0.1")
    assert nets["critics"].startswith("4-256-256-1, relu, 2 members")


def test_clip_of_the_user_replaces_default_bounds_of_the_deviation() -> None:
    model = complete_model(build("IQL", {}), ModelOptions(log_std_clip=3.0), BOUNDED)
    assert model.log_std_range == (-3.0, 3.0)
    with pytest.raises(SpecError, match=r"logStdMin is 4 and logStdMax 2, where one is the default of IQL"):
        complete_model(build("IQL", {}), ModelOptions(log_std_min=4.0), BOUNDED)


def test_note_lists_where_rllib_differs() -> None:
    note = differences_from_rllib(build("SAC", {}), ModelOptions(), BOUNDED)
    assert note is not None
    assert "fcnetActivation relu, logStdMax 2.0" in note
    assert differences_from_rllib(build("PPO", {}), ModelOptions(), BOUNDED) is None
