"""Time and memory of opening and inspecting a large dataset.

    python benchmarks/inspect_dataset.py

50,000 episodes of 1,000 timesteps, 4 + 1 float32 and an int64 each, Episodes / Arrow, a recording with a manifest. Each
call is a separate process, and its start and imports count. There is no rival, since we know of no other tool that
answers the same questions; pandas reading only the sample would do less. "by the footers" is without the manifest.
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
EPISODES_PER_FILE = 1_000
INSPECT = ["-m", "hindcast.cli.main", "inspect", "--json"]
OPEN = ["-c", "import sys; from hindcast.datasets.opening import open_dataset; open_dataset(sys.argv[1])"]
CALLS: dict[str, tuple[list[str], float | None]] = {
    "open, by the manifest": (OPEN, 10.0),
    "inspect, sampled": (INSPECT, 30.0),
    "inspect --full": ([*INSPECT, "--full"], None),
    "open, by the footers": (OPEN, 10.0),
}
"""Arguments of Python and the target in seconds; the last call comes last, since the manifest is removed for it."""


def make_block(first_index: int, episodes: int) -> Block:
    """Make episodes of random walks rounded to 3 digits."""
    rng = np.random.default_rng(first_index)
    steps = episodes * LENGTH
    walks = rng.standard_normal((episodes, LENGTH + 1, 4), dtype=np.float32) * 0.01
    return Block(
        columns={
            "obs": walks.cumsum(axis=1).round(3).reshape(-1, 4),
            "actions": rng.integers(0, 4, steps),
            "rewards": rng.uniform(size=steps).round(2).astype(np.float32),
        },
        length=np.full(episodes, LENGTH),
        eps_id=np.array([f"e-{first_index + i:06d}" for i in range(episodes)], dtype=object),
        t_started=np.zeros(episodes, dtype=np.int64),
        terminated=np.ones(episodes, dtype=np.bool_),
        truncated=np.zeros(episodes, dtype=np.bool_),
    )


def write(folder: Path, episodes: int) -> None:
    """Write a recording with a manifest."""
    files: list[FileEntry] = []
    for file_index, first_index in enumerate(range(0, episodes, EPISODES_PER_FILE)):
        block = make_block(first_index, min(EPISODES_PER_FILE, episodes - first_index))
        spec = DataSpec.from_block(block)
        with BlockWriter(resolve(folder), spec, make_file_stem(file_index, "bench")) as writer:
            writer.write(block)
            files += writer.close()
    write_manifest(resolve(folder), Manifest(spec=spec.to_json(), files=tuple(files)))


def measure_seconds(arguments: list[str], folder: Path) -> float:
    """Return the seconds that a Python process takes, with the folder as its last argument."""
    start_time = time.perf_counter()
    subprocess.run([sys.executable, *arguments, str(folder)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start_time


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=50_000)
    arguments = parser.parse_args()
    table = Table(
        "call", "seconds", "target", "peak memory of all so far (MB)", title="a dataset of episodes"
    )
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        write(folder, arguments.episodes)
        for name, (call, target) in CALLS.items():
            if name == "open, by the footers":
                shutil.rmtree(folder / FOLDER)
            seconds = measure_seconds(call, folder)
            peak_megabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
            target_text = "" if target is None else f"< {target:g}"
            table.add_row(name, f"{seconds:.1f}", target_text, f"{peak_megabytes:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
