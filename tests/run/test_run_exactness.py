"""A training in pieces is the training in one: bit for bit, over processes; and what it is worth."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hindcast.api import OfflineTraining
from hindcast.errors import Interrupted
from hindcast.learn.checkpoint import CheckpointStore, find_checkpoint
from hindcast.run.folders import run_folder
from hindcast.run.results import read_results
from hindcast.store.filesystem import resolve
from support import CARTPOLE, After, record, recording, train, training

TIMINGS = ("time_total_s", "timesteps_per_s", "timers")


def results_of(resource: OfflineTraining) -> list[dict[str, Any]]:
    """The results without what depends on the clock."""
    return [
        {key: value for key, value in result.items() if key not in TIMINGS}
        for result in read_results(run_folder(resource))
    ]


def same_tensors(one: Path, other: Path) -> bool:
    """Whether the two run folders end with the same weights, optimiser and randomness, bit for bit."""
    latest = [CheckpointStore(resolve(folder / "checkpoints")).latest() for folder in (one, other)]
    states = [checkpoint.learner_state().tensors for checkpoint in latest if checkpoint]
    assert len(states) == 2
    return states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][name], states[1][name]) for name in states[0]
    )


def test_100_updates_are_50_a_checkpoint_a_new_process_and_50(walks: Path, tmp_path: Path) -> None:
    pipeline = {"datasetNumItersPerLearner": 20}
    stop = {"updates": 100}
    whole = training(tmp_path / "whole", walks, pipeline=pipeline, stop=stop)
    halves = training(tmp_path / "halves", walks, pipeline=pipeline, stop=stop)
    train(whole)
    with pytest.raises(Interrupted, match="at update 50"):
        train(halves, After(50))
    file = tmp_path / "training.yaml"
    file.write_text(halves.model_dump_json(by_alias=True, exclude_none=True, exclude_unset=True))
    subprocess.run([sys.executable, "-m", "hindcast.cli.main", "--quiet", "run", str(file)], check=True)
    assert same_tensors(tmp_path / "whole/test/r1", tmp_path / "halves/test/r1")
    assert results_of(whole) == results_of(halves)
    positions = [
        find_checkpoint(run_folder(resource).child("checkpoints")).training.feed
        for resource in (whole, halves)
    ]
    assert positions[0] == positions[1]


def test_a_spec_that_failed_at_once_can_be_mended(walks: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no Gymnasium environment"):
        train(training(tmp_path, walks, environment={"id": "Nowhere-v0"}))
    assert train(training(tmp_path, walks)).state == "Succeeded"


@pytest.mark.learning
def test_a_clone_plays_as_well_as_the_expert(tmp_path: Path) -> None:
    expert = {
        "config": {"numEpochs": 6, "trainBatchSizePerLearner": 4096},
        "model": {"fcnetHiddens": [64, 64]},
        "stop": {"episodeReturnMean": 450},
        "evaluation": {"duration": 20},
    }
    record(
        recording(
            tmp_path / "data",
            environment=CARTPOLE,
            policy={"train": expert},
            duration={"episodes": 100},
            runners={"envsPerRunner": 8},
        )
    )
    outcome = train(
        training(
            tmp_path,
            tmp_path / "data",
            environment=CARTPOLE,
            config={"lr": 8e-4, "trainBatchSizePerLearner": 1024},
            model={"fcnetHiddens": [64, 64]},
            evaluation={"interval": 1, "duration": 20},
            stop={"episodeReturnMean": 450, "iterations": 20},
        )
    )
    assert outcome.metrics["best"]["score"] >= 450
