"""Speed of reading through DataWorkers, in timesteps/s, compared with this process; and of two sources with one.

    python benchmarks/data_workers.py [--workers 2] [--megabytes 768]

17 observations, 6 actions, episodes of 1000 timesteps, units of 16 MiB, page cache. Both read the same units in the
same order through the same pre-learner; each delivered array is read once (a sum), as the copy into a window would do.
Workers and this process share the machine's processors. The time counts from the second pass over the data on, since
workers are still starting in the first one; the seconds until the first block are printed. One worker is measured with
one source, and with two sources in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import islice
from pathlib import Path

from measuring import ratio, report, take_turns
from training import LENGTH, write_data

from hindcast import OfflinePreLearner
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.opening import open_dataset
from hindcast.episodes.block import Block
from hindcast.pipeline.data_workers import DataWorkers
from hindcast.pipeline.executors import Executor, Local
from hindcast.ray_session import ray_connection

_PASSES = 4
_UNITS_AHEAD = 6


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
        single_worker = DataWorkers((1, 1))
        start_seconds: list[float] = []
        with ray_connection(num_cpus=args.workers):
            results = take_turns(
                {
                    "DataWorkers": lambda: measure_speed(pool, dataset, start_seconds),
                    "Local": lambda: measure_speed(Local(), dataset, []),
                    "one worker": lambda: measure_speed(single_worker, dataset, []),
                    "one worker, two sources": lambda: measure_speed(
                        single_worker, dataset, [], num_sources=2
                    ),
                },
                args.rounds,
            )
        title = f"blocks of 16 MiB, {args.workers} data workers"
        report(title, "timesteps/s", results, "DataWorkers", {})
        print(f"DataWorkers / Local: {ratio(results, 'DataWorkers', 'Local'):.2f} x")
        two_source_ratio = ratio(results, "one worker, two sources", "one worker")
        print(f"two sources / one, on one worker: {two_source_ratio:.2f} x")
        print(f"seconds until the first block: {statistics.median(start_seconds):.1f}")


def measure_speed(
    executor: Executor, dataset: Dataset, start_seconds: list[float], num_sources: int = 1
) -> float:
    """Return timesteps/s after the first pass; append the seconds until the first block to `start_seconds`."""
    start_time = time.perf_counter()
    arriving_blocks = stream_blocks(executor, dataset, num_sources)
    next(arriving_blocks)
    start_seconds.append(time.perf_counter() - start_time)
    deque(islice(arriving_blocks, len(dataset.units) - 1), maxlen=0)
    second_pass_time = time.perf_counter()
    num_steps = 0
    for block in arriving_blocks:
        for column in block.columns.values():
            column.sum()
        num_steps += block.num_steps
    return num_steps / (time.perf_counter() - second_pass_time)


def stream_blocks(executor: Executor, dataset: Dataset, num_sources: int) -> Iterator[Block]:
    """Yield the blocks of all passes, read as `num_sources` sources, in turns."""
    work = [(unit, epoch) for epoch in range(_PASSES) for unit in dataset.units]
    prelearners = [OfflinePreLearner(dataset) for _ in range(num_sources)]
    pending: deque[Future[Block]] = deque()
    for index, (unit, epoch) in enumerate([*work, *[(None, 0)] * _UNITS_AHEAD]):
        if unit is not None:
            pending.append(
                executor.submit(prelearners[index % num_sources], unit, epoch, lambda block: block)
            )
        if pending and index >= _UNITS_AHEAD:
            yield pending.popleft().result()
    executor.close()


if __name__ == "__main__":
    main()
