"""Run all benchmarks one after the other; each prints a table of Hindcast and its rival.

    python benchmarks/run_all.py --rllib PYTHON

PYTHON has RLlib 2.60: `make bench` makes an environment for it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
WITHOUT_RIVAL_PYTHON = (
    "decode.py",
    "frames.py",
    "media.py",
    "learner_overhead.py",
    "training.py",
    "cartpole.py",
    "data_workers.py",
    "lanes.py",
    "learners.py",
    "inspect_dataset.py",
    "open_index.py",
    "serving.py",
)


def main() -> None:
    """Run all benchmarks; stop at the first one that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rllib", required=True, help="the Python that has RLlib 2.60")
    arguments = parser.parse_args()
    for script in WITHOUT_RIVAL_PYTHON:
        subprocess.run([sys.executable, str(FOLDER / script)], check=True)
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
        subprocess.run([sys.executable, str(FOLDER / script), "--rllib", arguments.rllib], check=True)


if __name__ == "__main__":
    main()
