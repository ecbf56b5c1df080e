"""Train with RLlib 2.60: answer each line "<training> <updates>" with the updates per second, by the wall clock.

    python rllib_training.py CONTINUOUS.parquet DISCRETE.parquet [--same-batches]

Run by whole_training.py in a separate Python environment. It is `Algorithm.train` on Ray. With --same-batches it
has RLlib's default pipeline; without, batches are drawn anew in each epoch. Networks and options are those of
rllib_updates.py; Ray reads Parquet with its earlier reader, which is the faster one on few cores.
"""

import contextlib
import os
import sys
import time

os.environ |= {
    "RAY_DATA_USE_DATASOURCE_V2": "0",
    "RAY_worker_niceness": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}

import gymnasium as gym
import numpy as np
import ray
from rllib_updates import CONFIGS, MODEL, OPTIONS
from updates_timing import answer_lines

OBSERVATIONS, ACTIONS, BATCH = 17, 6, 256
CQL_RATES = {"lr": None, "actor_lr": 3e-4, "critic_lr": 3e-4, "alpha_lr": 3e-4}
"""CQL's learning rates, whose defaults do not pass RLlib's own validation."""


class RecordedSpaces(gym.Env):
    """The spaces of the data, in an environment that is never played: RLlib's CQL does not start without one."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (ACTIONS,), np.float32)

    def __init__(self, config=None):
        pass


def main() -> None:
    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    answer_lines(make_turn)
    ray.shutdown()
    os._exit(0)  # otherwise Ray Data's iterators start Ray again when Python closes them at exit, and hang


def make_turn(name, updates):
    algorithm, _, environment = name.partition("/")
    config = (
        CONFIGS[algorithm]()
        .rl_module(model_config=MODEL)
        .training(train_batch_size_per_learner=BATCH, **OPTIONS.get(algorithm, {}))
    )
    if algorithm == "CQL":
        config.training(**CQL_RATES)
    config = (
        configure_online(config, environment, updates) if environment else configure_offline(config, updates)
    )
    with contextlib.redirect_stdout(sys.stderr):
        algo = config.build_algo()
    updates_made = count_updates(algo.learner_group._learner)

    def turn():
        start_time, num_before = time.perf_counter(), len(updates_made)
        with contextlib.redirect_stdout(sys.stderr):
            algo.train()
        return (len(updates_made) - num_before) / (time.perf_counter() - start_time)

    return turn


def configure_offline(config, updates):
    return config.environment(
        RecordedSpaces,
        observation_space=RecordedSpaces.observation_space,
        action_space=RecordedSpaces.action_space,
    ).offline_data(
        input_=[sys.argv[1]],
        input_compress_columns=[],
        dataset_num_iters_per_learner=updates,
        materialize_data=False,
        materialize_mapped_data="--same-batches" in sys.argv,
        map_batches_kwargs={"concurrency": 1, "num_cpus": 1},
    )


def configure_online(config, environment, updates):
    """Train with one timestep per update, from a buffer without priorities."""
    return (
        config.environment(environment)
        .env_runners(rollout_fragment_length=1)
        .training(
            training_intensity=BATCH,
            num_steps_sampled_before_learning_starts=BATCH,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 100_000},
        )
        .reporting(min_sample_timesteps_per_iteration=updates, min_time_s_per_iteration=0)
    )


def count_updates(learner):
    """Return a list that grows by one item with each update of the learner."""
    updates_made, update = [], learner._update

    def counted_update(*args, **kwargs):
        updates_made.append(1)
        return update(*args, **kwargs)

    learner._update = counted_update
    return updates_made


if __name__ == "__main__":
    main()
