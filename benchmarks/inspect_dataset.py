"""Time and memory of opening and inspecting a large dataset.

    python benchmarks/inspect_dataset.py

50,000 episodes of 1,000 timesteps, 4 + 1 float32 and an int64 each, Episodes / Arrow, a recording with a manifest. Each
call is a process of its own, whose start and imports count. There is no rival: nothing else that we know of answers the
same questions; pandas reading the sample alone would do less. "by the footers" is without the manifest.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.dataset_folder.commits import make_file_stem
from hindcast.formats.dataset_folder.manifest import FOLDER, Manifest, write_manifest
from hindcast.formats.entries import FileEntry
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve

LENGTH = 1_000
PER_FILE = 1_000
INSPECT = ["-m", "hindcast.cli.main", "inspect", "--json"]
OPEN = ["-c", "import sys; from hindcast.datasets.opening import open_dataset; open_dataset(sys.argv[1])"]
CALLS: dict[str, tuple[list[str], float | None]] = {
    "open, by the manifest": (OPEN, 10.0),
    "inspect, sampled": (INSPECT, 30.0),
    "inspect --full": ([*INSPECT, "--full"], None),
    "open, by the footers": (OPEN, 10.0),
}
"""What is called, and the most seconds it may take; in this order, since the last one takes the manifest away."""


def make_block(first: int, episodes: int) -> Block:
    """Random walks rounded to 3 digits."""
    rng = np.random.default_rng(first)
    steps = episodes * LENGTH
    walks = rng.standard_normal((episodes, LENGTH + 1, 4), dtype=np.float32) * 0.01
    return Block(
        columns={
            "obs": walks.cumsum(axis=1).round(3).reshape(-1, 4),
            "actions": rng.integers(0, 4, steps),
            "rewards": rng.uniform(size=steps).round(2).astype(np.float32),
        },
        length=np.full(episodes, LENGTH),
        eps_id=np.array([f"e-{first + i:06d}" for i in range(episodes)], dtype=object),
        t_started=np.zeros(episodes, dtype=np.int64),
        terminated=np.ones(episodes, dtype=np.bool_),
        truncated=np.zeros(episodes, dtype=np.bool_),
    )


def write(folder: Path, episodes: int) -> None:
    """The recording."""
    files: list[FileEntry] = []
    for number, first in enumerate(range(0, episodes, PER_FILE)):
        block = make_block(first, min(PER_FILE, episodes - first))
        spec = DataSpec.from_block(block)
        with BlockWriter(resolve(folder), spec, make_file_stem(number, "bench")) as writer:
            writer.write(block)
            files += writer.close()
    write_manifest(resolve(folder), Manifest(spec=spec.to_json(), files=tuple(files)))


def seconds_of(arguments: list[str], folder: Path) -> float:
    """Measure a Python process that gets the folder as its argument."""
    start_time = time.perf_counter()
    subprocess.run([sys.executable, *arguments, str(folder)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start_time


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=50_000)
    arguments = parser.parse_args()
    table = Table(
        "what", "seconds", "target", "most memory of any so far (MB)", title="a dataset of episodes"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, arguments.episodes)
        for what, (call, target) in CALLS.items():
            if what == "open, by the footers":
                shutil.rmtree(folder / FOLDER)
            seconds = seconds_of(call, folder)
            peak_megabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
            aim = "" if target is None else f"< {target:g}"
            table.add_row(what, f"{seconds:.1f}", aim, f"{peak_megabytes:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
