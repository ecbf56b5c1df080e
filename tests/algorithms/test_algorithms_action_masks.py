"""Action masks on random MDPs in which half of the actions are forbidden in each state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from episode_kit import build_block
from hindcast.algorithms import build
from hindcast.api.model import ModelOptions, ModelSpec
from hindcast.datasets.units import EpisodeLocation
from hindcast.datasets.validate import check_block
from hindcast.episodes.block import Block
from hindcast.errors import DataError, SpecError
from hindcast.evaluate.behaviour_clone import Clone, CloneOptions
from hindcast.evaluate.fitted_q import FittedQOptions, cross_fit
from hindcast.evaluate.target_policy import TargetPolicy
from hindcast.formats.spec import DataSpec
from hindcast.learn.algorithm import ModelInputs, new_networks, window_targets
from hindcast.learn.learner import Learner
from hindcast.learn.model_defaults import complete_model
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import build_module
from hindcast.pipeline.loader import build_window
from hindcast.pipeline.needs import transitions
from hindcast.pipeline.window import Recipe, WindowData
from hindcast.record.random_policy import RandomActor

NUM_STATES, NUM_ACTIONS, GAMMA = 4, 6, 0.6
SPACES = (
    gym.spaces.Dict(
        {
            "action_mask": gym.spaces.Box(0, 1, (NUM_ACTIONS,), np.float32),
            "observations": gym.spaces.Box(0, 1, (NUM_STATES,), np.float32),
        }
    ),
    gym.spaces.Discrete(NUM_ACTIONS, start=1),
)
Array = NDArray[Any]


class MaskedMdp:
    """A random deterministic MDP; its behaviour policy draws uniformly from the allowed actions.

    Attributes:
        mask: `[state, action]` 1 where the action is allowed.
        q: `[state, action]` optimal values if only allowed actions exist; NaN where forbidden.
        v: `[state]` values of the behaviour policy.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.mask = np.stack([rng.permutation(np.arange(NUM_ACTIONS) % 2) for _ in range(NUM_STATES)]).astype(
            np.float32
        )
        self.next_state = rng.integers(0, NUM_STATES, (NUM_STATES, NUM_ACTIONS))
        self.is_end = rng.random((NUM_STATES, NUM_ACTIONS)) < 0.2
        self.reward = rng.uniform(-0.5, 0.5, (NUM_STATES, NUM_ACTIONS))
        behaviour = self.mask / self.mask.sum(-1, keepdims=True)
        q, self.v = np.zeros((NUM_STATES, NUM_ACTIONS)), np.zeros(NUM_STATES)
        for _ in range(100):
            max_q = np.where(self.mask, q, -np.inf).max(-1)
            q = self.reward + GAMMA * ~self.is_end * max_q[self.next_state]
            self.v = (behaviour * (self.reward + GAMMA * ~self.is_end * self.v[self.next_state])).sum(-1)
        self.q = np.where(self.mask, q, np.nan)

    def play(self, num_episodes: int) -> Block:
        """Play episodes of at most 6 steps. As in many environments, no action is allowed after a termination."""
        rng = np.random.default_rng(0)
        states, masks, actions, rewards, lengths, terminated = [], [], [], [], [], []
        for _ in range(num_episodes):
            state, length, is_terminated = int(rng.integers(NUM_STATES)), 0, False
            while not is_terminated and length < 6:
                states.append(state)
                masks.append(self.mask[state])
                action = int(rng.choice(np.flatnonzero(self.mask[state])))
                actions.append(action + 1)
                rewards.append(self.reward[state, action])
                is_terminated = bool(self.is_end[state, action])
                state = int(self.next_state[state, action])
                length += 1
            states.append(state)
            masks.append(self.mask[state] * (not is_terminated))
            lengths.append(length)
            terminated.append(is_terminated)
        columns = {
            "obs/action_mask": np.stack(masks),
            "obs/observations": np.eye(NUM_STATES, dtype=np.float32)[states],
            "actions": np.array(actions),
            "rewards": np.array(rewards),
        }
        is_terminated_by_episode = np.array(terminated)
        return build_block(
            columns, lengths, terminated=is_terminated_by_episode, truncated=~is_terminated_by_episode
        )

    def observations(self) -> dict[str, torch.Tensor]:
        """Return the observations of all states, in order, as a batch."""
        mask = torch.from_numpy(self.mask)
        return {"obs/action_mask": mask, "obs/observations": torch.eye(NUM_STATES)}


def learn(name: str, config: dict[str, Any], mdp: MaskedMdp, num_updates: int, **model: Any) -> Policy:
    """Train on episodes of the MDP, and return the policy."""
    algorithm = build(name, config)
    options = complete_model(algorithm, ModelOptions(fcnet_hiddens=[32], **model), SPACES[1])
    preprocessing = Preprocessing.from_specs(*SPACES, options)
    inputs = ModelInputs(preprocessing.observation_space, preprocessing.action_space, options)
    learner = Learner(algorithm, new_networks(algorithm, inputs, seed=0))
    block, needs = mdp.play(150), algorithm.needs()
    preprocessing.update({leaf: block.columns[leaf] for leaf in preprocessing.filters})
    window = build_window([block], Recipe(needs, preprocessing))
    if needs.targets:
        window = window.with_columns(window_targets(algorithm, learner.nets, window))
    generator = torch.Generator().manual_seed(0)
    for _ in range(num_updates):
        learner.update(window.gather(torch.randint(window.num_steps, (128,), generator=generator)))
    return Policy(learner.nets["policy"].eval(), preprocessing, *SPACES)


def assert_actions_are_allowed(policy: Policy, mdp: MaskedMdp) -> None:
    """Check greedy and sampled actions, and the recorded probabilities, in every state."""
    rows = {leaf: values.numpy().repeat(100, 0) for leaf, values in mdp.observations().items()}
    states = np.arange(NUM_STATES).repeat(100)
    is_first = np.ones(len(states), bool)
    for noise in (None, policy.draw_noise(np.random.default_rng(0), len(states))):
        actions = policy.act(rows, noise, is_first)
        assert mdp.mask[states, np.asarray(actions.env_actions) - 1].all()
        assert actions.logp is not None
        assert (actions.logp > -20).all()
    for state in range(NUM_STATES):  # one observation at a time, as in serving
        obs = {"action_mask": mdp.mask[state], "observations": np.eye(NUM_STATES, dtype=np.float32)[state]}
        assert mdp.mask[state, int(policy.decide(policy.begin(0), obs, explore=True).env_actions[0]) - 1]


CONFIGS: dict[str, dict[str, Any]] = {
    "BC": {"lr": 1e-2},
    "MARWIL": {"lr": 1e-2},
    "IQL": {"actorLr": 1e-2, "criticLr": 1e-2, "valueLr": 1e-2, "tau": 0.05, "gamma": GAMMA},
    "DQN": {"lr": 1e-2, "tau": 0.1, "gamma": GAMMA},
    "DiscreteCQL": {"lr": 1e-2, "tau": 0.1, "gamma": GAMMA, "minQWeight": 0.0, "numQuantiles": 3},
    "DiscreteSAC": {"actorLr": 1e-2, "criticLr": 1e-2, "tau": 0.1, "gamma": GAMMA},
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CONFIGS)
def test_trained_policy_takes_allowed_actions_and_q_matches_their_values(name: str, seed: int) -> None:
    mdp = MaskedMdp(seed)
    is_q_learning = name in ("DQN", "DiscreteCQL")
    num_updates = 300 if is_q_learning else 30
    policy = learn(name, CONFIGS[name], mdp, num_updates, observation_filter="meanStd")
    assert_actions_are_allowed(policy, mdp)
    if not is_q_learning:
        return
    policy.module.epsilon.fill_(0.5)
    assert_actions_are_allowed(policy, mdp)
    with torch.no_grad():
        rows = policy.preprocessing.observe(
            {leaf: values.numpy() for leaf, values in mdp.observations().items()}
        )
        q = policy.module.values({leaf: torch.from_numpy(values) for leaf, values in rows.items()})[0].numpy()
    np.testing.assert_allclose(q[mdp.mask > 0], mdp.q[mdp.mask > 0], atol=1e-3)
    assert (q[mdp.mask == 0] < -1e29).all()


def test_decision_transformer_takes_allowed_actions() -> None:
    mdp = MaskedMdp(0)
    config = {"contextLength": 3, "embedSize": 8, "numLayers": 1, "targetReturn": 1.0, "returnScale": 1.0}
    assert_actions_are_allowed(learn("DecisionTransformer", config, mdp, 3), mdp)


def test_clone_and_fitted_q_apply_the_mask() -> None:
    """The clone of the behaviour policy is uniform over allowed actions; fitted Q estimates the exact values."""
    mdp = MaskedMdp(3)
    preprocessing = Preprocessing.from_specs(*SPACES, ModelSpec())
    module = build_module(*SPACES, ModelSpec(fcnet_hiddens=[4]), value=False)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()  # uniform over what the mask allows
    policy, window = Policy(module.eval(), preprocessing, *SPACES), _evaluation_window(mdp)
    clone = Clone(policy, window, CloneOptions(updates=100, patience=100, lr=1e-2, hiddens=(16,)), seed=0)
    probs = torch.stack(
        [
            clone.logp({**mdp.observations(), "actions": torch.full((NUM_STATES,), action + 1)}).exp()
            for action in range(NUM_ACTIONS)
        ],
        1,
    ).numpy()
    assert (probs[mdp.mask == 0] == 0).all()
    np.testing.assert_allclose(probs[mdp.mask > 0], 1 / 3, atol=0.1)
    target = TargetPolicy(policy, explore=True)
    assert torch.equal(target.action_probs(mdp.observations()) > 0, torch.from_numpy(mdp.mask) > 0)
    options = FittedQOptions(updates=200, members=2, hiddens=(32,), lr=1e-2)
    values = cross_fit(target, window, options, 0, lambda _: None).values
    state = window.columns["obs/observations"][window.obs_row].argmax(-1).numpy()
    means = np.array([values.v[state == index].mean() for index in range(NUM_STATES)])
    assert np.abs(means - mdp.v).max() < 0.1


def _evaluation_window(mdp: MaskedMdp) -> WindowData:
    return build_window([mdp.play(150)], Recipe(transitions(GAMMA)))


def test_random_policy_draws_uniformly_from_allowed_actions() -> None:
    mdp = MaskedMdp(4)
    actor = RandomActor(Preprocessing.from_specs(*SPACES, ModelSpec()))
    states = np.arange(NUM_STATES).repeat(600)
    noise = actor.draw_noise(np.random.default_rng(0), len(states))
    actions = actor.act({"obs/action_mask": mdp.mask[states]}, noise)
    counts = np.zeros((NUM_STATES, NUM_ACTIONS))
    np.add.at(counts, (states, np.asarray(actions.env_actions) - 1), 1)
    assert (counts[mdp.mask == 0] == 0).all()
    assert (np.abs(counts[mdp.mask > 0] - 200) < 60).all()
    assert np.allclose(actions.logp, -np.log(3))


def test_recorded_forbidden_action_is_refused(tmp_path: Path) -> None:
    block = MaskedMdp(0).play(3)
    check_block(block, DataSpec.from_block(block), *SPACES, lambda _: EpisodeLocation(str(tmp_path), 0))
    mask = block.columns["obs/action_mask"][block.obs_row]
    block.columns["actions"][1] = int(np.flatnonzero(mask[1] == 0)[0]) + 1
    with pytest.raises(DataError, match=r"'actions' has \d, expected an action that obs/action_mask allows"):
        check_block(block, DataSpec.from_block(block), *SPACES, lambda _: EpisodeLocation(str(tmp_path), 0))


@pytest.mark.parametrize(
    "action_space", [gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2, 3]), gym.spaces.Box(-1, 1, (6,))]
)
def test_mask_that_does_not_fit_the_action_space_is_refused(action_space: gym.Space) -> None:
    with pytest.raises(SpecError, match=r"has action_mask, .* a mask has one number for each action"):
        build_module(SPACES[0], action_space, ModelSpec())
