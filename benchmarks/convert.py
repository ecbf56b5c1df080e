"""Speed of converting RLlib's recordings to Episodes/Arrow: a whole `hindcast convert`, read back and compared.

    python benchmarks/convert.py --rllib PYTHON

Episodes of 500 timesteps in MessagePack, as in decode_messagepack.py. In the same run, in turns: RLlib decoding the
same cells, which is only a part of a conversion. CPU time of one process, without its start. After the table: how much
more memory the conversion of four times as many episodes takes.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from decode_messagepack import make_block
from gymnasium import spaces
from measuring import Rival, report, take_turns

from hindcast.datasets.curate.writing import write
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.target import Target
from hindcast.datasets.writer import BlockWriter
from hindcast.formats.messagepack.layout import MESSAGEPACK_EPISODES
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve

_EPISODES_PER_BLOCK = 200


def make_recording(folder: Path, num_episodes: int) -> Path:
    """Write a file of episodes in MessagePack, and return its path."""
    block = make_block(min(num_episodes, _EPISODES_PER_BLOCK))
    spec = DataSpec.from_block(block, spaces.Box(-9, 9, (4,), np.float32), spaces.Discrete(2))
    with BlockWriter(
        resolve(folder), spec, "s", max_file_bytes=1 << 40, layout=MESSAGEPACK_EPISODES
    ) as writer:
        for first_index in range(0, num_episodes, block.num_episodes):
            ids = [f"{first_index + i:032x}" for i in range(block.num_episodes)]
            writer.write(replace(block, eps_id=np.array(ids, dtype=object)))
    return folder / "s-000.parquet"


def make_converter(path: Path, out: Path) -> Callable[[], float]:
    """Return a function that converts the file, and returns timesteps per second of CPU time."""

    def convert() -> float:
        shutil.rmtree(out, ignore_errors=True)
        start_time = time.process_time()
        result = write(open_dataset(path), Target(resolve(out)))
        return result.timesteps / (time.process_time() - start_time)

    return convert


def peak_memory_bytes() -> int:
    """Return the peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rllib", required=True, help="the Python that has RLlib 2.60")
    parser.add_argument("--episodes", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = make_recording(folder / "recorded", arguments.episodes)
        with Rival("rllib_decode.py", arguments.rllib, str(path)) as rival:
            results = take_turns(
                {"Hindcast": make_converter(path, folder / "out"), "RLlib": rival}, arguments.rounds
            )
        report("MessagePack to Arrow, verified", "timesteps/s", results, "Hindcast", {"RLlib": 5})
        bytes_before = peak_memory_bytes()
        make_converter(make_recording(folder / "more", 4 * arguments.episodes), folder / "out")()
        print(
            json.dumps(
                {
                    "peak_bytes": bytes_before,
                    "more_bytes_for_four_times_the_data": peak_memory_bytes() - bytes_before,
                }
            )
        )


if __name__ == "__main__":
    main()
