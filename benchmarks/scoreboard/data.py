"""The data of the board: a SAC is trained, and what it plays at several moments of its training is recorded."""

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


def make(name: str, folder: Path) -> None:
    """Make the data of an environment in FOLDER/<name>; what is finished there is found finished."""
    environment = ENVIRONMENTS[name]
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    carry_out(home / "sac.json", [expert(environment, home)])
    parts = {
        data + kind: [(f"{data}{kind}-{number}", stage) for number, stage in enumerate(stages)]
        for data, stages in environment.data.items()
        for kind in ("", JUDGES)[: 1 + environment.judged]
    }
    recordings = [recording(environment, home, *part) for each in parts.values() for part in each]
    carry_out(home / "recordings.json", recordings)
    for data, each in parts.items():
        sources = [str(home / part) for part, _ in each]
        hindcast("data", "merge", "--on-conflict", "Rename", *sources, str(home / data))


def carry_out(file: Path, resources: list[dict[str, Any]]) -> None:
    """`hindcast run` resources."""
    file.write_text("\n---\n".join(json.dumps(resource) for resource in resources))
    hindcast("run", str(file))


def hindcast(*arguments: str) -> None:
    """The command."""
    subprocess.run([Path(sys.executable).with_name("hindcast"), *arguments], check=True)


def expert(environment: Environment, home: Path) -> dict[str, Any]:
    """The SAC, all of whose checkpoints are kept."""
    spec = {
        "algorithm": "SAC",
        "config": dict(environment.sac),
        "environment": {"id": environment.id},
        "model": {"fcnetHiddens": list(environment.hidden), "fcnetActivation": "relu"},
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


def arrays(path: Path, top: float | None = None) -> dict[str, np.ndarray]:
    """All timesteps of a dataset, episode after episode.

    Args:
        path: of the dataset.
        top: share of the episodes that is taken, those with the highest return; None for all.

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


def returns(path: Path) -> np.ndarray:
    """`[E]` the return of each episode."""
    columns = arrays(path)
    ends = np.nonzero(columns["terminals"] | columns["timeouts"])[0] + 1
    return np.add.reduceat(columns["rewards"], [0, *ends[:-1]])
