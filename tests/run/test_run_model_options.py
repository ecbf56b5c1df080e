"""Each model option either changes what an algorithm builds, or a note says that it has no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from hindcast.algorithms import REGISTRY, build
from hindcast.api.model import ModelOptions
from hindcast.errors import SpecError
from hindcast.learn.algorithm import needs_for
from hindcast.models.policy import Policy
from hindcast.record.environments import Spaces
from hindcast.run.ineffective_fields import notes_on_ineffective_fields
from hindcast.run.training.trainer import Networks, build_networks
from layers import slow_except
from support import training

VECTOR = gym.spaces.Box(-1, 1, (3,))
IMAGE = gym.spaces.Box(0, 255, (5, 5, 1), np.uint8)
ACTION_SPACES = (gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2,)))
INITIALIZER = {"name": "constant", "kwargs": {"val": 0.3}}
OPTION_VALUES: dict[str, Any] = {
    "fcnetHiddens": [5],
    "fcnetActivation": "silu",
    "layerNorm": True,
    "dropout": 0.5,
    "preset": "RLlib",
    "policy": {"dropout": 0.4},
    "critics": {"dropout": 0.4},
    "vfShareLayers": True,
    "headFcnetHiddens": [5],
    "distribution": "BoundedGaussian",
    "freeLogStd": True,
    "logStdClip": 2.0,
    "logStdMin": -2.0,
    "logStdMax": 0.5,
    "convFilters": [[3, 2, 2]],
    "convActivation": "tanh",
    "convPadding": "same",
    "observationFilter": "MeanStd",
    "frameStack": 2,
    "recurrent": "GRU",
    "cellSize": 3,
    "maxSeqLen": 7,
    "burnIn": 2,
    "initialState": "Recorded",
    "moduleOptions": {"units": 3},
    **{
        f"{part}{kind}Initializer": INITIALIZER
        for part in ("fcnet", "headFcnet", "conv", "recurrent")
        for kind in ("Kernel", "Bias")
    },
}
"""Option -> value that is neither RLlib's default nor in a case."""
OTHER_VALUES: dict[str, Any] = {
    "distribution": "SquashedGaussian",
    "freeLogStd": False,
    "observationFilter": "None",
}
"""Option -> value to try where that of `OPTION_VALUES` is the algorithm's default."""
SMALL_CONFIGS = {
    "DecisionTransformer": {
        "embedSize": 4,
        "numLayers": 1,
        "contextLength": 2,
        "targetReturn": 1.0,
        "returnScale": 1000.0,
    }
}
"""Algorithm -> options; a `returnScale` that is not fitted yet is NaN, which equals nothing."""


class Case(NamedTuple):
    """An observation space, model options, and prefixes of the further options to try with them."""

    space: gym.Space[Any]
    model: Mapping[str, Any]
    prefixes: tuple[str, ...] = ("",)


HIDDEN_LAYER = {"fcnetHiddens": [4]}
LAYER_OPTIONS = ("fcnet", "headFcnet", "layerNorm", "dropout")
CASES = {
    "dense layers": Case(VECTOR, HIDDEN_LAYER),
    "no dense layers": Case(VECTOR, {"fcnetHiddens": []}, LAYER_OPTIONS),
    "dense layers of heads alone": Case(VECTOR, {"fcnetHiddens": [], "headFcnetHiddens": [4]}, LAYER_OPTIONS),
    "images": Case(
        IMAGE, {**HIDDEN_LAYER, "convFilters": [[2, 2, 2]]}, ("conv", "observationFilter", "frameStack")
    ),
    "numbers": Case(gym.spaces.Discrete(3), HIDDEN_LAYER, ("conv", "observationFilter", "frameStack")),
    "a state": Case(VECTOR, {**HIDDEN_LAYER, "recurrent": "LSTM", "cellSize": 4}),
    "a Gaussian": Case(VECTOR, {**HIDDEN_LAYER, "distribution": "Gaussian"}, ("freeLogStd", "logStd")),
    "no deviation": Case(VECTOR, {**HIDDEN_LAYER, "distribution": "Deterministic"}, ("freeLogStd", "logStd")),
    "both ends": Case(VECTOR, {**HIDDEN_LAYER, "logStdMin": -3.0, "logStdMax": 1.0}, ("logStd",)),
}


class BuiltPolicy(NamedTuple):
    """A policy that an algorithm built, with a description of its networks and data, and its weights."""

    networks: Networks
    policy: Policy
    description: list[object]
    weights: Mapping[str, Tensor]

    def equals(self, other: BuiltPolicy) -> bool:
        """Return True if nothing but the policy's copy of the options differs."""
        return self.description == other.description and all(
            torch.equal(weights, other.weights[name]) for name, weights in self.weights.items()
        )


def build_case(
    name: str, case: Case, actions: gym.Space[Any], options: Mapping[str, Any]
) -> BuiltPolicy | None:
    """Build a policy, or return None if the algorithm refuses these options."""
    algorithm, model = (
        build(name, SMALL_CONFIGS.get(name, {})),
        ModelOptions.model_validate({**case.model, **options}),
    )
    try:
        networks = build_networks(algorithm, Spaces(case.space, actions), model, None, seed=0)
        policy, _ = networks.make_policy_and_learner()
        needs = needs_for(algorithm, policy.module)
    except SpecError:
        return None
    preprocessing_options = (sorted(policy.preprocessing.filters), policy.preprocessing.stacked_leaves)
    description = [repr(networks.nets), repr(policy.module.action_head), preprocessing_options, needs]
    return BuiltPolicy(networks, policy, description, networks.nets.state_dict())


def find_wrong_options(name: str, case: Case, actions: gym.Space[Any]) -> Iterator[str]:
    """Yield options that have neither an effect nor a note, or both."""
    default_policy = build_case(name, case, actions, {})
    defaults = build(name, {}).model_defaults(actions).model_dump(by_alias=True)
    for option, usual_value in OPTION_VALUES.items() if default_policy else ():
        value = OTHER_VALUES[option] if defaults[option] == usual_value else usual_value
        changed_policy = (
            build_case(name, case, actions, {option: value}) if option.startswith(case.prefixes) else None
        )
        if default_policy and changed_policy:
            resource = training("runs", "data", model={**case.model, option: value})
            notes = notes_on_ineffective_fields(resource, is_one_machine=True)
            notes += map(str, changed_policy.networks.notes(changed_policy.policy))
            if (f"spec.model.{option}" in [note.split()[0] for note in notes]) != changed_policy.equals(
                default_policy
            ):
                yield option


def test_values_cover_every_option() -> None:
    """`moduleClass` is left out, because it replaces the network."""
    assert OPTION_VALUES.keys() == {field.alias for field in ModelOptions.model_fields.values()} - {
        "moduleClass"
    }


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", slow_except(["BC", "IQL", "DQN"], REGISTRY))
def test_option_has_effect_or_note(name: str, case: str) -> None:
    assert [list(find_wrong_options(name, CASES[case], actions)) for actions in ACTION_SPACES] == [[], []]
