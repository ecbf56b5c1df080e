"""d3rlpy 2.8.1 trains on a scoreboard's data and is evaluated as ours is.

    python d3rlpy_scores.py DATA.npz TASK

Run by the scoreboard in an environment of its own. TASK is JSON: environment, algorithm, seed, hidden, rate, batch,
beta (ReBRAC's two), updates, every, resets (a seed for each episode of an evaluation). Options that the task does not
name are d3rlpy's defaults, except for CQL's penalty, whose weight is fixed at the default of both, and that on a GPU
updates are compiled and captured (compile_graph). Actions of the data are in ±1. It prints JSON: for each evaluation
the updates made and the returns.
"""

import json
import sys
from dataclasses import replace

import d3rlpy
import gymnasium as gym
import numpy as np
import structlog
import torch
from d3rlpy.models import VectorEncoderFactory
from d3rlpy.preprocessing import StandardObservationScaler


def config(task, encoder):
    """The algorithm's, with networks, rates and batches of the task."""
    rate = task["rate"]
    common = {"batch_size": task["batch"]}
    if task["algorithm"] == "BC":
        return d3rlpy.algos.BCConfig(learning_rate=rate, encoder_factory=encoder, **common)
    common |= {
        "actor_learning_rate": rate,
        "critic_learning_rate": rate,
        "actor_encoder_factory": encoder,
        "critic_encoder_factory": encoder,
    }
    algorithms = d3rlpy.algos
    made = {
        "TD3BC": lambda: algorithms.TD3PlusBCConfig(observation_scaler=StandardObservationScaler(), **common),
        "ReBRAC": lambda: algorithms.ReBRACConfig(
            actor_beta=task["beta"],
            critic_beta=task["beta"],
            **common | {"critic_encoder_factory": layers(task, use_layer_norm=True)},
        ),
        "IQL": lambda: algorithms.IQLConfig(value_encoder_factory=encoder, **common),
        "SAC": lambda: algorithms.SACConfig(temp_learning_rate=rate, **common),
        "CQL": lambda: algorithms.CQLConfig(
            temp_learning_rate=rate, conservative_weight=5.0, alpha_learning_rate=0.0, **common
        ),
    }
    return made[task["algorithm"]]()


def layers(task, **options):
    """The networks of the task; ReBRAC normalises its critics' layers, as d3rlpy's own reproduction does."""
    return VectorEncoderFactory(list(task["hidden"]), activation="relu", **options)


def main():
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    torch.set_num_threads(1)
    task = json.loads(sys.argv[2])
    d3rlpy.seed(task["seed"])
    columns = np.load(sys.argv[1])
    data = d3rlpy.dataset.MDPDataset(
        observations=columns["obs"],
        actions=columns["actions"],
        rewards=columns["rewards"],
        terminals=columns["terminals"].astype(np.float32),
        timeouts=columns["timeouts"].astype(np.float32),
        action_space=d3rlpy.ActionSpace.CONTINUOUS,
    )
    environment = gym.make(task["environment"])
    is_on_gpu = torch.cuda.is_available()
    made = replace(config(task, layers(task)), compile_graph=is_on_gpu)
    algorithm = made.create(device="cuda" if is_on_gpu else "cpu")
    algorithm.build_with_dataset(data)
    if task["algorithm"] == "TD3BC":
        algorithm.config.observation_scaler.fit_with_trajectory_slicer(data.episodes, data.trajectory_slicer)
    found = []
    for number in range(1, task["updates"] + 1):
        algorithm.update(data.sample_transition_batch(task["batch"]))
        if number % task["every"] == 0:
            returns = [round(episode(algorithm, environment, seed), 2) for seed in task["resets"]]
            found.append({"updates": number, "returns": returns})
    print(json.dumps(found))


def episode(algorithm, environment, seed):
    """The return of one, from the start that the seed gives."""
    observation, _ = environment.reset(seed=seed)
    low, high = environment.action_space.low, environment.action_space.high
    total, ended = 0.0, False
    while not ended:
        action = algorithm.predict(np.asarray(observation, np.float32)[None])[0].clip(-1, 1)
        observation, reward, terminated, truncated, _ = environment.step(
            low + (action + 1) / 2 * (high - low)
        )
        total, ended = total + float(reward), terminated or truncated
    return total


if __name__ == "__main__":
    main()
