"""Shared parts of the scoreboard's rivals: the same number of updates and the same evaluation as for Hindcast.

It is imported in the rivals' environments, and needs only NumPy, torch and Gymnasium. A task is JSON: environment,
algorithm, seed, hidden (widths of the layers), rate, batch, beta (ReBRAC's two), updates, every (updates between
evaluations), resets (a seed for each episode of an evaluation). The rivals print JSON: the number of updates and the
returns of each evaluation.
"""

import json
import sys

import gymnasium as gym
import numpy as np
import torch


def load_arguments():
    """Return the task, and the data's columns: `obs`, `actions` (in ±1), `rewards`, `terminals`, `timeouts`."""
    torch.set_num_threads(1)
    return json.loads(sys.argv[2]), dict(np.load(sys.argv[1]))


def train(task, update, act):
    """Update and evaluate as the task says, and print the returns.

    Args:
        task: see the module's docstring.
        update: makes one update.
        act: returns the greedy action, in ±1, for an observation `[O]` float32.
    """
    environment = gym.make(task["environment"])
    evaluations = []
    for num_updates in range(1, task["updates"] + 1):
        update()
        if num_updates % task["every"] == 0:
            returns = [round(play_episode(act, environment, seed), 2) for seed in task["resets"]]
            evaluations.append({"updates": num_updates, "returns": returns})
    print(json.dumps(evaluations))


def play_episode(act, environment, seed):
    """Play an episode that starts with a seed, and return its return."""
    observation, _ = environment.reset(seed=seed)
    low, high = environment.action_space.low, environment.action_space.high
    episode_return, is_done = 0.0, False
    while not is_done:
        action = np.clip(act(np.asarray(observation, np.float32)), -1, 1)
        observation, reward, terminated, truncated, _ = environment.step(
            low + (action + 1) / 2 * (high - low)
        )
        episode_return, is_done = episode_return + float(reward), terminated or truncated
    return episode_return
