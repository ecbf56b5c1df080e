"""The losses of IQL, TD3+BC, SAC and CQL equal their formulas."""

import copy
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch
from algorithm_kit import BOX, WIDE, build_algorithm, compute_loss_stages, make_step, make_transitions

from hindcast.errors import SpecError
from hindcast.learn.learner import Learner

DISCRETE = gym.spaces.Discrete(3)
ONE_DISCRETE_ACTION = ("DQN", "DiscreteCQL", "DiscreteSAC")
MULTI_DISCRETE = gym.spaces.MultiDiscrete([3, 2])


def test_iql_value_loss_is_the_expectile_of_the_minimum_target():
    algorithm, nets = build_algorithm("IQL", {"expectile": 0.8})
    batch = make_transitions()
    gaps = (nets["target_critics"](batch).amin(0) - nets["value"](batch)).detach().tolist()
    expected = np.mean([(0.8 if gap >= 0 else 0.2) * gap * gap for gap in gaps])
    loss = compute_loss_stages(algorithm, nets, batch)[0].losses["value"].detach()
    assert float(loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("space", [BOX, DISCRETE, MULTI_DISCRETE], ids=["continuous", "discrete", "several"])
def test_iql_policy_loss_weights_the_recorded_actions(space):
    algorithm, nets = build_algorithm("IQL", {"beta": 4.0, "weightClip": 2.0}, space)
    batch = make_transitions(space)
    _, losses = compute_loss_stages(algorithm, nets, batch)
    advantages = nets["target_critics"](batch).amin(0) - nets["value"](batch)
    weights = torch.minimum((4.0 * advantages).exp(), torch.tensor(2.0)).detach()
    policy = nets["policy"]
    logp = policy.distribution(policy.forward_train(batch)["action_dist_inputs"]).logp(batch["actions"])
    torch.testing.assert_close(losses.losses["policy"], -(weights * logp).mean())
    next_obs = {"obs": batch["new_obs"]}
    td_target = batch["rewards"] + batch["discounts"] * nets["value"](next_obs).detach()
    errors = [(values - td_target).square().mean() for values in nets["critics"](batch)]
    torch.testing.assert_close(losses.losses["critics"], errors[0] + errors[1])


def test_iql_critics_use_the_updated_value():
    algorithm, nets = build_algorithm("IQL")
    batch = make_transitions()
    loss_iterator = algorithm.losses(nets, batch, make_step())
    next(loss_iterator)
    with torch.no_grad():
        nets["value"].head.bias += 1.0
    td_target = batch["rewards"] + batch["discounts"] * nets["value"]({"obs": batch["new_obs"]}).detach()
    expected = (nets["critics"](batch) - td_target).square().mean(-1).sum()
    torch.testing.assert_close(next(loss_iterator).losses["critics"], expected)


@pytest.mark.parametrize(
    ("name", "first_move"), [("IQL", 1), ("SAC", 1), ("CQL", 1), ("FQL", 1), ("TD3BC", 2), ("ReBRAC", 2)]
)
def test_target_networks_follow_by_tau(name, first_move):
    """`first_move` is the number of the first update that moves the target networks, from 1."""
    algorithm, nets = build_algorithm(name, {"tau": 0.1})
    learner = Learner(algorithm, nets)
    for _ in range(first_move):
        old_weights = {key: tensor.clone() for key, tensor in nets.state_dict().items()}
        learner.update(make_transitions())
    new_weights = nets.state_dict()
    target_keys = [key for key in new_weights if key.startswith("target_")]
    for key in target_keys:
        target, _, weight = key.partition(".")
        source = algorithm.target_networks[target]
        expected = 0.9 * old_weights[key] + 0.1 * new_weights[f"{source}.{weight}"]
        torch.testing.assert_close(new_weights[key], expected)
    assert target_keys


def test_iql_without_twin_q_has_one_critic():
    algorithm, nets = build_algorithm("IQL", {"twinQ": False})
    assert len(nets["critics"](make_transitions())) == 1
    Learner(algorithm, nets).update(make_transitions())


def test_td3bc_policy_loss_is_in_half_ranges():
    algorithm, nets = build_algorithm("TD3BC", {"alpha": 2.0}, WIDE)
    batch = make_transitions(WIDE)
    _, policy_stage = compute_loss_stages(algorithm, nets, batch, make_step(updates=1))
    policy = nets["policy"]
    actions = policy.distribution(policy.forward_train(batch)["action_dist_inputs"]).mode()
    assert bool((actions >= torch.tensor(WIDE.low)).all() and (actions <= torch.tensor(WIDE.high)).all())
    values = nets["critics"](batch, actions)[0]
    cloning = ((actions - batch["actions"]) / torch.tensor([2.0, 0.5])).square().mean()
    expected = cloning - 2.0 * values.mean() / values.abs().mean()
    torch.testing.assert_close(policy_stage.losses["policy"], expected)


def test_td3bc_policy_and_targets_move_every_second_update():
    algorithm, nets = build_algorithm("TD3BC")
    learner = Learner(algorithm, nets)
    snapshots = []
    for _ in range(4):
        learner.update(make_transitions())
        snapshots.append(copy.deepcopy([nets[n] for n in ("policy", "target_policy", "target_critics")]))
    for (old_nets, new_nets), moves in zip(pairwise(snapshots), (True, False, True), strict=True):
        for old_net, new_net in zip(old_nets, new_nets, strict=True):
            weights = zip(old_net.parameters(), new_net.parameters(), strict=True)
            assert any(not torch.equal(*pair) for pair in weights) == moves


def test_td3bc_target_without_noise_equals_the_formula():
    algorithm, nets = build_algorithm("TD3BC", {"targetNoise": 0.0})
    batch = make_transitions()
    next_obs = {"obs": batch["new_obs"]}
    policy = nets["target_policy"]
    actions = policy.distribution(policy.forward_train(next_obs)["action_dist_inputs"]).mode()
    td_target = batch["rewards"] + batch["discounts"] * nets["target_critics"](next_obs, actions).amin(0)
    errors = [(values - td_target.detach()).square().mean() for values in nets["critics"](batch)]
    loss = compute_loss_stages(algorithm, nets, batch)[0].losses["critics"]
    torch.testing.assert_close(loss, errors[0] + errors[1])


def sample_with_noise(nets, observations, noise):
    """Return actions of the policy from `noise`, and their log-densities."""
    inputs = nets["policy"].forward_train({"obs": observations})["action_dist_inputs"]
    return nets["policy"].distribution(inputs).sample_with_logp(noise)


def test_sac_losses_equal_the_formula():
    algorithm, nets = build_algorithm("SAC", {"initialAlpha": 0.3}, WIDE)
    batch = make_transitions(WIDE)
    critic_stage, policy_stage = compute_loss_stages(algorithm, nets, batch)
    generator = torch.Generator().manual_seed(0)
    next_noise, noise = (torch.randn((1, 32, 2), generator=generator)[0] for _ in range(2))
    next_obs = {"obs": batch["new_obs"]}
    actions, logp = (tensor.detach() for tensor in sample_with_noise(nets, batch["new_obs"], next_noise))
    soft_value = nets["target_critics"](next_obs, actions).amin(0).detach() - 0.3 * logp
    td_target = batch["rewards"] + batch["discounts"] * soft_value
    errors = [(values - td_target).square().mean() for values in nets["critics"](batch)]
    torch.testing.assert_close(critic_stage.losses["critics"], errors[0] + errors[1])
    actions, logp = sample_with_noise(nets, batch["obs"], noise)
    min_q = nets["critics"](batch, actions).amin(0)
    torch.testing.assert_close(policy_stage.losses["policy"], (0.3 * logp - min_q).mean())
    slope = torch.autograd.grad(policy_stage.losses["alpha"], nets["alpha"].log)[0]
    torch.testing.assert_close(slope, -logp.mean().detach() + 2.0)  # the entropy, less its target of -2


def test_sac_policy_uses_the_updated_critics():
    algorithm, nets = build_algorithm("SAC")
    losses = []
    for shift in (0.0, 1.0):
        loss_iterator = algorithm.losses(nets, make_transitions(), make_step())
        next(loss_iterator)
        with torch.no_grad():
            list(nets["critics"].parameters())[-1].add_(shift)
        losses.append(next(loss_iterator).losses["policy"].detach())
    torch.testing.assert_close(losses[0] - losses[1], torch.tensor(1.0))


@pytest.mark.parametrize(("target", "sign"), [(-100.0, -1), (100.0, 1)])
def test_sac_alpha_moves_the_entropy_towards_its_target(target, sign):
    algorithm, nets = build_algorithm("SAC", {"targetEntropy": target, "alphaLr": 1e-2})
    Learner(algorithm, nets).update(make_transitions())
    assert sign * float(nets["alpha"].log.detach()) > 0


def set_linear_critics(nets, slope):
    """Replace both critics by Q(s, a) = slope·a₀."""

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = torch.nn.Parameter(torch.tensor(slope))

        def forward(self, batch, actions=None):
            action_rows = batch["actions"] if actions is None else actions
            return torch.stack([self.slope * action_rows[..., 0]] * 2)

    nets["critics"] = Linear()
    nets["target_critics"] = Linear()


def test_cql_gap_is_the_soft_maximum_over_the_whole_range():
    """With Q = slope·a₀ and many samples, log Σ exp(Q - log density) - log 3N is log of the integral of exp(Q).

    Over [-2, 2] x [0, 1] that is log(2·sinh(2·slope)/slope), whichever density the actions are drawn from.
    """
    algorithm, nets = build_algorithm("CQL", {"numActions": 4000, "minQWeight": 1.0}, WIDE)
    set_linear_critics(nets, 0.7)
    batch = make_transitions(WIDE, size=4)
    gap = float(compute_loss_stages(algorithm, nets, batch)[0].metrics["conservative_gap"].detach())
    integral = np.log(2 * np.sinh(2 * 0.7) / 0.7)
    expected = integral + np.log(3 * 4000) - 0.7 * float(batch["actions"][:, 0].mean())
    assert gap == pytest.approx(expected, abs=0.03)


def sample_cql(algorithm, nets, batch):
    """Return the actions, log-densities and TD targets of CQL, with the noise of its first update."""
    draws = algorithm._draw_noise(nets, batch, make_step())
    return [tensor.detach() for tensor in algorithm._sample_actions_and_targets(nets, batch, *draws)]


@pytest.mark.parametrize(
    ("next_column", "is_calibrated"), [("obs", False), ("new_obs", False), ("obs", True)]
)
@torch.no_grad()
def test_cql_gap_equals_the_formula(next_column, is_calibrated):
    """The formula uses the algorithm's samples; actions from π(s') are evaluated at s or s'."""
    config = {"numActions": 2, "minQWeight": 3.0, "temperature": 0.5, "calibrated": is_calibrated}
    config["nextStateGap"] = next_column == "new_obs"
    algorithm, nets = build_algorithm("CQL", config, WIDE)
    batch = make_transitions(WIDE, size=5)
    actions, log_densities, td_target = sample_cql(algorithm, nets, batch)
    assert actions.shape == (6, 5, 2) and log_densities.shape == (6, 5)
    assert torch.allclose(log_densities[:2], torch.tensor(-np.log(4.0), dtype=torch.float32))
    total = 0.0
    for member in range(2):
        q = nets["critics"](batch)[member]
        total += float((q - td_target).square().mean())
        soft_maxima = []
        for row in range(5):
            states = [{"obs": batch["obs" if j < 4 else next_column][row : row + 1]} for j in range(6)]
            values = [float(nets["critics"](states[j], actions[j, row : row + 1])[member]) for j in range(6)]
            if is_calibrated:  # the first two actions are not the policy's
                values[2:] = [max(value, float(batch["mc_returns"][row])) for value in values[2:]]
            exponents = [(values[j] - float(log_densities[j, row])) / 0.5 for j in range(6)]
            soft_maxima.append(0.5 * np.log(np.sum(np.exp(exponents))))
        total += 3.0 * (np.mean(soft_maxima) - float(q.mean()))
    loss = compute_loss_stages(algorithm, nets, batch)[0].losses["critics"]
    assert float(loss) == pytest.approx(total, rel=1e-5)


def test_calibrated_cql_does_not_lower_values_below_the_returns():
    """Where the returns are higher than all values, the gap raises recorded actions and lowers uniform ones only."""
    gradients = {}
    for is_calibrated in (False, True):
        config = {"numActions": 3, "calibrated": is_calibrated}
        algorithm, nets = build_algorithm("CQL", config, WIDE)
        batch = make_transitions(WIDE) | {"mc_returns": torch.full((32,), 50.0)}
        draws = algorithm._draw_noise(nets, batch, make_step())
        seen = []
        q_values = algorithm._q_values

        def record(critics, batch, actions, q_values=q_values, seen=seen):
            sampled_q, q = (values.detach().requires_grad_() for values in q_values(critics, batch, actions))
            seen += [sampled_q]
            return sampled_q, q

        algorithm._q_values = record
        loss = algorithm._critic_loss(nets, batch, 1.0, *draws)[0]
        gradients[is_calibrated] = torch.autograd.grad(loss, seen[0])[0]
    assert bool((gradients[False] > 0).all())
    assert bool((gradients[True][:, :3] > 0).all()) and not gradients[True][:, 3:].any()


def test_calibrated_cql_refuses_the_gap_at_the_next_state():
    with pytest.raises(
        SpecError, match=r"nextStateGap is true, but calibrated compares values with the returns"
    ):
        build_algorithm("CQL", {"calibrated": True, "nextStateGap": True})


def test_cql_policy_samples_have_their_own_densities():
    algorithm, nets = build_algorithm("CQL", {"numActions": 3}, WIDE)
    batch = make_transitions(WIDE)
    actions, log_densities, _ = sample_cql(algorithm, nets, batch)
    for index, observations in ((3, batch["obs"]), (6, batch["new_obs"])):
        policy = nets["policy"]
        inputs = policy.forward_train({"obs": observations})["action_dist_inputs"]
        expected = policy.distribution(inputs).logp(actions[index])
        torch.testing.assert_close(log_densities[index], expected, atol=1e-3, rtol=1e-3)


def test_cql_policy_clones_for_bc_iters_updates():
    algorithm, nets = build_algorithm("CQL", {"bcIters": 2, "initialAlpha": 0.3}, WIDE)
    batch, policy = make_transitions(WIDE), nets["policy"]
    noise = torch.randn((1, 32, 2), generator=torch.Generator().manual_seed(0))[0]
    actions, logp = sample_with_noise(nets, batch["obs"], noise)
    likelihood = policy.distribution(policy.forward_train(batch)["action_dist_inputs"]).logp(batch["actions"])
    min_q = nets["critics"](batch, actions).amin(0)
    for updates, objective in enumerate([likelihood, likelihood, min_q]):
        update_kind = algorithm.update_kind(updates)
        policy_loss, _ = algorithm._policy_loss(nets, batch, noise[None], torch.tensor(0.3), update_kind)
        torch.testing.assert_close(policy_loss, (0.3 * logp - objective).mean())


def test_cql_lagrangian_equals_the_formula():
    """The formula uses the metrics; neither loss has gradients of the other's parameters."""
    config = {"lagrangian": True, "lagrangianThresh": 2.0, "minQWeight": 3.0}
    algorithm, nets = build_algorithm("CQL", config)
    log, critics = nets["gap_weight"].log, nets["critics"].parameters()
    with torch.no_grad():
        log.fill_(np.log(0.7))
    losses = compute_loss_stages(algorithm, nets, make_transitions())[0]
    excess = 2 * (3.0 * losses.metrics["conservative_gap"] - 2.0).detach()
    torch.testing.assert_close(losses.losses["critics"], losses.metrics["td_loss"] + 0.7 * excess)
    slope, *critic_gradients = torch.autograd.grad(
        losses.losses["gap_weight"], [log, *critics], allow_unused=True
    )
    torch.testing.assert_close(slope, -0.5 * 0.7 * excess)
    assert critic_gradients == [None] * len(critic_gradients)
    assert torch.autograd.grad(losses.losses["critics"], log, allow_unused=True) == (None,)


def test_cql_lagrangian_moves_the_gap_towards_the_threshold():
    for threshold, sign in ((0.0, 1), (1000.0, -1)):
        config = {"lagrangian": True, "lagrangianThresh": threshold, "criticLr": 1e-2}
        algorithm, nets = build_algorithm("CQL", config)
        learner = Learner(algorithm, nets)
        for seed in range(5):
            learner.update(make_transitions(seed=seed))
        assert sign * float(nets["gap_weight"].log.detach()) > 0


def test_cql_target_entropy_depends_on_the_range():
    """The target is -1 per element for a range of ±1; the range [-2, 2] x [0, 1] adds log 2 + log ½ = 0."""
    algorithm, nets = build_algorithm("CQL", {}, WIDE)
    assert float(algorithm._target_entropy(nets["range"])) == pytest.approx(-2.0)
    algorithm, nets = build_algorithm("CQL", {}, gym.spaces.Box(-3, 3, (1,), np.float32))
    assert float(algorithm._target_entropy(nets["range"])) == pytest.approx(-1.0 + np.log(3.0))


@pytest.mark.parametrize("entropy", [0.0, 0.3], ids=["deterministic", "soft"])
@torch.no_grad()
def test_cql_targets_equal_the_formula(entropy):
    algorithm, nets = build_algorithm("CQL", {"deterministicBackup": entropy == 0, "initialAlpha": 0.3}, WIDE)
    batch, generator = make_transitions(WIDE), torch.Generator().manual_seed(0)
    torch.randn((10, 32, 2), generator=generator)  # skips the noise of the actions at s
    noise = torch.randn((11, 32, 2), generator=generator)[0]
    actions, logp = sample_with_noise(nets, batch["new_obs"], noise)
    first_q, second_q = nets["target_critics"]({"obs": batch["new_obs"]}, actions)
    td_target = batch["rewards"] + batch["discounts"] * (torch.minimum(first_q, second_q) - entropy * logp)
    errors = [(values - td_target).square().mean() for values in nets["critics"](batch)]
    td_loss = compute_loss_stages(algorithm, nets, batch)[0].metrics["td_loss"]
    torch.testing.assert_close(td_loss, errors[0] + errors[1])


@pytest.mark.parametrize("name", ["IQL", "TD3BC", "ReBRAC", "FQL", "CQL", "SAC"])
def test_value_after_a_terminated_step_is_ignored(name):
    algorithm, nets = build_algorithm(name)
    batch = make_transitions()
    next_obs = torch.where(batch["discounts"][:, None] > 0, batch["new_obs"], 9.0)
    metric, losses = "td_loss" if name in ("CQL", "SAC") else "critic_loss", []
    for variant in (batch, batch | {"new_obs": next_obs}):
        stages = compute_loss_stages(algorithm, nets, variant)
        losses += [stage.metrics[metric] for stage in stages if metric in stage.metrics]
    assert torch.equal(*losses)


@pytest.mark.parametrize(
    "name", ["IQL", "SAC", "CQL", "TD3BC", "ReBRAC", "FQL", *ONE_DISCRETE_ACTION, "BC", "MARWIL"]
)
def test_critics_evaluate_recorded_and_other_actions(name):
    space = DISCRETE if name in ONE_DISCRETE_ACTION else BOX
    algorithm, nets = build_algorithm(name, action_space=space)
    critic = algorithm.critic(nets)
    assert (critic is None) == (name in ("BC", "MARWIL"))
    if critic is not None:
        batch = make_transitions(space)
        action_rows = torch.stack([batch["actions"], batch["actions"].flip(0)])
        values = critic(batch, action_rows)
        torch.testing.assert_close(values[0], critic(batch))
        torch.testing.assert_close(values[1], critic({**batch, "actions": action_rows[1]}))
