"""Several learners on a Ray of this machine: the pools are one node."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from hindcast.api import OfflineTraining
from hindcast.api.attempt import Attempt
from hindcast.cluster.mailbox import Mailbox
from hindcast.cluster.pools import Pools
from hindcast.errors import Interrupted, NoCudaDevice, UserCodeError
from hindcast.report.events import Outcome
from ray_here import second_node
from run_results import read_results, training_contents
from support import WALK, MemoryReporter, sources, train, training
from user_errors import raises_user_error

UPDATES = 24

pytestmark = [
    pytest.mark.ray,
    pytest.mark.usefixtures("ray_here"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]


class LearnerGroupRunner:
    """Trains resources with a group of learners and stores the notes."""

    def __init__(self) -> None:
        self.mailbox = Mailbox.open()
        self.notes: list[str] = []

    def train(self, resource: OfflineTraining, has_pool_labels: bool = False) -> Outcome:
        from hindcast.cluster.learners import train as train_in_group

        attempt = Attempt(
            revision=1, number=1, ray_job_name="test-t1-1", namespace="tests", uid="4f1c", spec_hash="-"
        )
        try:
            return train_in_group(resource, sources(resource), self.mailbox, Pools(attempt, has_pool_labels))
        finally:
            self.notes = [note for _, note in self.mailbox.take(30).notes]

    def stop_after(self, seconds: float) -> None:
        """Request a stop `seconds` after the first progress report."""

        def request_stop() -> None:
            while self.mailbox.take(30).progress is None:
                time.sleep(0.1)
            time.sleep(seconds)
            self.mailbox.request_stop()

        threading.Thread(target=request_stop, daemon=True).start()


@pytest.fixture
def group() -> LearnerGroupRunner:
    return LearnerGroupRunner()


def make_training(folder: Path, data: Path, replicas: int, **spec: Any) -> OfflineTraining:
    """Make a training of 24 updates, on batches of 64 timesteps if two learners start it."""
    pipeline = {
        "dataWorkers": {"replicas": 1, "cpus": 0.5},
        "datasetNumItersPerLearner": 4,
        "windowSteps": 100,
        **spec.pop("pipeline", {}),
    }
    return training(
        folder,
        data,
        pipeline=pipeline,
        learners={"replicas": replicas, "device": "cpu", **spec.pop("learners", {})},
        stop={"updates": UPDATES},
        **{"checkpoint": {"every": 2}, **spec},
    )


def validation_losses(folder: Path) -> dict[int, float]:
    """Return iteration -> validation loss."""
    evaluations = [
        line["evaluation"]["offline"]
        for line in read_results(folder)
        if "offline" in line.get("evaluation", {})
    ]
    return {evaluation["training_iteration"]: evaluation["validation_loss"] for evaluation in evaluations}


def training_losses(folder: Path) -> list[float]:
    return [line["learners"]["default_policy"]["total_loss"] for line in read_results(folder)]


def assert_same_training(folder: Path, expected: Path) -> None:
    assert training_losses(folder) == pytest.approx(training_losses(expected), rel=1e-4)
    weights, expected_weights = (
        safetensors.numpy.load_file(
            path / f"test/r1/checkpoints/checkpoint-{UPDATES:09d}/module/weights.safetensors"
        )
        for path in (folder, expected)
    )
    assert weights.keys() == expected_weights.keys()
    for name, tensor in expected_weights.items():
        np.testing.assert_allclose(weights[name], tensor, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def reference_run(tmp_path_factory: pytest.TempPathFactory, walks: Path) -> Path:
    """Folder of a training by one learner in this process, on the batches that two learners would share."""
    folder = tmp_path_factory.mktemp("reference_run")
    train(make_training(folder, walks, 1, config={"lr": 1e-3, "trainBatchSizePerLearner": 64}))
    return folder


def test_stopped_group_resumes_with_other_number_of_learners(
    tmp_path: Path, walks: Path, reference_run: Path, group: LearnerGroupRunner
) -> None:
    """The global batch stays the same; a batch connector slows the group down so that it can be stopped."""
    pipeline = {"connectors": [{"name": "learner_toys:SlowConnector", "kwargs": {"seconds": 0.3}}]}
    group.stop_after(0)
    with pytest.raises(Interrupted, match=r"was interrupted at update \d+; run") as error_info:
        group.train(make_training(tmp_path, walks, 2, pipeline=pipeline))
    assert 0 < int(str(error_info.value).split("update ")[1].split(";")[0]) < UPDATES

    reporter = MemoryReporter()
    train(make_training(tmp_path, walks, 1, pipeline=pipeline), reporter=reporter)
    assert any("resuming at update" in note for note in reporter.notes)
    assert_same_training(tmp_path, reference_run)


def test_two_learners_equal_uninterrupted_ones_after_loss_of_raylet(
    tmp_path: Path, walks: Path, group: LearnerGroupRunner
) -> None:
    """The first learner takes three of the four CPUs of Ray's first node; the second one is on a node of its own."""
    marker = tmp_path / "killed"

    def make(folder: Path, process_id: int = 0) -> OfflineTraining:
        kwargs = {"file": str(marker), "after_timesteps": 14 * 64, "process_id": process_id}
        return make_training(
            folder,
            walks,
            2,
            algorithm="MARWIL",
            model={"fcnetHiddens": [16], "dropout": 0.2},
            pipeline={"connectors": [{"name": "learner_toys:SecondLearnerKillsOnce", "kwargs": kwargs}]},
            learners={"cpus": 3},
        )

    def replace_node() -> None:
        while not marker.exists():
            time.sleep(0.1)
        replacement.enter_context(second_node(num_cpus=3))

    marker.touch()
    train(make(tmp_path / "uninterrupted"))
    marker.unlink()
    with contextlib.ExitStack() as replacement, second_node(num_cpus=3) as raylet:
        threading.Thread(target=replace_node, daemon=True).start()
        assert group.train(make(tmp_path, raylet)).metrics["timesteps"] == UPDATES * 64
    assert any(note.startswith("resuming at update 8 ") for note in group.notes)
    assert training_contents(tmp_path) == training_contents(tmp_path / "uninterrupted")


def test_two_learners_play_same_episodes_as_one(
    tmp_path: Path, walks: Path, group: LearnerGroupRunner
) -> None:
    """The training also uses recorded data; the first learner holds episodes out and evaluates on them."""
    sampler = {"warmupTimesteps": 20, "timestepsPerUpdate": 2}
    spec: dict[str, Any] = {
        "algorithm": "DQN",
        "config": {"trainBatchSizePerLearner": 32},
        "environment": WALK,
        "input": [{"path": str(walks), "weight": 0.5}, {"sampler": sampler, "weight": 0.5}],
        "evaluation": {"interval": 5, "duration": 2, "offline": {"heldOut": 0.3, "interval": 3}},
    }
    train(make_training(tmp_path / "one", walks, 1, **{**spec, "config": {"trainBatchSizePerLearner": 64}}))
    group.train(make_training(tmp_path / "two", walks, 2, **spec))
    assert_same_training(tmp_path / "two", tmp_path / "one")
    losses_of_one, losses_of_two = validation_losses(tmp_path / "one"), validation_losses(tmp_path / "two")
    assert list(losses_of_one) == list(losses_of_two) == [3, 6]
    assert losses_of_two == pytest.approx(losses_of_one, rel=1e-2)


def test_user_error_is_raised_without_restart(tmp_path: Path, walks: Path, group: LearnerGroupRunner) -> None:
    with pytest.raises(UserCodeError, match=r"^pre-learner Broken raised KeyError at .*user_steps\.py:\d+"):
        group.train(make_training(tmp_path, walks, 2, pipeline={"preLearner": "user_steps:Broken"}))
    assert not any("lost" in note for note in group.notes)


def test_learner_without_its_gpu_is_refused(tmp_path: Path, walks: Path, group: LearnerGroupRunner) -> None:
    with raises_user_error(NoCudaDevice, "is 1, but torch finds no CUDA device", field="spec.learners.gpus"):
        learners = {"gpus": 1, "cpus": 1, "device": "Auto"}
        group.train(make_training(tmp_path, walks, 1, learners=learners), has_pool_labels=True)
    assert not (tmp_path / "test").exists()
