"""The data of the board: episodes that a SAC plays at several stages of its training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tasks import ENVIRONMENTS, JUDGES, Environment, Stage

from hindcast.datasets.opening import open_dataset
from hindcast.episodes.block import Block

VERSION = "hindcast.dev/v1alpha1"


def make_recordings(name: str, folder: Path) -> None:
    """Make the data of an environment in FOLDER/<name>; finished recordings are kept."""
    environment = ENVIRONMENTS[name]
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    execute(home / "sac.json", [sac_training(environment, home)])
    stages_by_data = {
        data + suffix: [(f"{data}{suffix}-{index}", stage) for index, stage in enumerate(stages)]
        for data, stages in environment.data.items()
        for suffix in ("", JUDGES)[: 1 + (environment.restore is not None)]
    }
    recordings = [
        recording(environment, home, name, stage)
        for stages in stages_by_data.values()
        for name, stage in stages
    ]
    execute(home / "recordings.json", recordings)
    for data, stages in stages_by_data.items():
        sources = [str(home / name) for name, _ in stages]
        hindcast("data", "merge", "--on-conflict", "Rename", *sources, str(home / data))


def execute(file: Path, resources: list[dict[str, Any]]) -> None:
    """Execute resources by `hindcast run`."""
    file.write_text("\n---\n".join(json.dumps(resource) for resource in resources))
    hindcast("run", str(file))


def hindcast(*arguments: str) -> None:
    """Execute the `hindcast` command."""
    subprocess.run([Path(sys.executable).with_name("hindcast"), *arguments], check=True)


def sac_training(environment: Environment, home: Path) -> dict[str, Any]:
    """Return the training of the SAC, which keeps all checkpoints."""
    spec = {
        "algorithm": "SAC",
        "config": dict(environment.sac_options),
        "environment": {"id": environment.id},
        "model": {"fcnetHiddens": list(environment.hidden_sizes), "fcnetActivation": "relu"},
        "input": [{"sampler": {"timestepsPerUpdate": 2}}],
        "pipeline": {"datasetNumItersPerLearner": environment.sac_updates},
        "checkpoint": {"path": str(home), "every": 1, "keep": environment.sac_iterations},
        "stop": {"iterations": environment.sac_iterations},
    }
    return {"apiVersion": VERSION, "kind": "OfflineTraining", "metadata": {"name": "sac"}, "spec": spec}


def recording(environment: Environment, home: Path, name: str, stage: Stage) -> dict[str, Any]:
    """Return the recording of a stage."""
    checkpoint = home / f"sac/r1/checkpoints/checkpoint-{stage.updates or 0:09d}"
    spec = {
        "environment": {"id": environment.id},
        "policy": {"random": {}} if stage.updates is None else {"checkpoint": {"path": str(checkpoint)}},
        "duration": {"episodes": stage.episodes},
        "seed": int(JUDGES in name),
        "output": {"path": str(home / name)},
    }
    return {"apiVersion": VERSION, "kind": "OfflineRecording", "metadata": {"name": name}, "spec": spec}


def load_columns(path: Path, top: float | None = None) -> dict[str, np.ndarray]:
    """Return all timesteps of a dataset, episode after episode.

    Args:
        path: path of the dataset.
        top: fraction of the episodes to use, those with the highest return; None for all.

    Returns:
        `obs` `[N, O]`, `actions` `[N, A]` (in ±1, as SAC has them), `rewards` `[N]`, all float32; `terminals` and
        `timeouts` `[N]` bool.
    """
    dataset = open_dataset(str(path))
    subset = dataset if top is None else dataset.filter(top=top)
    block = Block.concat([subset.read(unit) for unit in subset.units])
    return {
        "obs": block.columns["obs"][block.obs_row].astype(np.float32),
        "actions": block.columns["actions"].astype(np.float32),
        "rewards": block.columns["rewards"].astype(np.float32),
        "terminals": block.step_flags(block.terminated),
        "timeouts": block.step_flags(~block.terminated),
    }


def compute_returns(path: Path) -> np.ndarray:
    """Return the return of each episode, `[E]`."""
    columns = load_columns(path)
    ends = np.nonzero(columns["terminals"] | columns["timeouts"])[0] + 1
    return np.add.reduceat(columns["rewards"], [0, *ends[:-1]])
