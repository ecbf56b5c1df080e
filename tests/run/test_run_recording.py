"""`RecordingRun`: content of its folder after success, interruptions, kills and errors."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from hindcast import __version__
from hindcast.api import OfflineRecording, spec_hash
from hindcast.datasets.opening import open_dataset
from hindcast.errors import DataError, Interrupted, OutputConflict, SpecError, StorageError, UserCodeError
from hindcast.formats.dataset_folder.commits import read_commits
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.models.policy import Policy
from hindcast.record import recorder, recording_prefix
from hindcast.run.recording import recording_run as recording_module
from hindcast.storage.lease import sole_writer
from hindcast.storage.location import Location, resolve
from support import (
    CARTPOLE,
    WALK,
    MemoryReporter,
    StopAfter,
    episode_hashes,
    leftovers,
    make_policy,
    read_all,
    record,
    recording,
    train,
    training,
)
from toy_environments import Walk
from user_errors import raises_user_error

COMPOSITE = {"id": "toy_environments:Composite"}
EXPERT = {
    "config": {"trainBatchSizePerLearner": 64, "minibatchSize": 32, "numEpochs": 1},
    "model": {"fcnetHiddens": [8]},
    "stop": {"iterations": 3},
    "checkpointEvery": 1,
    "evaluation": {"duration": 2},
}


def episode_indices(path: object) -> list[int]:
    """Return the indices in the episodes' ids, in the dataset's order."""
    return [int(eps_id.rpartition("-")[2]) for eps_id in read_all(path).eps_id]


def read_files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def record_and_stop(resource: OfflineRecording, num_checks: int = 20) -> None:
    """Record until an interruption; by default it comes after the first range, of 16 episodes."""
    with pytest.raises(Interrupted):
        record(resource, StopAfter(num_checks))


def checkpoint_policy(path: Path, **fields: Any) -> dict[str, Any]:
    return {"checkpoint": {"path": str(path)}, **fields}


class TestDataset:
    def test_dataset_contains_every_episode_once_in_order_and_nothing_else(self, walks: Path) -> None:
        assert episode_indices(walks) == list(range(40))
        tables = [pq.read_table(file) for file in walks.glob("*.parquet")]
        assert [len(table) for table in tables] == [8] * 5  # `maxRowsPerFile`
        for table in tables:
            assert set(table["infos"].to_pylist()) == {b""}, "missing infos take no space"
        assert leftovers(walks) == []

    def test_max_file_size_is_respected(self, tmp_path: Path) -> None:
        output = {"maxFileSize": "24Ki", "compression": "None"}
        record(recording(tmp_path, duration={"episodes": 400}, output=output))
        sizes = [file.stat().st_size for file in tmp_path.glob("*.parquet")]
        assert len(sizes) > 3
        assert max(sizes) <= 24 << 10
        assert episode_indices(tmp_path) == list(range(400))

    def test_manifest_describes_recording(self, tmp_path: Path) -> None:
        environment = {**WALK, "kwargs": {"longest": 5}}
        resource = recording(tmp_path, environment=environment, seed=3)
        record(resource)
        manifest = read_manifest(resolve(tmp_path))
        assert manifest is not None
        assert manifest.spec_hash == spec_hash(resource)
        assert manifest.environment is not None
        assert environment.items() <= manifest.environment.items()
        assert manifest.seed == 3
        assert manifest.policy == {"digest": "random", "explore": True}
        assert manifest.recorder == __version__
        assert {"gymnasium", "numpy", "torch"} <= manifest.versions.keys()
        spec = manifest.data_spec
        assert spec.environment == WALK["id"]
        assert spec.observation_space is not None
        assert spec.observation_space.shape == (4,)
        assert sum(file.episodes for file in manifest.files) == 40

    def test_manifest_describes_policy_and_connectors(self, tmp_path: Path) -> None:
        policy = make_policy(WALK, observationFilter="MeanStd", frameStack=2)
        policy.preprocessing.update({"obs": np.arange(40, dtype=np.float32).reshape(10, 4)})
        policy.save(tmp_path / "policy")
        record(recording(tmp_path / "data", policy=checkpoint_policy(tmp_path / "policy")))
        manifest = read_manifest(resolve(tmp_path / "data"))
        assert manifest is not None
        assert manifest.policy["digest"] == policy.digest
        assert manifest.connectors["frameStack"] == 2
        assert manifest.connectors["filters"]["obs/mean"] == [18.0, 19.0, 20.0, 21.0]

    def test_composite_spaces_are_recorded_in_path_columns(self, tmp_path: Path) -> None:
        record(recording(tmp_path, environment=COMPOSITE))
        block = read_all(tmp_path)
        assert {"obs/place", "obs/kind/0", "obs/kind/1", "actions/move", "actions/jump"} <= set(block.columns)
        assert json.loads(block.columns["infos"][0]) == {"t": 0, "names": ["a", "b"]}
        assert episode_indices(tmp_path) == list(range(40))

    @pytest.mark.parametrize(
        ("replicas", "what", "noun", "t"),
        [
            (1, "infinite", "rewards", 1),
            pytest.param(2, "infinite", "rewards", 1, marks=pytest.mark.slow),
            (1, "infinite obs", "observations", 2),
        ],
    )
    def test_non_finite_numbers_are_noted_once(
        self, replicas: int, what: str, noun: str, t: int, tmp_path: Path
    ) -> None:
        reporter = MemoryReporter()
        environment = {"id": "toy_environments:FaultyEnv", "kwargs": {"what": what}}
        runners = {"replicas": replicas, "envsPerRunner": 4}
        record(recording(tmp_path, environment=environment, runners=runners), reporter=reporter)
        assert episode_indices(tmp_path) == list(range(40))
        (note,) = [note for note in reporter.notes if noun in note]
        assert f"'toy_environments:FaultyEnv' returned {noun} that are NaN or infinite in " in note
        assert re.search(rf"\(first: [0-9a-f]{{8}}-[0-9]{{8}}, t = {t}\)", note)

    @pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
    def test_files_have_requested_compression(self, tmp_path: Path, compression: str, walks: Path) -> None:
        record(recording(tmp_path, output={"compression": compression}))
        block, expected = read_all(tmp_path), read_all(walks)
        np.testing.assert_array_equal(block.columns["obs"], expected.columns["obs"])
        file = pq.ParquetFile(next(tmp_path.glob("*.parquet")))
        column = file.schema_arrow.names.index("obs")
        expected_name = {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
        assert file.metadata.row_group(0).column(column).compression == expected_name

    def test_recording_in_memory_store_equals_local_one(self, memory_path: str, walks: Path) -> None:
        record(recording(memory_path), interruption=None)
        hashes = episode_hashes(read_all(memory_path)).values()
        assert set(hashes) == set(episode_hashes(read_all(walks)).values())
        assert leftovers(memory_path) == []


class TestTimesteps:
    MIN_STEPS = 300

    @pytest.mark.parametrize("min_steps", [1, MIN_STEPS, 5000])
    def test_duration_in_timesteps_keeps_shortest_prefix(
        self, tmp_path: Path, walks: Path, min_steps: int
    ) -> None:
        record(recording(tmp_path, duration={"timesteps": min_steps}))
        lengths = read_all(tmp_path).length.tolist()
        assert sum(lengths) >= min_steps > sum(lengths[:-1])
        assert lengths[:40] == read_all(walks).length.tolist()[: len(lengths)]
        assert episode_indices(tmp_path) == list(range(len(lengths)))
        assert leftovers(tmp_path) == []

    @pytest.mark.parametrize("function", ["_shorten", "write_range", "keep_prefix", "remove_orphans"])
    def test_kill_while_trimming_is_recovered(
        self, tmp_path: Path, function: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record(recording(tmp_path / "uninterrupted", duration={"timesteps": self.MIN_STEPS}))

        class KilledError(BaseException):
            pass

        def kill(*_: object, **__: object) -> None:
            raise KilledError

        resource = recording(tmp_path / "data", duration={"timesteps": self.MIN_STEPS})
        module = recording_module if hasattr(recording_module, function) else recording_prefix

        def kill_before_commit(*args: Any) -> None:
            with monkeypatch.context() as commit_patch:
                commit_patch.setattr(recorder, "write_commit", kill)
                recorder.write_range(*args)

        calls = iter([recording_module.remove_orphans])  # the first call, before recording, succeeds

        def kill_in_second_call(*args: Any, **kwargs: Any) -> Any:
            return next(calls, kill)(*args, **kwargs)

        with monkeypatch.context() as patch:
            replacements = {"remove_orphans": kill_in_second_call, "write_range": kill_before_commit}
            patch.setattr(module, function, replacements.get(function, kill))
            with pytest.raises(KilledError):
                record(resource)
        assert read_manifest(resolve(tmp_path / "data")) is None
        record(resource)
        reference, block = read_all(tmp_path / "uninterrupted"), read_all(tmp_path / "data")
        assert list(episode_hashes(block).values()) == list(episode_hashes(reference).values())
        assert leftovers(tmp_path / "data") == []


class TestResuming:
    def test_interrupted_recording_resumes_with_same_episodes(
        self, tmp_path: Path, walks: Path, reporter: MemoryReporter
    ) -> None:
        resource = recording(tmp_path, output={"maxRowsPerFile": 8})
        record_and_stop(resource)
        assert set(read_commits(resolve(tmp_path))) == {0}
        committed_files = {name: data for name, data in read_files(tmp_path).items() if "parquet" in name}
        assert committed_files
        record(resource, reporter=reporter)
        assert any("resum" in note for note in reporter.notes)
        assert committed_files.items() <= read_files(tmp_path).items()
        assert episode_hashes(read_all(tmp_path)) == episode_hashes(read_all(walks))
        assert leftovers(tmp_path) == []
        amounts = [stage.done for stage in reporter.stages]
        assert amounts == sorted(amounts)
        assert amounts[0] == 17  # the first episode after the committed range of 16
        assert (amounts[-1], reporter.stages[-1].total, reporter.stages[-1].unit) == (40, 40, "episodes")

    def test_finished_recording_stays_unchanged(self, walks: Path, reporter: MemoryReporter) -> None:
        files_before = read_files(walks)
        outcome = record(recording(walks, output={"maxRowsPerFile": 8}), reporter=reporter)
        assert outcome.state == "AlreadyFinished"
        assert outcome.metrics["episodes"] == 40
        assert read_files(walks) == files_before
        assert reporter.stages == []

    @pytest.mark.parametrize("is_finished", [True, False])
    def test_other_spec_is_refused(self, tmp_path: Path, is_finished: bool) -> None:
        if is_finished:
            record(recording(tmp_path))
        else:
            record_and_stop(recording(tmp_path))
        files_before = read_files(tmp_path)
        other_resource = recording(tmp_path, seed=1)
        message = (
            r"holds OfflineRecording/test as it was before the spec changed \(spec\.seed: 0 → 1\): revert the"
        )
        with pytest.raises(OutputConflict, match=message):
            record(other_resource)
        metadata = other_resource.metadata.model_copy(update={"name": "other"})
        message = r"belongs to OfflineRecording/test, not to OfflineRecording/other: "
        with pytest.raises(OutputConflict, match=message):
            record(other_resource.model_copy(update={"metadata": metadata}))
        assert read_files(tmp_path) == files_before

    def test_unreadable_spec_is_refused(self, tmp_path: Path) -> None:
        record(recording(tmp_path))
        owner_file = tmp_path / "_hindcast/spec.json"
        owner_file.write_text(owner_file.read_text().replace('"seed"', '"ofALaterVersion"'))
        old_hash, new_hash = (spec_hash(recording(tmp_path, seed=seed)) for seed in (0, 1))
        message = rf"the spec changed \(its hash was {old_hash} and is {new_hash}\)"
        with pytest.raises(OutputConflict, match=message):
            record(recording(tmp_path, seed=1))

    def test_corrected_spec_replaces_failed_one(self, tmp_path: Path) -> None:
        wrong_environment = {"id": "toy_environments:FaultyEnv", "kwargs": {"what": "reset"}}
        with pytest.raises(UserCodeError):
            record(recording(tmp_path, environment=wrong_environment))
        assert record(recording(tmp_path)).state == "Succeeded"

    def test_checkpoint_of_other_spaces_can_be_replaced(self, tmp_path: Path) -> None:
        """The policy copied for the failed spec is not used for the corrected one."""
        make_policy({"id": "toy_environments:Continuous"}).save(tmp_path / "wrong")
        make_policy(WALK).save(tmp_path / "right")
        with pytest.raises(SpecError, match="observation space"):
            record(recording(tmp_path / "data", policy=checkpoint_policy(tmp_path / "wrong")))
        right = checkpoint_policy(tmp_path / "right")
        record(recording(tmp_path / "data", policy=right))
        record(recording(tmp_path / "uninterrupted", policy=right))
        assert episode_indices(tmp_path / "data") == list(range(40))
        assert episode_hashes(read_all(tmp_path / "data")) == episode_hashes(
            read_all(tmp_path / "uninterrupted")
        )
        with pytest.raises(OutputConflict, match="the spec changed"):
            record(recording(tmp_path / "data", policy=right, seed=1))

    @pytest.mark.parametrize("killed_at", ["Location.delete", "claim"])
    def test_kill_while_corrected_spec_takes_over_is_recovered(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
    ) -> None:
        """After the kill, each of the two specs can record, and does so with its own policy."""
        specs = []
        for seed, name in enumerate(("first", "second")):
            make_policy(WALK, seed=seed).save(tmp_path / name)
            specs.append({"policy": checkpoint_policy(tmp_path / name)})
            record(recording(tmp_path / f"{name}-uninterrupted", **specs[-1]))
        for spec, name in zip(specs, ("first", "second"), strict=True):
            data = tmp_path / f"{name}-data"
            record_and_stop(recording(data, **specs[0]), 0)
            with monkeypatch.context() as patch:
                patch.setattr(
                    f"hindcast.run.recording.recording_run.{killed_at}", Mock(side_effect=KeyboardInterrupt)
                )
                with pytest.raises(KeyboardInterrupt):
                    record(recording(data, **specs[1]))
            record(recording(data, **spec))
            expected = episode_hashes(read_all(tmp_path / f"{name}-uninterrupted"))
            assert episode_hashes(read_all(data)) == expected

    def test_late_commit_of_failed_spec_keeps_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The late commit belongs to the earlier spec, so the folder must not be given to the corrected one."""
        make_policy(WALK).save(tmp_path / "policy")
        spec = {"policy": checkpoint_policy(tmp_path / "policy")}
        for name, num_checks in (("data", 0), ("late", 20)):
            record_and_stop(recording(tmp_path / name, **spec), num_checks)
        files_before = read_files(tmp_path / "data")
        late_files = {
            name: data for name, data in read_files(tmp_path / "late").items() if name not in files_before
        }
        assert len(late_files) == 2  # a range and its commit

        def commit_late_files(folder: Location) -> None:
            for name, data in late_files.items():
                folder.child(name).write_bytes(data)

        monkeypatch.setattr(recording_module, "wait_for_runners", commit_late_files)
        with pytest.raises(OutputConflict, match="the spec changed"):
            record(recording(tmp_path / "data", seed=1, **spec))
        assert read_files(tmp_path / "data") == {**files_before, **late_files}

    def test_expert_without_checkpoint_keeps_folder(self, tmp_path: Path) -> None:
        """The folder keeps an expert that was trained; it would not keep a policy that was only copied."""
        expert = {**EXPERT, "checkpointEvery": 5}
        with pytest.raises(SpecError, match="no recurrent state"):
            record(recording(tmp_path, policy={"train": expert}, output={"recurrentStates": True}))
        with pytest.raises(OutputConflict, match="the spec changed"):
            record(recording(tmp_path, policy={"train": expert}))

    def test_number_of_runners_can_change(self, walks: Path) -> None:
        resource = recording(walks, runners={"envsPerRunner": 4, "replicas": 2}, output={"maxRowsPerFile": 8})
        assert record(resource).state == "AlreadyFinished"


class TestOnExisting:
    def test_fail_refuses_finished_recording(self, tmp_path: Path) -> None:
        record(recording(tmp_path))
        with pytest.raises(OutputConflict, match="onExisting is Fail"):
            record(recording(tmp_path, output={"onExisting": "Fail"}))

    @pytest.mark.parametrize("on_existing", ["Fail", "Replace"])
    def test_own_unfinished_run_is_resumed(
        self, tmp_path: Path, on_existing: str, reporter: MemoryReporter
    ) -> None:
        resource = recording(tmp_path, output={"onExisting": on_existing})
        record_and_stop(resource)
        assert set(read_commits(resolve(tmp_path))) == {0}
        assert record(resource, reporter=reporter).state == "Succeeded"
        assert any("resum" in note for note in reporter.notes)

    def test_replace_deletes_recorded_files_only(self, tmp_path: Path) -> None:
        record(recording(tmp_path, seed=1))
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "mine.parquet").write_text("mine")
        old_files = {name for name in read_files(tmp_path) if name.startswith("00")}
        reporter = MemoryReporter()
        record(recording(tmp_path, output={"onExisting": "Replace"}), reporter=reporter)
        assert any("replaces" in note for note in reporter.notes)
        assert not old_files & read_files(tmp_path).keys()
        assert (tmp_path / "notes.txt").read_text() == (tmp_path / "mine.parquet").read_text() == "mine"
        manifest = read_manifest(resolve(tmp_path))
        assert manifest is not None
        assert manifest.seed == 0

    def test_replace_discards_unfinished_recording(self, tmp_path: Path, walks: Path) -> None:
        record_and_stop(recording(tmp_path, seed=1))
        record(recording(tmp_path, output={"onExisting": "Replace", "maxRowsPerFile": 8}))
        assert list(episode_hashes(read_all(tmp_path)).values()) == list(
            episode_hashes(read_all(walks)).values()
        )

    def test_kill_while_replacing_is_recovered(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        record(recording(tmp_path, seed=1))
        resource = recording(tmp_path, output={"onExisting": "Replace"})
        delete, calls = Location.delete, 0

        def kill_in_fourth_call(location: Location) -> None:
            nonlocal calls
            calls += 1
            if calls == 4:
                raise KeyboardInterrupt
            delete(location)

        with monkeypatch.context() as patch:
            patch.setattr(Location, "delete", kill_in_fourth_call)
            with pytest.raises(KeyboardInterrupt):
                record(resource)
        record(resource)
        assert episode_indices(tmp_path) == list(range(40))
        assert leftovers(tmp_path) == []


class TestFolder:
    @pytest.mark.parametrize("on_existing", ["Resume", "Fail", "Replace"])
    def test_folder_with_foreign_files_is_refused(self, tmp_path: Path, on_existing: str) -> None:
        (tmp_path / "thesis.tex").write_text("years")
        with pytest.raises(OutputConflict, match=r"contains files that Hindcast did not record"):
            record(recording(tmp_path, output={"onExisting": on_existing}))
        assert read_files(tmp_path) == {"thesis.tex": b"years"}

    def test_path_of_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "data").write_text("a file")
        with pytest.raises((StorageError, OutputConflict), match=str(tmp_path / "data")):
            record(recording(tmp_path / "data"))

    def test_folder_with_other_writer_is_refused(self, tmp_path: Path) -> None:
        with (
            sole_writer(resolve(tmp_path / "_hindcast")),
            pytest.raises(OutputConflict, match="another process is writing"),
        ):
            record(recording(tmp_path))
        assert record(recording(tmp_path)).state == "Succeeded"

    def test_read_only_folder_is_reported(self, small_disk: Callable[[str], Path]) -> None:
        folder = small_disk("size=4m") / "data"
        record_and_stop(recording(folder))
        small_disk("remount,ro")
        with pytest.raises(StorageError, match=rf"{folder}.*read-only"):
            record(recording(folder))
        with pytest.raises(StorageError, match=r"new.*read-only"):
            record(recording(folder.with_name("new")))
        small_disk("remount,rw")
        record(recording(folder))
        assert episode_indices(folder) == list(range(40))

    def test_damaged_commit_is_named(self, tmp_path: Path) -> None:
        record_and_stop(recording(tmp_path))
        (tmp_path / "_hindcast/commits/000000.json").write_text("{")
        with pytest.raises(DataError, match=r"000000\.json.*delete it"):
            record(recording(tmp_path))


class TestPolicy:
    def test_checkpoint_policy_outputs_are_recorded(self, tmp_path: Path) -> None:
        policy = make_policy(CARTPOLE)
        policy.save(tmp_path / "policy")
        spec = {"environment": CARTPOLE, "policy": checkpoint_policy(tmp_path / "policy")}
        record(recording(tmp_path / "data", **spec))
        block = read_all(tmp_path / "data")
        assert {"action_logp", "action_dist_inputs"} <= set(block.columns)
        dist_inputs = policy.act(block.columns["obs"][:8]).dist_inputs
        np.testing.assert_allclose(block.columns["action_dist_inputs"][:8], dist_inputs, rtol=1e-4, atol=1e-5)

    def test_policy_is_copied_once_and_reused_after_interruption(self, tmp_path: Path) -> None:
        make_policy(WALK).save(tmp_path / "policy")
        spec = {"policy": checkpoint_policy(tmp_path / "policy")}
        record(recording(tmp_path / "uninterrupted", **spec))
        record_and_stop(recording(tmp_path / "data", **spec))
        shutil.rmtree(tmp_path / "policy")
        record(recording(tmp_path / "data", **spec))
        hashes = episode_hashes(read_all(tmp_path / "uninterrupted"))
        assert episode_hashes(read_all(tmp_path / "data")) == hashes

    def test_policy_of_other_spaces_is_refused(self, tmp_path: Path) -> None:
        make_policy({"id": "toy_environments:Continuous"}).save(tmp_path / "policy")
        with pytest.raises(SpecError, match=r"observation space.*Box.*\(3,\).*\(4,\)"):
            record(recording(tmp_path / "data", policy=checkpoint_policy(tmp_path / "policy")))

    def test_missing_checkpoint_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=str(tmp_path / "nothing")):
            record(recording(tmp_path / "data", policy=checkpoint_policy(tmp_path / "nothing")))

    def test_policy_of_training_is_recorded(self, tmp_path: Path, walks: Path) -> None:
        outcome = train(training(tmp_path / "runs", walks))
        path = outcome.metrics["checkpoint"]
        record(recording(tmp_path / "data", policy={"trainingRef": {"name": "clone"}}), checkpoint=path)
        assert "action_logp" in read_all(tmp_path / "data").columns

    def test_greedy_policy_takes_mode(self, tmp_path: Path) -> None:
        make_policy(WALK).save(tmp_path / "policy")
        spec = checkpoint_policy(tmp_path / "policy", explore=False)
        record(recording(tmp_path / "data", policy=spec))
        block = read_all(tmp_path / "data")
        inputs, actions = block.columns["action_dist_inputs"], block.columns["actions"]
        np.testing.assert_array_equal(inputs.argmax(-1), actions)

    def test_expert_is_trained_before_recording(self, tmp_path: Path, reporter: MemoryReporter) -> None:
        record(recording(tmp_path, policy={"train": EXPERT}), reporter=reporter)
        assert {stage.stage for stage in reporter.stages} == {"Training the expert", "Recording"}
        assert [stage.saved_amount for stage in reporter.stages[:4]] == [0, 1, 2, 0]
        assert reporter.stages[-1].saved_amount == read_all(tmp_path).length.sum()
        lines = (tmp_path / "_hindcast/policy/results.jsonl").read_text().splitlines()
        assert [json.loads(line)["training_iteration"] for line in lines] == [1, 2, 3]
        assert episode_indices(tmp_path) == list(range(40))
        assert leftovers(tmp_path) == []

    def test_expert_starts_from_offline_checkpoint(self, tmp_path: Path, walks: Path) -> None:
        checkpoint = train(training(tmp_path / "runs", walks, model=EXPERT["model"])).metrics["checkpoint"]
        expert = {**EXPERT, "config": {**EXPERT["config"], "lr": 1e-30}, "initialCheckpoint": checkpoint}
        record(recording(tmp_path / "data", policy={"train": expert}))
        module = Policy.load(tmp_path / "data/_hindcast/policy/module").module
        for name, weights in Policy.load(checkpoint).module.named_parameters():
            assert torch.equal(dict(module.named_parameters())[name], weights), name

    def test_expert_with_missing_initial_checkpoint_is_refused(self, tmp_path: Path) -> None:
        expert = {**EXPERT, "initialCheckpoint": "nowhere"}
        with raises_user_error(DataError, "nowhere", field="spec.policy.train.initialCheckpoint"):
            record(recording(tmp_path / "data", policy={"train": expert}))


class TestLeftovers:
    def test_leftovers_of_killed_expert_are_removed(self, tmp_path: Path) -> None:
        resource = recording(tmp_path, policy={"train": EXPERT})
        record_and_stop(resource, 2)
        policy_folder = tmp_path / "_hindcast/policy"
        for subfolder in ("", "module", "checkpoints", "checkpoints/checkpoint-000000002/module"):
            (policy_folder / subfolder).mkdir(parents=True, exist_ok=True)
            (policy_folder / subfolder / ".weights.safetensors.0a1b2c3d.tmp").write_text("half")
        (policy_folder / "checkpoints/checkpoint-000009999").mkdir()
        (policy_folder / "checkpoints/checkpoint-000009999/learner.safetensors").write_text("half")
        record(resource)
        assert leftovers(tmp_path) == []
        assert not (policy_folder / "checkpoints/checkpoint-000009999").exists()

    def test_leftovers_of_dead_runners_are_removed(self, tmp_path: Path) -> None:
        class FileLeavingReporter(MemoryReporter):
            def progress(self, progress: Any) -> None:
                (tmp_path / "000001-dead0000-000.parquet").write_text("complete, never committed")
                (tmp_path / ".000001-dead0000-001.parquet.0a1b2c3d.tmp").write_text("half")

        record(recording(tmp_path), reporter=FileLeavingReporter())
        assert leftovers(tmp_path) == []


class TestFailure:
    def test_environment_error_keeps_committed_ranges(self, tmp_path: Path) -> None:
        """The environment fails in the second range; the first one is kept, without half-written files."""
        environment = {"id": "test_run_recording:FailsAfterResets"}
        FailsAfterResets.num_remaining_resets = 20
        with pytest.raises(UserCodeError, match=r"test_run_recording\.py:\d+: enough"):
            record(recording(tmp_path, environment=environment))
        assert set(read_commits(resolve(tmp_path))) == {0}
        assert leftovers(tmp_path) == []
        with pytest.raises(UserCodeError):
            record(recording(tmp_path, environment=environment))
        FailsAfterResets.num_remaining_resets = 10**9
        record(recording(tmp_path, environment=environment))
        assert episode_indices(tmp_path) == list(range(40))

    def test_readers_see_only_committed_ranges(self, tmp_path: Path) -> None:
        record_and_stop(recording(tmp_path), 3)
        with pytest.raises(DataError, match="committed no episodes yet"):
            open_dataset(str(tmp_path))
        record_and_stop(recording(tmp_path))
        assert open_dataset(str(tmp_path)).num_episodes == 16


class FailsAfterResets(Walk):
    """Raises an exception after `num_remaining_resets` resets."""

    num_remaining_resets = 10**9

    def reset(self, **options: Any) -> Any:
        if FailsAfterResets.num_remaining_resets == 0:
            raise RuntimeError("enough")
        FailsAfterResets.num_remaining_resets -= 1
        return super().reset(**options)


def test_recording_in_memory_store_resumes(memory_path: str, walks: Path) -> None:
    spec: dict[str, Any] = {"policy": {"train": EXPERT}}
    record_and_stop(recording(memory_path, **spec), 22)
    record(recording(memory_path, **spec))
    assert episode_indices(memory_path) == list(range(40))
    names = fsspec.filesystem("memory").find("/run-tests")
    assert any(name.endswith("policy/results.jsonl") for name in names)
