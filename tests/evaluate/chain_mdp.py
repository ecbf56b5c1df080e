"""A small MDP whose values are known exactly, and recordings of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hindcast.evaluate.estimators import Evidence, Values


class Chain:
    """A random MDP with 4 states, two actions and 8 steps; a behaviour and a target with exact values."""

    states, steps, gamma = 4, 8, 0.95

    def __init__(self, seed: int, *, actions_matter: bool = True) -> None:
        rng = np.random.default_rng(seed)
        self.transition_probs = rng.dirichlet(np.ones(self.states), (self.states, 2))
        self.reward = 1.0 + rng.normal(size=(self.states, 2))
        if not actions_matter:
            self.transition_probs[:, 1], self.reward[:, 1] = self.transition_probs[:, 0], self.reward[:, 0]
        self.behaviour = rng.uniform(0.3, 0.7, self.states)
        self.target = np.clip(self.behaviour + rng.uniform(-0.2, 0.2, self.states), 0.1, 0.9)
        self.q, self.v = self._values(self.target)

    @property
    def target_return(self) -> float:
        """Expected discounted return of the target."""
        return float(self.v[0].mean())

    @property
    def behaviour_return(self) -> float:
        """Expected discounted return of the behaviour."""
        return float(self._values(self.behaviour)[1][0].mean())

    def _values(self, policy: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        q, v = np.zeros((self.steps + 1, self.states, 2)), np.zeros((self.steps + 1, self.states))
        probs = np.stack([1 - policy, policy], -1)
        for t in range(self.steps - 1, -1, -1):
            q[t] = self.reward + self.gamma * self.transition_probs @ v[t + 1]
            v[t] = (probs * q[t]).sum(-1)
        return q, v

    def play(
        self, episodes: int, seed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Play the behaviour; return states, actions and rewards, each `[N, T]`."""
        rng = np.random.default_rng(seed)
        states, actions = (np.zeros((episodes, self.steps), dtype=np.int64) for _ in range(2))
        rewards = np.zeros((episodes, self.steps))
        state = rng.integers(0, self.states, episodes)
        for t in range(self.steps):
            states[:, t] = state
            actions[:, t] = rng.random(episodes) < self.behaviour[state]
            rewards[:, t] = self.reward[state, actions[:, t]] + rng.normal(scale=0.1, size=episodes)
            state = _draw(rng, self.transition_probs[state, actions[:, t]])
        return states, actions, rewards

    def record(self, episodes: int, seed: int, bias: float = 0.3) -> Evidence:
        """Play the behaviour; return the evidence, with an error of `bias` in both Q and V."""
        states, actions, rewards = self.play(episodes, seed)
        target, behaviour = (
            np.where(actions, prob[states], 1 - prob[states]) for prob in (self.target, self.behaviour)
        )
        t = np.arange(self.steps)
        values = Values(
            (self.q[t, states, actions] + bias).ravel(),
            (self.v[t, states] + bias).ravel(),
            np.zeros(episodes),
        )
        ratios = np.log(target) - np.log(behaviour)
        return Evidence(np.full(episodes, self.steps), rewards.ravel(), self.gamma, ratios.ravel(), values)


def _draw(rng: np.random.Generator, probs: NDArray[np.float64]) -> NDArray[np.int64]:
    return (probs.cumsum(-1) < rng.random(len(probs))[:, None]).sum(-1)
