"""If one of two learners is killed, both resume to the same result, bit for bit."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from moments import MOMENTS
from processes import Driver, Learner

from hindcast.api import OfflineTraining
from layers import repeats
from run_results import training_contents
from support import training

pytestmark = pytest.mark.soak

KILLS = repeats(3, soak=30)


def two_learner_training(folder: Path, data: Path) -> OfflineTraining:
    """Make a training of 48 updates with noise that differs by learner (dropout) and with MARWIL's targets."""
    return training(
        folder,
        data,
        algorithm="MARWIL",
        config={"trainBatchSizePerLearner": 16},
        model={"fcnetHiddens": [16], "dropout": 0.2},
        pipeline={"datasetNumItersPerLearner": 6, "windowSteps": 100},
        learners={"replicas": 2, "device": "cpu"},
        checkpoint={"every": 1, "keep": 2},
        stop={"iterations": 8},
    )


def run_and_kill(resource: OfflineTraining, folder: Path, *kill_at: object, rank: int = 0) -> bool:
    """Train with two learners; return True if the learner `rank` was killed, which ends the other one."""
    (folder / "store").unlink(missing_ok=True)
    learners = [
        Learner(resource, folder, learner_rank, *(kill_at if learner_rank == rank else ()))
        for learner_rank in range(2)
    ]
    outputs = [learner.finish() for learner in learners]
    exit_codes = [learner.process.wait() for learner in learners]
    if exit_codes == [0, 0]:
        assert "outcome Succeeded" in outputs[0], outputs
        return False
    assert exit_codes[rank] == -signal.SIGKILL, outputs
    assert exit_codes[1 - rank] > 0
    return True


def test_run_that_is_killed_with_its_second_learner_resumes_exactly(tmp_path: Path, walks: Path) -> None:
    """The killed process has started the other learner, which ends with it."""
    folders = [tmp_path / "uninterrupted", tmp_path / "killed"]
    resources = [two_learner_training(folder, walks) for folder in folders]
    killed = Driver(resources[1], tmp_path, "in mid-window", 20)
    assert "outcome" not in killed.finish()
    for resource in resources:
        Driver(resource, tmp_path).finish_successfully()
    assert training_contents(folders[1]) == training_contents(folders[0])


def test_learners_killed_at_named_moments_resume_exactly(tmp_path: Path, walks: Path) -> None:
    assert not run_and_kill(two_learner_training(tmp_path / "uninterrupted", walks), tmp_path)
    expected = training_contents(tmp_path / "uninterrupted")
    rng = np.random.default_rng(5)
    run, num_kills = tmp_path / "killed", 0
    moments = sorted(MOMENTS)
    for index, moment in enumerate(rng.choice(moments, KILLS)):
        kill_at = (moment, int(rng.integers(1, 4)))
        if run_and_kill(two_learner_training(run, walks), tmp_path, *kill_at, rank=int(rng.integers(2))):
            num_kills += 1
        else:
            run = tmp_path / f"killed{index}"  # the training has ended before the moment
    run_and_kill(two_learner_training(run, walks), tmp_path)
    assert num_kills >= KILLS // 3
    for folder in tmp_path.glob("killed*"):
        assert training_contents(folder) == expected
