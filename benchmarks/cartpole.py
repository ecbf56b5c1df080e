"""Time of cloning the CartPole expert from 500 recorded episodes: to the first update, and to return 450.

    python benchmarks/cartpole.py

Each round is a new process: `hindcast run` on a training whose data have been recorded. The time to the first update
begins with the process and includes imports; the time to return 450 is training alone. RLlib's documentation gives 98 s
for the latter; RLlib 2.60 had not reached it after 193 s on a machine with two cores.
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
    """Execute `hindcast run` on a resource, and return the seconds that it took."""
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
    update_seconds, training_seconds = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recording_seconds = run(folder, RECORDING, "recording")
        for index in range(arguments.rounds):
            update_resource = TRAINING.replace("UPDATES", "1").replace(
                "evaluation: {interval: 1, duration: 10}", "seed: 0"
            )
            update_seconds.append(
                run(
                    folder,
                    update_resource.replace("NAME", f"first{index}").replace("STOP", "updates: 1"),
                    "first",
                )
            )
            clone_resource = TRAINING.replace("UPDATES", "20").replace("STOP", "episodeReturnMean: 450")
            run(folder, clone_resource.replace("NAME", f"clone{index}"), "clone")
            lines = (folder / f"runs/clone{index}/r1/results.jsonl").read_bytes().splitlines()
            results = [orjson.loads(line) for line in lines]
            evaluation_seconds = sum(
                line["timers"]["evaluation_wait_s"] for line in results if "timers" in line
            )
            training_seconds.append(results[-1]["time_total_s"] + evaluation_seconds)
    table = Table("what", "median s", "all", "target", title="CartPole, 500 episodes")
    table.add_row("expert and 500 episodes recorded, whole process", f"{recording_seconds:.1f}", "", "")
    rows = (
        ("whole process of one update, report included", update_seconds, "< 5 s"),
        ("training to return 450", training_seconds, "< 15 s"),
    )
    for label, values, target in rows:
        table.add_row(label, f"{statistics.median(values):.2f}", str([round(v, 2) for v in values]), target)
    Console().print(table)


if __name__ == "__main__":
    main()
