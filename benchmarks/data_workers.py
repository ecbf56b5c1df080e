"""Speed of reading through DataWorkers, in timesteps/s, compared with this process; and of two sources with one.

    python benchmarks/data_workers.py [--workers 2] [--megabytes 768]

17 observations, 6 actions, episodes of 1000 timesteps, units of 16 MiB, page cache. Both read the same units in the
same order through the same pre-learner; each delivered array is looked at once (a sum), as the copy into a window
would. Workers and this process share the machine's processors. Counted from the second pass over the data on: in the
first one workers are still starting; the seconds until its first block are printed. Two sources, in turns, and one
alone have one worker.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from measuring import ratio, report, take_turns
from training import LENGTH, write_data

from hindcast import OfflinePreLearner
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.opening import open_dataset
from hindcast.episodes.block import Block
from hindcast.pipeline.data_workers import DataWorkers
from hindcast.pipeline.executors import Executor, Local, UnitInEpoch
from hindcast.ray_session import ray_connection

_PASSES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        episodes = args.megabytes * 1024 * 1024 // (LENGTH * 24 * 4)
        write_data(Path(folder) / "data", episodes)
        dataset = open_dataset(Path(folder) / "data")
        pool = DataWorkers((args.workers, args.workers))
        single = DataWorkers((1, 1))
        starts: list[float] = []
        with ray_connection(num_cpus=args.workers):
            results = take_turns(
                {
                    "DataWorkers": lambda: speed(pool, dataset, starts),
                    "Local": lambda: speed(Local(), dataset, []),
                    "one worker": lambda: speed(single, dataset, []),
                    "one worker, two sources": lambda: speed(single, dataset, [], sources=2),
                },
                args.rounds,
            )
        title = f"blocks of 16 MiB, {args.workers} data workers"
        report(title, "timesteps/s", results, "DataWorkers", {})
        print(f"DataWorkers / Local: {ratio(results, 'DataWorkers', 'Local'):.2f} x")
        two = ratio(results, "one worker, two sources", "one worker")
        print(f"two sources / one, on one worker: {two:.2f} x")
        print(f"seconds until the first block: {statistics.median(starts):.1f}")


def speed(executor: Executor, dataset: Dataset, starts: list[float], sources: int = 1) -> float:
    """Timesteps/s after the first pass; the seconds until its first block go to `starts`."""
    start_time = time.perf_counter()
    arriving = blocks(executor, dataset, sources)
    next(arriving)
    starts.append(time.perf_counter() - start_time)
    deque(islice(arriving, len(dataset.units) - 1), maxlen=0)
    second = time.perf_counter()
    steps = 0
    for block in arriving:
        for column in block.columns.values():
            column.sum()
        steps += block.num_steps
    return steps / (time.perf_counter() - second)


def blocks(executor: Executor, dataset: Dataset, sources: int) -> Iterator[Block]:
    """All blocks of some passes, read as so many sources, in turns."""
    work = [UnitInEpoch(unit, epoch) for epoch in range(_PASSES) for unit in dataset.units]
    parts = [work[number::sources] for number in range(sources)]
    streams = [executor.stream(f"data{i}", part, OfflinePreLearner(dataset)) for i, part in enumerate(parts)]
    return chain.from_iterable(zip(*streams, strict=False))


if __name__ == "__main__":
    main()
