"""Speed of training BC from recorded data: 17 observations, 6 actions, [256, 256], batch 1024.

    python benchmarks/training.py [--threads 1]

Hindcast trains through a `Trainer`, as `hindcast run` does, with resident and with streamed data, including metrics.
The bare loop has the same data in two tensors, draws shuffled batches by index and steps the same network with the same
fused Adam and threads; it reports nothing. Each turn has the same number of updates; the files are in the page cache.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from measuring import report, take_turns
from torch import nn

from hindcast.api import OfflineTraining
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.dataset_folder.commits import make_file_stem
from hindcast.formats.spec import DataSpec
from hindcast.pipeline.offline_data import Source
from hindcast.run.training.offline_trainer import make_offline_trainer
from hindcast.storage.location import resolve
from hindcast.threads import num_processors

OBSERVATIONS, ACTIONS, BATCH, LENGTH = 17, 6, 1024, 1000


def write_data(folder: Path, num_episodes: int, row_group_bytes: int = 16 << 20) -> None:
    """Write episodes of noise in the shape of HalfCheetah's."""
    rng = np.random.default_rng(0)
    num_steps = num_episodes * LENGTH
    block = Block(
        columns={
            "obs": rng.standard_normal((num_steps + num_episodes, OBSERVATIONS), dtype=np.float32),
            "actions": rng.uniform(-1, 1, (num_steps, ACTIONS)).astype(np.float32),
            "rewards": rng.standard_normal(num_steps, dtype=np.float32),
        },
        length=np.full(num_episodes, LENGTH),
        eps_id=np.array([f"e-{i:06d}" for i in range(num_episodes)], dtype=object),
        t_started=np.zeros(num_episodes, dtype=np.int64),
        terminated=np.zeros(num_episodes, dtype=np.bool_),
        truncated=np.ones(num_episodes, dtype=np.bool_),
    )
    spec = DataSpec.from_block(
        block,
        gym.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float32),
        gym.spaces.Box(-1, 1, (ACTIONS,), np.float32),
    )
    with BlockWriter(
        resolve(folder), spec, make_file_stem(0, "bench"), row_group_bytes=row_group_bytes
    ) as writer:
        writer.write(block)


def make_hindcast_turn(
    folder: Path, residency: str, num_updates: int, num_threads: int
) -> Callable[[], float]:
    """Return a function that runs the next iteration of a training, and returns timesteps per second."""
    resource = OfflineTraining.model_validate(
        {
            "metadata": {"name": "bench"},
            "spec": {
                "algorithm": "BC",
                "input": [{"path": str(folder)}],
                "pipeline": {
                    "residency": residency,
                    "datasetNumItersPerLearner": num_updates,
                    "windowSteps": 2**18,
                },
                "stop": {"iterations": 1},
            },
        }
    )
    trainer = make_offline_trainer(resource, [Source(str(folder), open_dataset(folder))])
    trainer.num_busy_processors = num_processors() - num_threads

    def run_turn() -> float:
        start_time = time.perf_counter()
        trainer.iterate()
        return num_updates * BATCH / (time.perf_counter() - start_time)

    return run_turn


def make_bare_turn(folder: Path, num_updates: int) -> Callable[[], float]:
    """Return a function that runs the bare loop, and returns timesteps per second."""
    dataset = open_dataset(folder)
    blocks = [dataset.read(unit) for unit in dataset.units]
    obs = torch.from_numpy(np.concatenate([block.columns["obs"][block.obs_row] for block in blocks]))
    actions = torch.from_numpy(np.concatenate([block.columns["actions"] for block in blocks]))
    net = nn.Sequential(
        nn.Linear(OBSERVATIONS, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2 * ACTIONS)
    )
    adam = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)
    batch_indices = iter(torch.randperm(len(obs)).split(BATCH))
    constant = 0.5 * ACTIONS * math.log(2 * math.pi)

    def run_turn() -> float:
        nonlocal batch_indices
        start_time = time.perf_counter()
        for _ in range(num_updates):
            index = next(batch_indices, None)
            if index is None or len(index) < BATCH:
                batch_indices = iter(torch.randperm(len(obs)).split(BATCH))
                index = next(batch_indices)
            mean, log_std = net(obs[index]).chunk(2, dim=-1)
            errors = (actions[index] - mean) * torch.exp(-log_std)
            loss = (0.5 * errors.square().sum(-1) + log_std.sum(-1) + constant).mean()
            loss.backward()
            adam.step()
            adam.zero_grad()
        return num_updates * BATCH / (time.perf_counter() - start_time)

    return run_turn


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "data"
        write_data(folder, arguments.episodes)
        bare_turn = make_bare_turn(folder, arguments.updates)
        for residency, target in (("Resident", 0.95), ("Streaming", 0.90)):
            run_turn = make_hindcast_turn(folder, residency, arguments.updates, arguments.threads)
            results = take_turns({"ours": run_turn, "bare loop": bare_turn}, arguments.rounds)
            report(f"BC, {residency.lower()}", "timesteps/s", results, "ours", {"bare loop": target})


if __name__ == "__main__":
    main()
