"""ReBRAC's penalties against their formulas, row by row."""

import numpy as np
import pytest
import torch
from algorithm_kit import WIDE, made, stages, step, transitions
from torch import nn

from hindcast.models.networks import MemberLinear

HALF = (2.0, 0.5)


def actions_of(policy, observations):
    return policy.distribution(policy.forward_train({"obs": observations})["action_dist_inputs"]).mode()


def far(one, other):
    """The squared distance of two actions, in half ranges."""
    return sum(((float(a) - float(b)) / half) ** 2 for a, b, half in zip(one, other, HALF, strict=True))


@torch.no_grad()
def test_the_targets_are_lowered_where_the_next_action_is_known():
    algorithm, nets = made("ReBRAC", {"targetNoise": 0.0, "criticBeta": 0.5}, WIDE)
    batch = transitions(WIDE)
    batch["followed"] = torch.arange(32) % 2 == 0
    batch["discounts"][:8] = 0.99  # some truncated: their next values count, and have no penalty
    chosen = actions_of(nets["target_policy"], batch["new_obs"])
    values = nets["target_critics"]({"obs": batch["new_obs"]}, chosen).amin(0)
    taken = nets["critics"](batch)
    total = 0.0
    for row in range(32):
        penalty = 0.5 * far(chosen[row], batch["new_actions"][row]) if row % 2 == 0 else 0.0
        wanted = batch["rewards"][row] + batch["discounts"][row] * (values[row] - penalty)
        total += float((taken[0, row] - wanted) ** 2 + (taken[1, row] - wanted) ** 2) / 32
    assert float(stages(algorithm, nets, batch)[0].losses["critics"]) == pytest.approx(total, rel=1e-5)


@torch.no_grad()
def test_the_noisy_action_is_the_one_that_is_penalised():
    batch = transitions(WIDE)
    normal = torch.randn((32, 2), generator=torch.Generator().manual_seed(0))
    wanted = {}
    for beta in (0.0, 1.0):
        algorithm, nets = made("ReBRAC", {"criticBeta": beta}, WIDE)
        wanted[beta] = algorithm._wanted(nets, batch, normal)
    noise = (0.2 * normal).clamp(-0.5, 0.5)
    chosen = actions_of(nets["target_policy"], batch["new_obs"]) + noise * torch.tensor(HALF)
    chosen = chosen.clamp(torch.tensor(WIDE.low), torch.tensor(WIDE.high))
    distances = [far(*pair) for pair in zip(chosen, batch["new_actions"], strict=True)]
    torch.testing.assert_close(wanted[0.0] - wanted[1.0], batch["discounts"] * torch.tensor(distances))


@pytest.mark.parametrize("normalises", [True, False])
@torch.no_grad()
def test_the_policys_loss(normalises):
    algorithm, nets = made("ReBRAC", {"actorBeta": 0.3, "normalizeQ": normalises}, WIDE)
    batch = transitions(WIDE)
    with torch.enable_grad():
        moved = stages(algorithm, nets, batch, step(updates=1))[1]
    chosen = actions_of(nets["policy"], batch["obs"])
    values = nets["critics"](batch, chosen).amin(0).tolist()
    scale = np.mean(np.abs(values)) if normalises else 1.0
    cloning = np.mean([far(*pair) for pair in zip(chosen, batch["actions"], strict=True)])
    expected = 0.3 * cloning - np.mean(values) / scale
    assert float(moved.losses["policy"].detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("normalises", [True, False])
def test_its_critics_are_normalised_and_its_policy_is_not(normalises):
    _, nets = made("ReBRAC", {"criticLayerNorm": normalises})
    of_each_layer = [each for each in nets["critics"].stack if not isinstance(each, MemberLinear)]
    scales = [each for each in of_each_layer if list(each.parameters())]
    assert len(scales) == (2 if normalises else 0)
    assert not any(isinstance(each, nn.LayerNorm) for each in nets["policy"].modules())
