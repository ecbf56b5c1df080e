"""Cost of the layouts other than Episodes: recording in each, and reading Columns compared with RLlib.

    python benchmarks/columns.py [--rllib PYTHON]

Recording: CartPole-v1 with its expert, one runner, 8 environments, CPU time of the whole process, the layouts in turns;
and encoding and writing alone. Reading: 500-step episodes of CartPole's columns from the page cache,
one thread, into arrays of whole episodes; RLlib reads the same file with its own classes (into episodes of one step
each, as it does).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from decode_messagepack import make_block
from gymnasium import spaces
from measuring import Rival, report, take_turns
from recording import CARTPOLE, WIDTH, train_expert

from hindcast.api.recording import OutputSpec
from hindcast.datasets.assembly.blocks import read_exported_file
from hindcast.datasets.target import Target
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.layouts import EXPORTED_LAYOUTS, LAYOUTS
from hindcast.formats.spec import DataSpec
from hindcast.record.pool import LocalWorkers, Runner, load_actor, record_ranges
from hindcast.record.recorder import RangeToRecord, RecordingTask, describe_columns
from hindcast.storage.location import resolve

ROWS_OF_RIVAL = 20_000


def record(policy: Path, num_episodes: int, output: dict[str, str]) -> float:
    """Record to a new folder, and return timesteps per second of CPU time."""
    actor = load_actor(str(policy), CARTPOLE)
    with tempfile.TemporaryDirectory() as folder:
        data = describe_columns(CARTPOLE, actor, explore=True)
        spec = OutputSpec.model_validate({"path": folder, **output})
        task = RecordingTask(
            CARTPOLE, WIDTH, 0, True, Target.from_output(spec, resolve(folder)), "bench", data
        )
        ranges = [RangeToRecord(0, range(num_episodes))]
        start_time = time.process_time()
        (recorded_range,) = record_ranges(
            LocalWorkers(Runner(task)), str(policy), lambda _: ranges.pop() if ranges else None
        )
        return recorded_range.commit.timesteps / (time.process_time() - start_time)


def make_reader(file: Path) -> Callable[[], float]:
    """Return a function that reads all rows and columns, and returns timesteps per second of CPU time."""

    def read_once() -> float:
        start_time = time.process_time()
        num_steps = read_exported_file(resolve(file), "columns").num_steps
        return num_steps / (time.process_time() - start_time)

    return read_once


OUTPUTS = {
    "Columns": {"format": "Columns"},
    "MessagePack": {"encoding": "MessagePack"},
    "JSON": {"format": "JSON"},
    "CSV": {"format": "CSV"},
    "SampleBatch": {"format": "SampleBatch"},
    "Episodes": {},
}


def compare_recording(folder: Path, num_episodes: int, rounds: int) -> None:
    """Compare recording in each layout with Episodes / Arrow."""
    train_expert(folder / "module")
    results = take_turns(
        {
            name: lambda output=output: record(folder / "module", num_episodes, output)
            for name, output in OUTPUTS.items()
        },
        rounds,
    )
    for name, target in (
        ("Columns", 0.95),
        ("MessagePack", 0.95),
        ("JSON", 0.9),
        ("CSV", 0.9),
        ("SampleBatch", 0.9),
    ):
        pair = {layout: results[layout] for layout in (name, "Episodes")}
        report(f"recording: {name} against Episodes", "timesteps/s", pair, name, {"Episodes": target})


def write(block: Block, layout: str) -> float:
    """Encode and write CartPole's columns, and return timesteps per second of CPU time."""
    spec = DataSpec.from_block(block, spaces.Box(-9, 9, (4,)), spaces.Discrete(2))
    with tempfile.TemporaryDirectory() as folder:
        start_time = time.process_time()
        with BlockWriter(resolve(folder), spec, "s", layout=layout) as writer:
            writer.write(block)
        return block.num_steps / (time.process_time() - start_time)


def compare_writing(rounds: int) -> None:
    """Compare encoding and writing in each layout, without playing episodes."""
    block = make_block(200)
    results = take_turns(
        {name: lambda name=name: write(block, name) for name in (*LAYOUTS, *EXPORTED_LAYOUTS)}, rounds
    )
    report("encoding and writing", "timesteps/s", results, "JSON", {})


def compare_reading(folder: Path, python: str, rounds: int) -> None:
    """Compare reading Columns with RLlib."""
    block = make_block(800)
    spec = DataSpec.from_block(block, spaces.Box(-9, 9, (4,)), spaces.Discrete(2))
    with BlockWriter(resolve(folder), spec, "s", layout="columns") as writer:
        writer.write(block)
    file = folder / "s-000.parquet"
    with Rival("rllib_columns.py", python, str(file), str(ROWS_OF_RIVAL)) as rival:
        results = take_turns({"Hindcast": make_reader(file), "RLlib": rival}, rounds)
    report("reading Columns", "timesteps/s", results, "Hindcast", {"RLlib": 30})


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rllib", help="the Python that has RLlib 2.60; without it, reading is left out")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.rllib:
        with tempfile.TemporaryDirectory() as folder:
            compare_reading(Path(folder), arguments.rllib, arguments.rounds)
    compare_writing(arguments.rounds)
    with tempfile.TemporaryDirectory() as folder:
        compare_recording(Path(folder), arguments.episodes, arguments.rounds)


if __name__ == "__main__":
    main()
