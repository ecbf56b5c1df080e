"""The losses of discrete SAC equal their formulas."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from algorithm_kit import build_algorithm, compute_loss_stages, make_transitions

CHOICES = gym.spaces.Discrete(3, start=5)
ALPHA = 0.3


def build_discrete_sac(**config):
    return build_algorithm("DiscreteSAC", {"initialAlpha": ALPHA, **config}, CHOICES)


def compute_probs(nets, observations):
    policy = nets["policy"]
    logits = policy.forward_train({"obs": observations})["action_dist_inputs"]
    return torch.softmax(logits, -1).tolist()


@torch.no_grad()
@pytest.mark.parametrize("aggregation", ["min", "mean"])
def test_losses_equal_the_formula(aggregation):
    algorithm, nets = build_discrete_sac(qAggregation=aggregation, numCritics=3)
    batch = make_transitions(CHOICES, size=8)
    combine = np.min if aggregation == "min" else np.mean
    q, target_q = nets["critics"](batch).numpy(), nets["target_critics"]({"obs": batch["new_obs"]}).numpy()
    probs, next_probs = compute_probs(nets, batch["obs"]), compute_probs(nets, batch["new_obs"])
    critic_loss, policy_loss = 0.0, 0.0
    for row, action in enumerate((batch["actions"] - 5).tolist()):
        next_value = sum(
            p * (combine(target_q[:, row, a]) - ALPHA * np.log(p)) for a, p in enumerate(next_probs[row])
        )
        td_target = float(batch["rewards"][row] + batch["discounts"][row] * next_value)
        critic_loss += float(((q[:, row, action] - td_target) ** 2).sum()) / 8
        policy_loss += (
            sum(p * (ALPHA * np.log(p) - combine(q[:, row, a])) for a, p in enumerate(probs[row])) / 8
        )
    with torch.enable_grad():
        critic_stage, policy_stage = compute_loss_stages(algorithm, nets, batch)
    assert float(critic_stage.losses["critics"]) == pytest.approx(critic_loss, rel=1e-5)
    assert float(policy_stage.losses["policy"]) == pytest.approx(policy_loss, rel=1e-5)


def test_alpha_follows_the_entropy_and_the_policy_does_not_train_the_critics():
    algorithm, nets = build_discrete_sac()
    batch = make_transitions(CHOICES)
    losses = compute_loss_stages(algorithm, nets, batch)[1].losses
    probs = torch.tensor(compute_probs(nets, batch["obs"]))
    entropy = -(probs * probs.log()).sum(-1).mean()
    target_entropy = 0.98 * np.log(3)
    gradient = torch.autograd.grad(losses["alpha"], nets["alpha"].log)[0]
    torch.testing.assert_close(gradient, entropy - target_entropy)
    critic_weights = list(nets["critics"].parameters())
    gradients = torch.autograd.grad(losses["policy"], critic_weights, allow_unused=True)
    assert gradients == (None,) * len(critic_weights)
