"""IQL, TD3+BC, SAC and CQL against their formulas, written out."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from algorithm_kit import BOX, WIDE, made, stages, step, transitions

from hindcast.errors import SpecError
from hindcast.learn.learner import Learner

DISCRETE = gym.spaces.Discrete(3)
SEVERAL = gym.spaces.MultiDiscrete([3, 2])


def test_iqls_value_loss_is_the_expectile_of_the_smaller_target():
    algorithm, nets = made("IQL", {"expectile": 0.8})
    batch = transitions()
    gaps = (nets["target_critics"](batch).amin(0) - nets["value"](batch)).detach().tolist()
    expected = np.mean([(0.8 if gap >= 0 else 0.2) * gap * gap for gap in gaps])
    assert float(stages(algorithm, nets, batch)[0].losses["value"].detach()) == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.parametrize("space", [BOX, DISCRETE, SEVERAL], ids=["continuous", "discrete", "several"])
def test_iqls_policy_weighs_the_recorded_actions(space):
    algorithm, nets = made("IQL", {"beta": 4.0, "weightClip": 2.0}, space)
    batch = transitions(space)
    _, moved = stages(algorithm, nets, batch)
    advantages = nets["target_critics"](batch).amin(0) - nets["value"](batch)
    weights = torch.minimum((4.0 * advantages).exp(), torch.tensor(2.0)).detach()
    policy = nets["policy"]
    logp = policy.distribution(policy.forward_train(batch)["action_dist_inputs"]).logp(batch["actions"])
    torch.testing.assert_close(moved.losses["policy"], -(weights * logp).mean())
    following = {"obs": batch["new_obs"]}
    wanted = batch["rewards"] + batch["discounts"] * nets["value"](following).detach()
    errors = [(values - wanted).square().mean() for values in nets["critics"](batch)]
    torch.testing.assert_close(moved.losses["critics"], errors[0] + errors[1])


def test_iqls_critics_see_the_value_that_has_just_moved():
    algorithm, nets = made("IQL")
    batch = transitions()
    found = algorithm.losses(nets, batch, step())
    next(found)
    with torch.no_grad():
        nets["value"].head.bias += 1.0
    wanted = batch["rewards"] + batch["discounts"] * nets["value"]({"obs": batch["new_obs"]}).detach()
    expected = (nets["critics"](batch) - wanted).square().mean(-1).sum()
    torch.testing.assert_close(next(found).losses["critics"], expected)


@pytest.mark.parametrize(
    ("name", "moving"), [("IQL", 1), ("SAC", 1), ("CQL", 1), ("FQL", 1), ("TD3BC", 2), ("ReBRAC", 2)]
)
def test_copies_follow_by_tau(name, moving):
    """With the update `moving`, the first in which they move."""
    algorithm, nets = made(name, {"tau": 0.1})
    learner = Learner(algorithm, nets)
    for _ in range(moving):
        before = {key: tensor.clone() for key, tensor in nets.state_dict().items()}
        learner.update(transitions())
    after = nets.state_dict()
    copies = [key for key in after if key.startswith("target_")]
    for key in copies:
        expected = 0.9 * before[key] + 0.1 * after[key.removeprefix("target_")]
        torch.testing.assert_close(after[key], expected)
    assert copies


def test_iql_with_one_critic():
    algorithm, nets = made("IQL", {"twinQ": False})
    assert len(nets["critics"](transitions())) == 1
    Learner(algorithm, nets).update(transitions())


def test_td3bcs_policy_loss_in_half_ranges():
    algorithm, nets = made("TD3BC", {"alpha": 2.0}, WIDE)
    batch = transitions(WIDE)
    _, moved = stages(algorithm, nets, batch, step(updates=1))
    policy = nets["policy"]
    actions = policy.distribution(policy.forward_train(batch)["action_dist_inputs"]).mode()
    assert bool((actions >= torch.tensor(WIDE.low)).all() and (actions <= torch.tensor(WIDE.high)).all())
    values = nets["critics"](batch, actions)[0]
    cloning = ((actions - batch["actions"]) / torch.tensor([2.0, 0.5])).square().mean()
    torch.testing.assert_close(moved.losses["policy"], cloning - 2.0 * values.mean() / values.abs().mean())


def test_td3bcs_policy_and_copies_move_with_every_second_update():
    algorithm, nets = made("TD3BC")
    learner = Learner(algorithm, nets)
    seen = []
    for _ in range(4):
        learner.update(transitions())
        seen.append([nets[name].state_dict() for name in ("policy", "target_policy", "target_critics")])
        seen[-1] = [torch.cat([t.flatten() for t in each.values()]).clone() for each in seen[-1]]
    for first, second, moves in ((0, 1, True), (1, 2, False), (2, 3, True)):
        assert [not torch.equal(a, b) for a, b in zip(seen[first], seen[second], strict=True)] == [moves] * 3


def test_td3bcs_target_without_noise():
    algorithm, nets = made("TD3BC", {"targetNoise": 0.0})
    batch = transitions()
    following = {"obs": batch["new_obs"]}
    policy = nets["target_policy"]
    actions = policy.distribution(policy.forward_train(following)["action_dist_inputs"]).mode()
    wanted = batch["rewards"] + batch["discounts"] * nets["target_critics"](following, actions).amin(0)
    errors = [(values - wanted.detach()).square().mean() for values in nets["critics"](batch)]
    torch.testing.assert_close(stages(algorithm, nets, batch)[0].losses["critics"], errors[0] + errors[1])


def drawn(nets, observations, noise):
    """Actions of the policy, and their log-densities."""
    inputs = nets["policy"].forward_train({"obs": observations})["action_dist_inputs"]
    return nets["policy"].distribution(inputs).sample_with_logp(noise)


def test_sacs_losses_by_hand():
    algorithm, nets = made("SAC", {"initialAlpha": 0.3}, WIDE)
    batch = transitions(WIDE)
    critic, policy = stages(algorithm, nets, batch)
    generator = torch.Generator().manual_seed(0)
    later, now = (torch.randn((1, 32, 2), generator=generator)[0] for _ in range(2))
    following = {"obs": batch["new_obs"]}
    actions, logp = (each.detach() for each in drawn(nets, batch["new_obs"], later))
    soft = nets["target_critics"](following, actions).amin(0).detach() - 0.3 * logp
    wanted = batch["rewards"] + batch["discounts"] * soft
    errors = [(values - wanted).square().mean() for values in nets["critics"](batch)]
    torch.testing.assert_close(critic.losses["critics"], errors[0] + errors[1])
    actions, logp = drawn(nets, batch["obs"], now)
    worth = nets["critics"](batch, actions).amin(0)
    torch.testing.assert_close(policy.losses["policy"], (0.3 * logp - worth).mean())
    slope = torch.autograd.grad(policy.losses["alpha"], nets["alpha"].log)[0]
    torch.testing.assert_close(slope, -logp.mean().detach() + 2.0)  # the entropy, less its target of -2


def test_sacs_policy_sees_the_critics_that_have_just_moved():
    algorithm, nets = made("SAC")
    losses = []
    for moved in (0.0, 1.0):
        found = algorithm.losses(nets, transitions(), step())
        next(found)
        with torch.no_grad():
            list(nets["critics"].parameters())[-1].add_(moved)
        losses.append(next(found).losses["policy"].detach())
    torch.testing.assert_close(losses[0] - losses[1], torch.tensor(1.0))


@pytest.mark.parametrize(("target", "sign"), [(-100.0, -1), (100.0, 1)])
def test_sacs_alpha_moves_the_entropy_towards_its_target(target, sign):
    algorithm, nets = made("SAC", {"targetEntropy": target, "alphaLr": 1e-2})
    Learner(algorithm, nets).update(transitions())
    assert sign * float(nets["alpha"].log.detach()) > 0


def linear_critics(nets, slope):
    """Q(s, a) = slope·a₀, of both members."""

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = torch.nn.Parameter(torch.tensor(slope))

        def forward(self, batch, actions=None):
            taken = batch["actions"] if actions is None else actions
            return torch.stack([self.slope * taken[..., 0]] * 2)

    nets["critics"] = Linear()
    nets["target_critics"] = Linear()


def test_cqls_gap_is_the_soft_maximum_over_the_whole_range():
    """With Q = slope·a₀ and many samples, log Σ exp(Q - log density) - log 3N is log of the integral of exp(Q).

    Over [-2, 2] x [0, 1] that is log(2·sinh(2·slope)/slope), whichever density the actions are drawn from.
    """
    algorithm, nets = made("CQL", {"numActions": 4000, "minQWeight": 1.0}, WIDE)
    linear_critics(nets, 0.7)
    batch = transitions(WIDE, size=4)
    gap = float(stages(algorithm, nets, batch)[0].metrics["conservative_gap"].detach())
    integral = np.log(2 * np.sinh(2 * 0.7) / 0.7)
    expected = integral + np.log(3 * 4000) - 0.7 * float(batch["actions"][:, 0].mean())
    assert gap == pytest.approx(expected, abs=0.03)


def samples(algorithm, nets, batch):
    """CQL's, with the noise of its first update."""
    draws = algorithm._draws(nets, batch, step())
    return [each.detach() for each in algorithm._samples(nets, batch, *draws)]


@pytest.mark.parametrize("later_column", ["obs", "new_obs"])
@torch.no_grad()
def test_cqls_gap_by_hand(later_column):
    """From the actions and densities that it drew itself; those of the next state's policy are valued here or there."""
    config = {
        "numActions": 2,
        "minQWeight": 3.0,
        "temperature": 0.5,
        "nextStateGap": later_column == "new_obs",
    }
    algorithm, nets = made("CQL", config, WIDE)
    batch = transitions(WIDE, size=5)
    actions, log_densities, wanted = samples(algorithm, nets, batch)
    assert actions.shape == (6, 5, 2) and log_densities.shape == (6, 5)
    assert torch.allclose(log_densities[:2], torch.tensor(-np.log(4.0), dtype=torch.float32))
    total = 0.0
    for member in range(2):
        taken = nets["critics"](batch)[member]
        total += float((taken - wanted).square().mean())
        soft = []
        for row in range(5):
            states = [{"obs": batch["obs" if j < 4 else later_column][row : row + 1]} for j in range(6)]
            values = [float(nets["critics"](states[j], actions[j, row : row + 1])[member]) for j in range(6)]
            exponents = [(values[j] - float(log_densities[j, row])) / 0.5 for j in range(6)]
            soft.append(0.5 * np.log(np.sum(np.exp(exponents))))
        total += 3.0 * (np.mean(soft) - float(taken.mean()))
    found = stages(algorithm, nets, batch)[0].losses["critics"]
    assert float(found) == pytest.approx(total, rel=1e-5)


def test_cqls_samples_of_the_policy_have_its_own_densities():
    algorithm, nets = made("CQL", {"numActions": 3}, WIDE)
    batch = transitions(WIDE)
    actions, log_densities, _ = samples(algorithm, nets, batch)
    for first, observations in ((3, batch["obs"]), (6, batch["new_obs"])):
        policy = nets["policy"]
        inputs = policy.forward_train({"obs": observations})["action_dist_inputs"]
        expected = policy.distribution(inputs).logp(actions[first])
        torch.testing.assert_close(log_densities[first], expected, atol=1e-3, rtol=1e-3)


def test_cqls_policy_clones_at_first_and_counts_updates():
    algorithm, nets = made("CQL", {"bcIters": 2, "initialAlpha": 0.3}, WIDE)
    batch, policy = transitions(WIDE), nets["policy"]
    noise = torch.randn((1, 32, 2), generator=torch.Generator().manual_seed(0))[0]
    actions, logp = drawn(nets, batch["obs"], noise)
    likelihood = policy.distribution(policy.forward_train(batch)["action_dist_inputs"]).logp(batch["actions"])
    worth = nets["critics"](batch, actions).amin(0)
    for updates, aim in enumerate([likelihood, likelihood, worth]):
        kind = algorithm.update_kind(updates)
        found, _ = algorithm._policy_loss(nets, batch, noise[None], torch.tensor(0.3), kind)
        torch.testing.assert_close(found, (0.3 * logp - aim).mean())


def test_cqls_lagrangian_by_hand():
    """From its metrics of the two critics; neither loss moves what the other trains."""
    config = {"lagrangian": True, "lagrangianThresh": 2.0, "minQWeight": 3.0}
    algorithm, nets = made("CQL", config)
    log, critics = nets["gap_weight"].log, nets["critics"].parameters()
    with torch.no_grad():
        log.fill_(np.log(0.7))
    found = stages(algorithm, nets, transitions())[0]
    excess = 2 * (3.0 * found.metrics["conservative_gap"] - 2.0).detach()
    torch.testing.assert_close(found.losses["critics"], found.metrics["td_loss"] + 0.7 * excess)
    slope, *others = torch.autograd.grad(found.losses["gap_weight"], [log, *critics], allow_unused=True)
    torch.testing.assert_close(slope, -0.5 * 0.7 * excess)
    assert others == [None] * len(others)
    assert torch.autograd.grad(found.losses["critics"], log, allow_unused=True) == (None,)


def test_cqls_lagrangian_moves_the_weight_towards_the_threshold():
    for threshold, sign in ((0.0, 1), (1000.0, -1)):
        algorithm, nets = made("CQL", {"lagrangian": True, "lagrangianThresh": threshold, "criticLr": 1e-2})
        learner = Learner(algorithm, nets)
        for seed in range(5):
            learner.update(transitions(seed=seed))
        assert sign * float(nets["gap_weight"].log.detach()) > 0


def test_cqls_target_entropy_knows_the_range():
    """-1 for each element, were its range ±1: of [-2, 2] x [0, 1] that is log 2 + log ½ more, which is 0 more."""
    algorithm, nets = made("CQL", {}, WIDE)
    assert float(algorithm._target_entropy(nets["range"])) == pytest.approx(-2.0)
    algorithm, nets = made("CQL", {}, gym.spaces.Box(-3, 3, (1,), np.float32))
    assert float(algorithm._target_entropy(nets["range"])) == pytest.approx(-1.0 + np.log(3.0))


@pytest.mark.parametrize("entropy", [0.0, 0.3], ids=["deterministic", "soft"])
@torch.no_grad()
def test_cqls_targets_by_hand(entropy):
    algorithm, nets = made("CQL", {"deterministicBackup": entropy == 0, "initialAlpha": 0.3}, WIDE)
    batch, generator = transitions(WIDE), torch.Generator().manual_seed(0)
    torch.randn((10, 32, 2), generator=generator)  # for the actions at s
    actions, logp = drawn(nets, batch["new_obs"], torch.randn((11, 32, 2), generator=generator)[0])
    one, other = nets["target_critics"]({"obs": batch["new_obs"]}, actions)
    wanted = batch["rewards"] + batch["discounts"] * (torch.minimum(one, other) - entropy * logp)
    errors = [(values - wanted).square().mean() for values in nets["critics"](batch)]
    torch.testing.assert_close(stages(algorithm, nets, batch)[0].metrics["td_loss"], errors[0] + errors[1])


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("IQL", "critic_loss"),
        ("TD3BC", "critic_loss"),
        ("ReBRAC", "critic_loss"),
        ("FQL", "critic_loss"),
        ("CQL", "td_loss"),
        ("SAC", "td_loss"),
    ],
)
def test_what_follows_a_terminated_step_does_not_count(name, loss):
    algorithm, nets = made(name)
    batch = transitions()
    following = torch.where(batch["discounts"][:, None] > 0, batch["new_obs"], 9.0)
    found = [
        {name: value for stage in stages(algorithm, nets, each) for name, value in stage.metrics.items()}[
            loss
        ]
        for each in (batch, batch | {"new_obs": following})
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["TD3BC", "ReBRAC", "FQL", "CQL", "SAC"])
@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (DISCRETE, "needs continuous actions, in one float Box, not Discrete"),
        (gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), "needs actions with bounds"),
    ],
)
def test_actions_that_do_not_fit_are_one_sentence(name, space, sentence):
    with pytest.raises(SpecError, match=f"spec.algorithm: {name} {sentence}"):
        made(name, {}, space)


@pytest.mark.parametrize(
    ("name", "distribution", "sentence"),
    [
        ("TD3BC", "gaussian", "which TD3BC cannot train: use Auto, Deterministic, SquashedDeterministic"),
        (
            "ReBRAC",
            "squashedGaussian",
            "which ReBRAC cannot train: use Auto, Deterministic, SquashedDeterministic",
        ),
        ("CQL", "deterministic", "which CQL cannot train: use Auto, Gaussian, "),
        ("SAC", "deterministic", "which SAC cannot train: use Auto, Gaussian, "),
        ("IQL", "deterministic", "which IQL cannot train: use Auto, Categorical, "),
    ],
)
def test_distributions_that_do_not_fit_are_one_sentence(name, distribution, sentence):
    with pytest.raises(SpecError, match=sentence):
        made(name, distribution=distribution)


@pytest.mark.parametrize(
    ("name", "config", "sentence"),
    [
        ("IQL", {"expectile": 0.0}, "config.expectile is 0.0, expected more than 0"),
        ("IQL", {"expectile": 1.0}, "config.expectile is 1.0, expected less than 1"),
        ("IQL", {"beta": -1.0}, "config.beta is -1.0, expected at least 0"),
        ("CQL", {"numActions": 0}, "config.numActions is 0, expected at least 1"),
        ("TD3BC", {"tau": 0.0}, "config.tau is 0.0, expected more than 0"),
        ("ReBRAC", {"criticBeta": -0.1}, "config.criticBeta is -0.1, expected at least 0"),
    ],
)
def test_values_out_of_range_are_one_sentence(name, config, sentence):
    with pytest.raises(SpecError, match=sentence):
        made(name, config)


@pytest.mark.parametrize(
    "name", ["IQL", "SAC", "CQL", "TD3BC", "ReBRAC", "FQL", "DQN", "DiscreteCQL", "BC", "MARWIL"]
)
def test_critics_value_recorded_and_other_actions(name):
    space = DISCRETE if name in ("DQN", "DiscreteCQL") else BOX
    algorithm, nets = made(name, action_space=space)
    critic = algorithm.critic(nets)
    assert (critic is None) == (name in ("BC", "MARWIL"))
    if critic is not None:
        batch = transitions(space)
        others = torch.stack([batch["actions"], batch["actions"].flip(0)])
        values = critic(batch, others)
        torch.testing.assert_close(values[0], critic(batch))
        torch.testing.assert_close(values[1], critic({**batch, "actions": others[1]}))
