"""How fast units arrive through the RayData executor: timesteps/s, beside reading in this process.

    python benchmarks/ray_data.py [--workers 2] [--megabytes 512]

17 observations, 6 actions, episodes of 1000 timesteps, units of 16 MiB, page cache. Both read the same units in the
same order through the same pre-learner; each delivered array is looked at once (a sum), as the copy into a window
would. Workers and this process share the machine's processors. A turn of RayData includes the start of its actors;
`steady` is its second half alone.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import ray
from measuring import report, take_turns
from training import LENGTH, write_data

from hindcast.episodes.block import Block
from hindcast.pipeline.executors import Executor, Local, Work
from hindcast.pipeline.prelearner import OfflinePreLearner
from hindcast.pipeline.ray_data import RayData
from hindcast.store.dataset import Dataset, open_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        episodes = args.megabytes * 1024 * 1024 // (LENGTH * 24 * 4)
        write_data(Path(folder) / "data", episodes)
        dataset = open_dataset(Path(folder) / "data")
        ray.init(num_cpus=args.workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        pool = RayData((args.workers, args.workers))
        steady: list[float] = []

        def through_ray() -> float:
            whole, second_half = speeds(pool, dataset)
            steady.append(second_half)
            return whole

        found = take_turns(
            {"RayData": through_ray, "Local": lambda: speeds(Local(), dataset)[0]}, args.rounds
        )
        found["RayData, steady"] = steady[1:]
        title = f"blocks of 16 MiB, {args.workers} data workers"
        report(title, "timesteps/s", found, "RayData", {"Local": 0.0})
        report(f"{title}, without the start", "timesteps/s", found, "RayData, steady", {"Local": 0.0})
        ray.shutdown()


def speeds(executor: Executor, dataset: Dataset) -> tuple[float, float]:
    """Timesteps/s of a pass over the data, and of its second half."""
    started = time.perf_counter()
    half, steps_at_half, steps = started, 0, 0
    for number, block in enumerate(blocks(executor, dataset)):
        for column in block.columns.values():
            column.sum()
        steps += block.num_steps
        if number == len(dataset.units) // 2:
            half, steps_at_half = time.perf_counter(), steps
    end = time.perf_counter()
    return steps / (end - started), (steps - steps_at_half) / (end - half)


def blocks(executor: Executor, dataset: Dataset) -> Iterator[Block]:
    work = [Work(unit, 0) for unit in dataset.units]
    return executor.stream("data", work, OfflinePreLearner(dataset))


if __name__ == "__main__":
    main()
