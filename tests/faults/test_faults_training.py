"""Trainings killed and interrupted: in new processes they come to the same end, bit for bit."""

from __future__ import annotations

import json
import signal
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kill_points import points_on_the_way
from moments import MOMENTS
from processes import Driver, ends

from hindcast.api import OfflineTraining
from layers import repeats
from support import WALK, record, recording, training

pytestmark = pytest.mark.soak

KILLS = repeats(1, soak=10)  # at every kind of file operation
PARALLEL_KILLS = repeats(2, soak=20)
MOMENT_ROUNDS = repeats(1, soak=20)

TIMINGS = {"time_total_s", "timesteps_per_s", "timers"}


def hundred_updates(folder: Path, data: Path) -> OfflineTraining:
    """100 updates in iterations of 30: the 50th is in the middle of one."""
    return training(
        folder,
        data,
        config={"lr": [[0, 1e-3], [3200, 1e-4]], "trainBatchSizePerLearner": 32, "gradClip": 0.5},
        model={"fcnetHiddens": [32, 32], "observationFilter": "MeanStd"},
        pipeline={"datasetNumItersPerLearner": 30, "offlineData": "toy_pipeline:Listed", "windowSteps": 100},
        stop={"updates": 100},
    )


def evaluated(folder: Path, data: Path, parallel: bool) -> OfflineTraining:
    """12 iterations of 2 updates, evaluated every 2."""
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


def contents(folder: Path) -> dict[str, Any]:
    """All of a run that must not depend on what happened on the way."""
    run = folder / "test/r1"
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    last = sorted((run / "checkpoints").glob("checkpoint-*"))[-1]
    record = json.loads((last / "checkpoint.json").read_text())
    return {
        "results": [{key: value for key, value in line.items() if key not in TIMINGS} for line in lines],
        "checkpoints": sorted(path.name for path in (run / "checkpoints").iterdir()),
        "weights": (last / "module/weights.safetensors").read_bytes(),
        "learner": (last / "learner.safetensors").read_bytes(),
        "module": (run / "module/weights.safetensors").read_bytes(),
        "feed": record["training"]["feed"],
        "state": record["learner"],
        "metrics": record["training"]["metrics"],
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, walks: Path) -> dict[str, Any]:
    """What `evaluated` gives in turn, when nothing happens to it."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    said = Driver(evaluated(folder / "runs", walks, parallel=False), folder).finish()
    assert "outcome Succeeded" in said, said
    return {**contents(folder / "runs"), "said": said}


def assert_clean(folder: Path) -> None:
    assert [path for path in folder.rglob("*") if path.suffix == ".tmp" or path.name == "lock"] == []


def test_a_hundred_updates_are_fifty_a_new_process_and_fifty(
    tmp_path: Path, walks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, optimiser, randomness, metrics and every batch, the next one after resuming included."""
    monkeypatch.setenv("TOY_BATCHES", str(tmp_path / "whole.txt"))
    said = Driver(hundred_updates(tmp_path / "whole", walks), tmp_path).finish()
    assert "outcome Succeeded" in said, said

    monkeypatch.setenv("TOY_BATCHES", str(tmp_path / "parts.txt"))
    monkeypatch.setenv("TOY_STOP_AT", "50")
    driver = Driver(hundred_updates(tmp_path / "parts", walks), tmp_path)
    said = driver.finish()
    assert "interrupted at update 50; run the same command again" in said, said
    assert driver.process.returncode == 130
    monkeypatch.delenv("TOY_STOP_AT")
    said = Driver(hundred_updates(tmp_path / "parts", walks), tmp_path).finish()
    assert "resuming at update 50 (iteration 1)" in said, said
    assert "outcome Succeeded" in said, said

    batches = (tmp_path / "whole.txt").read_text().split()
    assert len(batches) == len(set(batches)) == 100
    assert (tmp_path / "parts.txt").read_text().split() == batches
    whole, parts = contents(tmp_path / "whole"), contents(tmp_path / "parts")
    assert parts.pop("checkpoints") == ["checkpoint-000000050", *whole.pop("checkpoints")]
    assert parts == whole


def test_killed_at_every_kind_of_moment(tmp_path: Path, walks: Path, uninterrupted: dict[str, Any]) -> None:
    """Again and again on the way to one end; what a finished run no longer does is killed in a fresh one."""
    run = tmp_path / "0"
    for point in points_on_the_way(uninterrupted["said"], np.random.default_rng(7), each=KILLS):
        if carry_out(run, walks, kill_at=point) == 0:
            assert_whole(run / "runs", uninterrupted)
            run = tmp_path / str(int(run.name) + 1)
            assert carry_out(run, walks, kill_at=point), point
    assert carry_out(run, walks) == 0
    assert_whole(run / "runs", uninterrupted)


def test_killed_beside_its_evaluation(tmp_path: Path, walks: Path) -> None:
    """Whose processes end with it."""
    resource = evaluated(tmp_path / "whole", walks, parallel=True)
    assert "outcome Succeeded" in Driver(resource, tmp_path).finish()
    run, workers = tmp_path / "0", list[int]()
    for kill in range(PARALLEL_KILLS):
        driver = Driver(evaluated(run, walks, parallel=True), tmp_path)
        if driver.listen("progress", times=3 + kill % 3):
            workers += driver.descendants()
            driver.kill()
        else:
            assert "outcome" in driver.finish()
            run = tmp_path / str(int(run.name) + 1)
    said = Driver(evaluated(run, walks, parallel=True), tmp_path).finish()
    assert "outcome Succeeded" in said, said
    assert workers
    assert [worker for worker in workers if not ends(worker)] == []
    for folder in tmp_path.glob("[0-9]*"):
        assert contents(folder) == contents(tmp_path / "whole")
        assert_clean(folder)


def of_items(folder: Path, data: Path, algorithm: str) -> OfflineTraining:
    """48 updates in iterations of 6, four windows of data, targets every 4 updates where the algorithm has any."""
    residency = (
        "Resident" if algorithm.endswith("DQN") else "Streaming"
    )  # which draws by priority from all data
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


def that_plays(folder: Path, data: Path, algorithm: str) -> OfflineTraining:
    """24 updates in iterations of 6; half of each batch is of what the algorithm plays."""
    return training(
        folder,
        "",
        algorithm=algorithm,
        config={"trainBatchSizePerLearner": 16},
        environment={"id": "toy_environments:Steered"},
        input=[
            {"path": str(data), "weight": 0.5},
            {"sampler": {"warmupTimesteps": 20, "timestepsPerUpdate": 2}, "weight": 0.5},
        ],
        pipeline={"datasetNumItersPerLearner": 6},
        checkpoint={"every": 1, "keep": 2},
        stop={"iterations": 4},
    )


@pytest.mark.parametrize(
    ("algorithm", "described"),
    [
        ("learn_marwil:MARWIL", of_items),
        ("SAC", that_plays),
        ("learn_dqn:DQN", of_items),
        ("learn_lstm_bc:LSTMBC", of_items),
    ],
    ids=["MARWIL", "SAC", "DQN", "LSTMBC"],
)
def test_killed_at_named_moments(
    tmp_path: Path, walks: Path, algorithm: str, described: Callable[[Path, Path, str], OfflineTraining]
) -> None:
    """Targets, several optimisers, n steps, sequences, samples: killed wherever it is, a training is the same."""
    data = walks
    if described is that_plays:
        data = tmp_path / "steered"
        record(recording(data, environment={"id": "toy_environments:Steered"}))
    assert "outcome Succeeded" in Driver(described(tmp_path / "whole", data, algorithm), tmp_path).finish()
    whole = contents(tmp_path / "whole")
    rng = np.random.default_rng(zlib.crc32(algorithm.encode()))
    moments = [name for name in MOMENTS if algorithm.endswith("MARWIL") or "targets" not in name]
    for number in range(MOMENT_ROUNDS):
        run = tmp_path / f"killed{number}"
        for moment in rng.permutation(moments):
            time = int(rng.integers(1, 4))
            if killed(described(run, data, algorithm), tmp_path, moment, time):
                continue
            run = run.with_name(
                f"{run.name}-{moment}"
            )  # the one before had come to its end without the moment
            assert killed(described(run, data, algorithm), tmp_path, moment, time), moment
        said = Driver(described(run, data, algorithm), tmp_path).finish()
        assert "outcome Succeeded" in said, said
    for folder in tmp_path.glob("killed*"):
        assert contents(folder) == whole


def killed(resource: OfflineTraining, folder: Path, moment: str, time: int) -> bool:
    """Whether the moment came that often, and the training was killed there."""
    driver = Driver(resource, folder, moment, time)
    said = driver.finish()
    status = driver.process.wait()
    assert status == -signal.SIGKILL or "outcome Succeeded" in said, (moment, said)
    return status == -signal.SIGKILL


def carry_out(folder: Path, data: Path, kill_at: str | None = None) -> int:
    """Train until the end, or a kill; the exit code."""
    folder.mkdir(exist_ok=True)
    driver = Driver(evaluated(folder / "runs", data, parallel=False), folder, kill_at)
    said = driver.finish()
    status = driver.process.wait()
    assert "outcome" in said or status == -signal.SIGKILL, said
    return status


def assert_whole(runs: Path, expected: dict[str, Any]) -> None:
    """What a training gives when nothing happens to it, and nothing besides."""
    found = contents(runs)
    assert {key: expected[key] for key in found} == found
    assert_clean(runs)


def test_ctrl_c(tmp_path: Path, walks: Path, uninterrupted: dict[str, Any]) -> None:
    """At whatever moment it comes."""
    resource = evaluated(tmp_path / "parts", walks, parallel=False)
    for _ in range(2):
        driver = Driver(resource, tmp_path)
        assert driver.listen("progress", times=2)
        driver.interrupt()
        said = driver.finish()
        assert driver.process.returncode in (0, 130), said
        assert "Traceback" not in said
    said = Driver(resource, tmp_path).finish()
    assert "outcome" in said, said
    parts = contents(tmp_path / "parts")
    del parts["checkpoints"]
    assert parts.items() <= uninterrupted.items()


class TestStorage:
    @pytest.mark.parametrize("size", ["8k", "40k"])
    def test_a_full_disk(
        self,
        tmp_path: Path,
        small_disk: Callable[..., Path],
        walks: Path,
        uninterrupted: dict[str, Any],
        size: str,
    ) -> None:
        disk = small_disk(f"size={size}")
        resource = evaluated(disk / "runs", walks, parallel=False)
        said = Driver(resource, tmp_path).finish()
        assert "error StorageError" in said, said
        assert "the disk is full" in said
        assert str(disk / "runs/test/r1") in said
        assert "Traceback" not in said, said
        small_disk("remount,size=16m")
        said = Driver(resource, tmp_path).finish()
        assert "outcome Succeeded" in said, said
        assert_whole(disk / "runs", uninterrupted)

    def test_a_read_only_folder(self, tmp_path: Path, small_disk: Callable[..., Path], walks: Path) -> None:
        disk = small_disk("size=1m,ro")
        said = Driver(evaluated(disk / "runs", walks, parallel=False), tmp_path).finish()
        assert "error StorageError" in said
        assert "read-only" in said
        assert list(disk.iterdir()) == []
