"""Each model option either changes what an algorithm builds, or a note says that it has no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from hindcast.algorithms import REGISTRY, build
from hindcast.api.model import ModelSpec
from hindcast.errors import SpecError
from hindcast.learn.algorithm import ModelInputs, needs_for, new_networks
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import RLModule
from hindcast.run.ineffective_fields import notes_on_ineffective_fields
from hindcast.run.training.trainer import notes_on_policy
from layers import slow_except
from support import training

VECTOR = gym.spaces.Box(-1, 1, (3,))
IMAGE = gym.spaces.Box(0, 255, (5, 5, 1), np.uint8)
ACTION_SPACES = (gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2,)))
INITIALIZER = {"name": "constant", "kwargs": {"val": 0.3}}
OPTION_VALUES: dict[str, Any] = {
    "fcnetHiddens": [5],
    "fcnetActivation": "relu",
    "layerNorm": True,
    "dropout": 0.5,
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
"""Option -> value that is neither its default nor in a case."""
SMALL_CONFIGS = {
    "DecisionTransformer": {"embedSize": 4, "numLayers": 1, "contextLength": 2, "targetReturn": 1.0}
}


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
        ModelSpec.model_validate({**case.model, **options}),
    )
    try:
        preprocessing = Preprocessing.from_specs(case.space, actions, model)
        inputs = ModelInputs(preprocessing.observation_space, preprocessing.action_space, model)
        nets = new_networks(algorithm, inputs, seed=0)
        module = cast(RLModule, nets["policy"])
        needs = needs_for(algorithm, module)
    except SpecError:
        return None
    preprocessing_options = (sorted(preprocessing.filters), preprocessing.stacked_leaves)
    description = [repr(nets), repr(module.action_head), preprocessing_options, needs]
    return BuiltPolicy(Policy(module, preprocessing, case.space, actions), description, nets.state_dict())


def find_wrong_options(name: str, case: Case, actions: gym.Space[Any]) -> Iterator[str]:
    """Yield options that have neither an effect nor a note, or both."""
    default_policy = build_case(name, case, actions, {})
    for option, value in OPTION_VALUES.items() if default_policy else ():
        changed_policy = (
            build_case(name, case, actions, {option: value}) if option.startswith(case.prefixes) else None
        )
        if default_policy and changed_policy:
            resource = training("runs", "data", model={**case.model, option: value})
            notes = notes_on_ineffective_fields(resource, is_one_machine=True)
            notes += map(str, notes_on_policy(changed_policy.policy, resource.spec.model))
            if (f"spec.model.{option}" in [note.split()[0] for note in notes]) != changed_policy.equals(
                default_policy
            ):
                yield option


def test_values_cover_every_option() -> None:
    """`moduleClass` is left out, because it replaces the network."""
    assert OPTION_VALUES.keys() == {field.alias for field in ModelSpec.model_fields.values()} - {
        "moduleClass"
    }


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", slow_except(["BC", "IQL", "DQN"], REGISTRY))
def test_option_has_effect_or_note(name: str, case: str) -> None:
    assert [list(find_wrong_options(name, CASES[case], actions)) for actions in ACTION_SPACES] == [[], []]
