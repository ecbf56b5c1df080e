"""A small MDP whose values are known exactly, and recordings of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hindcast.evaluate.estimators import Evidence, Values


class Chain:
    """A random MDP with 4 states, two actions and 8 steps, and two policies with exactly known returns.

    Args:
        seed: seed of the MDP and the policies.
        actions_matter: False if both actions have the same effect.
        has_durations: True if a step takes the time `delta_t[state, action]`, False if it takes 1.

    Attributes:
        transition_probs: `[state, action, next state]`.
        reward: `[state, action]` mean reward.
        behaviour, target: `[state]` probability of action 1.
        q, v: values of the target, `[step, state, action]` and `[step, state]`; 0 after the last step.
    """

    num_states, num_steps, gamma = 4, 8, 0.95

    def __init__(self, seed: int, *, actions_matter: bool = True, has_durations: bool = False) -> None:
        rng = np.random.default_rng(seed)
        self.transition_probs = rng.dirichlet(np.ones(self.num_states), (self.num_states, 2))
        self.reward = 1.0 + rng.normal(size=(self.num_states, 2))
        if not actions_matter:
            self.transition_probs[:, 1], self.reward[:, 1] = self.transition_probs[:, 0], self.reward[:, 0]
        self.behaviour = rng.uniform(0.3, 0.7, self.num_states)
        self.target = np.clip(self.behaviour + rng.uniform(-0.2, 0.2, self.num_states), 0.1, 0.9)
        self.delta_t = (
            rng.exponential(3.0, (self.num_states, 2)) if has_durations else np.ones((self.num_states, 2))
        )
        self.q, self.v = self._compute_values(self.target)

    @property
    def target_return(self) -> float:
        """Expected discounted return of the target."""
        return float(self.v[0].mean())

    def _compute_values(self, policy: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        q = np.zeros((self.num_steps + 1, self.num_states, 2))
        v = np.zeros((self.num_steps + 1, self.num_states))
        probs = np.stack([1 - policy, policy], -1)
        for t in range(self.num_steps - 1, -1, -1):
            q[t] = self.reward + self.gamma**self.delta_t * (self.transition_probs @ v[t + 1])
            v[t] = (probs * q[t]).sum(-1)
        return q, v

    def play(
        self, num_episodes: int, seed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Play the behaviour; return states, actions and rewards, each `[N, T]`."""
        rng = np.random.default_rng(seed)
        states, actions = (np.zeros((num_episodes, self.num_steps), dtype=np.int64) for _ in range(2))
        rewards = np.zeros((num_episodes, self.num_steps))
        state = rng.integers(0, self.num_states, num_episodes)
        for t in range(self.num_steps):
            states[:, t] = state
            actions[:, t] = rng.random(num_episodes) < self.behaviour[state]
            rewards[:, t] = self.reward[state, actions[:, t]] + rng.normal(scale=0.1, size=num_episodes)
            state = _draw_indices(rng, self.transition_probs[state, actions[:, t]])
        return states, actions, rewards

    def record(self, num_episodes: int, seed: int, bias: float = 0.3) -> Evidence:
        """Play the behaviour and return the evidence, whose Q and V are too high by `bias`."""
        states, actions, rewards = self.play(num_episodes, seed)
        target, behaviour = (
            np.where(actions, prob[states], 1 - prob[states]) for prob in (self.target, self.behaviour)
        )
        t = np.arange(self.num_steps)
        values = Values(
            (self.q[t, states, actions] + bias).ravel(),
            (self.v[t, states] + bias).ravel(),
            np.zeros(num_episodes),
        )
        log_ratios = np.log(target) - np.log(behaviour)
        return Evidence(
            length=np.full(num_episodes, self.num_steps),
            rewards=rewards.ravel(),
            gamma=self.gamma,
            log_ratio=log_ratios.ravel(),
            values=values,
            delta_t=self.delta_t[states, actions].ravel(),
        )


def _draw_indices(rng: np.random.Generator, probs: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw an index `[N]` from each of the distributions `[N, number of indices]`."""
    return (probs.cumsum(-1) < rng.random(len(probs))[:, None]).sum(-1)
