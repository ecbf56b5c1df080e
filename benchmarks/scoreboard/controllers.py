"""Logs of hand-written controllers: a good one, a poor one, and a mixture, with the propensity of each action."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np

from hindcast import EpisodeWriter

EPISODES = 100

Controller = Callable[[np.ndarray, np.random.Generator], tuple[np.ndarray | int, float]]
"""Returns an action for an observation, continuous ones within ±1, and its log-probability or log-density."""


def make_logs(environment_id: str, home: Path) -> None:
    """Log the episodes of each controller in folders of `home`; existing logs are kept."""
    good, poor = CONTROLLERS[environment_id]
    for name, controllers in {"good": (good,), "poor": (poor,), "mixed": (good, poor)}.items():
        if not (home / f"log-{name}").exists():
            write_log(environment_id, home / f"log-{name}", controllers)


def write_log(environment_id: str, folder: Path, controllers: tuple[Controller, ...]) -> None:
    """Log episodes; the controllers take turns, one episode each."""
    environment, rng = gym.make(environment_id), np.random.default_rng(0)
    spaces = {
        "observation_space": environment.observation_space,
        "action_space": environment.action_space,
    }
    with EpisodeWriter(str(folder), **spaces, normalized_actions=True) as log:
        for index in range(EPISODES):
            controller, episode = controllers[index % len(controllers)], log.start_episode(f"episode-{index}")
            observation, _ = environment.reset(seed=index)
            terminated = truncated = False
            while not (terminated or truncated):
                action, log_prob = controller(observation, rng)
                log.log_action(episode, observation, action, action_logp=log_prob)
                played = 2.0 * action if environment_id == "Pendulum-v1" else action
                observation, reward, terminated, truncated, _ = environment.step(played)
                log.log_returns(episode, float(reward))
            log.end_episode(episode, observation, terminated=terminated, truncated=truncated)


def swing_up(observation: np.ndarray) -> float:
    """Return a torque within ±1 that adds energy until Pendulum is nearly upright, and balances it there."""
    cosine, sine, velocity = (float(value) for value in observation)
    if cosine > 0.85:
        return float(np.clip(-(6.0 * np.arctan2(sine, cosine) + 1.5 * velocity), -1, 1))
    missing_energy = 15.0 * (1.0 - cosine) - 0.5 * velocity**2
    return float(np.clip(0.5 * missing_energy * (velocity if abs(velocity) > 0.1 else 0.1), -1, 1))


def near(torque: float, width: float, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Draw an action uniformly from an interval of half-width `width` around (1 - width)·torque."""
    action = (1.0 - width) * torque + width * rng.uniform(-1.0, 1.0)
    return np.array([action], np.float32), -float(np.log(2.0 * width))


def usually(action: int, chance: float, rng: np.random.Generator) -> tuple[int, float]:
    """Draw `action` of two with probability `chance`."""
    is_other = rng.random() >= chance
    return action ^ is_other, float(np.log(1.0 - chance if is_other else chance))


CONTROLLERS: dict[str, tuple[Controller, Controller]] = {
    "Pendulum-v1": (
        lambda observation, rng: near(swing_up(observation), 0.2, rng),
        lambda observation, rng: near(swing_up(observation), 0.9, rng),
    ),
    "CartPole-v1": (
        lambda observation, rng: usually(int(observation @ [0.1, 0.3, 3.0, 1.0] > 0), 0.95, rng),
        lambda observation, rng: usually(int(observation[2] > 0), 0.8, rng),
    ),
}
"""Environment -> a good and a poor controller."""
