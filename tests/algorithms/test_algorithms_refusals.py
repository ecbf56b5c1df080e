"""Actions, models and combinations of options for which an algorithm builds no networks."""

import re

import numpy as np
import pytest
from algorithm_kit import BOX, build_algorithm
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from hindcast.algorithms import REGISTRY
from hindcast.errors import SpecError

CHOICES = Discrete(3, start=5)
UNBOUNDED = Box(-np.inf, np.inf, (2,), np.float32)


@pytest.mark.parametrize("name", ["TD3BC", "ReBRAC", "FQL", "CQL", "SAC"])
@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (CHOICES, "requires continuous actions in one float Box, not Discrete"),
        (UNBOUNDED, "requires bounded actions"),
    ],
)
def test_actions_that_are_not_a_bounded_box_are_refused(name, space, sentence):
    with pytest.raises(SpecError, match=f"spec.algorithm: {name} {sentence}"):
        build_algorithm(name, {}, space)


@pytest.mark.parametrize("name", ["DQN", "DiscreteCQL", "DiscreteSAC"])
@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (
            BOX,
            f"requires one discrete action, a Discrete or MultiDiscrete space, not {BOX}; use SAC, CQL or TD3BC for "
            "continuous actions, and IQL, MARWIL or BC for other actions.",
        ),
        (
            MultiDiscrete([17, 241]),
            "computes a value for each combination of an action's elements, but MultiDiscrete([ 17 241]) has 4,097 "
            "combinations, more than 4,096; use IQL, MARWIL or BC with independent elements (distribution Auto), or "
            "fewer values per element.",
        ),
    ],
    ids=["Box", "MultiDiscrete"],
)
def test_actions_that_cannot_be_enumerated_are_refused_with_alternatives(name, space, sentence):
    with pytest.raises(SpecError) as error:
        build_algorithm(name, {}, space)
    assert str(error.value) == f"spec.algorithm: {name} {sentence}"


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
@pytest.mark.parametrize(
    "space", [CHOICES, MultiDiscrete([2, 3]), BOX, UNBOUNDED], ids=lambda space: type(space).__name__
)
@pytest.mark.parametrize(
    "name", [name for name, algorithm in REGISTRY.items() if algorithm.can_train_recurrent]
)
def test_first_algorithm_of_a_remedy_can_learn_the_actions(name, space, recurrent):
    try:
        build_algorithm(name, {}, space, recurrent=recurrent)
    except SpecError as error:
        names = re.findall(r"\b[A-Z]\w+\b", str(error).rpartition("; use ")[2].partition(" for other")[0])
        names = [name for name in names if name in REGISTRY]
        assert names
        for remedy in names:
            assert recurrent == "none" or REGISTRY[remedy].can_train_recurrent
        build_algorithm(names[0], {}, space, recurrent=recurrent)


@pytest.mark.parametrize(
    ("name", "distribution", "alternatives"),
    [
        ("TD3BC", "gaussian", "Auto, Deterministic, SquashedDeterministic"),
        ("ReBRAC", "squashedGaussian", "Auto, Deterministic, SquashedDeterministic"),
        ("FQL", "gaussian", "Auto"),
        ("CQL", "deterministic", "Auto, Gaussian, "),
        ("SAC", "deterministic", "Auto, Gaussian, "),
        ("IQL", "deterministic", "Auto, Categorical, "),
        ("MARWIL", "deterministic", "Auto, "),
        ("PPO", "deterministic", "Auto, "),
    ],
)
def test_distribution_that_the_algorithm_cannot_train_is_refused(name, distribution, alternatives):
    with pytest.raises(SpecError, match=f"which {name} cannot train: use {alternatives}"):
        build_algorithm(name, distribution=distribution)


@pytest.mark.parametrize(
    ("name", "space", "model", "sentence"),
    [
        (
            "DQN",
            CHOICES,
            {"module_class": "a:B"},
            "DQN builds its policy from action values: leave moduleClass",
        ),
        ("FQL", BOX, {"recurrent": "lstm"}, "FQL builds its own kind of policy"),
        ("DecisionTransformer", CHOICES, {"recurrent": "lstm"}, "builds its own kind of policy"),
        (
            "DecisionTransformer",
            CHOICES,
            {"distribution": "gaussian"},
            "'Gaussian' is for continuous actions",
        ),
    ],
)
def test_policy_that_the_algorithm_cannot_build_is_refused(name, space, model, sentence):
    with pytest.raises(SpecError, match=sentence):
        build_algorithm(name, {}, space, **model)


def test_log_std_term_of_discrete_policy_is_refused():
    with pytest.raises(SpecError, match="bcLogstdCoeff applies to Gaussian policies"):
        build_algorithm("MARWIL", {"bcLogstdCoeff": 0.1}, Discrete(2))
