"""FQL's terms against their formulas, row by row; its flow and its policy on behaviour of two kinds."""

import numpy as np
import pytest
import torch
from algorithm_kit import BOX, OBS, WIDE, made, stages, transitions

from hindcast.algorithms import build
from hindcast.api.environment import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.errors import SpecError
from hindcast.evaluate.environment import evaluate_policy
from hindcast.learn.algorithm import ModelInputs, new_networks
from hindcast.learn.learner import Learner
from hindcast.models.connectors import Preprocessing
from hindcast.models.policy import Policy
from support import read_all, record, recording
from toy_environments import Steered

LOW, HALF = torch.tensor(WIDE.low), torch.tensor([2.0, 0.5])


def draws(size=32):
    """What an update draws: of the next actions, of the flow (where it starts, and when), of the policy."""
    generator = torch.Generator().manual_seed(0)
    later, start = (torch.randn((size, 2), generator=generator) for _ in range(2))
    time = torch.rand((size, 1), generator=generator)
    return later, start, time, torch.randn((size, 2), generator=generator)


def mapped(nets, observations, noise):
    """What the policy makes of noise, bounds at ±1 but not yet within them."""
    policy = nets["policy"].map
    return policy.head(policy.stack(torch.cat([observations, noise], -1)))


def taken(values):
    """As actions of `WIDE`."""
    return LOW + (values.clamp(-1, 1) + 1) * HALF


@torch.no_grad()
def test_the_flows_loss():
    algorithm, nets = made("FQL", {}, WIDE)
    batch = transitions(WIDE)
    _, start, time, _ = draws()
    total = 0.0
    for row in range(32):
        recorded = (batch["actions"][row] - LOW) / HALF - 1
        assert bool((recorded.abs() <= 1).all())
        between = (1 - time[row]) * start[row] + time[row] * recorded
        found = nets["behaviour"](batch["obs"][row], between, time[row])
        total += float((found - (recorded - start[row])).square().mean()) / 32
    found = stages(algorithm, nets, batch)[0].losses["behaviour"]
    assert float(found) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("aggregation", ["mean", "min"])
@torch.no_grad()
def test_the_critics_targets(aggregation):
    algorithm, nets = made("FQL", {"qAggregation": aggregation}, WIDE)
    batch = transitions(WIDE)
    actions = taken(mapped(nets, batch["new_obs"], draws()[0]))
    both = nets["target_critics"]({"obs": batch["new_obs"]}, actions)
    values = both.mean(0) if aggregation == "mean" else torch.minimum(both[0], both[1])
    wanted = batch["rewards"] + batch["discounts"] * values
    expected = sum((each - wanted).square().mean() for each in nets["critics"](batch))
    torch.testing.assert_close(stages(algorithm, nets, batch)[0].losses["critics"], expected)


@pytest.mark.parametrize("normalises", [True, False])
@torch.no_grad()
def test_the_policys_loss(normalises):
    algorithm, nets = made("FQL", {"alpha": 3.0, "flowSteps": 4, "normalizeQLoss": normalises}, WIDE)
    batch = transitions(WIDE)
    noise = draws()[3]
    flowed = noise
    for number in range(4):
        time = torch.full((32, 1), number / 4)
        flowed = flowed + 0.25 * nets["behaviour"](batch["obs"], flowed, time)
    own = mapped(nets, batch["obs"], noise)
    distillation = (own - flowed.clamp(-1, 1)).square().mean()
    values = nets["critics"](batch, taken(own)).mean(0)
    scale = values.abs().mean() if normalises else 1.0
    expected = 3.0 * distillation - values.mean() / scale
    torch.testing.assert_close(stages(algorithm, nets, batch)[0].losses["policy"], expected)


def test_each_loss_moves_its_own_network_alone():
    algorithm, nets = made("FQL", {})
    losses = stages(algorithm, nets, transitions())[0].losses
    fields = list(nets["behaviour"].parameters())
    policy = torch.autograd.grad(losses["policy"], fields, allow_unused=True, retain_graph=True)
    assert all(gradient is None for gradient in policy), "the flow is not drawn to where its policy is"
    critics = torch.autograd.grad(losses["critics"], list(nets["policy"].parameters()), allow_unused=True)
    assert all(gradient is None for gradient in critics)


def two_ways(size, seed):
    """At any state one of two actions was taken, half and half; their second element is any, and counts nothing."""
    batch = transitions(BOX, size, seed)
    sides = torch.randint(2, (size,), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0
    batch["actions"][:, 0] = 0.6 * sides
    batch["rewards"], batch["discounts"] = sides, torch.zeros(size)
    return batch


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "share_right"), [(30.0, 0.5), (1.0, 1.0)])
def test_it_imitates_both_ways_or_takes_the_better_one(alpha, share_right):
    rates = {"actorLr": 5e-3, "criticLr": 5e-3}
    model = {"fcnet_hiddens": [64, 64], "fcnet_activation": "gelu"}
    algorithm, nets = made("FQL", {"alpha": alpha, "flowSteps": 5, **rates}, **model)
    learner = Learner(algorithm, nets)
    for seed in range(400):
        learner.update(two_ways(128, seed))
    policy = nets["policy"]
    observations = two_ways(512, 0)
    with torch.no_grad():
        distribution = policy.distribution(policy.forward_exploration(observations)["action_dist_inputs"])
        actions = distribution.sample(torch.randn((512, 2), generator=torch.Generator().manual_seed(1)))
        flowed = nets["behaviour"].flow(observations, draws(512)[0], 5)
    assert float((flowed[:, 0] > 0).float().mean()) == pytest.approx(0.5, abs=0.1)
    assert float((actions[:, 0] > 0).float().mean()) == pytest.approx(share_right, abs=0.15)
    for found in (flowed, actions):
        assert float((found[:, 0].abs() < 0.3).float().mean()) < 0.3, "a Gaussian has 0.38 between the two"


def played(observations=OBS, actions=WIDE):
    preprocessing = Preprocessing.of(observations, actions, ModelSpec())
    inputs = ModelInputs(observations, preprocessing.action_space, ModelSpec(fcnet_hiddens=[16]))
    module = new_networks(build("FQL", {}), inputs, seed=0)["policy"]
    return Policy(module, preprocessing, observations, actions)


def test_its_policy_acts_the_same_once_saved(tmp_path):
    policy = played()
    policy.save(tmp_path)
    loaded = Policy.load(tmp_path)
    rows = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    noise = policy.draw_noise(np.random.default_rng(0), 5)
    assert noise.shape == (5, 2)
    for given in (noise, None):
        one, other = policy.act({"obs": rows}, given), loaded.act({"obs": rows}, given)
        assert np.array_equal(one.actions["actions"], other.actions["actions"])
        assert one.logp is None
        assert all(WIDE.contains(action) for action in one.env_actions)
    greedy, zero = (policy.act({"obs": rows}, given) for given in (None, np.zeros_like(noise)))
    assert np.array_equal(greedy.actions["actions"], zero.actions["actions"])


def test_exploring_follows_from_the_seed():
    policy = played()
    observations = np.random.default_rng(0).uniform(-1, 1, (4, 3)).astype(np.float32)
    runs = []
    for seed in (7, 7, 8):
        policy.reset(seed)
        runs.append(np.stack([policy(each, explore=True) for each in observations]))
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_evaluations_and_recordings_of_it_follow_from_the_seed(tmp_path):
    policy = played(Steered.observation_space, Steered.action_space)
    environment, saved = EnvironmentSpec(id="toy_environments:Steered"), str(tmp_path / "policy")
    first, same, other = (
        evaluate_policy(policy, environment, duration=4, explore=True, seed=seed).returns
        for seed in (1, 1, 2)
    )
    assert first == same != other
    policy.save(saved)
    of_it = {"environment": {"id": environment.id}, "policy": {"checkpoint": {"path": saved}}}
    for name in "ab":
        record(recording(tmp_path / name, **of_it, duration={"episodes": 4}), checkpoint=saved)
    recorded, again = (read_all(tmp_path / name).columns["actions"] for name in "ab")
    assert len(recorded) and np.array_equal(recorded, again)


@pytest.mark.parametrize("model", [{"distribution": "gaussian"}, {"recurrent": "lstm"}])
def test_a_policy_of_another_kind_is_one_sentence(model):
    with pytest.raises(SpecError, match=r"FQL has a .*policy of its own"):
        made("FQL", {}, **model)
