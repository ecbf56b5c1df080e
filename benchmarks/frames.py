"""Speed of writing and reading episodes of camera frames in each layout of Parquet: one thread, page cache.

    python benchmarks/frames.py

8 episodes of 250 timesteps with an 84 x 84 x 1 uint8 frame each, smooth enough for LZ4 to compress. CPU time, in the
same run as NumPy copying as many bytes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from measuring import report, take_turns

from hindcast.datasets.assembly.blocks import read_exported_file
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.columns.layout import COLUMNS_LAYOUT
from hindcast.formats.layouts import LAYOUTS
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve

EPISODES, LENGTH, SIDE = 8, 250, 84
MIN_STEPS_PER_SECOND = 60_000


def make_block() -> Block:
    """Make episodes of frames whose pixels drift by at most one grey value per step."""
    rng, num_steps = np.random.default_rng(0), EPISODES * LENGTH
    drift = rng.integers(-1, 2, (num_steps + EPISODES, SIDE, SIDE, 1), dtype=np.int8)
    return Block(
        columns={
            "obs": (drift.cumsum(axis=0, dtype=np.int16) + 128).astype(np.uint8),
            "actions": rng.integers(0, 4, num_steps),
            "rewards": np.ones(num_steps, dtype=np.float32),
        },
        length=np.full(EPISODES, LENGTH),
        eps_id=np.array([f"e-{i}" for i in range(EPISODES)], dtype=object),
        t_started=np.zeros(EPISODES, dtype=np.int64),
        terminated=np.ones(EPISODES, dtype=np.bool_),
        truncated=np.zeros(EPISODES, dtype=np.bool_),
    )


def make_timed(act: Callable[[], object]) -> Callable[[], float]:
    """Return a function that calls `act`, and returns timesteps per second of CPU time."""

    def run() -> float:
        start_time = time.process_time()
        act()
        return EPISODES * LENGTH / (time.process_time() - start_time)

    return run


def write(folder: Path, layout: str, block: Block) -> None:
    """Write the block as files of a layout."""
    with BlockWriter(resolve(folder), DataSpec.from_block(block), "s", layout=layout) as writer:
        writer.write(block)


def make_reader(folder: Path, layout: str, block: Block) -> Callable[[], object]:
    """Write the block, and return a function that reads it back."""
    write(folder, layout, block)
    if layout == COLUMNS_LAYOUT:
        return lambda: read_exported_file(resolve(folder / "s-000.parquet"), layout)
    dataset = open_dataset(folder)
    return lambda: [dataset.read(unit) for unit in dataset.units]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    block = make_block()
    with tempfile.TemporaryDirectory() as name:
        layouts = (*LAYOUTS, COLUMNS_LAYOUT)
        folders = {layout: Path(name) / str(index) for index, layout in enumerate(layouts)}
        copiers = {"numpy copy": make_timed(block.columns["obs"].copy)}
        readers = {
            layout: make_timed(make_reader(folder, layout, block)) for layout, folder in folders.items()
        }
        writers = {
            layout: make_timed(partial(write, folder, layout, block)) for layout, folder in folders.items()
        }
        reading_rates = take_turns(copiers | readers, arguments.rounds)
        writing_rates = take_turns(copiers | writers, arguments.rounds)
    report(
        f"reading frames (target {MIN_STEPS_PER_SECOND:,} in episodes)",
        "timesteps/s",
        reading_rates,
        COLUMNS_LAYOUT,
        {},
    )
    report("writing frames", "timesteps/s", writing_rates, COLUMNS_LAYOUT, {})


if __name__ == "__main__":
    main()
