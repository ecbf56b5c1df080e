"""Time of cloning the CartPole expert from 500 recorded episodes: to the first update, and to return 450.

    python benchmarks/cartpole.py

Each round is a new process: `hindcast run` on a training whose data are there. The first update counts from the
start of the process, imports and all; return 450 counts seconds of training. The documentation of RLlib gives 98 s
for the latter, and RLlib 2.60 was not there after 193 s on a machine of two cores.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

RECORDING = """
apiVersion: hindcast.dev/v1alpha1
kind: OfflineRecording
metadata: {name: expert}
spec:
  environment: {id: CartPole-v1}
  policy:
    train:
      algorithm: PPO
      config: {lr: 3.0e-4, numEpochs: 6, trainBatchSizePerLearner: 4096}
      model: {fcnetHiddens: [64, 64]}
      stop: {episodeReturnMean: 450}
      evaluation: {duration: 50}
  duration: {episodes: 500}
  output: {path: FOLDER/data}
"""

TRAINING = """
apiVersion: hindcast.dev/v1alpha1
kind: OfflineTraining
metadata: {name: NAME}
spec:
  algorithm: BC
  config: {lr: 8.0e-4, trainBatchSizePerLearner: 1024}
  environment: {id: CartPole-v1}
  input: [{path: FOLDER/data}]
  pipeline: {datasetNumItersPerLearner: UPDATES}
  evaluation: {interval: 1, duration: 10}
  stop: {STOP}
  checkpoint: {path: FOLDER/runs}
"""


def run(folder: Path, text: str, name: str) -> float:
    """Seconds of a `hindcast run`."""
    file = folder / f"{name}.yaml"
    file.write_text(text.replace("FOLDER", str(folder)))
    start_time = time.perf_counter()
    command = [sys.executable, "-m", "hindcast.cli.main", "--quiet", "run", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start_time


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    first, final_returns = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expert = run(folder, RECORDING, "recording")
        for number in range(arguments.rounds):
            one = TRAINING.replace("UPDATES", "1").replace(
                "evaluation: {interval: 1, duration: 10}", "seed: 0"
            )
            first.append(
                run(folder, one.replace("NAME", f"first{number}").replace("STOP", "updates: 1"), "first")
            )
            clone = TRAINING.replace("UPDATES", "20").replace("STOP", "episodeReturnMean: 450")
            run(folder, clone.replace("NAME", f"clone{number}"), "clone")
            lines = (folder / f"runs/clone{number}/r1/results.jsonl").read_bytes().splitlines()
            results = [orjson.loads(line) for line in lines]
            evaluating = sum(line["timers"]["evaluation_wait_s"] for line in results if "timers" in line)
            final_returns.append(results[-1]["time_total_s"] + evaluating)
    table = Table("what", "median s", "all", "target", title="CartPole, 500 episodes")
    table.add_row("expert and 500 episodes recorded, whole process", f"{expert:.1f}", "", "")
    rows = (
        ("whole process of one update, report included", first, "< 5 s"),
        ("training to return 450", final_returns, "< 15 s"),
    )
    for what, values, target in rows:
        table.add_row(what, f"{statistics.median(values):.2f}", str([round(v, 2) for v in values]), target)
    Console().print(table)


if __name__ == "__main__":
    main()
