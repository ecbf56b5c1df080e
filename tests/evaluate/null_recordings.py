"""Seeded recordings of many kinds, for which the true gain of a policy over the recorded policy is known.

Shapes: N = episodes, T = steps, S = states, A = actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hindcast.evaluate.estimators import Evidence, Values
from hindcast.evaluate.verdict import find_under_recorded

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """A finite-horizon MDP, in which an episode ends after T steps or, in each step, with `end_prob[state]`.

    Attributes:
        transition_probs: `[S, A, S]`.
        reward: `[S, A]` mean reward; noise with deviation `noise` is added.
        behaviour: `[S, A]` action probabilities of the recorded policy.
        target: `[S, A]` action probabilities of the evaluated policy.
    """

    transition_probs: F64
    reward: F64
    behaviour: F64
    target: F64
    num_steps: int = 8
    gamma: float = 0.95
    noise: float = 0.5
    end_prob: F64 = field(default_factory=lambda: np.zeros(4))

    def values(self, policy: F64, num_steps: int) -> tuple[F64, F64]:
        """Return Q `[num_steps + 1, S, A]` and V `[num_steps + 1, S]` of a policy."""
        q = np.zeros((num_steps + 1, *self.reward.shape))
        v = np.zeros((num_steps + 1, len(self.reward)))
        for t in range(num_steps - 1, -1, -1):
            goes_on = (1 - self.end_prob)[:, None]
            q[t] = self.reward + self.gamma * goes_on * (self.transition_probs @ v[t + 1])
            v[t] = (policy * q[t]).sum(-1)
        return q, v

    @property
    def gain(self) -> float:
        """Return of the target minus that of the behaviour, over `num_steps` steps."""
        target_v, behaviour_v = (
            self.values(policy, self.num_steps)[1][0].mean() for policy in (self.target, self.behaviour)
        )
        return float(target_v - behaviour_v)

    def record(self, num_episodes: int, seed: int, **changes: object) -> Recording:
        """Play the behaviour; see `Recording` for `changes`."""
        rng = np.random.default_rng(seed)
        num_states = len(self.reward)
        shape = (num_episodes, self.num_steps)
        states, actions = np.zeros(shape, dtype=int), np.zeros(shape, dtype=int)
        is_running = np.zeros(shape, dtype=bool)
        runs = np.ones(num_episodes, dtype=bool)
        state = rng.integers(0, num_states, num_episodes)
        for t in range(self.num_steps):
            states[:, t], is_running[:, t] = state, runs
            actions[:, t] = _draw(rng, self.behaviour[state])
            runs &= rng.random(num_episodes) >= self.end_prob[state]
            state = _draw(rng, self.transition_probs[state, actions[:, t]])
        rewards = self.reward[states, actions] + rng.normal(scale=self.noise, size=shape)
        return replace(Recording(self, states, actions, rewards, is_running, state), **changes)


@dataclass(frozen=True)
class Recording:
    """Episodes of a world.

    Attributes:
        final_states: `[N]` states after the last step.
        has_left: `[N]` True for episodes that were cut off before the world's end; None for none.
        horizon: number of steps of the evaluated return; more than were recorded if episodes are cut off.
        model_error: standard deviation of the model's error per state and action.
        behaviours: `[N, S, A]` recorded policy of each episode; None if it is the world's.
        is_cloned: True if the densities are those of a clone, the shares of the recorded actions in each state.
    """

    world: World
    states: NDArray[np.int_]
    actions: NDArray[np.int_]
    rewards: F64
    is_running: NDArray[np.bool_]
    final_states: NDArray[np.int_]
    has_left: NDArray[np.bool_] | None = None
    horizon: int | None = None
    model_error: float = 0.2
    behaviours: F64 | None = None
    is_cloned: bool = False

    def evidence(self) -> Evidence:
        """Return the evidence with ratios and a model with errors."""
        world, mask = self.world, self.is_running
        behaviour_probs = (self._clone() if self.is_cloned else world.behaviour)[self.states, self.actions]
        if self.behaviours is not None:
            episodes = np.arange(len(self.states))[:, None]
            behaviour_probs = self.behaviours[episodes, self.states, self.actions]
        log_ratio = np.log(world.target[self.states, self.actions]) - np.log(behaviour_probs)
        return Evidence(
            length=mask.sum(1),
            rewards=self.rewards[mask],
            gamma=world.gamma,
            log_ratio=log_ratio[mask],
            values=self._model(),
        )

    @property
    def has_under_recorded_actions(self) -> bool:
        """True if the policy takes actions that were hardly recorded."""
        states, actions = self.states[self.is_running], self.actions[self.is_running]
        num_actions = self.world.reward.shape[1]
        num_recorded = np.bincount(actions, minlength=num_actions)
        num_expected = self.world.target[states].sum(0)
        return bool(find_under_recorded(num_recorded, num_expected, len(self.states)).any())

    def _clone(self) -> F64:
        counts = np.zeros_like(self.world.behaviour)
        np.add.at(counts, (self.states[self.is_running], self.actions[self.is_running]), 1.0)
        return (counts + 1e-6) / (counts + 1e-6).sum(1, keepdims=True)

    def _model(self) -> Values:
        world, mask = self.world, self.is_running
        q, _ = world.values(world.target, self.horizon or world.num_steps)
        rng = np.random.default_rng(int(self.states.sum()))
        q = q + rng.normal(scale=self.model_error, size=world.reward.shape)
        v = (world.target * q).sum(-1)
        t = np.arange(world.num_steps)
        final_v = v[mask.sum(1), self.final_states]
        is_cut_off = mask.all(1) & (self.horizon is not None) if self.has_left is None else self.has_left
        final_v[~is_cut_off] = 0.0
        return Values(q[t, self.states, self.actions][mask], v[t, self.states][mask], final_v)


def _draw(rng: np.random.Generator, probs: F64) -> NDArray[np.int_]:
    """Draw an index `[N]` from each of the distributions `[N, number of indices]`."""
    return (probs.cumsum(-1) < rng.random(len(probs))[:, None]).sum(-1).clip(max=probs.shape[1] - 1)


def random_world(
    seed: int, *, spread: float = 0.2, num_actions: int = 3, concentration: float = 3.0, **changes: object
) -> World:
    """Return a random world, in which the target differs from the behaviour by `spread` of a random policy."""
    rng = np.random.default_rng(seed)
    num_states = 4
    behaviour = rng.dirichlet(np.full(num_actions, concentration), num_states)
    behaviour = 0.9 * behaviour + 0.1 / num_actions
    other_policy = rng.dirichlet(np.ones(num_actions), num_states)
    return World(
        transition_probs=rng.dirichlet(np.ones(num_states), (num_states, num_actions)),
        reward=rng.normal(size=(num_states, num_actions)),
        behaviour=behaviour,
        target=(1 - spread) * behaviour + spread * other_policy,
        **changes,  # type: ignore[arg-type]
    )


def without_effect(world: World) -> World:
    """Return the world with actions that all have the same effect."""
    reward, probs = world.reward.copy(), world.transition_probs.copy()
    reward[:], probs[:] = reward[:, :1], probs[:, :1]
    return replace(world, reward=reward, transition_probs=probs)


def with_equal_value(world: World, seed: int, spread: float = 0.2) -> World:
    """Return the world with another target, which has the behaviour's return though it acts differently."""
    num_states, num_actions = world.reward.shape
    other_policy = np.random.default_rng(seed).dirichlet(np.ones(num_actions), num_states)
    q = world.values(world.behaviour, world.num_steps)[0][0]
    targets = {
        is_better: (1 - spread) * world.behaviour + spread * np.eye(num_actions)[sign_q.argmax(1)]
        for is_better, sign_q in ((True, q), (False, -q))
    }
    random_target = (1 - spread) * world.behaviour + spread * other_policy
    targets[replace(world, target=random_target).gain > 0] = random_target
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        mixed_world = replace(world, target=middle * targets[True] + (1 - middle) * targets[False])
        low, high = (low, middle) if mixed_world.gain > 0 else (middle, high)
    return mixed_world


def make_better(seed: int, spread: float, num_episodes: int) -> Recording:
    """Return a recording of a world in which the target is better."""
    world = random_world(seed, spread=spread)
    if world.gain < 0:
        world = replace(world, reward=-world.reward)
    return world.record(num_episodes, seed)


def _equal(seed: int) -> Recording:
    world = random_world(seed)
    return replace(world, target=world.behaviour).record(200, seed)


def _no_effect(seed: int) -> Recording:
    return without_effect(random_world(seed)).record(200, seed)


def _equal_value(seed: int, num_episodes: int = 200, spread: float = 0.2, **changes: object) -> Recording:
    world = random_world(seed, **changes)  # type: ignore[arg-type]
    return with_equal_value(world, seed, spread).record(num_episodes, seed)


def with_rare_catastrophe(seed: int, num_episodes: int = 200) -> Recording:
    """Return a recording of rare disasters by an action that the target takes ten times as often, behind a gain."""
    world = random_world(seed, num_actions=3, num_steps=5)
    reward = np.tile([0.0, 0.8, -20.0], (4, 1))
    world = replace(
        world,
        reward=reward,
        behaviour=np.tile([0.499, 0.499, 0.002], (4, 1)),
        target=np.tile([0.33, 0.65, 0.02], (4, 1)),
    )
    return world.record(num_episodes, seed)


def _with_clone(seed: int) -> Recording:
    return replace(_equal(seed), is_cloned=True)


def _near_deterministic(seed: int) -> Recording:
    world = random_world(seed, concentration=0.1)
    sharp = world.behaviour**6 + 0.02
    world = replace(world, behaviour=sharp / sharp.sum(1, keepdims=True))
    return with_equal_value(world, seed, spread=0.05).record(200, seed)


def _non_stationary(seed: int) -> Recording:
    """Half of the episodes come from another recorded policy, each with its own densities."""
    world = without_effect(random_world(seed))
    other_world = replace(world, behaviour=random_world(seed + 10_000).behaviour)
    first, second = world.record(100, seed), other_world.record(100, seed + 1)
    columns = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])
        for name in ("states", "actions", "rewards", "is_running", "final_states")
    }
    behaviours = np.stack([world.behaviour, other_world.behaviour])[np.repeat([0, 1], 100)]
    return replace(first, **columns, behaviours=behaviours)


def _offset(seed: int) -> Recording:
    recording = _equal_value(seed)
    world = replace(recording.world, reward=recording.world.reward + 100.0)
    return replace(recording, world=world, rewards=recording.rewards + 100.0)


def _time_limit(seed: int) -> Recording:
    """Return episodes that were cut off: the policy continues as it would, and so does the behaviour."""
    return replace(_equal_value(seed), horizon=16)


def with_drop_outs(recording: Recording, seed: int) -> Recording:
    """Return the recording of a log in which some episodes end before a step to the worst state, which is not in it."""
    world, generator = recording.world, np.random.default_rng(seed)
    worst_state = world.values(world.behaviour, world.num_steps)[1][1].argmin()
    next_states = np.column_stack([recording.states[:, 1:], recording.final_states])
    leaves = (next_states == worst_state) & (generator.random(next_states.shape) < 0.2)
    leaves[:, 0] = False
    has_left, step = leaves.any(1), leaves.argmax(1)
    is_running = recording.is_running & ((np.arange(world.num_steps) < step[:, None]) | ~has_left[:, None])
    states = recording.states[np.arange(len(step)), step]
    final_states = np.where(has_left, states, recording.final_states)
    return replace(recording, is_running=is_running, final_states=final_states, has_left=has_left)


def _survival(seed: int) -> Recording:
    return _equal_value(seed, end_prob=np.array([0.0, 0.1, 0.3, 0.05]), noise=0.2)


NULL_KINDS: Final[dict[str, Callable[[int], Recording]]] = {
    "equal": _equal,
    "no effect": _no_effect,
    "equal value": _equal_value,
    "cloned": _with_clone,
    "near deterministic": _near_deterministic,
    "heavy ratios": lambda seed: _equal_value(seed, spread=0.5),
    "non-stationary": _non_stationary,
    "time limits": _time_limit,
    "survival": _survival,
    "drop-outs": lambda seed: with_drop_outs(_equal_value(seed), seed),
    "20 episodes": lambda seed: _equal_value(seed, 20),
    "2,000 episodes": lambda seed: _equal_value(seed, 2_000),
    "offset": _offset,
}
