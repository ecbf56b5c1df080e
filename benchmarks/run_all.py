"""Every benchmark, one after the other: ours and the rival, as tables.

    python benchmarks/run_all.py --rllib PYTHON

PYTHON has RLlib 2.60: `make bench` makes an environment for it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ALONE = (
    "decode.py",
    "frames.py",
    "media.py",
    "learner_overhead.py",
    "training.py",
    "cartpole.py",
    "data_workers.py",
    "inspect_dataset.py",
    "serving.py",
)


def main() -> None:
    """Run them all; stop at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rllib", required=True, help="the Python that has RLlib 2.60")
    arguments = parser.parse_args()
    for script in ALONE:
        subprocess.run([sys.executable, str(HERE / script)], check=True)
    for script in (
        "recording.py",
        "decode_messagepack.py",
        "convert.py",
        "columns.py",
        "prepare.py",
        "tables.py",
        "updates.py",
        "whole_training.py",
    ):
        subprocess.run([sys.executable, str(HERE / script), "--rllib", arguments.rllib], check=True)


if __name__ == "__main__":
    main()
