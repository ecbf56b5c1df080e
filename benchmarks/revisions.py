"""Updates per second of each algorithm in this working tree and in an earlier revision, in one run.

    python benchmarks/revisions.py 17363616 [--algorithms IQL CQL] [--rounds 9]

Both train by the Python API on the same table, which fits in memory, with the same networks of two layers of 256, ReLU,
batches of 256 and one thread; other options are each revision's defaults. An iteration includes drawing batches. The
two revisions take turns; the medians of the turns and of their ratios are printed. The time is CPU time, so that other
programs do not count.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from measuring import Rival, report, take_turns
from pyarrow import parquet

ROOT = Path(__file__).parents[1]
UPDATES = {
    "BC": 150,
    "MARWIL": 400,
    "IQL": 40,
    "TD3BC": 60,
    "ReBRAC": 40,
    "FQL": 30,
    "CQL": 5,
    "SAC": 40,
    "DQN": 100,
    "DiscreteCQL": 100,
    "DecisionTransformer": 20,
}
"""Algorithm -> updates of a turn, about half a second; an epoch of MARWIL, which computes returns once per epoch."""
DISCRETE = ("DQN", "DiscreteCQL")
NEW, OLD = "working tree", "revision"
MIN_RATIO = 0.97


def write_table(path: Path, is_discrete: bool) -> None:
    """Write 100 episodes of 1,000 timesteps of noise in HalfCheetah's shape."""
    rng = np.random.default_rng(0)
    count = 100_000
    actions = rng.integers(0, 6, count) if is_discrete else list(rng.uniform(-1, 1, (count, 6)))
    columns = {
        "eps_id": np.arange(count) // 1_000,
        "obs": list(rng.standard_normal((count, 17), dtype=np.float32)),
        "actions": actions,
        "rewards": rng.standard_normal(count),
        "terminateds": np.arange(count) % 1_000 == 999,
    }
    parquet.write_table(pa.table(columns), path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision")
    parser.add_argument("--algorithms", nargs="*", default=list(UPDATES))
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        archive = folder / "runtime.tar"
        subprocess.run(
            ["git", "archive", "-o", str(archive), arguments.revision, "runtime"], cwd=ROOT, check=True
        )
        subprocess.run(["tar", "xf", str(archive), "-C", str(folder)], check=True)
        runtimes = {NEW: ROOT / "runtime", OLD: folder / "runtime"}
        for name in arguments.algorithms:
            table = folder / f"{name}.parquet"
            write_table(table, name in DISCRETE)
            options = (str(table), name, str(UPDATES[name]))
            with (
                Rival("hindcast_training.py", sys.executable, str(runtimes[NEW]), *options) as new,
                Rival("hindcast_training.py", sys.executable, str(runtimes[OLD]), *options) as old,
            ):
                results = take_turns({NEW: new, OLD: old}, arguments.rounds)
            report(name, "updates/s of CPU time", results, NEW, {OLD: MIN_RATIO})


if __name__ == "__main__":
    main()
