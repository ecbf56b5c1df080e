"""Shared parts of the scoreboard's rivals: as many updates and the same evaluation as ours; they print their returns.

It is imported in the rivals' environments, and needs NumPy, torch and Gymnasium alone. A task is JSON: environment,
algorithm, seed, hidden, rate, batch, beta (ReBRAC's two), updates, every, resets (a seed for each episode of an
evaluation). The rivals print JSON: for each evaluation the updates made and the returns.
"""

import json
import sys

import gymnasium as gym
import numpy as np
import torch


def given():
    """The task, and the data's columns: `obs`, `actions` (in ±1), `rewards`, `terminals`, `timeouts`."""
    torch.set_num_threads(1)
    return json.loads(sys.argv[2]), dict(np.load(sys.argv[1]))


def train(task, update, act):
    """Update and evaluate as the task says, and print what was earned.

    Args:
        task: see the module's docstring.
        update: makes one update.
        act: takes an observation `[O]` float32 and gives the greedy action, in ±1.
    """
    environment = gym.make(task["environment"])
    found = []
    for number in range(1, task["updates"] + 1):
        update()
        if number % task["every"] == 0:
            returns = [round(episode(act, environment, seed), 2) for seed in task["resets"]]
            found.append({"updates": number, "returns": returns})
    print(json.dumps(found))


def episode(act, environment, seed):
    """The return of one, from the start that the seed gives."""
    observation, _ = environment.reset(seed=seed)
    low, high = environment.action_space.low, environment.action_space.high
    total, is_done = 0.0, False
    while not is_done:
        action = np.clip(act(np.asarray(observation, np.float32)), -1, 1)
        observation, reward, terminated, truncated, _ = environment.step(
            low + (action + 1) / 2 * (high - low)
        )
        total, is_done = total + float(reward), terminated or truncated
    return total
