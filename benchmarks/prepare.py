"""Speed of preparing whole episodes from rows in layout 1: written, durable, with a manifest.

    python benchmarks/prepare.py [--rllib PYTHON] [--ray] [--growth ROWS ROWS ...]

CartPole's columns in episodes of 500 timesteps. Hindcast gets the rows in 7 files, in order or scrambled; with `t`, and
without it, so that observations are chained. RLlib's way gets 20,000 of the same rows, in order, as it requires.
Wall-clock time. `--ray` adds 6 M rows on Ray with two CPUs, an object store smaller than the rows, and workers that
have already started. `--growth` measures only scrambled rows of these numbers on Ray, once each: the processor time of
all processes, Ray's included, after a first preparation has started them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from decode_messagepack import make_block
from measuring import Rival, report, take_turns

from hindcast.datasets.prepare import opening, preparer
from hindcast.datasets.writer import BlockWriter
from hindcast.formats.spec import DataSpec
from hindcast.ray_session import QUIET_OPTIONS, start_ray
from hindcast.storage.location import resolve

ROWS_OF_RIVAL = 20_000
FILES = 7
OBJECT_STORE = 200 << 20


def make_rows(folder: Path, num_episodes: int) -> pa.Table:
    """Make rows of timesteps in order, with RLlib's names and `t`."""
    block = make_block(num_episodes)
    with BlockWriter(resolve(folder), DataSpec.from_block(block), "s", layout="columns") as writer:
        writer.write(block)
    table = pa.concat_tables([pq.read_table(file) for file in sorted(folder.glob("*.parquet"))])
    return table.replace_schema_metadata(None)


def write_in_order(table: pa.Table, folder: Path) -> Path:
    """Write the rows to several files, in order."""
    folder.mkdir()
    bounds = np.linspace(0, len(table), FILES + 1).astype(int)
    for i in range(FILES):
        pq.write_table(table.slice(bounds[i], bounds[i + 1] - bounds[i]), folder / f"{i}.parquet")
    return folder


def write_scrambled(table: pa.Table, folder: Path) -> Path:
    """Write the rows to several files, in random order."""
    return write_in_order(table.take(np.random.default_rng(0).permutation(len(table))), folder)


def make_preparation(path: Path) -> Callable[[], float]:
    """Return a function that prepares a folder into an empty cache, and returns rows per second."""

    def prepare_once() -> float:
        with tempfile.TemporaryDirectory() as cache:
            start_time = time.perf_counter()
            dataset = opening.open_data(path, cache=cache)
            return dataset.num_steps / (time.perf_counter() - start_time)

    return prepare_once


def measure_one_process(folder: Path, python: str | None, num_episodes: int, rounds: int) -> None:
    """Measure one process, and compare it with RLlib's way."""
    table = make_rows(folder / "ordered", num_episodes)
    ours = {
        "Hindcast": make_preparation(write_scrambled(table, folder / "scrambled")),
        "Hindcast, in order": make_preparation(write_in_order(table, folder / "in-order")),
        "Hindcast, without t": make_preparation(
            write_scrambled(table.drop_columns(["t"]), folder / "without")
        ),
    }
    if python is None:
        report("preparing", "rows/s", take_turns(ours, rounds), "Hindcast", {})
        return
    pq.write_table(table.slice(0, ROWS_OF_RIVAL), folder / "ordered.parquet")
    with Rival("rllib_prepare.py", python, str(folder / "ordered.parquet"), str(ROWS_OF_RIVAL)) as rival:
        results = take_turns({**ours, "RLlib's way": rival}, rounds)
    report("preparing", "rows/s", results, "Hindcast", {"RLlib's way": 5})


def measure_ray(folder: Path, num_episodes: int, rounds: int) -> None:
    """Measure Ray with rows that exceed its object store."""
    import ray

    table = make_rows(folder / "ordered", num_episodes)
    ours = {
        "Hindcast": make_preparation(write_scrambled(table, folder / "scrambled")),
        "Hindcast, in order": make_preparation(write_in_order(table, folder / "in-order")),
    }
    preparer._MAX_LOCAL_BYTES = 0
    start_ray(num_cpus=2, object_store_memory=OBJECT_STORE, **QUIET_OPTIONS)
    make_preparation(
        write_scrambled(make_rows(folder / "few", 10), folder / "scrambled-few")
    )()  # starts the workers
    report("preparing on Ray", "rows/s", take_turns(ours, rounds), "Hindcast", {})
    ray.shutdown()


class ProcessorTime:
    """Measures the processor time of this process and its descendants in a `with` block, also of those that end.

    Attributes:
        seconds: the time, when the block has ended.
    """

    def __enter__(self) -> ProcessorTime:
        self._seconds: dict[int, float] = {}
        self._update()
        self._before = sum(self._seconds.values())
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()
        self._update()
        self.seconds = sum(self._seconds.values()) - self._before

    def _poll(self) -> None:
        while not self._has_ended.wait(0.1):
            self._update()

    def _update(self) -> None:
        parents, seconds = {}, {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
                seconds[int(folder.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        processes = {os.getpid()}
        while children := {child for child, parent in parents.items() if parent in processes} - processes:
            processes |= children
        self._seconds |= {process: seconds[process] for process in processes}


def measure_growth(folder: Path, sizes: list[int]) -> None:
    """Print the processor time of all processes for data of each size, on Ray."""
    preparer._MAX_LOCAL_BYTES = 0
    start_ray(num_cpus=2, **QUIET_OPTIONS)
    for num_rows in [20_000, *sizes]:  # the first one starts the workers
        path = write_scrambled(
            make_rows(folder / f"ordered-{num_rows}", num_rows // 500), folder / f"scrambled-{num_rows}"
        )
        with ProcessorTime() as time_of_all:
            make_preparation(path)()
        print(
            f"{num_rows:,} rows: {time_of_all.seconds:.1f} s of processor time, "
            f"{1e6 * time_of_all.seconds / num_rows:.2f} µs a row"
        )


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rllib", help="the Python that has RLlib 2.60; without it, ours runs alone")
    parser.add_argument("--ray", action="store_true", help="measure it on Ray, too")
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--growth", type=int, nargs="+", metavar="ROWS")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.growth:
        with tempfile.TemporaryDirectory() as folder:
            measure_growth(Path(folder), arguments.growth)
        return
    with tempfile.TemporaryDirectory() as folder:
        measure_one_process(Path(folder), arguments.rllib, arguments.episodes, arguments.rounds)
    if arguments.ray:
        with tempfile.TemporaryDirectory() as folder:
            measure_ray(Path(folder), 12_000, arguments.rounds)


if __name__ == "__main__":
    main()
