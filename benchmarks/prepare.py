"""Speed of preparing whole episodes from rows in layout 1: written, durable, with a manifest.

    python benchmarks/prepare.py [--rllib PYTHON] [--ray]

CartPole's columns in episodes of 500 timesteps. Hindcast gets the rows in 7 files, in order or scrambled; with `t`, and
without it, so that observations are chained. RLlib's way gets 20,000 of the same rows, in order, as it requires.
Wall-clock time. `--ray` adds 6 M rows on Ray with two CPUs, an object store smaller than the rows, and workers that
have already started.
"""

from __future__ import annotations

import argparse
import tempfile
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


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rllib", help="the Python that has RLlib 2.60; without it, ours runs alone")
    parser.add_argument("--ray", action="store_true", help="measure it on Ray, too")
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        measure_one_process(Path(folder), arguments.rllib, arguments.episodes, arguments.rounds)
    if arguments.ray:
        with tempfile.TemporaryDirectory() as folder:
            measure_ray(Path(folder), 12_000, arguments.rounds)


if __name__ == "__main__":
    main()
