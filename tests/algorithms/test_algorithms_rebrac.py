"""ReBRAC's penalties against their formulas, row by row."""

import numpy as np
import pytest
import torch
from algorithm_kit import WIDE, build_algorithm, stages, step, transitions
from torch import nn

from hindcast.models.networks import MemberLinear

HALF = (2.0, 0.5)


def actions_of(policy, observations):
    return policy.distribution(policy.forward_train({"obs": observations})["action_dist_inputs"]).mode()


def far(one, other):
    """Return the squared distance of two actions, in half ranges."""
    return sum(((float(a) - float(b)) / half) ** 2 for a, b, half in zip(one, other, HALF, strict=True))


@torch.no_grad()
def test_targets_are_penalised_where_the_next_action_is_recorded():
    algorithm, nets = build_algorithm("ReBRAC", {"targetNoise": 0.0, "criticBeta": 0.5}, WIDE)
    batch = transitions(WIDE)
    batch["followed"] = torch.arange(32) % 2 == 0
    batch["discounts"][:8] = 0.99  # some truncated: their next values count, and have no penalty
    next_actions = actions_of(nets["target_policy"], batch["new_obs"])
    values = nets["target_critics"]({"obs": batch["new_obs"]}, next_actions).amin(0)
    q = nets["critics"](batch)
    total = 0.0
    for row in range(32):
        penalty = 0.5 * far(next_actions[row], batch["new_actions"][row]) if row % 2 == 0 else 0.0
        td_target = batch["rewards"][row] + batch["discounts"][row] * (values[row] - penalty)
        total += float((q[0, row] - td_target) ** 2 + (q[1, row] - td_target) ** 2) / 32
    assert float(stages(algorithm, nets, batch)[0].losses["critics"]) == pytest.approx(total, rel=1e-5)


@torch.no_grad()
def test_penalty_applies_to_the_noisy_action():
    batch = transitions(WIDE)
    normal = torch.randn((32, 2), generator=torch.Generator().manual_seed(0))
    expected = {}
    for beta in (0.0, 1.0):
        algorithm, nets = build_algorithm("ReBRAC", {"criticBeta": beta}, WIDE)
        expected[beta] = algorithm._td_target(nets, batch, normal)
    noise = (0.2 * normal).clamp(-0.5, 0.5)
    next_actions = actions_of(nets["target_policy"], batch["new_obs"]) + noise * torch.tensor(HALF)
    next_actions = next_actions.clamp(torch.tensor(WIDE.low), torch.tensor(WIDE.high))
    distances = [far(*pair) for pair in zip(next_actions, batch["new_actions"], strict=True)]
    torch.testing.assert_close(expected[0.0] - expected[1.0], batch["discounts"] * torch.tensor(distances))


@pytest.mark.parametrize("normalises", [True, False])
@torch.no_grad()
def test_policy_loss_equals_the_formula(normalises):
    algorithm, nets = build_algorithm("ReBRAC", {"actorBeta": 0.3, "normalizeQ": normalises}, WIDE)
    batch = transitions(WIDE)
    with torch.enable_grad():
        losses = stages(algorithm, nets, batch, step(updates=1))[1]
    policy_actions = actions_of(nets["policy"], batch["obs"])
    values = nets["critics"](batch, policy_actions).amin(0).tolist()
    scale = np.mean(np.abs(values)) if normalises else 1.0
    cloning = np.mean([far(*pair) for pair in zip(policy_actions, batch["actions"], strict=True)])
    expected = 0.3 * cloning - np.mean(values) / scale
    assert float(losses.losses["policy"].detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("normalises", [True, False])
def test_layer_norm_applies_to_critics_only(normalises):
    _, nets = build_algorithm("ReBRAC", {"criticLayerNorm": normalises})
    layers = [layer for layer in nets["critics"].stack if not isinstance(layer, MemberLinear)]
    scales = [layer for layer in layers if list(layer.parameters())]
    assert len(scales) == (2 if normalises else 0)
    assert not any(isinstance(layer, nn.LayerNorm) for layer in nets["policy"].modules())
