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
from hindcast.models.action_masks import build_action_mask
from hindcast.models.exported_policy import ExportedPolicy
from hindcast.models.joint_actions import enumerate_actions
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import build_module
from hindcast.pipeline.loader import build_window
from hindcast.pipeline.needs import transitions
from hindcast.pipeline.window import Recipe, WindowData
from hindcast.record.random_policy import RandomActor

NUM_STATES, GAMMA = 4, 0.6
SPACES: dict[str, tuple[gym.Space, tuple[int, ...]]] = {
    "discrete": (gym.spaces.Discrete(6, start=1), (6,)),
    "elements": (gym.spaces.MultiDiscrete([2, 4], start=[1, 0]), (6,)),
    "combinations": (gym.spaces.MultiDiscrete([[2, 1], [2, 3]]), (12,)),
    "ambiguous": (gym.spaces.MultiDiscrete([2, 2]), (4,)),
    "matrix": (gym.spaces.MultiDiscrete([2, 2]), (2, 2)),
}
"""Kind of mask -> action space and shape of the mask."""
Array = NDArray[Any]


class MaskedMdp:
    """A random deterministic MDP; its behaviour policy draws uniformly from the allowed actions.

    Actions are counted from 0; those of a MultiDiscrete space are its combinations.

    Attributes:
        spaces: spaces of observations and actions.
        actions: `[n, *shape]` the space's actions.
        mask: `[state, n]` 1 where the action is allowed; half of them are.
        is_elementwise: True if the mask fits independent elements.
        recorded_mask: `[state, *shape]` the mask in observations.
        q: `[state, n]` optimal values if only allowed actions exist; NaN where forbidden.
        v: `[state]` values of the behaviour policy.
    """

    def __init__(self, seed: int, kind: str = "discrete") -> None:
        rng = np.random.default_rng(seed)
        space, mask_shape = SPACES[kind]
        mask_space = gym.spaces.Box(0, 1, mask_shape, np.float32)
        state_space = gym.spaces.Box(0, 1, (NUM_STATES,), np.float32)
        self.spaces = gym.spaces.Dict({"action_mask": mask_space, "observations": state_space}), space
        if isinstance(space, gym.spaces.MultiDiscrete):
            self.actions = enumerate_actions(space)[0].numpy()
        else:
            self.actions = np.arange(1, 7)
        num_actions = len(self.actions)
        shape = (NUM_STATES, num_actions)
        if kind in ("elements", "ambiguous"):
            self.recorded_mask, self.mask = draw_element_masks(space, self.actions, rng)
        else:
            rows = [rng.permutation(np.arange(num_actions) % 2) for _ in range(NUM_STATES)]
            self.mask = np.stack(rows).astype(np.float32)
            self.recorded_mask = self.mask.reshape(NUM_STATES, *mask_shape)
        self.is_elementwise = mask_shape == (6,) or kind == "ambiguous"
        self.next_state = rng.integers(0, NUM_STATES, shape)
        self.is_end = rng.random(shape) < 0.2
        self.reward = rng.uniform(-0.5, 0.5, shape)
        behaviour = self.mask / self.mask.sum(-1, keepdims=True)
        q, self.v = np.zeros(shape), np.zeros(NUM_STATES)
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
                masks.append(self.recorded_mask[state])
                action = int(rng.choice(np.flatnonzero(self.mask[state])))
                actions.append(self.actions[action])
                rewards.append(self.reward[state, action])
                is_terminated = bool(self.is_end[state, action])
                state = int(self.next_state[state, action])
                length += 1
            states.append(state)
            masks.append(self.recorded_mask[state] * (not is_terminated))
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
        mask = torch.from_numpy(self.recorded_mask)
        return {"obs/action_mask": mask, "obs/observations": torch.eye(NUM_STATES)}

    def are_allowed(self, states: Array, actions: Array) -> bool:
        """Return True if all actions are allowed in their states."""
        equal = (actions[:, None] == self.actions).reshape(*self.mask[states].shape, -1).all(-1)
        return bool((equal & (self.mask[states] > 0)).any(-1).all())


def draw_element_masks(
    space: gym.spaces.MultiDiscrete, actions: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Forbid half of the values of one of two elements in each state; return masks of elements and of combinations."""
    first_size, second_size = space.nvec
    element_masks = np.ones((NUM_STATES, first_size + second_size), np.float32)
    for row in element_masks:
        element = row[:first_size] if rng.random() < 0.5 else row[first_size:]
        element[:] = rng.permutation(np.arange(len(element)) % 2)
    first, second = (actions - space.start).T
    return element_masks, element_masks[:, first] * element_masks[:, first_size + second]


def learn(name: str, config: dict[str, Any], mdp: MaskedMdp, num_updates: int, **model: Any) -> Policy:
    """Train on episodes of the MDP, and return the policy."""
    algorithm = build(name, config)
    options = complete_model(algorithm, ModelOptions(fcnet_hiddens=[32], **model), mdp.spaces[1])
    preprocessing = Preprocessing.from_specs(*mdp.spaces, options)
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
    return Policy(learner.nets["policy"].eval(), preprocessing, *mdp.spaces)


def assert_actions_are_allowed(policy: Policy, mdp: MaskedMdp) -> None:
    """Check greedy, sampled and exported actions, and the recorded probabilities, in every state."""
    rows = {leaf: values.numpy().repeat(100, 0) for leaf, values in mdp.observations().items()}
    states = np.arange(NUM_STATES).repeat(100)
    is_first = np.ones(len(states), bool)
    for noise in (None, policy.draw_noise(np.random.default_rng(0), len(states))):
        actions = policy.act(rows, noise, is_first)
        assert mdp.are_allowed(states, np.asarray(actions.env_actions))
        assert actions.logp is not None
        assert (actions.logp > -20).all()
        if not policy.module.is_stateful():
            inputs = [
                torch.from_numpy(values) for values in (*rows.values(), *([] if noise is None else [noise]))
            ]
            (exported_actions,) = ExportedPolicy(policy, noise is not None)(*inputs)
            assert np.array_equal(exported_actions.numpy(), np.asarray(actions.env_actions))
    for state in range(NUM_STATES):  # one observation at a time, as in serving
        obs = {
            "action_mask": mdp.recorded_mask[state],
            "observations": np.eye(NUM_STATES, dtype=np.float32)[state],
        }
        action = np.asarray(policy.decide(policy.begin(0), obs, explore=True).env_actions)
        assert mdp.are_allowed(np.array([state]), action.reshape(1, *np.shape(mdp.actions)[1:]))


CONFIGS: dict[str, dict[str, Any]] = {
    "BC": {"lr": 1e-2},
    "MARWIL": {"lr": 1e-2},
    "IQL": {"actorLr": 1e-2, "criticLr": 1e-2, "valueLr": 1e-2, "tau": 0.05, "gamma": GAMMA},
    "DQN": {"lr": 1e-2, "tau": 0.1, "gamma": GAMMA},
    "DiscreteCQL": {"lr": 1e-2, "tau": 0.1, "gamma": GAMMA, "minQWeight": 0.0, "numQuantiles": 3},
    "DiscreteSAC": {"actorLr": 1e-2, "criticLr": 1e-2, "tau": 0.1, "gamma": GAMMA},
}


@pytest.mark.parametrize("kind", ["discrete", "elements", "combinations"])
@pytest.mark.parametrize("name", CONFIGS)
def test_trained_policy_takes_allowed_actions_and_q_matches_their_values(name: str, kind: str) -> None:
    mdp = MaskedMdp(list(SPACES).index(kind), kind)
    is_q_learning = name in ("DQN", "DiscreteCQL")
    num_updates = 300 if is_q_learning else 30
    distribution = "auto" if mdp.is_elementwise else "jointCategorical"
    policy = learn(
        name, CONFIGS[name], mdp, num_updates, observation_filter="meanStd", distribution=distribution
    )
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
    mdp = MaskedMdp(0, "elements")
    config = {"contextLength": 3, "embedSize": 8, "numLayers": 1, "targetReturn": 1.0, "returnScale": 1.0}
    assert_actions_are_allowed(learn("DecisionTransformer", config, mdp, 3), mdp)


@pytest.mark.parametrize("kind", ["elements", "combinations"])
def test_clone_and_fitted_q_apply_the_mask(kind: str) -> None:
    """The clone of the behaviour policy is uniform over allowed actions; fitted Q estimates the exact values."""
    mdp = MaskedMdp(3, kind)
    distribution = "auto" if mdp.is_elementwise else "jointCategorical"
    preprocessing = Preprocessing.from_specs(*mdp.spaces, ModelSpec())
    module = build_module(*mdp.spaces, ModelSpec(fcnet_hiddens=[4], distribution=distribution), value=False)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()  # uniform over what the mask allows
    policy, window = Policy(module.eval(), preprocessing, *mdp.spaces), _evaluation_window(mdp)
    clone = Clone(policy, window, CloneOptions(updates=100, patience=100, lr=1e-2, hiddens=(16,)), seed=0)
    target = TargetPolicy(policy, explore=True)
    clone_probs, target_probs = (
        np.stack(
            [
                estimate.logp(
                    mdp.observations() | {"actions": torch.from_numpy(np.stack([action] * NUM_STATES))}
                ).exp()
                for action in mdp.actions
            ],
            1,
        )
        for estimate in (clone, target)
    )
    behaviour = mdp.mask / mdp.mask.sum(-1, keepdims=True)
    assert (clone_probs[mdp.mask == 0] == 0).all()
    np.testing.assert_allclose(clone_probs, behaviour, atol=0.1)
    np.testing.assert_allclose(target_probs, behaviour, atol=1e-6)
    options = FittedQOptions(updates=200, members=2, hiddens=(32,), lr=1e-2)
    values = cross_fit(target, window, options, 0, lambda _: None).values
    state = window.columns["obs/observations"][window.obs_row].argmax(-1).numpy()
    means = np.array([values.v[state == index].mean() for index in range(NUM_STATES)])
    assert np.abs(means - mdp.v).max() < 0.1


def _evaluation_window(mdp: MaskedMdp) -> WindowData:
    return build_window([mdp.play(150)], Recipe(transitions(GAMMA)))


@pytest.mark.parametrize("kind", SPACES)
def test_random_policy_draws_uniformly_from_allowed_actions(kind: str) -> None:
    mdp = MaskedMdp(4, kind)
    actor = RandomActor(Preprocessing.from_specs(*mdp.spaces, ModelSpec()))
    states = np.arange(NUM_STATES).repeat(600)
    noise = actor.draw_noise(np.random.default_rng(0), len(states))
    actions = actor.act({"obs/action_mask": mdp.recorded_mask[states]}, noise)
    env_actions = np.asarray(actions.env_actions)
    assert mdp.are_allowed(states, env_actions)
    num_allowed = mdp.mask.sum(-1)
    for action, is_allowed in zip(mdp.actions, mdp.mask.T, strict=True):
        is_action = (env_actions == action).reshape(len(states), -1).all(-1)
        counts = np.bincount(states[is_action], minlength=NUM_STATES)
        assert (np.abs(counts - is_allowed * 600 / num_allowed) < 60).all()
    assert np.allclose(actions.logp, -np.log(num_allowed)[states])


@pytest.mark.parametrize("kind", SPACES)
def test_recorded_forbidden_action_is_refused(tmp_path: Path, kind: str) -> None:
    mdp = MaskedMdp(0, kind)
    block = mdp.play(3)
    check_block(block, DataSpec.from_block(block), *mdp.spaces, lambda _: EpisodeLocation(str(tmp_path), 0))
    state = int(block.columns["obs/observations"][block.obs_row[1]].argmax())
    block.columns["actions"][1] = mdp.actions[np.flatnonzero(mdp.mask[state] == 0)[0]]
    with pytest.raises(
        DataError, match=r"(?s)'actions' has .*, expected an action that obs/action_mask allows"
    ):
        check_block(
            block, DataSpec.from_block(block), *mdp.spaces, lambda _: EpisodeLocation(str(tmp_path), 0)
        )


@pytest.mark.parametrize(
    ("action_space", "sentence"),
    [
        (gym.spaces.Discrete(3), "has action_mask, .* a mask has one number for each action"),
        (gym.spaces.MultiDiscrete([2, 2]), "has action_mask, .* a mask has one number for each action"),
        (gym.spaces.Box(-1, 1, (6,)), "has action_mask, .* a mask has one number for each action"),
        (
            gym.spaces.MultiDiscrete([2, 3]),
            "model.distribution: draws the elements of .* use 'JointCategorical'",
        ),
    ],
)
def test_mask_that_does_not_fit_the_actions_is_refused(action_space: gym.Space, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        build_module(MaskedMdp(0).spaces[0], action_space, ModelSpec())


def test_mask_allows_all_values_of_a_choice_where_it_has_none() -> None:
    """As after a termination; a mask of two elements may have none for one of them."""
    mdp = MaskedMdp(0, "elements")
    mask = build_action_mask(*mdp.spaces, is_joint=False)
    assert mask is not None
    rows = torch.tensor([[0, 0, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    assert mask.allowed_actions({"obs/action_mask": rows}).int().tolist() == [
        [1, 1, 0, 1, 0, 0],
        [0, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1],
    ]
