"""Train with d3rlpy 2.8.1: answer each line "<training> <updates>" with the updates per second, by the wall clock.

    python d3rlpy_training.py CONTINUOUS.parquet DISCRETE.parquet

Run by whole_training.py in a separate Python environment. It is d3rlpy's own loop, without log files and progress
bar. All options except the batch size are its defaults, including networks of two layers of 256.
"""

import sys
import time
from dataclasses import replace

import d3rlpy
import gymnasium as gym
import numpy as np
import pyarrow.parquet as pq
import structlog
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy_updates import ALGORITHMS, DISCRETE
from updates_timing import answer_lines

BATCH, BUFFER = 256, 100_000
QUIET_OPTIONS = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    answer_lines(make_turn)


def make_turn(name, updates):
    algorithm, _, environment = name.partition("/")
    algo = replace(ALGORITHMS[algorithm], batch_size=BATCH).create(device="cpu")
    train = (
        make_online_training(algo, environment, updates)
        if environment
        else make_offline_training(algo, algorithm, updates)
    )

    def turn():
        start_time = time.perf_counter()
        train()
        return updates / (time.perf_counter() - start_time)

    return turn


def make_offline_training(algo, name, updates):
    is_discrete = name in DISCRETE
    epochs = algo.fitter(
        load_dataset(sys.argv[1 + is_discrete], is_discrete),
        n_steps=sys.maxsize,
        n_steps_per_epoch=updates,
        **QUIET_OPTIONS,
    )
    return lambda: next(epochs)


def make_online_training(algo, environment, updates):
    """Train with one timestep per update; the first turn also plays the buffer's first batch."""
    env = gym.make(environment)
    buffer = d3rlpy.dataset.create_fifo_replay_buffer(BUFFER, env=env)
    return lambda: algo.fit_online(env, buffer, n_steps=updates, n_steps_per_epoch=updates, **QUIET_OPTIONS)


def load_dataset(path, is_discrete):
    table = pq.read_table(path)
    columns = {name: np.stack(table[name].to_numpy()) for name in table.column_names if name != "eps_id"}
    actions = d3rlpy.ActionSpace.DISCRETE if is_discrete else d3rlpy.ActionSpace.CONTINUOUS
    return d3rlpy.dataset.MDPDataset(
        observations=columns["obs"],
        actions=columns["actions"][:, None] if is_discrete else columns["actions"],
        rewards=columns["rewards"],
        terminals=columns["terminateds"].astype(np.float32),
        timeouts=columns["truncateds"].astype(np.float32),
        action_space=actions,
    )


if __name__ == "__main__":
    main()
