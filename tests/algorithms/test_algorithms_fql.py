"""FQL's losses equal their formulas; its flow and its policy learn recorded actions with two modes."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from algorithm_kit import BOX, OBS, WIDE, build_algorithm, compute_loss_stages, make_transitions

from hindcast import PolicyServer
from hindcast.algorithms import build
from hindcast.api.environment import EnvironmentSpec
from hindcast.api.model import ModelOptions, ModelSpec
from hindcast.evaluate.environment import evaluate_policy
from hindcast.learn.algorithm import ModelInputs, new_networks
from hindcast.learn.learner import Learner
from hindcast.learn.model_defaults import complete_model
from hindcast.models.exported_policy import ExportedPolicy
from hindcast.models.flow_policy import OneStepPolicy
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from support import read_all, record, recording
from toy_environments import SteeredWalk

LOW, HALF = torch.tensor(WIDE.low), torch.tensor([2.0, 0.5])


def draw_noise(size=32):
    """Return an update's random numbers: noise of the next actions, of the flow (start and time), of the policy."""
    generator = torch.Generator().manual_seed(0)
    next_noise, flow_noise = (torch.randn((size, 2), generator=generator) for _ in range(2))
    time = torch.rand((size, 1), generator=generator)
    return next_noise, flow_noise, time, torch.randn((size, 2), generator=generator)


def map_noise(nets, observations, noise):
    """Return the policy's actions for noise, scaled to ±1 but not yet clipped."""
    policy = nets["policy"].map
    return policy.head(policy.stack(torch.cat([observations, noise], -1)))


def to_env_actions(values):
    """Convert values within ±1 to actions of `WIDE`."""
    return LOW + (values.clamp(-1, 1) + 1) * HALF


@torch.no_grad()
def test_flow_loss_equals_the_formula():
    algorithm, nets = build_algorithm("FQL", {}, WIDE)
    batch = make_transitions(WIDE)
    _, flow_noise, time, _ = draw_noise()
    total = 0.0
    for row in range(32):
        x1 = (batch["actions"][row] - LOW) / HALF - 1
        assert bool((x1.abs() <= 1).all())
        x_t = (1 - time[row]) * flow_noise[row] + time[row] * x1
        velocity = nets["behaviour"](batch["obs"][row], x_t, time[row])
        total += float((velocity - (x1 - flow_noise[row])).square().mean()) / 32
    loss = compute_loss_stages(algorithm, nets, batch)[0].losses["behaviour"]
    assert float(loss) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("aggregation", ["mean", "min"])
@torch.no_grad()
def test_critic_loss_equals_the_formula(aggregation):
    algorithm, nets = build_algorithm("FQL", {"qAggregation": aggregation}, WIDE)
    batch = make_transitions(WIDE)
    actions = to_env_actions(map_noise(nets, batch["new_obs"], draw_noise()[0]))
    member_values = nets["target_critics"]({"obs": batch["new_obs"]}, actions)
    values = member_values.mean(0) if aggregation == "mean" else torch.minimum(*member_values)
    td_target = batch["rewards"] + batch["discounts"] * values
    expected = sum((q - td_target).square().mean() for q in nets["policy"].critics(batch))
    torch.testing.assert_close(compute_loss_stages(algorithm, nets, batch)[0].losses["critics"], expected)


@pytest.mark.parametrize("is_normalised", [True, False])
@torch.no_grad()
def test_policy_loss_equals_the_formula(is_normalised):
    algorithm, nets = build_algorithm(
        "FQL", {"alpha": 3.0, "flowSteps": 4, "normalizeQLoss": is_normalised}, WIDE
    )
    batch = make_transitions(WIDE)
    noise = draw_noise()[3]
    x_t = noise
    for index in range(4):
        time = torch.full((32, 1), index / 4)
        x_t = x_t + 0.25 * nets["behaviour"](batch["obs"], x_t, time)
    policy_actions = map_noise(nets, batch["obs"], noise)
    distillation = (policy_actions - x_t.clamp(-1, 1)).square().mean()
    values = nets["policy"].critics(batch, to_env_actions(policy_actions)).mean(0)
    scale = values.abs().mean() if is_normalised else 1.0
    expected = 3.0 * distillation - values.mean() / scale
    torch.testing.assert_close(compute_loss_stages(algorithm, nets, batch)[0].losses["policy"], expected)


def test_policy_loss_does_not_train_the_flow_nor_critic_loss_the_policy():
    algorithm, nets = build_algorithm("FQL", {})
    losses = compute_loss_stages(algorithm, nets, make_transitions())[0].losses
    for loss, other_network in (("policy", nets["behaviour"]), ("critics", nets["policy"].map)):
        parameters = list(other_network.parameters())
        gradients = torch.autograd.grad(losses[loss], parameters, allow_unused=True, retain_graph=True)
        assert all(gradient is None for gradient in gradients)


def make_two_mode_transitions(size, seed):
    """Return transitions whose actions are ±0.6 in every state, equally often; only +0.6 is rewarded.

    The second element of an action has no effect.
    """
    batch = make_transitions(BOX, size, seed)
    signs = torch.randint(2, (size,), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0
    batch["actions"][:, 0] = 0.6 * signs
    batch["rewards"], batch["discounts"] = signs, torch.zeros(size)
    return batch


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "right_fraction"), [(30.0, 0.5), (1.0, 1.0)])
def test_policy_imitates_both_modes_or_takes_the_better_one(alpha, right_fraction):
    rates = {"actorLr": 5e-3, "criticLr": 5e-3}
    model = {"fcnet_hiddens": [64, 64], "fcnet_activation": "gelu"}
    algorithm, nets = build_algorithm("FQL", {"alpha": alpha, "flowSteps": 5, **rates}, **model)
    learner = Learner(algorithm, nets)
    for seed in range(400):
        learner.update(make_two_mode_transitions(128, seed))
    policy = nets["policy"]
    observations = make_two_mode_transitions(512, 0)
    with torch.no_grad():
        distribution = policy.distribution(policy.forward_exploration(observations)["action_dist_inputs"])
        actions = distribution.sample(torch.randn((512, 2), generator=torch.Generator().manual_seed(1)))
        flow_actions = nets["behaviour"].flow(observations, draw_noise(512)[0], 5)
    assert float((flow_actions[:, 0] > 0).float().mean()) == pytest.approx(0.5, abs=0.1)
    assert float((actions[:, 0] > 0).float().mean()) == pytest.approx(right_fraction, abs=0.15)
    for samples in (flow_actions, actions):
        # A Gaussian would have 0.38 of its samples between the modes.
        assert float((samples[:, 0].abs() < 0.3).float().mean()) < 0.3


CHUNK = 3


def make_chunks(size=16):
    """Return a batch like the pipeline's: the first step of each item has the state after all of its steps."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, CHUNK + 1, size)
    is_step = torch.from_numpy(np.arange(CHUNK) < lengths[:, None])
    steps = [make_transitions(WIDE, size, seed) for seed in range(CHUNK)]
    batch = {name: torch.stack([step[name] for step in steps], 1) for name in steps[0]}
    batch["actions"] = batch["actions"] * is_step[..., None]
    return batch | {"loss_mask": is_step, "seq_lens": torch.from_numpy(lengths)}


@torch.no_grad()
def test_losses_of_chunks_equal_the_formula():
    """Critics learn from complete chunks, the flow from all recorded actions; others count as 0."""
    algorithm, nets = build_algorithm("FQL", {"actionChunk": CHUNK}, WIDE)
    batch, generator = make_chunks(), torch.Generator().manual_seed(0)
    next_noise, flow_noise = (torch.randn((16, 2 * CHUNK), generator=generator) for _ in range(2))
    time = torch.rand((16, 1), generator=generator)
    critic_losses, flow_losses = [], []
    for row, length in enumerate(batch["seq_lens"].tolist()):
        first_obs = {"obs": batch["obs"][row, :1]}
        actions = ((batch["actions"][row] - LOW) / HALF - 1)[:length]
        if length == CHUNK:
            next_obs = {"obs": batch["new_obs"][row, :1]}
            next_actions = map_noise(nets, next_obs["obs"], next_noise[row : row + 1]).reshape(1, CHUNK, 2)
            value = nets["target_critics"](next_obs, to_env_actions(next_actions)).mean()
            td_target = batch["rewards"][row, 0] + batch["discounts"][row, 0] * value
            values = nets["policy"].critics(first_obs, batch["actions"][row : row + 1])
            critic_losses.append(float((values - td_target).square().sum()))
        padded_actions = torch.cat([actions, actions[:1].expand(CHUNK - length, 2)]).flatten()
        x_t = (1 - time[row]) * flow_noise[row] + time[row] * padded_actions
        velocity = nets["behaviour"](batch["obs"][row, 0], x_t, time[row])
        errors = (velocity - (padded_actions - flow_noise[row])).square().reshape(CHUNK, 2).mean(-1)
        flow_losses += errors[:length].tolist()
    losses = compute_loss_stages(algorithm, nets, batch)[0].losses
    assert 0 < len(critic_losses) < 16
    assert float(losses["critics"]) == pytest.approx(np.sum(critic_losses) / 16, rel=1e-5)
    assert float(losses["behaviour"]) == pytest.approx(np.sum(flow_losses) / (16 * CHUNK), rel=1e-5)


def test_critic_loss_without_whole_chunks_is_zero():
    algorithm, nets = build_algorithm("FQL", {"actionChunk": CHUNK}, WIDE)
    batch = make_chunks()
    batch["loss_mask"][:, -1], batch["seq_lens"] = False, batch["seq_lens"].clamp(max=CHUNK - 1)
    assert float(compute_loss_stages(algorithm, nets, batch)[0].losses["critics"].detach()) == 0


def test_chunk_is_chosen_at_once_and_played_in_sequence():
    """A chunk is a function of the noise and the observation of the step at which it was chosen."""
    policy, rng = build_policy(chunk=CHUNK), np.random.default_rng(0)
    is_first = np.zeros((2, 8), dtype=np.bool_)
    is_first[:, 0] = is_first[1, 2] = True
    obs = rng.uniform(-1, 1, (2, 8, 3)).astype(np.float32)
    policy.module.draws.fill_(0.5)  # all draws are equal, so that greedy actions are known
    greedy_noise = np.full((1, 2 * CHUNK), 0.5, np.float32)
    for explore in (True, False):
        chosen_at, played_actions, noises = np.zeros(2, dtype=int), [], []
        for t in range(8):
            noises.append(policy.draw_noise(rng, 2))
            step_actions = policy.act({"obs": obs[:, t]}, noises[-1] if explore else None, is_first[:, t])
            played_actions.append(step_actions.actions["actions"])
        for slot in range(2):
            for t in range(8):
                if is_first[slot, t] or t - chosen_at[slot] == CHUNK:
                    chosen_at[slot] = t
                chosen_t = chosen_at[slot]
                noise = noises[chosen_t][slot : slot + 1] if explore else greedy_noise
                chunk_obs = torch.from_numpy(obs[slot : slot + 1, chosen_t])
                with torch.no_grad():
                    chunk = map_noise({"policy": policy.module}, chunk_obs, torch.from_numpy(noise))
                expected = chunk.clamp(-1, 1).reshape(CHUNK, 2)[t - chosen_t].numpy()
                np.testing.assert_allclose(played_actions[t][slot], expected, atol=1e-6)


def build_policy(observations=OBS, actions=WIDE, chunk=1, **config):
    preprocessing = Preprocessing.from_specs(observations, actions, ModelSpec())
    inputs = ModelInputs(observations, preprocessing.action_space, ModelSpec(fcnet_hiddens=[16]))
    module = new_networks(build("FQL", {"actionChunk": chunk, **config}), inputs, seed=0)["policy"]
    return Policy(module, preprocessing, observations, actions)


def test_loaded_fql_policy_acts_the_same(tmp_path):
    policy = build_policy()
    policy.save(tmp_path)
    restored = Policy.load(tmp_path)
    rows = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    noise = policy.draw_noise(np.random.default_rng(0), 5)
    assert noise.shape == (5, 2)
    for row_noise in (noise, None):
        expected, actual = policy.act({"obs": rows}, row_noise), restored.act({"obs": rows}, row_noise)
        assert np.array_equal(expected.actions["actions"], actual.actions["actions"])
        assert expected.logp is None
        assert all(WIDE.contains(action) for action in expected.env_actions)


@pytest.mark.parametrize("aggregation", ["mean", "min"])
@pytest.mark.parametrize("chunk", [1, CHUNK])
@torch.no_grad()
def test_greedy_action_is_the_best_draw_by_the_critics(chunk, aggregation):
    policy = build_policy(chunk=chunk, actionSamples=8, qAggregation=aggregation)
    rows = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (6, 3)).astype(np.float32))
    draws = policy.module.draws
    assert draws.shape == (8, 2 * chunk)
    greedy = policy.act({"obs": rows.numpy()}).actions["actions"]
    for row, action in zip(rows, greedy, strict=True):
        obs = row.expand(8, 3)
        values = map_noise({"policy": policy.module}, obs, draws).clamp(-1, 1)
        q = policy.module.critics({"obs": obs}, policy.module.range.from_unit(values))
        q = q.mean(0) if aggregation == "mean" else q.amin(0)
        # Of 8 draws, the distance to the second nearest other one counts, and the 4 closest are candidates.
        distances = torch.cdist(values, values).sort(-1).values[:, 2]
        candidates = distances.argsort()[:4]
        best = int(candidates[q[candidates].argmax()])
        np.testing.assert_allclose(action, values[best].reshape(chunk, 2)[0].numpy(), atol=1e-6)


def test_policy_of_an_earlier_version_acts_with_zero_noise(tmp_path):
    """Recordings made earlier hold such policies, without draws and critics."""
    inputs = ModelInputs(OBS, BOX, ModelSpec(fcnet_hiddens=[16]))
    module = inputs.own_policy(OneStepPolicy, "FQL", chunk=1)
    policy = Policy(module, Preprocessing.from_specs(OBS, BOX, ModelSpec()), OBS, BOX)
    policy.save(tmp_path)
    rows = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    greedy, zero = (
        Policy.load(tmp_path).act({"obs": rows}, noise).actions["actions"]
        for noise in (None, np.zeros((5, 2), np.float32))
    )
    assert np.array_equal(greedy, zero)


@pytest.mark.slow
@pytest.mark.parametrize("num_elements", [1, 2])
def test_deployed_policy_avoids_an_obstacle_between_two_ways(num_elements, tmp_path):
    """Recorded actions pass on either side of the obstacle, never through it."""
    space = gym.spaces.Box(-1, 1, (num_elements,), np.float32)
    algorithm = build("FQL", {"actorLr": 3e-3, "criticLr": 3e-3})
    model = complete_model(algorithm, ModelOptions(fcnet_hiddens=[32, 32]), space)
    nets = new_networks(algorithm, ModelInputs(OBS, space, model), seed=0)
    learner, rng = Learner(algorithm, nets), np.random.default_rng(0)
    for _ in range(500):
        obs = torch.from_numpy(rng.uniform(-1, 1, (128, 3)).astype(np.float32))
        ways = rng.choice([-0.8, 0.8], (128, 1)) * np.ones(num_elements)
        actions = (ways + rng.normal(scale=0.05, size=ways.shape)).clip(-1, 1).astype(np.float32)
        rewards = torch.from_numpy((np.abs(actions[:, 0]) > 0.4).astype(np.float32))
        batch = {"obs": obs, "new_obs": obs, "actions": torch.from_numpy(actions), "rewards": rewards}
        learner.update(batch | {"discounts": torch.zeros(128)})
    policy = Policy(nets["policy"], Preprocessing.from_specs(OBS, space, model), OBS, space)
    observations = rng.uniform(-1, 1, (400, 3)).astype(np.float32)
    actions = policy.act({"obs": observations}).actions["actions"]
    exported = ExportedPolicy(policy)(torch.from_numpy(observations))[0].detach().numpy()
    np.testing.assert_allclose(exported, actions, atol=1e-5)
    with PolicyServer(policy, tmp_path / "log") as server:
        episode, served_actions = server.start_episode(), []
        for observation in observations[:100]:
            served_actions.append(server.get_action(episode, observation))
            server.log_returns(episode, 0.0)
    for deployed_actions in (actions, np.stack(served_actions)):
        assert (np.abs(deployed_actions).min(-1) < 0.4).mean() < 0.05


def test_fql_exploration_follows_from_the_seed():
    policy = build_policy()
    observations = np.random.default_rng(0).uniform(-1, 1, (4, 3)).astype(np.float32)
    action_sequences = []
    for seed in (7, 7, 8):
        policy.reset(seed)
        action_sequences.append(np.stack([policy(observation, explore=True) for observation in observations]))
    assert np.array_equal(action_sequences[0], action_sequences[1])
    assert not np.array_equal(action_sequences[0], action_sequences[2])


def test_evaluation_and_recording_follow_from_the_seed(tmp_path):
    policy = build_policy(SteeredWalk.observation_space, SteeredWalk.action_space)
    environment, policy_folder = EnvironmentSpec(id="toy_environments:SteeredWalk"), str(tmp_path / "policy")
    options = {"duration": 4, "explore": True}
    first_returns, repeated_returns, other_returns = (
        evaluate_policy(policy, environment, seed=seed, **options).returns for seed in (1, 1, 2)
    )
    assert first_returns == repeated_returns != other_returns
    policy.save(policy_folder)
    spec = {"environment": {"id": environment.id}, "policy": {"checkpoint": {"path": policy_folder}}}
    for name in "ab":
        record(recording(tmp_path / name, **spec, duration={"episodes": 4}), checkpoint=policy_folder)
    first_actions, second_actions = (read_all(tmp_path / name).columns["actions"] for name in "ab")
    assert len(first_actions) and np.array_equal(first_actions, second_actions)
