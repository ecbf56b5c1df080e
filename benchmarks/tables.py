"""Speed of reading foreign tables: Parquet, CSV and JSON against pandas, SampleBatch JSON against RLlib.

    python benchmarks/tables.py [--rllib PYTHON]

500-step episodes of CartPole's columns from the page cache, one thread, CPU time, into arrays with one row a timestep.
pandas reads the same file and converts its vectors to arrays; numbered columns remain single columns.
"""

from __future__ import annotations

import argparse
import base64
import json
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from measuring import Rival, report, take_turns

from hindcast.formats.format import ReadOptions
from hindcast.formats.registry import FORMATS
from hindcast.storage.location import resolve

STEPS = 500
TARGETS = {"Parquet": {"pandas": 5}, "CSV": {"pandas": 0.5}, "JSON": {"pandas": 1}}


def make_columns(episodes: int) -> dict[str, np.ndarray]:
    """Make the columns of all files."""
    rng, rows = np.random.default_rng(0), episodes * STEPS
    return {
        "eps_id": np.repeat([f"e{i}" for i in range(episodes)], STEPS),
        "t": np.tile(np.arange(STEPS), episodes),
        "obs": rng.random((rows, 4), dtype=np.float32),
        "new_obs": rng.random((rows, 4), dtype=np.float32),
        "actions": rng.integers(0, 2, rows),
        "rewards": np.ones(rows),
        "terminateds": np.tile(np.arange(STEPS) == STEPS - 1, episodes),
        "truncateds": np.zeros(rows, dtype=np.bool_),
    }


def write(folder: Path, data: dict[str, np.ndarray]) -> None:
    """Write the data in all formats; only the first tenth of the rows as JSON and CSV."""
    lists = {name: list(values) if values.ndim > 1 else values for name, values in data.items()}
    pq.write_table(pa.table(lists), folder / "steps.parquet", row_group_size=100_000)
    first_rows = {name: values[: len(values) // 10] for name, values in data.items()}
    single_columns = {
        f"{name}[{i}]" if values.ndim > 1 else name: values[:, i] if values.ndim > 1 else values
        for name, values in first_rows.items()
        for i in range(values.shape[1] if values.ndim > 1 else 1)
    }
    pacsv.write_csv(pa.table(single_columns), folder / "steps.csv")
    rows = zip(*(values.tolist() for values in first_rows.values()), strict=True)
    (folder / "steps.json").write_text(
        "".join(json.dumps(dict(zip(first_rows, row, strict=True))) + "\n" for row in rows)
    )
    for name, is_packed in (("unpacked.json", False), ("packed.json", True)):
        (folder / name).write_text(
            "".join(_encode_batch(first_rows, i, is_packed) for i in range(0, len(first_rows["t"]), STEPS))
        )


def _encode_batch(data: dict[str, np.ndarray], start: int, is_packed: bool) -> str:
    episode = {name: values[start : start + STEPS] for name, values in data.items()}
    cells = {
        name: _pack(values) if is_packed and values.ndim > 1 else values.tolist()
        for name, values in episode.items()
    }
    return json.dumps({"type": "SampleBatch", **cells}) + "\n"


def _pack(values: np.ndarray) -> str:
    return base64.b64encode(pa.Codec("lz4").compress(pickle.dumps(values), asbytes=True)).decode()


def read_with_hindcast(path: Path, format_name: str) -> float:
    """Read a file, including the search for its pieces, and return timesteps per second of CPU time."""
    start_time = time.process_time()
    options, table_format = ReadOptions(), FORMATS[format_name]
    pieces = table_format.list_pieces(resolve(path), options)
    num_steps = sum(len(rows) for piece in pieces for rows in table_format.read(piece, options))
    return num_steps / (time.process_time() - start_time)


def read_with_pandas(path: Path) -> float:
    """Read the file with pandas, and return timesteps per second of CPU time."""
    readers: dict[str, Callable[[], pd.DataFrame]] = {
        ".parquet": lambda: pd.read_parquet(path),
        ".csv": lambda: pd.read_csv(path),
        ".json": lambda: pd.read_json(path, lines=True),
    }
    start_time = time.process_time()
    frame = readers[path.suffix]()
    for name in {"obs", "new_obs"} & set(frame.columns):
        np.stack(frame[name].to_list())
    return len(frame) / (time.process_time() - start_time)


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rllib", help="the Python that has RLlib 2.60; without it, SampleBatch is left out")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, make_columns(arguments.episodes))
        for file, format_name in (("steps.parquet", "Parquet"), ("steps.csv", "CSV"), ("steps.json", "JSON")):
            path = folder / file
            rivals = {
                "Hindcast": lambda path=path, format_name=format_name: read_with_hindcast(path, format_name),
                "pandas": lambda path=path: read_with_pandas(path),
            }
            report(
                f"reading a table in {format_name}",
                "timesteps/s",
                take_turns(rivals, arguments.rounds),
                "Hindcast",
                TARGETS[format_name],
            )
        for file in ("unpacked.json", "packed.json") if arguments.rllib else ():
            compare_with_rllib(folder / file, arguments.rllib, arguments.rounds)


def compare_with_rllib(path: Path, python: str, rounds: int) -> None:
    """Compare reading SampleBatch JSON with RLlib's reader."""
    with Rival("rllib_sample_batches.py", python, str(path)) as rival:
        rivals = {"Hindcast": lambda: read_with_hindcast(path, "SampleBatch"), "RLlib": rival}
        results = take_turns(rivals, rounds)
    report(f"reading SampleBatch JSON, {path.stem}", "timesteps/s", results, "Hindcast", {"RLlib": 0.9})


if __name__ == "__main__":
    main()
