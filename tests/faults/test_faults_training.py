"""Killed and interrupted trainings resume in new processes to the same result, bit for bit."""

from __future__ import annotations

import signal
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kill_points import choose_reachable_points
from moments import MOMENTS
from processes import Driver, wait_for_end

from hindcast.api import OfflineTraining
from layers import repeats
from run_results import training_contents
from support import WALK, record, recording, training

pytestmark = pytest.mark.soak

KILLS = repeats(1, soak=10)  # at every kind of file operation
PARALLEL_KILLS = repeats(2, soak=20)
MOMENT_ROUNDS = repeats(1, soak=20)


def make_hundred_updates(folder: Path, data: Path) -> OfflineTraining:
    """Make a training of 100 updates in iterations of 30, so that update 50 is in the middle of an iteration."""
    return training(
        folder,
        data,
        config={"lr": [[0, 1e-3], [3200, 1e-4]], "trainBatchSizePerLearner": 32, "gradClip": 0.5},
        model={"fcnetHiddens": [32, 32], "observationFilter": "MeanStd"},
        pipeline={
            "datasetNumItersPerLearner": 30,
            "offlineData": "toy_pipeline:DigestingData",
            "windowSteps": 100,
        },
        stop={"updates": 100},
    )


def evaluated_training(folder: Path, data: Path, parallel: bool) -> OfflineTraining:
    """Make a training of 12 iterations of 2 updates, evaluated every 2 iterations."""
    return training(
        folder,
        data,
        environment=WALK,
        config={"lr": 0.05, "trainBatchSizePerLearner": 32},
        pipeline={"datasetNumItersPerLearner": 2},
        evaluation={"interval": 2, "duration": 10, "parallelToTraining": parallel},
        checkpoint={"every": 1, "keep": 2},
        stop={"iterations": 12},
    )


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, walks: Path) -> dict[str, Any]:
    """The contents of an uninterrupted run of `evaluated_training`."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    output = Driver(evaluated_training(folder / "runs", walks, parallel=False), folder).finish_successfully()
    return {**training_contents(folder / "runs"), "output": output}


def assert_clean(folder: Path) -> None:
    assert [path for path in folder.rglob("*") if path.suffix == ".tmp" or path.name == "lock"] == []


def test_hundred_updates_equal_fifty_and_fifty_in_a_new_process(
    tmp_path: Path, walks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare weights, optimiser, random state, metrics and every batch, including the first after resuming."""
    monkeypatch.setenv("TOY_BATCHES", str(tmp_path / "uninterrupted.txt"))
    Driver(make_hundred_updates(tmp_path / "uninterrupted", walks), tmp_path).finish_successfully()

    monkeypatch.setenv("TOY_BATCHES", str(tmp_path / "interrupted.txt"))
    monkeypatch.setenv("TOY_STOP_AT", "50")
    driver = Driver(make_hundred_updates(tmp_path / "interrupted", walks), tmp_path)
    output = driver.finish()
    assert "interrupted at update 50; run the same command again" in output, output
    assert driver.process.returncode == 130
    monkeypatch.delenv("TOY_STOP_AT")
    output = Driver(make_hundred_updates(tmp_path / "interrupted", walks), tmp_path).finish_successfully()
    assert "resuming at update 50 (iteration 1)" in output, output

    batches = (tmp_path / "uninterrupted.txt").read_text().split()
    assert len(batches) == len(set(batches)) == 100
    assert (tmp_path / "interrupted.txt").read_text().split() == batches
    expected, interrupted = (
        training_contents(tmp_path / "uninterrupted"),
        training_contents(tmp_path / "interrupted"),
    )
    assert interrupted.pop("checkpoints") == ["checkpoint-000000050", *expected.pop("checkpoints")]
    assert interrupted == expected


def test_training_killed_at_every_kind_of_file_operation_resumes_exactly(
    tmp_path: Path, walks: Path, reference: dict[str, Any]
) -> None:
    """Kill one training repeatedly; if it ends before a kill point, kill a new training there."""
    run = tmp_path / "0"
    for point in choose_reachable_points(reference["output"], np.random.default_rng(7), num_repeats=KILLS):
        if execute(run, walks, kill_at=point) == 0:
            assert_complete(run / "runs", reference)
            run = tmp_path / str(int(run.name) + 1)
            assert execute(run, walks, kill_at=point), point
    assert execute(run, walks) == 0
    assert_complete(run / "runs", reference)


def test_training_killed_with_its_evaluation_resumes_exactly(tmp_path: Path, walks: Path) -> None:
    """The evaluation's processes end with the training."""
    resource = evaluated_training(tmp_path / "uninterrupted", walks, parallel=True)
    Driver(resource, tmp_path).finish_successfully()
    run, workers = tmp_path / "0", list[int]()
    for kill in range(PARALLEL_KILLS):
        driver = Driver(evaluated_training(run, walks, parallel=True), tmp_path)
        if driver.listen("progress", times=3 + kill % 3):
            workers += driver.descendants()
            driver.kill()
        else:
            assert "outcome" in driver.finish()
            run = tmp_path / str(int(run.name) + 1)
    Driver(evaluated_training(run, walks, parallel=True), tmp_path).finish_successfully()
    assert workers
    assert [worker for worker in workers if not wait_for_end(worker)] == []
    for folder in tmp_path.glob("[0-9]*"):
        assert training_contents(folder) == training_contents(tmp_path / "uninterrupted")
        assert_clean(folder)


def item_training(folder: Path, data: Path, algorithm: str) -> OfflineTraining:
    """Make a training of 48 updates in iterations of 6, with targets every 4 updates if the algorithm has any."""
    # Only DQN draws by priority from all data, which requires them to be resident.
    residency = "Resident" if algorithm.endswith("DQN") else "Streaming"
    return training(
        folder,
        data,
        algorithm=algorithm,
        config={},
        customConfig={"trainBatchSizePerLearner": 16},
        model={"fcnetHiddens": [16], "cellSize": 8, "maxSeqLen": 4},
        pipeline={"datasetNumItersPerLearner": 6, "windowSteps": 100, "residency": residency},
        checkpoint={"every": 1, "keep": 2},
        stop={"iterations": 8},
    )


def playing_training(folder: Path, data: Path, algorithm: str) -> OfflineTraining:
    """Make a training of 24 updates in iterations of 6; half of the batches are from episodes that the policy plays."""
    return training(
        folder,
        "",
        algorithm=algorithm,
        config={"trainBatchSizePerLearner": 16},
        environment={"id": "toy_environments:SteeredWalk"},
        input=[
            {"path": str(data), "weight": 0.5},
            {"sampler": {"warmupTimesteps": 20, "timestepsPerUpdate": 2}, "weight": 0.5},
        ],
        pipeline={"datasetNumItersPerLearner": 6},
        checkpoint={"every": 1, "keep": 2},
        stop={"iterations": 4},
    )


@pytest.mark.parametrize(
    ("algorithm", "make_training"),
    [
        ("learn_marwil:MARWIL", item_training),
        ("SAC", playing_training),
        ("learn_dqn:DQN", item_training),
        ("learn_lstm_bc:LSTMBC", item_training),
    ],
    ids=["MARWIL", "SAC", "DQN", "LSTMBC"],
)
def test_training_killed_at_named_moments_resumes_exactly(
    tmp_path: Path, walks: Path, algorithm: str, make_training: Callable[[Path, Path, str], OfflineTraining]
) -> None:
    """The algorithms cover targets, several optimisers, n steps, sequences and sampling."""
    data = walks
    if make_training is playing_training:
        data = tmp_path / "steered"
        record(recording(data, environment={"id": "toy_environments:SteeredWalk"}))
    resource = make_training(tmp_path / "uninterrupted", data, algorithm)
    Driver(resource, tmp_path).finish_successfully()
    expected = training_contents(tmp_path / "uninterrupted")
    rng = np.random.default_rng(zlib.crc32(algorithm.encode()))
    moments = [name for name in MOMENTS if algorithm.endswith("MARWIL") or "targets" not in name]
    for index in range(MOMENT_ROUNDS):
        run = tmp_path / f"killed{index}"
        for moment in rng.permutation(moments):
            occurrence = int(rng.integers(1, 4))
            if kill_at_moment(make_training(run, data, algorithm), tmp_path, moment, occurrence):
                continue
            # The previous run ended before the moment.
            run = run.with_name(f"{run.name}-{moment}")
            assert kill_at_moment(make_training(run, data, algorithm), tmp_path, moment, occurrence), moment
        Driver(make_training(run, data, algorithm), tmp_path).finish_successfully()
    for folder in tmp_path.glob("killed*"):
        assert training_contents(folder) == expected


def kill_at_moment(resource: OfflineTraining, folder: Path, moment: str, occurrence: int) -> bool:
    """Train; return True if the training was killed at the given occurrence of the moment."""
    driver = Driver(resource, folder, moment, occurrence)
    output = driver.finish()
    exit_code = driver.process.wait()
    assert exit_code == -signal.SIGKILL or "outcome Succeeded" in output, (moment, output)
    return exit_code == -signal.SIGKILL


def execute(folder: Path, data: Path, kill_at: str | None = None) -> int:
    """Train until the end or a kill, and return the exit code."""
    folder.mkdir(exist_ok=True)
    driver = Driver(evaluated_training(folder / "runs", data, parallel=False), folder, kill_at)
    output = driver.finish()
    exit_code = driver.process.wait()
    assert "outcome" in output or exit_code == -signal.SIGKILL, output
    return exit_code


def assert_complete(runs: Path, expected: dict[str, Any]) -> None:
    """Check that the folder contains exactly the result of an uninterrupted training."""
    actual = training_contents(runs)
    assert {key: expected[key] for key in actual} == actual
    assert_clean(runs)


def test_training_resumes_after_ctrl_c(tmp_path: Path, walks: Path, reference: dict[str, Any]) -> None:
    """Interrupt the training twice, after its second progress report."""
    resource = evaluated_training(tmp_path / "interrupted", walks, parallel=False)
    for _ in range(2):
        driver = Driver(resource, tmp_path)
        assert driver.listen("progress", times=2)
        driver.interrupt()
        output = driver.finish()
        assert driver.process.returncode in (0, 130), output
        assert "Traceback" not in output
    output = Driver(resource, tmp_path).finish()
    assert "outcome" in output, output
    interrupted = training_contents(tmp_path / "interrupted")
    del interrupted["checkpoints"]
    assert interrupted.items() <= reference.items()


class TestStorage:
    @pytest.mark.parametrize("size", ["8k", "40k"])
    def test_full_disk_is_reported(
        self,
        tmp_path: Path,
        small_disk: Callable[..., Path],
        walks: Path,
        reference: dict[str, Any],
        size: str,
    ) -> None:
        disk = small_disk(f"size={size}")
        resource = evaluated_training(disk / "runs", walks, parallel=False)
        Driver(resource, tmp_path).finish_with_storage_error("the disk is full", disk / "runs/test/r1")
        small_disk("remount,size=16m")
        Driver(resource, tmp_path).finish_successfully()
        assert_complete(disk / "runs", reference)

    def test_read_only_folder_is_reported(
        self, tmp_path: Path, small_disk: Callable[..., Path], walks: Path
    ) -> None:
        disk = small_disk("size=1m,ro")
        resource = evaluated_training(disk / "runs", walks, parallel=False)
        Driver(resource, tmp_path).finish_with_storage_error("read-only")
        assert list(disk.iterdir()) == []
