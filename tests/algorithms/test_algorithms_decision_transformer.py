"""The decision transformer: returns to go, its loss, and acting as it has learnt, with what was received taken off."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from algorithm_kit import BOX, LENGTHS, OBS, WIDE, made, stages, window_of

from hindcast import PolicyServer
from hindcast.algorithms import build
from hindcast.api.environment import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.errors import DataError, SpecError
from hindcast.learn.algorithm import ModelInputs, new_networks, window_targets
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.record.runner import EnvRunner
from toy_environments import Walk

K = 4
SMALL = {
    "contextLength": K,
    "embedSize": 8,
    "numHeads": 2,
    "numLayers": 2,
    "dropout": 0.0,
    "returnScale": 10.0,
    "maxTimestep": 6,
}
DISCRETE = gym.spaces.Discrete(3, start=2)
BOTH = gym.spaces.Dict(go=BOX, how=gym.spaces.MultiDiscrete([2, 3]))


def test_returns_to_go_are_the_rewards_to_the_end_however_an_episode_ends():
    algorithm, nets = made("DecisionTransformer", SMALL)
    rewards = np.random.default_rng(1).normal(size=15).astype(np.float32)
    window = window_of(algorithm, rewards)
    found = window_targets(algorithm, nets, window)["returns_to_go"]
    expected = [
        rewards[t:end].sum()
        for end, length in zip(np.cumsum(LENGTHS), LENGTHS, strict=True)
        for t in range(end - length, end)
    ]
    torch.testing.assert_close(found, torch.tensor(np.array(expected)))
    firsts = [expected[first] for first in np.cumsum(LENGTHS) - LENGTHS]
    assert float(nets["policy"].target_return) == pytest.approx(max(firsts)), "the best of the episodes"
    window_targets(algorithm, nets, window_of(algorithm, rewards - 1))
    assert float(nets["policy"].target_return) == pytest.approx(max(firsts)), "and of windows before"


def test_the_return_that_is_given_stays():
    algorithm, nets = made("DecisionTransformer", {**SMALL, "targetReturn": -5.0})
    window_targets(algorithm, nets, window_of(algorithm, np.ones(15, dtype=np.float32)))
    assert float(nets["policy"].target_return) == -5.0


def test_a_batch_is_of_windows_all_along_the_episodes():
    algorithm, nets = made("DecisionTransformer", SMALL)
    window = window_of(algorithm, np.ones(15, dtype=np.float32))
    window = window.with_columns(window_targets(algorithm, nets, window))
    batch = window.gather(torch.arange(15))
    assert batch["seq_lens"].tolist() == [4, 4, 3, 2, 1, 1, 4, 4, 4, 4, 4, 4, 3, 2, 1]
    assert batch["t"][6].tolist() == [3, 4, 5, 6], "as far as the episode had come"
    assert batch["returns_to_go"][0].tolist() == [5, 4, 3, 2]
    assert batch["returns_to_go"][13].tolist() == [2, 1, 0, 0]


def sequences(space, size=6, seed=0):
    """A batch as the pipeline makes it: of K steps each, of which some are padding."""
    rng = np.random.default_rng(seed)
    space.seed(seed)
    lengths = rng.integers(1, K + 1, size)
    known = np.arange(K) < lengths[:, None]
    sampled = [[space.sample() for _ in range(K)] for _ in range(size)]
    columns = {
        "obs": rng.normal(size=(size, K, 3)).astype(np.float32),
        "rewards": rng.normal(size=(size, K)).astype(np.float32),
        "returns_to_go": rng.normal(size=(size, K)).astype(np.float32),
        "t": rng.integers(0, 9, (size, 1)) + np.arange(K),
    }
    if isinstance(space, gym.spaces.Dict):
        columns |= {f"actions/{key}": np.array([[a[key] for a in row] for row in sampled]) for key in space}
    else:
        columns["actions"] = np.array(sampled)
    columns = {
        name: np.where(known.reshape(size, K, *[1] * (each.ndim - 2)), each, 0).astype(each.dtype)
        for name, each in columns.items()
    }
    columns |= {"loss_mask": known, "seq_lens": lengths}
    return {name: torch.from_numpy(column) for name, column in columns.items()}


@pytest.mark.parametrize("space", [BOX, DISCRETE, BOTH], ids=["continuous", "discrete", "composite"])
@torch.no_grad()
def test_the_loss_is_the_mean_over_steps_that_are_no_padding(space):
    algorithm, nets = made("DecisionTransformer", SMALL, space)
    batch, policy = sequences(space), nets["policy"]
    losses = []
    for row in range(6):
        for last in range(int(batch["seq_lens"][row])):
            until = {name: each[row : row + 1, : last + 1] for name, each in batch.items() if each.dim() > 1}
            inputs = policy.forward_train(until)["action_dist_inputs"]
            taken = {name: each for name, each in until.items() if name.startswith("actions")}
            taken = taken.get("actions", taken)
            losses.append(float(policy.distribution(inputs).imitation_loss(taken)[0, -1]))
    found = float(stages(algorithm, nets, batch)[0].losses["policy"])
    assert found == pytest.approx(np.mean(losses), rel=1e-5)


@torch.no_grad()
def test_continuous_actions_are_regressed_on_within_their_range():
    algorithm, nets = made("DecisionTransformer", SMALL, WIDE)
    batch, policy = sequences(WIDE), nets["policy"]
    assert not policy.action_head.stochastic
    chosen = policy.distribution(policy.forward_train(batch)["action_dist_inputs"]).mode()
    assert all(WIDE.contains(each.numpy()) for each in chosen.flatten(0, 1))
    errors = (chosen - batch["actions"]).square().mean(-1)[batch["loss_mask"]]
    torch.testing.assert_close(stages(algorithm, nets, batch)[0].losses["policy"], errors.mean())


def played(space=DISCRETE, observations=OBS):
    preprocessing = Preprocessing.from_specs(observations, space, ModelSpec())
    algorithm = build("DecisionTransformer", {**SMALL, "targetReturn": 20.0})
    inputs = ModelInputs(observations, preprocessing.action_space, ModelSpec(fcnet_hiddens=[8]))
    module = new_networks(algorithm, inputs, seed=0)["policy"]
    with torch.no_grad():  # so that outputs depend on all inputs
        for number, each in enumerate(module.parameters()):
            each.add_(torch.randn(each.shape, generator=torch.Generator().manual_seed(number)), alpha=0.3)
    return Policy(module.eval(), preprocessing, observations, space)


SLOTS, STEPS = 3, 9
BEGINS = np.zeros((SLOTS, STEPS), dtype=np.bool_)
BEGINS[:, 0] = BEGINS[1, 4] = BEGINS[2, 1] = True


def steps_of(space=DISCRETE):
    """Outputs `[SLOTS, STEPS, P]` of acting, the observations, the rewards received and the actions taken."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(SLOTS, STEPS, 3)).astype(np.float32)
    rewards = rng.normal(size=(SLOTS, STEPS))
    policy, found, taken = played(space), [], []
    for t in range(STEPS):
        received = rewards[:, t - 1] if t else None
        noise = policy.draw_noise(rng, SLOTS)
        acted = policy.act({"obs": obs[:, t]}, noise, BEGINS[:, t], received)
        found.append(acted.dist_inputs)
        taken.append(acted.actions)
    actions = {leaf: np.stack([each[leaf] for each in taken], 1) for leaf in taken[0]}
    return policy, np.stack(found, 1), obs, rewards, actions


@pytest.mark.parametrize("space", [BOX, DISCRETE, BOTH], ids=["continuous", "discrete", "composite"])
@torch.no_grad()
def test_acting_is_what_it_has_learnt_on_the_last_steps(space):
    """Each slot by itself, whose episode begins where it does: K steps of it, and what is left of 20 at each."""
    policy, found, obs, rewards, actions = steps_of(space)
    for slot in range(SLOTS):
        for now in range(STEPS):
            began = int(np.flatnonzero(BEGINS[slot, : now + 1])[-1])
            first = max(began, now + 1 - K)
            left = [20.0 - rewards[slot, began:t].sum() for t in range(first, now + 1)]
            window = {
                "obs": obs[slot, first : now + 1],
                "returns_to_go": np.float32(left),
                "t": np.arange(first, now + 1) - began,
                **{leaf: each[slot, first : now + 1] for leaf, each in actions.items()},
            }
            batch = {name: torch.from_numpy(np.asarray(each))[None] for name, each in window.items()}
            expected = policy.module.forward_train(batch)["action_dist_inputs"][0, -1]
            np.testing.assert_allclose(found[slot, now], expected.numpy(), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_an_environments_rewards_reach_it():
    """Seven episodes in three slots, each as training would have it."""
    policy = played(Walk.action_space, Walk.observation_space)
    environment = EnvironmentSpec(id="toy_environments:Walk")
    runner = EnvRunner(environment, policy, width=3, seed=0, explore=True)
    for episode in runner.play(range(7)):
        columns, steps = episode.columns, episode.length
        received = np.concatenate([[0], np.cumsum(columns["rewards"])[:-1]])
        batch = {
            "obs": columns["obs"][:-1],
            "actions": columns["actions"],
            "returns_to_go": (20.0 - received).astype(np.float32),
            "t": np.arange(steps),
        }
        for now in range(steps):
            last = slice(max(0, now + 1 - K), now + 1)
            window = {name: torch.from_numpy(each[last])[None] for name, each in batch.items()}
            expected = policy.module.forward_train(window)["action_dist_inputs"][0, -1]
            np.testing.assert_allclose(columns["action_dist_inputs"][now], expected, atol=1e-5, rtol=1e-4)
    runner.close()


def test_one_observation_at_a_time_and_from_a_file(tmp_path):
    policy, _, obs, rewards, _ = steps_of()
    policy.save(tmp_path)
    loaded = Policy.load(tmp_path)
    greedy = [loaded(obs[0, t], reward=rewards[0, t - 1] if t else None) for t in range(STEPS)]
    state, again = None, []
    for t in range(STEPS):
        received = rewards[:1, t - 1] if t else None
        actions, state = policy.compute_actions({"obs": obs[:1, t]}, state, rewards=received)
        again.append(actions[0])
    assert greedy == again


def test_without_the_reward_it_says_so():
    policy = played()
    policy(np.zeros(3, np.float32))
    with pytest.raises(
        DataError, match=r"give the reward of the previous step, policy\(obs, reward=reward\)"
    ):
        policy(np.zeros(3, np.float32))
    policy.reset()
    policy(np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("config", "model", "sentence"),
    [
        (
            {"embedSize": 9, "numHeads": 2},
            {},
            r"config\.embedSize is 9, expected a multiple of config\.numHeads, 2",
        ),
        ({"dropout": 1.0}, {}, "config.dropout is 1.0, expected less than 1"),
        ({}, {"recurrent": "lstm"}, "DecisionTransformer builds its own kind of policy"),
        ({}, {"distribution": "gaussian"}, "'Gaussian' is for continuous actions"),
    ],
)
def test_what_does_not_fit_is_one_sentence(config, model, sentence):
    with pytest.raises(SpecError, match=sentence):
        made("DecisionTransformer", config, DISCRETE, **model)


def test_what_it_received_reaches_it_where_it_serves_an_application(tmp_path):
    policy, _, obs, rewards, _ = steps_of()
    obs = obs.clip(-1, 1)
    alone = [policy(obs[0, t], reward=rewards[0, t - 1] if t else None) for t in range(STEPS)]
    with PolicyServer(policy, tmp_path / "log", explore=False) as server:
        episode, served = server.start_episode(), []
        for t in range(STEPS):
            served.append(server.get_action(episode, obs[0, t]))
            server.log_returns(episode, rewards[0, t] - 1)
            server.log_returns(episode, 1.0)
        server.end_episode(episode, obs[0, 0])
    assert served == alone
