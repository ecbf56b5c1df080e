"""Values learnt from a semi-Markov chain, whose steps take different times, against the exact ones."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hindcast.algorithms import build
from hindcast.api.model import ModelOptions
from hindcast.api.training import OfflineTrainingSpec
from hindcast.episodes.block import Block
from hindcast.learn.algorithm import ModelInputs, new_networks, window_targets
from hindcast.learn.learner import Learner
from hindcast.learn.model_defaults import complete_model
from hindcast.pipeline.loader import build_window
from hindcast.pipeline.window import Recipe

NUM_STATES, GAMMA, END_PROB = 4, 0.8, 0.1
SPACES = (gym.spaces.Box(0, 1, (NUM_STATES,), np.float32), gym.spaces.Discrete(2))
BOX = gym.spaces.Box(-1, 1, (1,), np.float32)
Array = NDArray[Any]


class SemiMarkovChain:
    """A chain whose actions have no effect; the step from state i to j takes the time `delta_t[i, j]`.

    Attributes:
        v: `[state]` exact values: expected rewards, discounted by GAMMA per unit of time.
    """

    def __init__(self, *, has_durations: bool = True) -> None:
        rng = np.random.default_rng(0)
        self.probs = rng.dirichlet(np.ones(NUM_STATES), NUM_STATES)
        self.reward = rng.uniform(
            0.1, 0.3, NUM_STATES
        )  # errors stay in the quadratic part of DQN's Huber loss
        self.delta_t = rng.choice([0.0, 0.5, 5.0, 9.0], (NUM_STATES, NUM_STATES))
        if not has_durations:
            self.delta_t[:] = 1.0
        transitions = (1 - END_PROB) * self.probs * GAMMA**self.delta_t
        self.v = np.linalg.solve(np.eye(NUM_STATES) - transitions, self.reward)

    def play(self, num_episodes: int, action_space: gym.Space) -> Block:
        """Play episodes, which terminate with END_PROB at each step, or are cut off after 12 steps."""
        rng = np.random.default_rng(1)
        action_space.seed(0)
        observations, delta_t, rewards, lengths, terminated = [], [], [], [], []
        for _ in range(num_episodes):
            states, is_terminated = [int(rng.integers(NUM_STATES))], False
            while len(states) <= 12 and not is_terminated:
                state, next_state = states[-1], int(rng.choice(NUM_STATES, p=self.probs[states[-1]]))
                is_terminated = bool(rng.random() < END_PROB)
                rewards.append(self.reward[state])
                delta_t.append(self.delta_t[state, next_state])
                states.append(next_state)
            observations += states
            lengths.append(len(states) - 1)
            terminated.append(is_terminated)
        flags = np.array(terminated)
        return Block(
            columns={
                "obs": np.eye(NUM_STATES, dtype=np.float32)[observations],
                "actions": np.stack([action_space.sample() for _ in rewards]),
                "rewards": np.array(rewards),
                "delta_t": np.array(delta_t),
            },
            length=np.array(lengths, dtype=np.int64),
            eps_id=np.array([f"{index}" for index in range(num_episodes)], dtype=object),
            t_started=np.zeros(num_episodes, dtype=np.int64),
            terminated=flags,
            truncated=~flags,
        )


def learn(
    name: str, config: dict[str, Any], chain: SemiMarkovChain, updates: int, *, has_times: bool = True
) -> tuple[Any, Learner]:
    """Train on episodes of the chain; return the algorithm and its learner."""
    action_space = BOX if name == "TD3BC" else SPACES[1]
    algorithm = build(name, {"gamma": GAMMA, **config})
    model = complete_model(algorithm, ModelOptions(fcnet_hiddens=[16]), action_space)
    learner = Learner(algorithm, new_networks(algorithm, ModelInputs(SPACES[0], action_space, model), seed=0))
    needs = algorithm.needs()
    if has_times:
        needs = needs.with_durations(frozenset({"delta_t"}))
    window = build_window([chain.play(400, action_space)], Recipe(needs))
    generator = torch.Generator().manual_seed(0)
    for update in range(updates):
        if needs.targets and update % 50 == 0:
            columns = window_targets(algorithm, learner.nets, window)
            timed_window = window.with_columns(columns)
        batch = (timed_window if needs.targets else window).gather(
            torch.randint(window.num_steps, (256,), generator=generator)
        )
        assert "delta_t" not in batch  # batches of sources with and without times have the same columns
        learner.update(batch)
    return algorithm, learner


def read_values(algorithm: Any, learner: Learner) -> Array:
    """Return the learnt value of each state."""
    observations = {"obs": torch.eye(NUM_STATES)}
    with torch.no_grad():
        if (critic := algorithm.critic(learner.nets)) is None:
            return learner.nets["policy"].compute_values(observations).numpy()
        actions = (
            torch.zeros(NUM_STATES, 1)
            if "TD3" in type(algorithm).__name__
            else torch.zeros(NUM_STATES).long()
        )
        return critic({**observations, "actions": actions}).numpy()


CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "DQN": ("DQN", {"lr": 1e-2, "tau": 0.05}),
    "DQN, 3 steps": ("DQN", {"lr": 1e-2, "tau": 0.05, "nStep": 3}),
    "IQL": ("IQL", {"actorLr": 1e-2, "criticLr": 1e-2, "valueLr": 1e-2, "tau": 0.05, "expectile": 0.5}),
    "MARWIL": ("MARWIL", {"lr": 1e-2, "lambda": 0.7}),
    "TD3BC": ("TD3BC", {"actorLr": 1e-2, "criticLr": 1e-2, "tau": 0.05}),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_learnt_values_equal_those_of_the_semi_markov_chain(case: str) -> None:
    chain = SemiMarkovChain()
    values = read_values(*learn(*CONFIGS[case], chain, updates=600))
    errors = np.abs(values - chain.v).mean() / chain.v.mean()
    per_step_errors = np.abs(values - SemiMarkovChain(has_durations=False).v).mean() / chain.v.mean()
    assert errors < 0.06
    assert per_step_errors > 0.2


@pytest.mark.parametrize("case", CONFIGS)
def test_learning_from_steps_of_one_unit_is_that_without_times(case: str) -> None:
    chain = SemiMarkovChain(has_durations=False)
    nets = [learn(*CONFIGS[case], chain, 5, has_times=has_times)[1].nets for has_times in (True, False)]
    timed_weights, plain_weights = (network.state_dict() for network in nets)
    assert all(torch.equal(timed_weights[name], plain_weights[name]) for name in plain_weights)


def test_times_are_refused_where_they_have_no_effect() -> None:
    spec = {"input": [{"path": "a", "time": {"column": "day", "unit": "Day"}}], "stop": {"iterations": 1}}
    OfflineTrainingSpec.model_validate({**spec, "algorithm": "IQL"})
    with pytest.raises(ValueError, match=r"input\[0\].time has no effect on DecisionTransformer"):
        OfflineTrainingSpec.model_validate({**spec, "algorithm": "DecisionTransformer"})
    with pytest.raises(ValueError, match=r"input\[0\].time does not combine with a sampler"):
        spec["input"] = [{**spec["input"][0], "weight": 1.0}, {"sampler": {}, "weight": 1.0}]
        OfflineTrainingSpec.model_validate({**spec, "algorithm": "IQL", "environment": {"id": "CartPole-v1"}})


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"observe": True}, {}, r"input\[1\].time.observe differs from that of input\[0\]"),
        (
            {"unit": "Day", "observe": True},
            {"unit": "Hour"},
            r"observe differs from .*; input\[1\].time.unit is Hour, but that of input\[0\] is Day",
        ),
        ({"unit": "Day"}, {"unit": 24}, None),
        ({"unit": 1}, {"unit": 24}, None),
    ],
)
def test_times_of_inputs_have_one_meaning(
    first: dict[str, Any], second: dict[str, Any], message: str | None
) -> None:
    inputs = [{"path": "a", "time": {"column": "day", **time}} for time in (first, second)]
    spec = {"algorithm": "IQL", "input": inputs, "stop": {"iterations": 1}}
    with nullcontext() if message is None else pytest.raises(ValueError, match=message):
        OfflineTrainingSpec.model_validate(spec)
