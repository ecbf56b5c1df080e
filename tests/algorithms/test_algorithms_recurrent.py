"""Losses of recurrent networks and their gradients equal a plain loop over episodes, sequences and steps."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from algorithm_kit import BOX, build_algorithm, compute_loss_stages, make_step

from episode_kit import build_block
from hindcast.algorithms.dqn import quantile_huber
from hindcast.algorithms.sac import draw_action_noise
from hindcast.errors import SpecError
from hindcast.learn.algorithm import needs_for, window_targets
from hindcast.learn.batches import prepare_sequences
from hindcast.models.networks import next_observations
from hindcast.pipeline.items import count_items
from hindcast.pipeline.loader import build_window
from hindcast.pipeline.window import Recipe
from layers import slow_except

LENGTHS = np.array([7, 2, 4, 1, 9], dtype=np.int64)
IS_TERMINATED = np.array([True, False, False, True, False])
SEQ_LEN, GAMMA = 4, 0.9
# The first action is not 0, so that padding with zeros would be invalid.
CHOICES = gym.spaces.Discrete(3, start=5)
MEMORY = {"recurrent": "gru", "cell_size": 6, "max_seq_len": SEQ_LEN, "fcnet_hiddens": [8]}


def make_episodes(action_space, seed=0):
    rng = np.random.default_rng(seed)
    action_space.seed(seed)
    num_steps = int(LENGTHS.sum())
    columns = {
        "obs": rng.normal(size=(num_steps + len(LENGTHS), 3)).astype(np.float32),
        "actions": np.stack([action_space.sample() for _ in range(num_steps)]),
        "rewards": rng.normal(size=num_steps).astype(np.float32),
    }
    return build_block(columns, LENGTHS, terminated=IS_TERMINATED)


def make_recurrent(name, config, action_space, **model):
    """Return an algorithm, its networks, and its window and batch of all sequences of the episodes."""
    config = {"gamma": GAMMA, **config}
    algorithm, nets = build_algorithm(name, config, action_space, **MEMORY, **model)
    needs = needs_for(algorithm, nets["policy"])
    window = build_window([make_episodes(action_space)], Recipe(needs))
    if needs.targets:
        window = window.with_columns(window_targets(algorithm, nets, window))
    num_items = int(count_items(LENGTHS, needs).sum())
    return algorithm, nets, window, window.gather(torch.arange(num_items))


class PlainLoop:
    """Evaluates networks at steps of episodes, one observation after the other from the start of a sequence."""

    def __init__(self, window, burn_in=0, n_step=1):
        rows = window.columns["obs"].split((LENGTHS + 1).tolist())
        names = [
            name for name in ("actions", "rewards", "value_targets", "mc_returns") if name in window.columns
        ]
        columns = {name: window.columns[name].split(LENGTHS.tolist()) for name in names}
        self.steps, sequence = [], 0
        for episode, length in enumerate(LENGTHS.tolist()):
            start = 0
            while True:
                for t in range(start + burn_in * (start > 0), min(start + SEQ_LEN, length)):
                    end = min(t + n_step, length)
                    rewards = columns["rewards"][episode]
                    step = SimpleNamespace(
                        position=(sequence, t - start),
                        history=rows[episode][start : t + 1],
                        next_history=rows[episode][start : end + 1],
                        reward=sum(GAMMA ** (k - t) * rewards[k] for k in range(t, end)),
                        discount=0.0 if end == length and IS_TERMINATED[episode] else GAMMA ** (end - t),
                        **{name: columns[name][episode][t : t + 1] for name in names if name != "rewards"},
                    )
                    self.steps.append(step)
                sequence += 1
                if start + SEQ_LEN >= length:
                    break
                start += SEQ_LEN - burn_in


def encode(encoder, history):
    """Return the features of the last observation of a history `[t, 3]`."""
    state = {}
    for obs in history:
        features, state = encoder.unroll({"obs": obs[None]}, state)
    return features


def compute_quantiles(network, history, state=None):
    """Return `[n, Q]` quantiles of the actions' values after a history."""
    state = state or {}
    for obs in history:
        batch = {"obs": obs[None], **{f"state_in/{name}": rows for name, rows in state.items()}}
        quantiles, state = network.unroll(batch)
    return quantiles[0, 0]


def compute_dist_inputs(policy, history):
    state = {}
    for obs in history:
        outputs = policy.forward_inference({"obs": obs[None], **state})
        state = {
            leaf.replace("out", "in"): rows for leaf, rows in outputs.items() if leaf.startswith("state")
        }
    return outputs["action_dist_inputs"]


def compute_value(network, history):
    return network.head(encode(network.encoder, history)).squeeze()


def compute_q(critics, history, actions):
    """Return `[E]` values of one action `[1, ...]` after a history."""
    features = encode(critics.observations, history)
    return critics.stack(torch.cat([features, critics.actions({"actions": actions})], -1)).flatten()


def compute_qs(critics, history, actions):
    """Return `[E, K]` values of actions `[K, ...]` after a history."""
    return torch.stack([compute_q(critics, history, action[None]) for action in actions], 1)


def compute_similarity(critics, history, actions):
    """Return the mean cosine of the critics' gradients with respect to the action."""
    actions = actions.clone().requires_grad_()
    values = compute_q(critics, history, actions)
    gradients = torch.cat([torch.autograd.grad(q, actions, create_graph=True)[0] for q in values])
    directions = torch.nn.functional.normalize(gradients, dim=-1)
    cosines = directions @ directions.T
    return (cosines.sum() - cosines.trace()) / (len(cosines) - 1)


def compute_soft_maximum(options, nets, step, samples):
    """Return the soft maximum `[E]` of CQL over uniform actions and those of the policy now and next."""
    critics, (uniform, noise, next_actions, next_logp) = nets["critics"], samples
    with torch.no_grad():
        actions, logp = sample_after(nets["policy"], step.history, noise)
    next_history = step.next_history if options.next_state_gap else step.history
    policy_q = compute_qs(critics, step.history, actions)
    next_q = compute_qs(critics, next_history, next_actions)
    if options.calibrated:
        policy_q, next_q = (values.clamp(min=float(step.mc_returns)) for values in (policy_q, next_q))
    # The density of uniform actions from -1 to 1 is 1/4 in two dimensions.
    values = [compute_qs(critics, step.history, uniform) + np.log(4), policy_q - logp, next_q - next_logp]
    return torch.cat(values, 1).logsumexp(1)


def sample_after(policy, history, noise):
    """Sample `K` actions after a history from their noise `[K, ...]`; return also their log-densities."""
    dist_inputs = compute_dist_inputs(policy, history).expand(len(noise), -1)
    return policy.distribution(dist_inputs).sample_with_logp(noise)


def mean(values):
    return torch.stack(list(values)).mean(0)


def assert_equal_losses(algorithm, nets, batch, expected_losses):
    """Compare the losses of an update by optimiser, and their gradients; return the priorities."""
    stages, optimisers = compute_loss_stages(algorithm, nets, batch), algorithm.optimisers(nets)
    losses = {name: loss for stage in stages for name, loss in stage.losses.items()}
    assert losses.keys() == expected_losses.keys()
    for name, expected in expected_losses.items():
        parameters = list(optimisers[name].parameters)
        torch.testing.assert_close(losses[name], expected, rtol=1e-4, atol=1e-6)
        pairs = zip(
            *(
                torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
                for loss in (losses[name], expected)
            ),
            strict=True,
        )
        gradients = [(gradient, expected) for gradient, expected in pairs if gradient is not expected]
        assert gradients
        for gradient, expected_gradient in gradients:
            torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-6)
    return stages[0].priorities


SEQUENCES = pytest.mark.parametrize(
    ("n_step", "burn_in"), slow_except([(3, 1)], [(1, 0), (3, 1), (SEQ_LEN, 2)])
)


@SEQUENCES
def test_iql_losses_equal_a_loop_over_steps(n_step, burn_in):
    config = {"nStep": n_step, "expectile": 0.8, "beta": 2.0}
    algorithm, nets, window, batch = make_recurrent("IQL", config, CHOICES, burn_in=burn_in)
    policy, value = nets["policy"], nets["value"]
    value_losses, policy_losses, critic_losses = [], [], []
    for step in PlainLoop(window, burn_in, n_step).steps:
        v, next_v = (compute_value(value, history) for history in (step.history, step.next_history))
        u = compute_q(nets["target_critics"], step.history, step.actions).amin() - v
        value_losses.append((0.8 if u > 0 else 0.2) * u.square())
        logp = policy.distribution(compute_dist_inputs(policy, step.history)).logp(step.actions)
        policy_losses.append(-(2.0 * u.detach()).exp().clamp(max=100.0) * logp.squeeze())
        td_target = step.reward + step.discount * next_v.detach()
        q = compute_q(nets["critics"], step.history, step.actions)
        critic_losses.append((q - td_target).square().sum())
    losses = {"value": value_losses, "policy": policy_losses, "critics": critic_losses}
    assert_equal_losses(algorithm, nets, batch, {name: mean(values) for name, values in losses.items()})


@SEQUENCES
@pytest.mark.parametrize(
    ("name", "config", "action_space"),
    [
        ("DQN", {"prioritizedReplay": True}, CHOICES),
        ("DQN", {"doubleQ": False, "numQuantiles": 3}, gym.spaces.MultiDiscrete([2, 3])),
        ("DiscreteCQL", {"minQWeight": 0.7, "dueling": False}, CHOICES),
    ],
)
def test_dqn_losses_equal_a_loop_over_steps(name, config, action_space, n_step, burn_in):
    algorithm, nets, window, batch = make_recurrent(
        name, {"nStep": n_step, **config}, action_space, burn_in=burn_in
    )
    num_quantiles, weights = config.get("numQuantiles", 1), torch.ones(len(batch["seq_lens"]))
    if algorithm.options.prioritized_replay:
        weights = batch["weights"] = torch.rand(len(weights))
    losses, errors = [], [[] for _ in weights]
    for step in PlainLoop(window, burn_in, n_step).steps:
        values, next_values, target_values = (
            compute_quantiles(network, history)
            for network, history in (
                (nets["policy"].values, step.history),
                (nets["policy"].values, step.next_history),
                (nets["target"], step.next_history),
            )
        )
        selection = next_values if algorithm.options.double_q else target_values
        target = step.reward + step.discount * target_values[selection.mean(-1).argmax()].detach()
        q = values[nets["policy"].values.indices(step.actions)[0]]
        loss = quantile_huber(q[None], target[None]).squeeze() * weights[step.position[0]]
        penalty = values.mean(-1).logsumexp(0) - q.mean()
        losses.append(loss + config.get("minQWeight", 0.0) * penalty)
        errors[step.position[0]].append(float((target.mean() - q.mean()).detach().abs()))
    assert values.shape == (3 if action_space is CHOICES else 6, num_quantiles)
    priorities = assert_equal_losses(algorithm, nets, batch, {"policy": mean(losses)})
    if algorithm.options.prioritized_replay:
        expected = torch.tensor([0.9 * max(sizes) + 0.1 * sum(sizes) / len(sizes) for sizes in errors])
        torch.testing.assert_close(priorities, expected, rtol=1e-4, atol=1e-6)


def test_dqn_unrolls_both_networks_from_recorded_states():
    """Stored states (R2D2) of the policy belong to its values and to the target network alike."""
    algorithm, nets, window, batch = make_recurrent("DQN", {}, CHOICES)
    states = batch["state_in/h"] = torch.randn(len(batch["seq_lens"]), 6)
    steps = PlainLoop(window).steps
    losses = []
    for step in steps:
        state = {"h": states[step.position[0], None]}
        values, next_values, target_values = (
            compute_quantiles(network, history, state)
            for network, history in (
                (nets["policy"].values, step.history),
                (nets["policy"].values, step.next_history),
                (nets["target"], step.next_history),
            )
        )
        target = step.reward + step.discount * target_values[next_values.argmax()].detach()
        losses.append(quantile_huber(values[step.actions.item() - 5][None], target[None]).squeeze())
    assert_equal_losses(algorithm, nets, batch, {"policy": mean(losses)})


@SEQUENCES
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("SAC", {"numCritics": 3, "qSubset": 2, "diversity": 0.5}),
        ("CQL", {"minQWeight": 0.7}),
        ("CQL", {"lagrangian": True, "nextStateGap": True, "deterministicBackup": False}),
        ("CQL", {"calibrated": True, "bcIters": 1}),
    ],
)
def test_soft_actor_critics_equal_a_loop_over_steps(name, config, n_step, burn_in):
    """The same random numbers, one action after the other."""
    config = {"nStep": n_step, "initialAlpha": 0.3, **config} | ({"numActions": 2} if name == "CQL" else {})
    algorithm, nets, window, batch = make_recurrent(name, config, BOX, burn_in=burn_in)
    policy, critics, options = nets["policy"], nets["critics"], algorithm.options
    step_of_noise = make_step()
    subset = algorithm.draw_subset(batch, step_of_noise).get(
        "target_critics", torch.arange(options.num_critics)
    )
    draws = algorithm._draw_noise(nets, batch, step_of_noise)
    policy_noise = draw_action_noise(policy, batch, step_of_noise, 1)
    alpha, gap_weight = nets["alpha"]().detach(), nets["gap_weight"]() if config.get("lagrangian") else None
    td_losses, gaps, policy_losses, entropies, similarities = [], [], [], [], []
    for step in PlainLoop(window, burn_in, n_step).steps:
        noise, next_noise, *uniform = (draw[(slice(None), *step.position)] for draw in (draws * 2)[:3])
        if name == "SAC":
            next_noise = noise
        with torch.no_grad():
            next_actions, next_logp = sample_after(policy, step.next_history, next_noise)
            target_q = compute_qs(nets["target_critics"], step.next_history, next_actions[:1])
            target_q = target_q[subset, 0].amin()
            if not getattr(options, "deterministic_backup", False):
                target_q = target_q - alpha * next_logp[0]
            td_target = step.reward + step.discount * target_q
        q = compute_qs(critics, step.history, step.actions)[:, 0]
        td_losses.append((q - td_target).square())
        if options.diversity:
            similarities.append(compute_similarity(critics, step.history, step.actions))
        if name == "CQL":
            samples = uniform[0], noise, next_actions[1:], next_logp[1:]
            gaps.append(compute_soft_maximum(options, nets, step, samples) - q)
        actions, logp = sample_after(policy, step.history, policy_noise[(slice(None), *step.position)])
        q = compute_qs(critics, step.history, actions)[:, 0]
        objective = q.mean() if options.q_subset else q.amin()
        if config.get("bcIters"):
            dist_inputs = compute_dist_inputs(policy, step.history)
            objective = policy.distribution(dist_inputs).logp(step.actions).squeeze()
        policy_losses.append((alpha * logp - objective).squeeze())
        entropies.append(-logp.detach().squeeze())
    expected = {"critics": mean(td_losses).sum(), "policy": mean(policy_losses)}
    if name == "CQL":
        penalties = options.min_q_weight * mean(gaps) - (5.0 if options.lagrangian else 0.0)
        weight = 1.0 if gap_weight is None else gap_weight.detach()
        expected["critics"] = expected["critics"] + (weight * penalties).sum()
        if gap_weight is not None:
            expected["gap_weight"] = -0.5 * (gap_weight * penalties.detach()).sum()
    if options.diversity:
        expected["critics"] = expected["critics"] + options.diversity * mean(similarities)
    # The target entropy is minus the number of action elements.
    expected["alpha"] = nets["alpha"].log * (mean(entropies) + 2.0)
    assert_equal_losses(algorithm, nets, batch, expected)


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("burn_in", [0, 2])
def test_marwil_losses_equal_a_loop_over_steps(burn_in, is_shared):
    config = {"lambda": 0.7, "beta": 2.0, "movingAverageSqdAdvNormStart": 4.0}
    algorithm, nets, window, batch = make_recurrent(
        "MARWIL", config, BOX, burn_in=burn_in, vf_share_layers=is_shared
    )
    policy = nets["policy"]
    losses = []
    for step in PlainLoop(window, burn_in).steps:
        logp = policy.distribution(compute_dist_inputs(policy, step.history)).logp(step.actions)
        # The value of a single sequence, checked against its steps in test_models_recurrent.py.
        advantage = step.value_targets - policy.compute_values({"obs": step.history[None]})[0, -1]
        weight = (2.0 * advantage.detach() / 2.0).exp().clamp(max=20.0)
        losses.append((-weight * logp + 0.5 * advantage.square()).squeeze())
    assert_equal_losses(algorithm, nets, batch, {"policy": mean(losses)})


@torch.no_grad()
def test_returns_use_values_of_whole_episodes():
    """Value targets with lambda 0 are one reward and the value after it, for which the whole episode is remembered."""
    _, nets, window, _ = make_recurrent("MARWIL", {"lambda": 0.0}, BOX)
    episodes = window.columns["obs"].split((LENGTHS + 1).tolist())
    values = [nets["policy"].compute_values({"obs": obs[None]})[0] for obs in episodes]
    for chunk_rows in (1, 17, 1000):
        actual = window.map_episodes(nets["policy"].compute_values, chunk_rows)
        torch.testing.assert_close(actual, torch.cat(values))
    next_values = torch.cat(
        [torch.cat([v[1:-1], v[-1:] * (not is_end)]) for v, is_end in zip(values, IS_TERMINATED, strict=True)]
    )
    expected = window.columns["rewards"] + GAMMA * next_values
    torch.testing.assert_close(window.columns["value_targets"], expected)


@torch.no_grad()
def test_values_without_memory_read_each_next_observation_alone():
    """As beside a custom policy with a state."""
    _, _, _, batch = make_recurrent("IQL", {"nStep": 3}, CHOICES, burn_in=1)
    _, nets = build_algorithm("IQL", {}, CHOICES)
    _, q_nets = build_algorithm("DQN", {}, CHOICES)
    next_obs, is_learnt = next_observations(prepare_sequences(batch, 3)), batch["loss_mask"]
    actions, expected_obs = batch["actions"].clamp(min=5), {"obs": batch["new_obs"][is_learnt]}
    values = nets["value"](next_obs)[is_learnt]
    torch.testing.assert_close(values, nets["value"](expected_obs))
    values = nets["critics"](next_obs, actions)[:, is_learnt]
    torch.testing.assert_close(values, nets["critics"](expected_obs, actions[is_learnt]))
    values = q_nets["target"](next_obs)[:, is_learnt]
    torch.testing.assert_close(values, q_nets["target"](expected_obs))


@pytest.mark.parametrize(("name", "action_space"), [("IQL", CHOICES), ("DQN", CHOICES), ("CQL", BOX)])
def test_targets_beyond_a_sequence_are_refused(name, action_space):
    algorithm, nets = build_algorithm(name, {"nStep": SEQ_LEN + 1}, action_space, **MEMORY)
    with pytest.raises(
        SpecError, match=r"nStep is 5, but sequences of a recurrent policy have 4 steps: set it to at"
    ):
        needs_for(algorithm, nets["policy"])
