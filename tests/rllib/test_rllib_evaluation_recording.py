"""`evaluate()` with an output writes complete episodes, each of them once, also after a kill and between updates."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import fsspec
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from hindcast import COMPONENT_RL_MODULE, BCConfig, PPOConfig, RunningAlgorithm
from hindcast.datasets.opening import open_dataset
from hindcast.errors import OutputConflict, SpecError
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.storage.location import resolve
from support import episode_hashes, leftovers, read_all
from toy_environments import Walk
from warm_python import WarmPython

ROOT = Path(__file__).parents[2]


def recorder_config(output: Path | str, duration: int = 10, **options: object) -> PPOConfig:
    return (
        PPOConfig()
        .environment(Walk)
        .env_runners(num_envs_per_env_runner=4)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .evaluation(evaluation_duration=duration)
        .offline_data(output=str(output), **{"output_max_rows_per_file": 4, **options})
    )


def record_evaluations(config: PPOConfig, num_calls: int) -> list[dict[str, float]]:
    with config.build_algo() as algo:
        return [algo.evaluate()["env_runners"] for _ in range(num_calls)]


def change_policy(algo: RunningAlgorithm) -> None:
    for parameter in algo.get_module().parameters():
        parameter.data.add_(0.1)


def test_every_evaluate_adds_its_episodes(tmp_path: Path) -> None:
    reports = record_evaluations(recorder_config(tmp_path), num_calls=3)
    block = read_all(tmp_path)
    assert [int(eps_id.rpartition("-")[2]) for eps_id in block.eps_id] == list(range(30))
    assert [report["num_episodes"] for report in reports] == [10, 10, 10]
    assert sum(report["num_env_steps"] for report in reports) == block.num_steps
    total = sum(report["episode_return_mean"] * 10 for report in reports)
    assert total == pytest.approx(block.columns["rewards"].sum())
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("make_filesystem", "folder"),
    [
        (lambda root: fsspec.filesystem("memory"), "run-tests/data"),
        (lambda root: pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("memory"))), "run-tests/data"),
        (lambda root: pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem()), "data"),
        (lambda root: pafs.LocalFileSystem(), "{root}/data"),
    ],
    ids=["fsspec", "pyarrow", "below a folder", "local"],
)
def test_file_system_object_is_written_and_read(
    tmp_path: Path, memory_path: str, make_filesystem: Callable[[Path], object], folder: str
) -> None:
    filesystem, folder = make_filesystem(tmp_path), folder.format(root=tmp_path)
    record_evaluations(recorder_config(folder, output_filesystem=filesystem), num_calls=1)
    assert open_dataset(folder, filesystem).num_episodes == 10
    training_config = BCConfig().environment(Walk).rl_module(model_config={"fcnet_hiddens": [8]})
    training_config.offline_data(input_=f"{folder}/*.parquet", input_filesystem=filesystem)
    with training_config.build_algo() as algo:
        assert algo.train()["num_env_steps_trained_lifetime"] > 0


def test_runners_get_the_file_system_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    with recorder_config("data", output_filesystem=filesystem).build_algo() as algo:
        algo.evaluate()
        task = pickle.dumps(algo._recorder._recorded_task)
    monkeypatch.setattr("hindcast.storage.user_files._filesystems", {})  # as in another process
    assert pickle.loads(task).target.folder.path == str(tmp_path / "data")


def test_episodes_per_file_are_limited(tmp_path: Path) -> None:
    record_evaluations(recorder_config(tmp_path), num_calls=2)
    # Each evaluation records its 10 episodes in ranges of 4, 4 and 2.
    rows = sorted(pq.ParquetFile(file).metadata.num_rows for file in tmp_path.glob("*.parquet"))
    assert rows == [2, 2, 4, 4, 4, 4]


def test_manifest_after_stop_is_complete(tmp_path: Path) -> None:
    with recorder_config(tmp_path).build_algo() as algo:
        algo.evaluate()
        assert read_manifest(resolve(tmp_path)) is None
        digest = algo.get_policy().digest
    manifest = read_manifest(resolve(tmp_path))
    assert manifest is not None
    assert manifest.policy == {"digest": digest, "explore": True}
    assert sum(file.episodes for file in manifest.files) == 10


def test_no_evaluation_writes_nothing(tmp_path: Path) -> None:
    record_evaluations(recorder_config(tmp_path / "out"), num_calls=0)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_processes_record_the_same_episodes(tmp_path: Path) -> None:
    local_reports = record_evaluations(recorder_config(tmp_path / "local"), num_calls=2)
    config = recorder_config(tmp_path / "processes").evaluation(evaluation_num_env_runners=2)
    process_reports = record_evaluations(config, num_calls=2)
    assert local_reports == process_reports
    assert episode_hashes(read_all(tmp_path / "local")) == episode_hashes(read_all(tmp_path / "processes"))


def test_duration_in_timesteps_records_whole_episodes(tmp_path: Path) -> None:
    config = recorder_config(tmp_path, duration=50).evaluation(evaluation_duration_unit="timesteps")
    reports = record_evaluations(config, num_calls=2)
    # An evaluation ends with an episode of at most 12 timesteps.
    assert all(50 <= report["num_env_steps"] < 50 + 12 for report in reports)
    assert open_dataset(str(tmp_path)).num_steps == sum(report["num_env_steps"] for report in reports)
    assert record_evaluations(config, num_calls=2) == reports


def test_second_run_plays_no_episode_twice(tmp_path: Path) -> None:
    first_reports = record_evaluations(recorder_config(tmp_path), num_calls=2)
    modification_times = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("*.parquet")}
    assert record_evaluations(recorder_config(tmp_path), num_calls=2) == first_reports
    assert {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("*.parquet")} == modification_times
    third_reports = record_evaluations(recorder_config(tmp_path), num_calls=3)
    assert third_reports[:2] == first_reports
    assert open_dataset(str(tmp_path)).num_episodes == 30


def test_recording_between_training_has_all_digests(tmp_path: Path) -> None:
    config = recorder_config(tmp_path)
    config.training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    with config.build_algo() as algo:
        algo.evaluate()
        algo.train()
        algo.evaluate()
        digest = algo.get_policy().digest
    manifest = read_manifest(resolve(tmp_path))
    assert manifest is not None
    assert manifest.policy["digest"] == digest
    assert len(manifest.policy["digests"]) == 2
    assert open_dataset(str(tmp_path)).num_episodes == 20


class TestExistingRecording:
    def test_recording_of_another_policy_raises(self, tmp_path: Path) -> None:
        record_evaluations(recorder_config(tmp_path), num_calls=1)
        with recorder_config(tmp_path).build_algo() as algo:
            change_policy(algo)
            with pytest.raises(OutputConflict, match="contains episodes of another policy"):
                algo.evaluate()
        assert open_dataset(str(tmp_path)).num_episodes == 10

    def test_recording_of_another_spec_raises(self, tmp_path: Path) -> None:
        record_evaluations(recorder_config(tmp_path), num_calls=1)
        with pytest.raises(OutputConflict, match="the spec changed"):
            record_evaluations(recorder_config(tmp_path, duration=5), num_calls=1)

    @pytest.mark.parametrize("change", ["policy", "spec"])
    def test_recording_is_replaced_on_request(self, tmp_path: Path, change: str) -> None:
        record_evaluations(recorder_config(tmp_path), num_calls=2)
        config = recorder_config(tmp_path, 5 if change == "spec" else 10, output_on_existing="Replace")
        with config.build_algo() as algo:
            if change == "policy":
                change_policy(algo)
            algo.evaluate()
        assert open_dataset(str(tmp_path)).num_episodes == (5 if change == "spec" else 10)
        assert leftovers(tmp_path) == []

    def test_finished_recording_raises_if_on_existing_is_fail(self, tmp_path: Path) -> None:
        config = recorder_config(tmp_path, output_on_existing="Fail")
        record_evaluations(config, num_calls=1)
        with pytest.raises(OutputConflict, match="onExisting is Fail"):
            record_evaluations(config, num_calls=1)

    def test_foreign_files_raise(self, tmp_path: Path) -> None:
        (tmp_path / "mine.txt").write_text("mine")
        with pytest.raises(OutputConflict, match="files that Hindcast did not record"):
            record_evaluations(recorder_config(tmp_path), num_calls=1)


def test_columns_format_contains_the_same_episodes(tmp_path: Path) -> None:
    for name, episodes in (("columns", False), ("episodes", True)):
        config = recorder_config(tmp_path / name, output_write_episodes=episodes)
        with config.build_algo() as algo:
            algo.evaluate()
    columns, episodes = (episode_hashes(read_all(tmp_path / name)) for name in ("columns", "episodes"))
    assert set(columns.values()) == set(episodes.values())


@pytest.mark.parametrize("output_format", ["JSON", "CSV", "SampleBatch"])
def test_text_recording_resumes(tmp_path: Path, output_format: str) -> None:
    """The second run finds the first call's ranges, and reads their returns from the text."""
    reports = []
    for num_calls in (1, 2):
        with recorder_config(tmp_path, output_format=output_format).build_algo() as algo:
            reports.append([algo.evaluate()["env_runners"]["episode_return_mean"] for _ in range(num_calls)])
    assert reports[0][0] == reports[1][0]


SCRIPT = """
import os, signal, sys
from hindcast import PPOConfig

config = (
    PPOConfig().environment("toy_environments:Walk").env_runners(num_envs_per_env_runner=4)
    .rl_module(model_config={{"fcnet_hiddens": [8]}}).offline_data(output=sys.argv[1], output_max_rows_per_file=4)
    .evaluation(evaluation_duration=10, evaluation_num_env_runners={runners})
)
with config.build_algo() as algo:
    for call in range(4):
        algo.evaluate()
        if str(call) == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.faults
@pytest.mark.parametrize("runners", [0, 2])
def test_killed_script_resumes(tmp_path: Path, warm: WarmPython, runners: int) -> None:
    def run(output: Path, killed_after: int) -> int:
        program = SCRIPT.format(runners=runners)
        command = [str(warm.folder / "python"), "-c", program, str(output), str(killed_after)]
        path = os.pathsep.join([str(ROOT / "runtime"), str(ROOT / "tests")])
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode

    assert run(tmp_path / "killed", killed_after=1) == -signal.SIGKILL
    assert open_dataset(str(tmp_path / "killed")).num_episodes == 20
    assert run(tmp_path / "killed", killed_after=-1) == 0
    record_evaluations(recorder_config(tmp_path / "uninterrupted"), num_calls=4)
    resumed_hashes = episode_hashes(read_all(tmp_path / "killed"))
    assert resumed_hashes == episode_hashes(read_all(tmp_path / "uninterrupted"))
    assert len(resumed_hashes) == 40
    assert leftovers(tmp_path / "killed") == []


def test_restored_policy_is_stored_with_the_data(tmp_path: Path) -> None:
    with recorder_config(tmp_path / "none").build_algo() as algo:
        change_policy(algo)
        algo.save_to_path(tmp_path / "ck")
        digest = algo.get_policy().digest
    with recorder_config(tmp_path / "out").build_algo() as algo:
        algo.restore_from_path(tmp_path / "ck", component=COMPONENT_RL_MODULE)
        algo.evaluate()
    manifest = read_manifest(resolve(tmp_path / "out"))
    assert manifest is not None
    assert manifest.policy["digest"] == digest
    policy = {"checkpoint": {"path": str(tmp_path / "out" / "_hindcast" / "policy" / "module")}}
    resource = recorder_config(tmp_path / "again").to_resource(policy=policy)
    assert resource.spec.policy.checkpoint is not None


def test_policy_with_unknown_field_raises_as_in_yaml(tmp_path: Path) -> None:
    policy = {"train": {"config": {"lrr": 1}, "stop": {"iterations": 1}}}
    with pytest.raises(SpecError, match=r"^lrr is not a field; did you mean 'lr'"):
        recorder_config(tmp_path / "out").to_resource(policy=policy)
