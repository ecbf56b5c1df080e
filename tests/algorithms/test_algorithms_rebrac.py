"""ReBRAC's losses equal their formulas."""

import numpy as np
import pytest
import torch
from algorithm_kit import WIDE, build_algorithm, compute_loss_stages, make_step, make_transitions
from torch import nn

from hindcast.models.networks import MemberLinear

HALF_RANGES = (2.0, 0.5)


def compute_actions(policy, observations):
    return policy.distribution(policy.forward_train({"obs": observations})["action_dist_inputs"]).mode()


def squared_distance(actions, other_actions):
    """Return the squared distance between two actions, in units of half their range."""
    return sum(
        ((float(a) - float(b)) / half_range) ** 2
        for a, b, half_range in zip(actions, other_actions, HALF_RANGES, strict=True)
    )


@torch.no_grad()
def test_targets_are_penalised_where_the_next_action_is_recorded():
    algorithm, nets = build_algorithm("ReBRAC", {"targetNoise": 0.0, "criticBeta": 0.5}, WIDE)
    batch = make_transitions(WIDE)
    batch["followed"] = torch.arange(32) % 2 == 0
    batch["discounts"][:8] = 0.99  # truncated: next values count, without a penalty
    next_actions = compute_actions(nets["target_policy"], batch["new_obs"])
    values = nets["target_critics"]({"obs": batch["new_obs"]}, next_actions).amin(0)
    q = nets["critics"](batch)
    total = 0.0
    for row in range(32):
        beta = 0.5 if batch["followed"][row] else 0.0
        penalty = beta * squared_distance(next_actions[row], batch["new_actions"][row])
        td_target = batch["rewards"][row] + batch["discounts"][row] * (values[row] - penalty)
        total += float((q[0, row] - td_target) ** 2 + (q[1, row] - td_target) ** 2) / 32
    loss = compute_loss_stages(algorithm, nets, batch)[0].losses["critics"]
    assert float(loss) == pytest.approx(total, rel=1e-5)


@torch.no_grad()
def test_penalty_applies_to_the_noisy_action():
    batch = make_transitions(WIDE)
    normal = torch.randn((32, 2), generator=torch.Generator().manual_seed(0))
    td_targets = {}
    for beta in (0.0, 1.0):
        algorithm, nets = build_algorithm("ReBRAC", {"criticBeta": beta}, WIDE)
        td_targets[beta] = algorithm._td_target(nets, batch, normal)
    noise = (0.2 * normal).clamp(-0.5, 0.5)
    actions = compute_actions(nets["target_policy"], batch["new_obs"])
    noisy_actions = actions + noise * torch.tensor(HALF_RANGES)
    noisy_actions = noisy_actions.clamp(torch.tensor(WIDE.low), torch.tensor(WIDE.high))
    distances = [squared_distance(*pair) for pair in zip(noisy_actions, batch["new_actions"], strict=True)]
    penalty = batch["discounts"] * torch.tensor(distances)
    torch.testing.assert_close(td_targets[0.0] - td_targets[1.0], penalty)


@pytest.mark.parametrize("is_normalised", [True, False])
@torch.no_grad()
def test_policy_loss_equals_the_formula(is_normalised):
    algorithm, nets = build_algorithm("ReBRAC", {"actorBeta": 0.3, "normalizeQ": is_normalised}, WIDE)
    batch = make_transitions(WIDE)
    with torch.enable_grad():
        losses = compute_loss_stages(algorithm, nets, batch, make_step(updates=1))[1]
    policy_actions = compute_actions(nets["policy"], batch["obs"])
    values = nets["critics"](batch, policy_actions).amin(0).tolist()
    scale = np.mean(np.abs(values)) if is_normalised else 1.0
    distances = [squared_distance(*pair) for pair in zip(policy_actions, batch["actions"], strict=True)]
    expected = 0.3 * np.mean(distances) - np.mean(values) / scale
    assert float(losses.losses["policy"].detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("has_layer_norm", [True, False])
def test_layer_norm_applies_to_critics_only(has_layer_norm):
    _, nets = build_algorithm("ReBRAC", critics={"layer_norm": has_layer_norm})
    layers = [layer for layer in nets["critics"].stack if not isinstance(layer, MemberLinear)]
    norm_layers = [layer for layer in layers if list(layer.parameters())]
    assert len(norm_layers) == (2 if has_layer_norm else 0)
    assert not any(isinstance(layer, nn.LayerNorm) for layer in nets["policy"].modules())


@torch.no_grad()
def test_scheduled_betas_equal_their_values_at_the_trained_timesteps():
    batch = make_transitions(WIDE)
    schedules = {"actorBeta": [[0, 0.4], [128, 0.2]], "criticBeta": [[0, 0.8, "Step"], [64, 0.1]]}
    for timesteps, actor_beta, critic_beta in ((32, 0.35, 0.8), (64, 0.3, 0.1), (512, 0.2, 0.1)):
        clock = torch.tensor(timesteps, dtype=torch.float64)
        scheduled, constant = (
            compute_loss_stages(
                *build_algorithm("ReBRAC", config, WIDE), batch, make_step(1)._replace(clock=clock)
            )
            for config in (schedules, {"actorBeta": actor_beta, "criticBeta": critic_beta})
        )
        for stage, expected_stage in zip(scheduled, constant, strict=True):
            for name, loss in expected_stage.losses.items():
                torch.testing.assert_close(stage.losses[name], loss, rtol=1e-6, atol=0)
