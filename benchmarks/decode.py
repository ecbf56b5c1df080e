"""Speed of decoding recorded episodes to arrays: one thread, files in the page cache.

    python benchmarks/decode.py

Episodes of 500 to 1,000 timesteps with 17 + 6 + 1 float32 a timestep, LZ4, read through `Dataset.read`. In
the same run: NumPy copying as many bytes (the ceiling), and the same episodes as Parquet of nested lists read
by pyarrow (the most obvious way to store episodes). Medians of several rounds, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.dataset_folder.commits import make_file_stem
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve

WIDTHS = {"obs": 17, "actions": 6, "rewards": 1}


def make_block(steps: int, is_smooth: bool) -> Block:
    """Make episodes of random walks rounded to 3 digits (LZ4 can compress them), or of noise (it cannot)."""
    rng = np.random.default_rng(0)
    length = rng.integers(500, 1001, size=steps // 750)
    num_steps, num_episodes = int(length.sum()), len(length)

    def column(rows: int, width: int) -> np.ndarray:
        values = rng.standard_normal((rows, width), dtype=np.float32)
        return (values * 0.01).cumsum(axis=0).round(3).astype(np.float32) if is_smooth else values

    return Block(
        columns={
            "obs": column(num_steps + num_episodes, WIDTHS["obs"]),
            "actions": column(num_steps, WIDTHS["actions"]),
            "rewards": column(num_steps, 1)[:, 0],
        },
        length=length,
        eps_id=np.array([f"e-{i:06d}" for i in range(num_episodes)], dtype=object),
        t_started=np.zeros(num_episodes, dtype=np.int64),
        terminated=np.ones(num_episodes, dtype=np.bool_),
        truncated=np.zeros(num_episodes, dtype=np.bool_),
    )


def write_nested(block: Block, path: Path) -> None:
    """Write one row per episode, in which each column is a list of lists of floats."""
    columns = {"length": pa.array(block.length)}
    for name, values in block.columns.items():
        has_final_row = name == "obs"
        offsets = np.concatenate([[0], np.cumsum(block.length + has_final_row)]).astype(np.int32)
        values_array: pa.Array = pa.array(values.reshape(-1))
        if values.ndim == 2:
            values_array = pa.FixedSizeListArray.from_arrays(values_array, values.shape[1])
        columns[name] = pa.ListArray.from_arrays(offsets, values_array)
    pq.write_table(pa.table(columns), path, compression="lz4", row_group_size=220)


def read_nested(path: Path) -> int:
    """Read such a file into `[S, *shape]` arrays, row group by row group; return the number of steps."""
    file, num_steps = pq.ParquetFile(path), 0
    for i in range(file.num_row_groups):
        table = file.read_row_group(i, use_threads=False)
        for name, width in WIDTHS.items():
            flattened = table.column(name).combine_chunks().flatten()
            values = flattened.flatten() if pa.types.is_fixed_size_list(flattened.type) else flattened
            values.to_numpy().reshape(-1, width)
        num_steps += int(table.column("length").to_numpy().sum())
    return num_steps


def measure(readers: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Return the median timesteps per second of each way of reading, measured in turns."""
    rates: dict[str, list[float]] = {name: [] for name in readers}
    for i in range(rounds + 1):
        for name, run in readers.items():
            start_time = time.process_time()
            steps = run()
            if i:  # the first round warms up
                rates[name].append(steps / (time.process_time() - start_time))
    return {name: statistics.median(values) for name, values in rates.items()}


def measure_data(folder: Path, steps: int, is_smooth: bool, rounds: int) -> dict[str, float]:
    """Write the data, read it in all three ways, and return their timesteps per second."""
    block = make_block(steps, is_smooth)
    with BlockWriter(resolve(folder), DataSpec.from_block(block), make_file_stem(0, "bench")) as writer:
        writer.write(block)
    nested_file = folder / "_nested.parquet"
    write_nested(block, nested_file)
    dataset = open_dataset(folder)

    def read_with_hindcast() -> int:
        return sum(dataset.read(unit).num_steps for unit in dataset.units)

    def copy() -> int:
        for column in block.columns.values():
            column.copy()
        return block.num_steps

    return measure(
        {
            "numpy copy": copy,
            "Dataset.read": read_with_hindcast,
            "nested lists": lambda: read_nested(nested_file),
        },
        rounds,
    )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    table = Table(
        "data", "way", "M steps/s", "of numpy copy", "of nested lists", title="decode, one thread, LZ4"
    )
    for data_name, is_smooth in (("random walks, 3 digits", True), ("noise", False)):
        with tempfile.TemporaryDirectory() as folder:
            rates = measure_data(Path(folder), arguments.steps, is_smooth, arguments.rounds)
        for way, rate in rates.items():
            ratios = (rate / rates["numpy copy"], rate / rates["nested lists"])
            table.add_row(data_name, way, f"{rate / 1e6:.1f}", *(f"{ratio:.2f} x" for ratio in ratios))
        table.add_section()
    Console().print(table)


if __name__ == "__main__":
    main()
