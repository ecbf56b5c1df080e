"""Recordings killed at any moment, by any number of runners, on storage that fails: the same episodes."""

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
from kill_points import points_on_the_way
from processes import Driver, ends

from hindcast.api import OfflineRecording
from hindcast.formats.dataset_folder.commits import read_commits
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.storage.location import resolve
from layers import repeats
from support import (
    CARTPOLE,
    WALK,
    command_line,
    episode_hashes,
    leftovers,
    read_all,
    record,
    recording,
)

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
    """An expert of 6 iterations, then 24 ranges of 8 episodes."""
    return recording(
        folder,
        environment=CARTPOLE,
        policy={"train": EXPERT},
        duration={"episodes": EPISODES},
        runners={"envsPerRunner": 2, "replicas": runners},
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the recording gives when nothing happens to it."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    said = Driver(expert_recording(folder / "data"), folder).finish()
    assert "outcome Succeeded" in said, said
    return {**contents(folder / "data"), "said": said}


def contents(folder: Path) -> dict[str, Any]:
    """All that must not depend on what happened on the way."""
    manifest = read_manifest(resolve(folder))
    assert manifest is not None
    return {
        "policy": manifest.policy["digest"],
        "filters": manifest.connectors["filters"],
        "episodes": episode_hashes(read_all(folder)),
        "order": [int(eps_id.rpartition("-")[2]) for eps_id in read_all(folder).eps_id],
    }


def test_killed_at_every_kind_of_moment(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    """Again and again on the way to one end; what a finished recording no longer does is killed in a fresh one."""
    assert uninterrupted["order"] == list(range(EPISODES))
    folder = tmp_path / "0"
    for point in points_on_the_way(uninterrupted["said"], np.random.default_rng(3), each=KILLS):
        if carry_out(folder, kill_at=point) == 0:
            assert_whole(folder / "data", uninterrupted)
            folder = tmp_path / str(int(folder.name) + 1)
            assert carry_out(folder, kill_at=point), point
        assert_readable(folder / "data", uninterrupted["episodes"])
    assert carry_out(folder) == 0
    assert_whole(folder / "data", uninterrupted)


def carry_out(folder: Path, kill_at: str | None = None) -> int:
    """Record until the end, or a kill; the exit code."""
    folder.mkdir(exist_ok=True)
    driver = Driver(expert_recording(folder / "data"), folder, kill_at)
    said = driver.finish()
    status = driver.process.wait()
    assert "outcome" in said or status == -signal.SIGKILL, said
    return status


def test_killed_beside_its_runners(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    """They end with it, and the next recording, which has one runner, goes on from what they committed."""
    runners: list[int] = []
    for kill in range(RUNNER_KILLS):
        driver = Driver(expert_recording(tmp_path / "data", runners=2), tmp_path)
        assert driver.listen("progress Recording", times=kill + 1)
        runners += runners_of(driver)
        driver.kill()
        assert_readable(tmp_path / "data", uninterrupted["episodes"])
    assert runners
    assert carry_out(tmp_path) == 0
    assert_whole(tmp_path / "data", uninterrupted)
    assert [process for process in runners if not ends(process)] == []


def assert_whole(folder: Path, expected: dict[str, Any]) -> None:
    """What a recording gives when nothing happens to it, and nothing besides."""
    found = contents(folder)
    assert {key: expected[key] for key in found} == found
    assert leftovers(folder) == []


def runners_of(driver: Driver) -> list[int]:
    return [process for process in driver.descendants() if "popen_loky" in command_line(process)]


def assert_readable(folder: Path, expected: dict[str, str]) -> None:
    """What is committed is whole, and is what it should be."""
    if read_commits(resolve(folder)):
        assert episode_hashes(read_all(folder)).items() <= expected.items()


def test_a_killed_runner_is_replaced(tmp_path: Path) -> None:
    """By timesteps, where runners also make ranges that are dropped in the end."""
    spec = {"environment": CARTPOLE, "duration": {"timesteps": 40_000}}
    record(recording(tmp_path / "alone", **spec, runners={"envsPerRunner": 4}))
    resource = recording(tmp_path / "data", **spec, runners={"envsPerRunner": 4, "replicas": 2})
    driver = Driver(resource, tmp_path)
    assert driver.listen("progress Recording", times=2)
    os.kill(runners_of(driver)[0], signal.SIGKILL)
    said = driver.finish()
    assert "outcome Succeeded" in said, said
    assert list(contents(tmp_path / "data")["episodes"].items()) == list(
        contents(tmp_path / "alone")["episodes"].items()
    )
    assert leftovers(tmp_path / "data") == []


def test_a_mistake_of_the_user_is_one_sentence_from_a_runner_too(tmp_path: Path) -> None:
    environment = {"id": "toy_environments:Wrong", "kwargs": {"what": "step"}}
    runners = {"envsPerRunner": 4, "replicas": 2}
    driver = Driver(recording(tmp_path / "data", environment=environment, runners=runners), tmp_path)
    said = driver.finish()
    assert re.search(r"error UserCodeError: .*toy_environments\.py:\d+: the simulator fell over", said), said
    assert "Traceback" not in said
    assert driver.process.returncode == 6


def test_ctrl_c(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    """In the expert's training, then in recording."""
    for stage in ("progress Training", "progress Recording"):
        driver = Driver(expert_recording(tmp_path / "data"), tmp_path)
        assert driver.listen(stage, times=2)
        driver.interrupt()
        said = driver.finish()
        assert "run the same command again" in said, said
        assert driver.process.returncode == 130
        assert leftovers(tmp_path / "data") == []
    said = Driver(expert_recording(tmp_path / "data"), tmp_path).finish()
    assert "outcome Succeeded" in said, said
    assert_whole(tmp_path / "data", uninterrupted)


class TestFullDisk:
    """A disk fills up at whatever is being written; with room again, the run goes on to the same end."""

    def fails(self, folder: Path, resource: OfflineRecording) -> None:
        said = Driver(resource, folder).finish()
        assert "error StorageError" in said, said
        assert "the disk is full" in said, said
        assert str(resource.spec.output.path) in said
        assert "Traceback" not in said, said

    @pytest.mark.parametrize("size", ["4k", "8k", "160k"])
    def test_in_the_expert_or_in_the_recording(
        self, tmp_path: Path, small_disk: Callable[[str], Path], size: str, uninterrupted: dict[str, Any]
    ) -> None:
        data = small_disk(f"size={size}") / "data"
        self.fails(tmp_path, expert_recording(data))
        assert read_manifest(resolve(data)) is None
        assert [name for name in leftovers(data) if name.endswith(".tmp")] == []
        assert_readable(data, uninterrupted["episodes"])
        small_disk("remount,size=64m")
        said = Driver(expert_recording(data), tmp_path).finish()
        assert "outcome Succeeded" in said, said
        assert_whole(data, uninterrupted)

    def test_without_an_expert(self, tmp_path: Path, small_disk: Callable[[str], Path], walks: Path) -> None:
        data = small_disk("size=64k") / "data"
        resource = recording(data, environment=WALK, duration={"episodes": 400}, output={"maxRowsPerFile": 8})
        self.fails(tmp_path, resource)
        committed = read_commits(resolve(data))
        assert committed
        block = read_all(data)
        assert block.num_episodes == sum(commit.episodes for commit in committed.values())
        small_disk("remount,size=64m")
        said = Driver(resource, tmp_path).finish()
        assert "outcome Succeeded" in said, said
        assert [int(eps_id.rpartition("-")[2]) for eps_id in read_all(data).eps_id] == list(range(400))
        first = list(episode_hashes(read_all(walks)).values())
        assert list(episode_hashes(read_all(data)).values())[: len(first)] == first
        assert leftovers(data) == []


class TestReadOnly:
    def test_from_the_start(self, tmp_path: Path, small_disk: Callable[[str], Path]) -> None:
        disk = small_disk("size=1m")
        small_disk("remount,ro")
        said = Driver(recording(disk / "data"), tmp_path).finish()
        assert "error StorageError" in said
        assert "read-only" in said
        assert str(disk / "data") in said
        assert not list(disk.iterdir())

    def test_in_the_middle(
        self, tmp_path: Path, small_disk: Callable[..., Path], uninterrupted: dict[str, Any]
    ) -> None:
        disk = small_disk("size=64m")
        driver = Driver(expert_recording(disk / "data"), tmp_path)
        driver.listen("progress Recording", times=20)
        small_disk("ro", disk / "data/_hindcast/commits")
        said = driver.finish()
        assert "error StorageError" in said, said
        assert "read-only" in said
        assert "Traceback" not in said, said
        assert_readable(disk / "data", uninterrupted["episodes"])
        subprocess.run(["umount", str(disk / "data/_hindcast/commits")], check=True)
        said = Driver(expert_recording(disk / "data"), tmp_path).finish()
        assert "outcome Succeeded" in said, said
        assert_whole(disk / "data", uninterrupted)
