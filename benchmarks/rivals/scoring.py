"""Shared parts of the scoreboard's rivals: the same number of updates and the same evaluation as for Hindcast.

It is imported in the rivals' environments, and needs only NumPy, torch and Gymnasium. A task is JSON: environment,
algorithm, seed, defaults (true for the rival's defaults in place of the next four), hidden (widths of the layers),
rate, batch, beta (ReBRAC's two), updates, every (updates between evaluations), resets (a seed for each episode of an
evaluation). The rivals print JSON: the number of updates and the
returns of each evaluation.
"""

import json
import sys

import gymnasium as gym
import numpy as np
import torch


def load_arguments():
    """Return the task, and the data's columns: `obs`, `actions` (floats in ±1), `rewards`, `terminals`, `timeouts`."""
    torch.set_num_threads(1)
    return json.loads(sys.argv[2]), dict(np.load(sys.argv[1]))


def train(task, update, act):
    """Update and evaluate as the task says, and print the returns.

    Args:
        task: see the module's docstring.
        update: makes one update.
        act: returns the greedy action for an observation `[O]` float32; a continuous one is in ±1.
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
    episode_return, is_done = 0.0, False
    while not is_done:
        action = scale_action(act(np.asarray(observation, np.float32)), environment.action_space)
        observation, reward, terminated, truncated, _ = environment.step(action)
        episode_return, is_done = episode_return + float(reward), terminated or truncated
    return episode_return


def scale_action(action, space):
    """Return a policy's action in the environment's units."""
    if isinstance(space, gym.spaces.Discrete):
        return int(action)
    return space.low + (np.clip(action, -1, 1) + 1) / 2 * (space.high - space.low)
