"""Time and memory of opening the index of a dataset of many units, without its data files.

    python benchmarks/open_index.py

600,000 units of 16 MiB (9 TiB), 16 in each file, by default of one episode each. The time is the processor's; the
memory is what the process holds in addition, at most.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from hindcast.datasets.file_index import IndexedFile
from hindcast.datasets.opening import make_dataset
from hindcast.formats.dataset_folder.manifest import Manifest, read_manifest, write_manifest
from hindcast.formats.entries import FileEntry, RowGroup
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.storage.location import resolve

UNITS_PER_FILE = 16
UNIT_BYTES = 16 << 20
SPEC = DataSpec({"obs": Leaf(np.dtype(np.float32), (4,)), "rewards": Leaf(np.dtype(np.float32), ())})


def write(folder: str, num_units: int, episodes_per_unit: int) -> None:
    """Write a manifest and an index."""
    lengths = tuple(1_000 + episode % 7 for episode in range(episodes_per_unit))
    steps = sum(lengths)
    group = RowGroup(rows=episodes_per_unit, timesteps=steps, bytes=UNIT_BYTES, lengths=lengths)
    files = [
        FileEntry.from_row_groups(
            f"{file:06d}-bench-000.parquet",
            UNITS_PER_FILE * UNIT_BYTES,
            hashlib.sha256(b"%d" % file).hexdigest(),
            [group] * UNITS_PER_FILE,
        )
        for file in range(num_units // UNITS_PER_FILE)
    ]
    write_manifest(resolve(folder), Manifest(spec=SPEC.to_json(), files=tuple(files)))


def measure(folder: str) -> None:
    """Open the index of a folder, and print time and memory."""
    memory, start_time = _peak_mebibytes(), time.process_time()
    manifest = read_manifest(resolve(folder))
    assert manifest is not None
    spec, location = manifest.data_spec, resolve(folder)
    files = [
        IndexedFile(location.child(file.path), file, spec, manifest.layout, is_listed=True)
        for file in manifest.files
    ]
    dataset = make_dataset(files, folder)
    seconds = time.process_time() - start_time
    print(
        f"{len(dataset.units):,} units, {dataset.num_episodes:,} episodes: {seconds:.2f} s (target < 1.5), "
        f"{_peak_mebibytes() - memory:.0f} MiB (target < 150 with an episode per unit)"
    )


def _peak_mebibytes() -> float:
    """Return the most memory that this process has held; `ru_maxrss` would count that of the process before `exec`."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) / 1024


def main() -> None:
    """Write an index, and measure in a new process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=600_000)
    parser.add_argument("--episodes-per-unit", type=int, default=1)
    parser.add_argument("--measure", metavar="FOLDER", help="open the index that is in this folder")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(folder, arguments.units, arguments.episodes_per_unit)
        subprocess.run([sys.executable, __file__, "--measure", folder], check=True)


if __name__ == "__main__":
    main()
