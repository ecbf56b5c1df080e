"""What the layout Columns costs: recording against Episodes, and reading against RLlib.

    python benchmarks/columns.py --rllib PYTHON

Recording: CartPole-v1 with its expert, one runner, 8 environments, CPU time of the whole process, all three
layouts taking turns. Reading: 500-step episodes of CartPole's columns from the page cache, one thread, into arrays of
whole episodes; RLlib reads the same file with its own classes (into episodes of one step each, as it does).
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from decode_messagepack import make_block, rival
from gymnasium import spaces
from measuring import report, take_turns
from recording import CARTPOLE, WIDTH, train_expert

from hindcast.api.recording import OutputSpec
from hindcast.record.pool import load_actor, record_here
from hindcast.record.recorder import Task, Work, describe
from hindcast.store.dataset import open_dataset
from hindcast.store.filesystem import resolve
from hindcast.store.spec import DataSpec
from hindcast.store.writer import EpisodeWriter

ROWS_OF_RIVAL = 20_000


def record(policy: Path, episodes: int, output: dict[str, str]) -> float:
    """Timesteps per second of CPU time of recording to a new folder."""
    actor = load_actor(str(policy), CARTPOLE)
    with tempfile.TemporaryDirectory() as folder:
        data = describe(CARTPOLE, actor, explore=True)
        spec = OutputSpec.model_validate({"path": folder, **output})
        task = Task(CARTPOLE, WIDTH, 0, True, spec, folder, "bench", data)
        ranges = [Work(0, range(episodes))]
        begun = time.process_time()
        commits = list(
            record_here(task, str(policy), lambda _: ranges.pop() if ranges else None, lambda _: None)
        )
        return commits[0].timesteps / (time.process_time() - begun)


def read(folder: Path) -> Callable[[], float]:
    """Read all units, all columns."""
    dataset = open_dataset(folder)

    def once() -> float:
        begun = time.process_time()
        steps = sum(dataset.read(unit).num_steps for unit in dataset.units)
        return steps / (time.process_time() - begun)

    return once


def recordings(folder: Path, episodes: int, rounds: int) -> None:
    """Columns and MessagePack against Arrow."""
    train_expert(folder / "module")
    outputs = {
        "Columns": {"format": "Columns"},
        "MessagePack": {"encoding": "MessagePack"},
        "Episodes": {},
    }
    found = take_turns(
        {
            name: lambda output=output: record(folder / "module", episodes, output)
            for name, output in outputs.items()
        },
        rounds,
    )
    report("recording: Columns against the others", "timesteps/s", found, "Columns", {"Episodes": 0.95})


def readings(folder: Path, python: str, rounds: int) -> None:
    """Ours against RLlib's."""
    block = make_block(800)
    spec = DataSpec.of_block(block, spaces.Box(-9, 9, (4,)), spaces.Discrete(2))
    with EpisodeWriter(resolve(folder), spec, "s", layout="columns") as writer:
        writer.write(block)
    rival_script = str(Path(__file__).parent / "rivals" / "rllib_columns.py")
    command = [python, rival_script, str(folder / "s-000.parquet"), str(ROWS_OF_RIVAL)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = take_turns({"Hindcast": read(folder), "RLlib": lambda: rival(process)}, rounds)
        process.communicate()
    report("reading Columns", "timesteps/s", found, "Hindcast", {"RLlib": 30})


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rllib", required=True, help="the Python that has RLlib 2.60")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        readings(Path(folder), arguments.rllib, arguments.rounds)
    with tempfile.TemporaryDirectory() as folder:
        recordings(Path(folder), arguments.episodes, arguments.rounds)


if __name__ == "__main__":
    main()
