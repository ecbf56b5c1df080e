"""Let RLlib 2.60 train BC on a recording of CartPole for a few iterations, and print the losses as JSON.

Runs in RLlib's environment: `python rllib_train.py KIND FOLDER`, KIND `episodes`, `columns` or `batches`.
"""

import json
import sys
from pathlib import Path

import gymnasium as gym
import rllib_ray
from ray.rllib.algorithms.bc import BCConfig


def main():
    rllib_ray.start(num_cpus=4, mebibytes=500)
    environment = gym.make("CartPole-v1")
    read_options = {
        "episodes": {"input_read_episodes": True, "input_read_batch_size": 10},
        "columns": {"input_compress_columns": []},
        "batches": {
            "input_read_method": "read_json",
            "input_read_sample_batches": True,
            "input_read_batch_size": 10,
            "input_compress_columns": [],
        },
    }[sys.argv[1]]
    files = [sys.argv[2]]
    if sys.argv[1] == "batches":
        files = [str(path) for path in Path(sys.argv[2]).glob("*.json")]
    config = (
        BCConfig()
        .environment(observation_space=environment.observation_space, action_space=environment.action_space)
        .training(lr=3e-3, train_batch_size_per_learner=256)
        .offline_data(
            input_=files,
            dataset_num_iters_per_learner=5,
            map_batches_kwargs={"concurrency": 1, "num_cpus": 1},
            **read_options,
        )
    )
    algorithm = config.build_algo()
    losses = [float(algorithm.train()["learners"]["default_policy"]["policy_loss"]) for _ in range(6)]
    algorithm.stop()
    print(json.dumps(losses))


if __name__ == "__main__":
    main()
