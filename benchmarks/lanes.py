"""What each of several learners reads, and reading from a store that answers slowly.

    python benchmarks/lanes.py [--episodes 20000] [--latency 0.05]

First the batches of an epoch for 1, 2, 3, 4 and 16 learners, one after the other on one thread: timesteps per second of
processor time of all learners together, and the bytes that the busiest one reads, times the number of learners, over
all bytes. Then one learner that reads from a bucket: a local folder through obstore, whose requests take `--latency`
seconds and a second per 90 MB. It prints timesteps/s, the longest pause after the first batch, and requests per unit,
with as many reads at a time as the executor chooses, and with one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import obstore
from obstore.store import LocalStore
from training import write_data

from hindcast.api.pipeline import PipelineSpec
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.sources import find_files
from hindcast.episodes.block import Block
from hindcast.pipeline.executors import Local, Read
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from hindcast.pipeline.shard import Shard
from hindcast.storage.location import resolve

_BATCH = 4096
_EPOCHS = 3
_BYTES_PER_SECOND = 90e6
_NEEDS = Needs(frozenset({"obs", "new_obs", "actions", "rewards"}))


class SlowRequests:
    """Requests of obstore that take time; `count` is their number."""

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.count = 0

    def __enter__(self) -> SlowRequests:
        self._originals = {name: getattr(obstore, name) for name in ("get_range", "get_ranges", "head")}
        for name, request in self._originals.items():
            setattr(obstore, name, self._slow(request))
        return self

    def __exit__(self, *_: object) -> None:
        for name, request in self._originals.items():
            setattr(obstore, name, request)

    def _slow(self, request: Callable[..., Any]) -> Callable[..., Any]:
        def slow_request(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            time.sleep(self.latency + kwargs.get("length", 0) / _BYTES_PER_SECOND)
            return request(*args, **kwargs)

        return slow_request


class Counting(Local):
    """Counts the bytes of the units that it reads for epoch 0; with `max_reads`, it reads no more at a time."""

    def __init__(self, max_reads: int | None = None) -> None:
        super().__init__()
        self.max_reads = max_reads
        self.num_bytes = 0

    def _max_threads(self) -> int:
        return self.max_reads or super()._max_threads()

    def _read(self, read: Read) -> Block:
        if not read.epoch:
            self.num_bytes += read.unit.nbytes
        return super()._read(read)


def open_units(folder: str, unit_bytes: int, store: object | None = None) -> Dataset:
    """Open a dataset in units of `unit_bytes`."""
    files = find_files([resolve(folder, store)]).indexed_files
    return EpisodeDataset(files[0].spec, files, unit_bytes)


def make_data(dataset: Dataset, shard: Shard, executor: Local | None = None) -> OfflineData:
    pipeline = PipelineSpec.model_validate({"residency": "Streaming", "windowBytes": "128Mi"})
    return OfflineData(
        [Source("data", dataset)],
        _NEEDS,
        batch_size=_BATCH,
        pipeline=pipeline,
        executor=executor,
        shard=shard,
    )


def measure_learners(dataset: Dataset, num_learners: int) -> tuple[float, float]:
    """Return timesteps per second of processor time, and the busiest learner's bytes times `num_learners`."""
    start_time = time.process_time()
    num_bytes = []
    for rank in range(num_learners):
        executor = Counting()
        data = make_data(dataset, Shard(rank, num_learners), executor)
        while data.cursor + _BATCH <= _EPOCHS * data.epoch_size:
            data.next()
        data.close()
        num_bytes.append(executor.num_bytes)
    seconds = time.process_time() - start_time
    return _EPOCHS * dataset.num_steps / seconds, max(num_bytes) * num_learners / dataset.nbytes


def measure_store(dataset: Dataset, executor: Local, requests: SlowRequests) -> tuple[float, float, float]:
    """Return timesteps/s, the longest pause and the requests per unit of half an epoch."""
    requests.count = 0
    data = make_data(dataset, Shard(0, 1), executor)
    start_time = time.perf_counter()
    data.next()
    pauses = []
    while data.cursor < 0.5 * data.epoch_size:
        time.sleep(0.002)  # an update
        batch_time = time.perf_counter()
        data.next()
        pauses.append(time.perf_counter() - batch_time)
    rate = data.cursor / (time.perf_counter() - start_time)
    data.close()
    num_units = sum(
        len(window.pieces)
        for lane in range(data._sources[0].order.num_lanes)
        for window in data._sources[0].order.windows(lane, 0)
    )
    return rate, float(np.max(pauses)), requests.count / (0.5 * num_units)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=6000)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--unit-bytes", type=int, default=1 << 20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_data(Path(name) / "data", arguments.episodes, arguments.unit_bytes)
        dataset = open_units(f"{name}/data", arguments.unit_bytes)
        print(f"{dataset.num_steps:,} timesteps in {len(dataset.units)} units")
        for num_learners in (1, 2, 3, 4, 16):
            rate, part = measure_learners(dataset, num_learners)
            print(
                f"{num_learners} learners: {rate / 1e6:.2f} M timesteps/s of CPU, {part:.3f} / N of the bytes"
            )
        with SlowRequests(arguments.latency) as requests:
            dataset = open_units("data", arguments.unit_bytes, LocalStore(name))
            for title, executor in (("many at a time", Counting()), ("one at a time", Counting(1))):
                rate, pause, num_requests = measure_store(dataset, executor, requests)
                print(
                    f"store, {title}: {rate / 1e6:.2f} M timesteps/s, longest pause {pause:.2f} s, "
                    f"{num_requests:.1f} requests per unit"
                )


if __name__ == "__main__":
    main()
