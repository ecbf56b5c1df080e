"""Recordings killed at any moment, with any number of runners, on failing storage, give the same episodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kill_points import choose_reachable_points
from processes import Driver, wait_for_end

from hindcast.api import OfflineRecording
from hindcast.formats.dataset_folder.commits import read_commits
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.storage.location import resolve
from layers import repeats
from support import CARTPOLE, WALK, command_line, episode_hashes, leftovers, read_all, record, recording

pytestmark = pytest.mark.soak

KILLS = repeats(1, soak=10)  # at every kind of file operation
RUNNER_KILLS = repeats(1, soak=5)
EXPERT = {
    "config": {"trainBatchSizePerLearner": 256, "minibatchSize": 128, "numEpochs": 2},
    "model": {"fcnetHiddens": [16], "observationFilter": "MeanStd"},
    "stop": {"iterations": 6},
    "checkpointEvery": 1,
    "evaluation": {"duration": 2},
}
EPISODES = 192


def expert_recording(folder: Path, runners: int = 1) -> OfflineRecording:
    """Make a recording with an expert of 6 iterations, then 24 ranges of 8 episodes."""
    return recording(
        folder,
        environment=CARTPOLE,
        policy={"train": EXPERT},
        duration={"episodes": EPISODES},
        runners={"envsPerRunner": 2, "replicas": runners},
    )


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The contents of an uninterrupted recording."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    output = Driver(expert_recording(folder / "data"), folder).finish_successfully()
    return {**read_contents(folder / "data"), "output": output}


def read_contents(folder: Path) -> dict[str, Any]:
    """Read everything in the folder that must not depend on interruptions."""
    manifest = read_manifest(resolve(folder))
    assert manifest is not None
    return {
        "policy": manifest.policy["digest"],
        "filters": manifest.connectors["filters"],
        "episodes": episode_hashes(read_all(folder)),
        "order": [int(eps_id.rpartition("-")[2]) for eps_id in read_all(folder).eps_id],
    }


def test_recording_killed_at_every_kind_of_file_operation_resumes_exactly(
    tmp_path: Path, reference: dict[str, Any]
) -> None:
    """Kill one recording repeatedly; if it ends before a kill point, kill a new recording there."""
    assert reference["order"] == list(range(EPISODES))
    folder = tmp_path / "0"
    for point in choose_reachable_points(reference["output"], np.random.default_rng(3), num_repeats=KILLS):
        if execute(folder, kill_at=point) == 0:
            assert_complete(folder / "data", reference)
            folder = tmp_path / str(int(folder.name) + 1)
            assert execute(folder, kill_at=point), point
        assert_readable(folder / "data", reference["episodes"])
    assert execute(folder) == 0
    assert_complete(folder / "data", reference)


def execute(folder: Path, kill_at: str | None = None) -> int:
    """Record until the end or a kill, and return the exit code."""
    folder.mkdir(exist_ok=True)
    driver = Driver(expert_recording(folder / "data"), folder, kill_at)
    output = driver.finish()
    exit_code = driver.process.wait()
    assert "outcome" in output or exit_code == -signal.SIGKILL, output
    return exit_code


def test_recording_killed_with_runners_resumes_exactly(tmp_path: Path, reference: dict[str, Any]) -> None:
    """Runners end with the driver, and a recording with one runner resumes after their commits."""
    runners: list[int] = []
    for kill in range(RUNNER_KILLS):
        driver = Driver(expert_recording(tmp_path / "data", runners=2), tmp_path)
        assert driver.listen("progress Recording", times=kill + 1)
        runners += find_runners(driver)
        driver.kill()
        assert_readable(tmp_path / "data", reference["episodes"])
    assert runners
    assert execute(tmp_path) == 0
    assert_complete(tmp_path / "data", reference)
    assert [process for process in runners if not wait_for_end(process)] == []


def assert_complete(folder: Path, expected: dict[str, Any]) -> None:
    """Check that the folder contains exactly the result of an uninterrupted recording."""
    actual = read_contents(folder)
    assert {key: expected[key] for key in actual} == actual
    assert leftovers(folder) == []


def find_runners(driver: Driver) -> list[int]:
    return [process for process in driver.descendants() if "popen_loky" in command_line(process)]


def assert_readable(folder: Path, expected: dict[str, str]) -> None:
    """Check that committed episodes are complete and as expected."""
    if read_commits(resolve(folder)):
        assert episode_hashes(read_all(folder)).items() <= expected.items()


def test_killed_runner_is_replaced(tmp_path: Path) -> None:
    """With a duration in timesteps, runners also record ranges that are dropped in the end."""
    spec = {"environment": CARTPOLE, "duration": {"timesteps": 40_000}}
    record(recording(tmp_path / "single", **spec, runners={"envsPerRunner": 4}))
    resource = recording(tmp_path / "data", **spec, runners={"envsPerRunner": 4, "replicas": 2})
    driver = Driver(resource, tmp_path)
    assert driver.listen("progress Recording", times=2)
    os.kill(find_runners(driver)[0], signal.SIGKILL)
    driver.finish_successfully()
    assert list(read_contents(tmp_path / "data")["episodes"].items()) == list(
        read_contents(tmp_path / "single")["episodes"].items()
    )
    assert leftovers(tmp_path / "data") == []


def test_user_error_in_a_runner_is_reported_in_one_sentence(tmp_path: Path) -> None:
    environment = {"id": "toy_environments:FaultyEnv", "kwargs": {"what": "step"}}
    runners = {"envsPerRunner": 4, "replicas": 2}
    driver = Driver(recording(tmp_path / "data", environment=environment, runners=runners), tmp_path)
    output = driver.finish()
    assert re.search(r"error UserCodeError: .*toy_environments\.py:\d+: the simulator fell over", output), (
        output
    )
    assert "Traceback" not in output
    assert driver.process.returncode == 6


def test_recording_resumes_after_ctrl_c(tmp_path: Path, reference: dict[str, Any]) -> None:
    """Interrupt the expert's training, then the recording."""
    for stage in ("progress Training", "progress Recording"):
        driver = Driver(expert_recording(tmp_path / "data"), tmp_path)
        assert driver.listen(stage, times=2)
        driver.interrupt()
        output = driver.finish()
        assert "run the same command again" in output, output
        assert driver.process.returncode == 130
        assert leftovers(tmp_path / "data") == []
    Driver(expert_recording(tmp_path / "data"), tmp_path).finish_successfully()
    assert_complete(tmp_path / "data", reference)


class TestFullDisk:
    """The disk fills up during a write; with more space, the run resumes to the same result."""

    @pytest.mark.parametrize("size", ["4k", "8k", "160k"])
    def test_full_disk_in_expert_or_recording_is_reported(
        self, tmp_path: Path, small_disk: Callable[[str], Path], size: str, reference: dict[str, Any]
    ) -> None:
        data = small_disk(f"size={size}") / "data"
        Driver(expert_recording(data), tmp_path).finish_with_storage_error("the disk is full", data)
        assert read_manifest(resolve(data)) is None
        assert [name for name in leftovers(data) if name.endswith(".tmp")] == []
        assert_readable(data, reference["episodes"])
        small_disk("remount,size=64m")
        Driver(expert_recording(data), tmp_path).finish_successfully()
        assert_complete(data, reference)

    def test_full_disk_without_an_expert_is_reported(
        self, tmp_path: Path, small_disk: Callable[[str], Path], walks: Path
    ) -> None:
        data = small_disk("size=64k") / "data"
        resource = recording(data, environment=WALK, duration={"episodes": 400}, output={"maxRowsPerFile": 8})
        Driver(resource, tmp_path).finish_with_storage_error("the disk is full", data)
        commits = read_commits(resolve(data))
        assert commits
        block = read_all(data)
        assert block.num_episodes == sum(commit.episodes for commit in commits.values())
        small_disk("remount,size=64m")
        Driver(resource, tmp_path).finish_successfully()
        assert [int(eps_id.rpartition("-")[2]) for eps_id in read_all(data).eps_id] == list(range(400))
        expected = list(episode_hashes(read_all(walks)).values())
        assert list(episode_hashes(read_all(data)).values())[: len(expected)] == expected
        assert leftovers(data) == []


class TestReadOnly:
    def test_read_only_folder_is_reported(self, tmp_path: Path, small_disk: Callable[[str], Path]) -> None:
        disk = small_disk("size=1m")
        small_disk("remount,ro")
        Driver(recording(disk / "data"), tmp_path).finish_with_storage_error("read-only", disk / "data")
        assert not list(disk.iterdir())

    def test_folder_that_becomes_read_only_is_reported(
        self, tmp_path: Path, small_disk: Callable[..., Path], reference: dict[str, Any]
    ) -> None:
        disk = small_disk("size=64m")
        driver = Driver(expert_recording(disk / "data"), tmp_path)
        driver.listen("progress Recording", times=20)
        small_disk("ro", disk / "data/_hindcast/commits")
        driver.finish_with_storage_error("read-only")
        assert_readable(disk / "data", reference["episodes"])
        subprocess.run(["umount", str(disk / "data/_hindcast/commits")], check=True)
        Driver(expert_recording(disk / "data"), tmp_path).finish_successfully()
        assert_complete(disk / "data", reference)
