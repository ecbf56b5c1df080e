"""Options of Adam reach every algorithm's optimisers."""

import pytest
import torch
from algorithm_kit import build_algorithm

from hindcast.algorithms.bc import BC
from hindcast.errors import SpecError
from hindcast.learn.learner import Learner
from hindcast.learn.optimisers import OptimiserSpec


@pytest.mark.parametrize("name", ["TD3BC", "SAC", "DecisionTransformer"])
def test_adam_has_the_epsilon_and_the_weight_decay_of_the_options(name):
    learner = Learner(*build_algorithm(name, {"adamEpsilon": 1e-3, "weightDecay": 0.1}))
    optimisers = {key: optimiser.torch_optimiser for key, optimiser in learner._optimisers.items()}
    groups = {key: optimiser.param_groups[0] for key, optimiser in optimisers.items()}
    assert {group["eps"] for group in groups.values()} == {1e-3}
    # Decay would move a multiplier such as α to 1.
    assert {key: group["weight_decay"] for key, group in groups.items()} == {
        key: 0.0 if key == "alpha" else 0.1 for key in groups
    }
    assert {key for key, optimiser in optimisers.items() if isinstance(optimiser, torch.optim.AdamW)} == {
        key for key in groups if key != "alpha"
    }


def test_default_options_of_adam_equal_torch():
    for name, decay in (("BC", 0.0), ("DecisionTransformer", 1e-4)):
        optimiser = Learner(*build_algorithm(name))._optimisers["policy"].torch_optimiser
        assert (optimiser.defaults["eps"], optimiser.defaults["weight_decay"]) == (1e-8, decay)


class StochasticDescent(BC):
    """Has another optimiser than Adam."""

    def optimisers(self, nets):
        return {"policy": OptimiserSpec(list(nets.parameters()), 0.1, "sgd")}


@pytest.mark.parametrize("option", ["weightDecay", "adamEpsilon"])
def test_options_of_adam_are_refused_for_other_optimisers(option):
    _, nets = build_algorithm("BC")
    Learner(StochasticDescent(BC.Options()), nets)
    with pytest.raises(
        SpecError, match=f"{option} applies to Adam, but the algorithm's optimiser 'policy' is 'sgd'"
    ):
        Learner(StochasticDescent(BC.Options.model_validate({option: 0.1})), nets)
