"""Decision Transformer: returns to go, the loss, and acting on a target return less the rewards received."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from algorithm_kit import BOX, LENGTHS, OBS, WIDE, build_algorithm, compute_loss_stages, make_window

from hindcast import PolicyServer
from hindcast.algorithms import build
from hindcast.api.environment import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.learn.algorithm import ModelInputs, new_networks, window_targets
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.record.runner import EnvRunner
from toy_environments import Walk

K = 4
SMALL_CONFIG = {
    "contextLength": K,
    "embedSize": 8,
    "numHeads": 2,
    "numLayers": 2,
    "dropout": 0.0,
    "returnScale": 10.0,
    "maxTimestep": 6,
}
DISCRETE = gym.spaces.Discrete(3, start=2)
COMPOSITE = gym.spaces.Dict(go=BOX, how=gym.spaces.MultiDiscrete([2, 3]))


def test_returns_to_go_sum_the_rewards_to_any_end():
    algorithm, nets = build_algorithm("DecisionTransformer", SMALL_CONFIG)
    rewards = np.random.default_rng(1).normal(size=15).astype(np.float32)
    window = make_window(algorithm, rewards)
    returns_to_go = window_targets(algorithm, nets, window)["returns_to_go"]
    expected = [
        rewards[t:end].sum()
        for end, length in zip(np.cumsum(LENGTHS), LENGTHS, strict=True)
        for t in range(end - length, end)
    ]
    torch.testing.assert_close(returns_to_go, torch.tensor(np.array(expected)))


@pytest.mark.parametrize("configured", [(None, None), (None, 10.0), (-5.0, None), (-5.0, 10.0)])
def test_returns_are_fitted_to_all_blocks_unless_configured(configured):
    target_return, return_scale = configured
    config = {**SMALL_CONFIG, "targetReturn": target_return, "returnScale": return_scale}
    algorithm, nets = build_algorithm("DecisionTransformer", config)
    policy = nets["policy"]
    algorithm.fit(nets, [make_block([[1, 2], [-9, 1, 3]]), make_block([[4], [-1, 2]])])
    assert float(policy.target_return) == (4 if target_return is None else target_return)
    assert float(policy.return_scale) == (5 if return_scale is None else return_scale)
    # Such as another training's, of which this one loaded the policy.
    algorithm.fit(nets, [make_block([[100]])])
    assert float(policy.target_return) == (100 if target_return is None else target_return)
    assert float(policy.return_scale) == (5 if return_scale is None else return_scale)


def make_block(rewards):
    """Return a block of episodes with these rewards."""
    flags, num_episodes = np.zeros(len(rewards), dtype=bool), len(rewards)
    columns = {"rewards": np.concatenate(rewards).astype(np.float32)}
    lengths, ids = np.array(list(map(len, rewards))), np.arange(num_episodes).astype(str).astype(object)
    return Block(columns, lengths, ids, np.zeros(num_episodes, dtype=np.int64), flags, flags)


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e4])
@torch.no_grad()
def test_default_scale_makes_the_unit_of_rewards_irrelevant(unit):
    config = {name: value for name, value in SMALL_CONFIG.items() if name != "returnScale"}
    rewards = np.random.default_rng(1).normal(size=15).astype(np.float32)
    outputs = []
    for factor in (1.0, unit):
        algorithm, nets = build_algorithm("DecisionTransformer", config)
        window = make_window(algorithm, (factor * rewards).astype(np.float32))
        window = window.with_columns(window_targets(algorithm, nets, window))
        algorithm.fit(nets, [make_block(np.split(factor * rewards, np.cumsum(LENGTHS)[:-1]))])
        batch = window.gather(torch.arange(15))
        assert float(nets["policy"].return_scale) == pytest.approx(
            float(window.columns["returns_to_go"].abs().max())
        )
        outputs.append(nets["policy"].forward_train(batch)["action_dist_inputs"])
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)


def test_batch_has_a_sequence_from_every_step():
    algorithm, nets = build_algorithm("DecisionTransformer", SMALL_CONFIG)
    window = make_window(algorithm, np.ones(15, dtype=np.float32))
    window = window.with_columns(window_targets(algorithm, nets, window))
    batch = window.gather(torch.arange(15))
    assert batch["seq_lens"].tolist() == [4, 4, 3, 2, 1, 1, 4, 4, 4, 4, 4, 4, 3, 2, 1]
    assert batch["t"][6].tolist() == [3, 4, 5, 6], "a fragment continues the timesteps"
    assert batch["returns_to_go"][0].tolist() == [5, 4, 3, 2]
    assert batch["returns_to_go"][13].tolist() == [2, 1, 0, 0]


def make_sequences(space, size=6, seed=0):
    """Return a batch like the pipeline's: sequences of K steps, some of them padding."""
    rng = np.random.default_rng(seed)
    space.seed(seed)
    lengths = rng.integers(1, K + 1, size)
    is_step = np.arange(K) < lengths[:, None]
    actions = [[space.sample() for _ in range(K)] for _ in range(size)]
    columns = {
        "obs": rng.normal(size=(size, K, 3)).astype(np.float32),
        "rewards": rng.normal(size=(size, K)).astype(np.float32),
        "returns_to_go": rng.normal(size=(size, K)).astype(np.float32),
        "t": rng.integers(0, 9, (size, 1)) + np.arange(K),
    }
    if isinstance(space, gym.spaces.Dict):
        columns |= {f"actions/{key}": np.array([[a[key] for a in row] for row in actions]) for key in space}
    else:
        columns["actions"] = np.array(actions)
    columns = {
        name: np.where(is_step.reshape(size, K, *[1] * (values.ndim - 2)), values, 0).astype(values.dtype)
        for name, values in columns.items()
    }
    columns |= {"loss_mask": is_step, "seq_lens": lengths}
    return {name: torch.from_numpy(column) for name, column in columns.items()}


@pytest.mark.parametrize("space", [BOX, DISCRETE, COMPOSITE], ids=["continuous", "discrete", "composite"])
@torch.no_grad()
def test_loss_is_the_mean_over_steps_without_padding(space):
    algorithm, nets = build_algorithm("DecisionTransformer", SMALL_CONFIG, space)
    batch, policy = make_sequences(space), nets["policy"]
    losses = []
    for row in range(6):
        for t in range(int(batch["seq_lens"][row])):
            columns = {name: column for name, column in batch.items() if column.dim() > 1}
            context = {name: column[row : row + 1, : t + 1] for name, column in columns.items()}
            inputs = policy.forward_train(context)["action_dist_inputs"]
            actions = {name: column for name, column in context.items() if name.startswith("actions")}
            actions = actions.get("actions", actions)
            losses.append(float(policy.distribution(inputs).imitation_loss(actions)[0, -1]))
    actual = float(compute_loss_stages(algorithm, nets, batch)[0].losses["policy"])
    assert actual == pytest.approx(np.mean(losses), rel=1e-5)


@torch.no_grad()
def test_continuous_actions_are_regressed_within_their_range():
    algorithm, nets = build_algorithm("DecisionTransformer", SMALL_CONFIG, WIDE)
    batch, policy = make_sequences(WIDE), nets["policy"]
    assert not policy.action_head.is_stochastic
    modes = policy.distribution(policy.forward_train(batch)["action_dist_inputs"]).mode()
    assert all(WIDE.contains(mode.numpy()) for mode in modes.flatten(0, 1))
    errors = (modes - batch["actions"]).square().mean(-1)[batch["loss_mask"]]
    torch.testing.assert_close(compute_loss_stages(algorithm, nets, batch)[0].losses["policy"], errors.mean())


def build_policy(space=DISCRETE, observations=OBS):
    preprocessing = Preprocessing.from_specs(observations, space, ModelSpec())
    algorithm = build("DecisionTransformer", {**SMALL_CONFIG, "targetReturn": 20.0})
    inputs = ModelInputs(observations, preprocessing.action_space, ModelSpec(fcnet_hiddens=[8]))
    module = new_networks(algorithm, inputs, seed=0)["policy"]
    with torch.no_grad():  # so that outputs depend on all inputs
        for seed, parameter in enumerate(module.parameters()):
            generator = torch.Generator().manual_seed(seed)
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return Policy(module.eval(), preprocessing, observations, space)


NUM_SLOTS, NUM_STEPS = 3, 9
IS_FIRST = np.zeros((NUM_SLOTS, NUM_STEPS), dtype=np.bool_)
IS_FIRST[:, 0] = IS_FIRST[1, 4] = IS_FIRST[2, 1] = True


def act_in_slots(space=DISCRETE):
    """Return a policy, and its outputs `[NUM_SLOTS, NUM_STEPS, P]`, observations, rewards and actions."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(NUM_SLOTS, NUM_STEPS, 3)).astype(np.float32)
    rewards = rng.normal(size=(NUM_SLOTS, NUM_STEPS))
    policy, dist_inputs, action_steps = build_policy(space), [], []
    for t in range(NUM_STEPS):
        previous_rewards = rewards[:, t - 1] if t else None
        noise = policy.draw_noise(rng, NUM_SLOTS)
        step_actions = policy.act({"obs": obs[:, t]}, noise, IS_FIRST[:, t], previous_rewards)
        dist_inputs.append(step_actions.dist_inputs)
        action_steps.append(step_actions.actions)
    actions = {leaf: np.stack([step[leaf] for step in action_steps], 1) for leaf in action_steps[0]}
    return policy, np.stack(dist_inputs, 1), obs, rewards, actions


@pytest.mark.parametrize("space", [BOX, DISCRETE, COMPOSITE], ids=["continuous", "discrete", "composite"])
@torch.no_grad()
def test_acting_equals_the_training_pass_over_the_last_steps(space):
    """The training pass gets the last K steps of an episode, each with what remains of a target return of 20."""
    policy, dist_inputs, obs, rewards, actions = act_in_slots(space)
    for slot in range(NUM_SLOTS):
        for current_t in range(NUM_STEPS):
            episode_start = int(np.flatnonzero(IS_FIRST[slot, : current_t + 1])[-1])
            context_start = max(episode_start, current_t + 1 - K)
            context = np.arange(context_start, current_t + 1)
            returns_to_go = [20.0 - rewards[slot, episode_start:t].sum() for t in context]
            window = {
                "obs": obs[slot, context],
                "returns_to_go": np.float32(returns_to_go),
                "t": context - episode_start,
                **{leaf: column[slot, context] for leaf, column in actions.items()},
            }
            batch = {name: torch.from_numpy(np.asarray(column))[None] for name, column in window.items()}
            expected = policy.module.forward_train(batch)["action_dist_inputs"][0, -1]
            np.testing.assert_allclose(dist_inputs[slot, current_t], expected.numpy(), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_policy_receives_the_rewards_of_the_environment():
    """Seven episodes in three slots; each equals the training pass."""
    policy = build_policy(Walk.action_space, Walk.observation_space)
    environment = EnvironmentSpec(id="toy_environments:Walk")
    runner = EnvRunner(environment, policy, width=3, seed=0, explore=True)
    for episode in runner.play(range(7)):
        columns, num_steps = episode.columns, episode.length
        total_rewards = np.concatenate([[0], np.cumsum(columns["rewards"])[:-1]])
        batch = {
            "obs": columns["obs"][:-1],
            "actions": columns["actions"],
            "returns_to_go": (20.0 - total_rewards).astype(np.float32),
            "t": np.arange(num_steps),
        }
        for current_t in range(num_steps):
            context_rows = slice(max(0, current_t + 1 - K), current_t + 1)
            window = {name: torch.from_numpy(column[context_rows])[None] for name, column in batch.items()}
            expected = policy.module.forward_train(window)["action_dist_inputs"][0, -1]
            actual = columns["action_dist_inputs"][current_t]
            np.testing.assert_allclose(actual, expected, atol=1e-5, rtol=1e-4)
    runner.close()


def test_loaded_policy_acts_one_observation_at_a_time(tmp_path):
    policy, _, obs, rewards, _ = act_in_slots()
    policy.save(tmp_path)
    restored = Policy.load(tmp_path)
    greedy_actions = [restored(obs[0, t], reward=rewards[0, t - 1] if t else None) for t in range(NUM_STEPS)]
    state, repeated_actions = None, []
    for t in range(NUM_STEPS):
        reward = rewards[:1, t - 1] if t else None
        actions, state = policy.compute_actions({"obs": obs[:1, t]}, state, rewards=reward)
        repeated_actions.append(actions[0])
    assert greedy_actions == repeated_actions


def test_missing_reward_is_reported():
    policy = build_policy()
    policy(np.zeros(3, np.float32))
    with pytest.raises(DataError, match=r"previous step, policy\(obs, reward=reward\)"):
        policy(np.zeros(3, np.float32))
    policy.reset()
    policy(np.zeros(3, np.float32))


def test_served_policy_receives_the_logged_rewards(tmp_path):
    policy, _, obs, rewards, _ = act_in_slots()
    obs = obs.clip(-1, 1)
    expected_actions = [policy(obs[0, t], reward=rewards[0, t - 1] if t else None) for t in range(NUM_STEPS)]
    with PolicyServer(policy, tmp_path / "log", explore=False) as server:
        episode, served_actions = server.start_episode(), []
        for t in range(NUM_STEPS):
            served_actions.append(server.get_action(episode, obs[0, t]))
            server.log_returns(episode, rewards[0, t] - 1)
            server.log_returns(episode, 1.0)
        server.end_episode(episode, obs[0, 0])
    assert served_actions == expected_actions
