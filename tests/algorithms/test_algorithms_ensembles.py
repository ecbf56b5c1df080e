"""Ensembles of critics: how their values are combined, random subsets (REDQ, RLPD), EDAC's diversity."""

import numpy as np
import pytest
import torch
from algorithm_kit import WIDE, build_algorithm, compute_loss_stages, make_step, make_transitions

from hindcast.api.loading import validate_resource
from hindcast.errors import SpecError
from hindcast.learn.batches import compute_td_target
from hindcast.learn.learner import Learner

ENSEMBLE_ALGORITHMS = ("SAC", "CQL", "TD3BC", "ReBRAC", "FQL")
NO_PENALTY = {"CQL": {"minQWeight": 0.0, "numActions": 1}, "ReBRAC": {"criticBeta": 0.0}}
SHIFT = 100.0


def build_apart(name, config):
    """Build an algorithm whose critics are 0, and whose target critics are about 0, 100, 200 and so on."""
    algorithm, nets = build_algorithm(name, {**NO_PENALTY.get(name, {}), **config}, WIDE)
    critics = nets["target_critics"]
    with torch.no_grad():
        critics.stack[-1].bias.add_(SHIFT * torch.arange(critics.members).reshape(-1, 1, 1))
        for parameter in (nets["policy"].critics if name == "FQL" else nets["critics"]).parameters():
            parameter.zero_()
    return algorithm, nets


def mean_target(algorithm, nets, seed=0):
    """Return the root mean square of an update's targets, from the loss of critics whose values are 0."""
    batch = make_transitions(WIDE)
    batch["rewards"], batch["discounts"] = torch.zeros(32), torch.ones(32)
    losses = compute_loss_stages(algorithm, nets, batch, make_step(seed=seed))[0].losses
    return float(losses["critics"].detach() / nets["target_critics"].members) ** 0.5


@pytest.mark.parametrize("name", ENSEMBLE_ALGORITHMS)
@pytest.mark.parametrize("num_critics", [1, 2, 5])
def test_target_is_the_minimum_or_the_mean(name, num_critics):
    config = {"numCritics": num_critics}
    minimum, mean = (
        mean_target(*build_apart(name, {**config, "qAggregation": aggregation}))
        for aggregation in ("min", "mean")
    )
    assert minimum == pytest.approx(0, abs=10)
    assert mean == pytest.approx(SHIFT * (num_critics - 1) / 2, abs=10)


@pytest.mark.parametrize("name", ENSEMBLE_ALGORITHMS)
def test_subset_is_drawn_anew_in_each_update(name):
    """The minimum of two of five critics is 0, 1, 2 or 3 shifts with probabilities .4, .3, .2 and .1."""
    built = build_apart(name, {"numCritics": 5, "qSubset": 2, "qAggregation": "min"})
    minima = [round(mean_target(*built, seed) / SHIFT) for seed in range(40)]
    assert set(minima) == {0, 1, 2, 3}
    assert np.mean(minima) == pytest.approx(1.0, abs=0.5)
    assert mean_target(*built, seed=3) == mean_target(*built, seed=3)


@pytest.mark.parametrize(
    ("config", "is_mean"), [({}, False), ({"qAggregation": "mean"}, True), ({"qSubset": 2}, True)]
)
def test_policy_follows_the_minimum_or_the_mean(config, is_mean):
    algorithm, nets = build_algorithm("SAC", {"numCritics": 4, **config}, WIDE)
    q = torch.randn((4, 3), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(algorithm.combine(q), q.mean(0) if is_mean else q.amin(0))
    assert nets["critics"].members == nets["target_critics"].members == 4


@pytest.mark.parametrize("num_critics", [2, 3])
def test_diversity_is_the_mean_cosine_of_gradients(num_critics):
    batch, losses = make_transitions(WIDE), {}
    for diversity in (0.0, 0.7):
        config = {"numCritics": num_critics, "diversity": diversity}
        algorithm, nets = build_algorithm("SAC", config, WIDE, fcnet_activation="relu")
        losses[diversity] = compute_loss_stages(algorithm, nets, batch)[0].losses["critics"]
    cosines = []
    for row in range(32):
        gradients = []
        for member in range(num_critics):
            action = batch["actions"][row : row + 1].clone().requires_grad_()
            value = nets["critics"]({"obs": batch["obs"][row : row + 1]}, action)[member].sum()
            gradients.append(torch.autograd.grad(value, action)[0][0])
        cosines += [
            float(torch.cosine_similarity(gradients[i], gradients[j], dim=0))
            for i in range(num_critics)
            for j in range(num_critics)
            if i != j
        ]
    expected = 0.7 * sum(cosines) / 32 / (num_critics - 1)
    assert float((losses[0.7] - losses[0.0]).detach()) == pytest.approx(expected, rel=1e-3)


def test_diversity_turns_gradients_apart():
    similarities = []
    for diversity in (0.0, 20.0):
        config = {"numCritics": 4, "diversity": diversity, "criticLr": 3e-3}
        algorithm, nets = build_algorithm("SAC", config, WIDE, fcnet_activation="relu")
        learner = Learner(algorithm, nets)
        for seed in range(30):
            learner.update(make_transitions(WIDE, seed=seed))
        gradients = nets["critics"].values_and_gradients(make_transitions(WIDE, seed=99))[1]
        directions = torch.nn.functional.normalize(gradients, dim=-1).sum(0)
        similarities.append(float((directions.square().sum(-1) - 4).mean().detach()))
    assert similarities[1] < similarities[0] - 1


def test_subset_of_more_critics_than_there_are_is_refused():
    spec = {
        "algorithm": "SAC",
        "config": {"qSubset": 3},
        "input": [{"path": "a"}],
        "stop": {"updates": 1},
    }
    header = {"apiVersion": "hindcast.dev/v1alpha1", "kind": "OfflineTraining", "metadata": {"name": "a"}}
    with pytest.raises(SpecError, match=r"qSubset is 3, expected at most spec\.config\.numCritics, 2"):
        validate_resource({**header, "spec": spec})


def test_default_targets_use_both_critics_as_before():
    algorithm, nets = build_algorithm("TD3BC", {"targetNoise": 0.0}, WIDE)
    batch = make_transitions(WIDE)
    q = torch.stack([torch.zeros(32), torch.ones(32)])
    assert algorithm.draw_subset(batch, make_step()) is batch
    torch.testing.assert_close(
        compute_td_target(batch, algorithm.combine_targets(batch, q)), batch["rewards"]
    )
    assert nets["critics"].members == 2
