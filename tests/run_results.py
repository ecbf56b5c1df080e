"""Results of runs in `FOLDER/test/r1`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hindcast.report import results
from hindcast.storage.location import resolve

Result = dict[str, Any]
TIMINGS = {"time_total_s", "timesteps_per_s", "timers"}


def read_results(folder: Path | str) -> list[Result]:
    return results.read_results(resolve(str(folder)).child("test/r1"))


def without_times(lines: Iterable[Result]) -> list[Result]:
    return [{key: value for key, value in line.items() if key not in TIMINGS} for line in lines]


def training_contents(folder: Path) -> dict[str, Any]:
    """Read everything in a training's run folder that must not depend on interruptions."""
    run = folder / "test/r1"
    last_checkpoint = sorted((run / "checkpoints").glob("checkpoint-*"))[-1]
    checkpoint_json = json.loads((last_checkpoint / "checkpoint.json").read_text())
    return {
        "results": without_times(read_results(folder)),
        "checkpoints": sorted(path.name for path in (run / "checkpoints").iterdir()),
        "weights": (last_checkpoint / "module/weights.safetensors").read_bytes(),
        "learner": (last_checkpoint / "learner.safetensors").read_bytes(),
        "module": (run / "module/weights.safetensors").read_bytes(),
        "feed": checkpoint_json["training"]["feed"],
        "state": checkpoint_json["learner"],
        "metrics": checkpoint_json["training"]["metrics"],
    }
