"""`RecordingRun`: what ends up in the folder, whatever happened on the way."""

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
from hindcast.api import spec_hash
from hindcast.datasets.opening import open_dataset
from hindcast.errors import DataError, Interrupted, OutputConflict, SpecError, StorageError, UserCodeError
from hindcast.formats.dataset_folder.commits import read_commits
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.models.policy import Policy
from hindcast.record import recorder, recording_prefix
from hindcast.run import recording as recording_module
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

COMPOSITE = {"id": "toy_environments:Composite"}
TRAIN = {
    "config": {"trainBatchSizePerLearner": 64, "minibatchSize": 32, "numEpochs": 1},
    "model": {"fcnetHiddens": [8]},
    "stop": {"iterations": 3},
    "checkpointEvery": 1,
    "evaluation": {"duration": 2},
}


def indices(path: object) -> list[int]:
    """The indices in the episodes' ids, in the dataset's order."""
    return [int(eps_id.rpartition("-")[2]) for eps_id in read_all(path).eps_id]


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


class TestDataset:
    def test_holds_every_episode_once_and_in_order(self, walks: Path) -> None:
        assert indices(walks) == list(range(40))

    def test_honours_rows_per_file(self, walks: Path) -> None:
        rows = [pq.ParquetFile(file).metadata.num_rows for file in walks.glob("*.parquet")]
        assert rows == [8] * 5

    def test_honours_the_file_size(self, tmp_path: Path) -> None:
        output = {"maxFileSize": "24Ki", "compression": "None"}
        record(recording(tmp_path, duration={"episodes": 400}, output=output))
        sizes = [file.stat().st_size for file in tmp_path.glob("*.parquet")]
        assert len(sizes) > 3
        assert max(sizes) <= 24 << 10
        assert indices(tmp_path) == list(range(400))

    def test_leaves_nothing_behind(self, walks: Path) -> None:
        assert leftovers(walks) == []

    def test_says_what_it_is(self, tmp_path: Path) -> None:
        environment = {**WALK, "kwargs": {"longest": 5}}
        resource = recording(tmp_path, environment=environment, seed=3)
        record(resource)
        manifest = read_manifest(resolve(tmp_path))
        assert manifest is not None
        assert manifest.spec_hash == spec_hash(resource)
        assert manifest.environment is not None
        assert manifest.environment["id"] == WALK["id"]
        assert manifest.environment["kwargs"] == {"longest": 5}
        assert manifest.seed == 3
        assert manifest.policy == {"digest": "random", "explore": True}
        assert manifest.recorder == __version__
        assert {"gymnasium", "numpy", "torch"} <= manifest.versions.keys()
        spec = manifest.data_spec
        assert spec.environment == WALK["id"]
        assert spec.observation_space is not None
        assert spec.observation_space.shape == (4,)
        assert sum(file.episodes for file in manifest.files) == 40

    def test_keeps_the_policy_and_what_stood_around_it(self, tmp_path: Path) -> None:
        policy = make_policy(WALK, observationFilter="MeanStd", frameStack=2)
        policy.preprocessing.update({"obs": np.arange(40, dtype=np.float32).reshape(10, 4)})
        policy.save(tmp_path / "policy")
        record(recording(tmp_path / "data", policy={"checkpoint": {"path": str(tmp_path / "policy")}}))
        manifest = read_manifest(resolve(tmp_path / "data"))
        assert manifest is not None
        assert manifest.policy["digest"] == policy.digest
        assert manifest.connectors["frameStack"] == 2
        assert manifest.connectors["filters"]["obs/mean"] == [18.0, 19.0, 20.0, 21.0]

    def test_composite_spaces(self, tmp_path: Path) -> None:
        record(recording(tmp_path, environment=COMPOSITE))
        block = read_all(tmp_path)
        assert {"obs/place", "obs/kind/0", "obs/kind/1", "actions/move", "actions/jump"} <= set(block.columns)
        assert json.loads(block.columns["infos"][0]) == {"t": 0, "names": ["a", "b"]}
        assert indices(tmp_path) == list(range(40))

    @pytest.mark.parametrize("replicas", [1, 2])
    def test_rewards_that_trainings_refuse_are_noted_once(self, replicas: int, tmp_path: Path) -> None:
        reporter = MemoryReporter()
        wrong = {"id": "toy_environments:Wrong", "kwargs": {"what": "infinite"}}
        resource = recording(tmp_path, environment=wrong, runners={"replicas": replicas, "envsPerRunner": 4})
        record(resource, reporter=reporter)
        assert indices(tmp_path) == list(range(40))
        (note,) = [note for note in reporter.notes if "rewards" in note]
        assert "'toy_environments:Wrong' gave rewards that are NaN or infinite in " in note
        assert re.search(r"\(first: [0-9a-f]{8}-[0-9]{8}, t = 1\)", note)

    def test_infos_take_no_room_where_there_are_none(self, walks: Path) -> None:
        for file in walks.glob("*.parquet"):
            assert set(pq.read_table(file)["infos"].to_pylist()) == {b""}

    @pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
    def test_compression(self, tmp_path: Path, compression: str, walks: Path) -> None:
        record(recording(tmp_path, output={"compression": compression}))
        found, expected = read_all(tmp_path), read_all(walks)
        np.testing.assert_array_equal(found.columns["obs"], expected.columns["obs"])
        file = pq.ParquetFile(next(tmp_path.glob("*.parquet")))
        column = file.schema_arrow.names.index("obs")
        expected_name = {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
        assert file.metadata.row_group(0).column(column).compression == expected_name

    def test_in_memory(self, memory_path: str, walks: Path) -> None:
        record(recording(memory_path), interruption=None)
        found = episode_hashes(read_all(memory_path)).values()
        assert set(found) == set(episode_hashes(read_all(walks)).values())
        assert leftovers(memory_path) == []


class TestTimesteps:
    LENGTHS_TOTAL = 300

    def recorded(self, path: Path, **spec: Any) -> list[int]:
        record(recording(path, duration={"timesteps": self.LENGTHS_TOTAL}, **spec))
        return read_all(path).length.tolist()

    def test_keeps_the_shortest_prefix(self, tmp_path: Path) -> None:
        lengths = self.recorded(tmp_path)
        assert sum(lengths) >= self.LENGTHS_TOTAL > sum(lengths[:-1])
        assert indices(tmp_path) == list(range(len(lengths)))
        assert leftovers(tmp_path) == []

    def test_is_a_prefix_of_the_recording_by_episodes(self, tmp_path: Path, walks: Path) -> None:
        lengths = self.recorded(tmp_path)
        assert lengths == read_all(walks).length.tolist()[: len(lengths)]

    @pytest.mark.parametrize("total", [1, 5000])
    def test_of_any_size(self, tmp_path: Path, total: int) -> None:
        record(recording(tmp_path, duration={"timesteps": total}))
        lengths = read_all(tmp_path).length.tolist()
        assert sum(lengths) >= total > sum(lengths[:-1])

    @pytest.mark.parametrize("step", ["_shortened", "write_range", "keep_prefix", "remove_orphans"])
    def test_may_be_killed_while_it_trims(
        self, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.recorded(tmp_path / "whole")

        class KilledError(BaseException):
            pass

        def killed(*_: object, **__: object) -> None:
            raise KilledError

        resource = recording(tmp_path / "data", duration={"timesteps": self.LENGTHS_TOTAL})
        place = recording_module if hasattr(recording_module, step) else recording_prefix

        def killed_before_it_commits(*given: Any) -> None:
            with monkeypatch.context() as inner:
                inner.setattr(recorder, "write_commit", killed)
                recorder.write_range(*given)

        calls = iter([recording_module.remove_orphans])  # the first clean-up, before recording, is let pass

        def killed_later(*given: Any, **named: Any) -> Any:
            return next(calls, killed)(*given, **named)

        with monkeypatch.context() as patch:
            moments = {"remove_orphans": killed_later, "write_range": killed_before_it_commits}
            patch.setattr(place, step, moments.get(step, killed))
            with pytest.raises(KilledError):
                record(resource)
        assert read_manifest(resolve(tmp_path / "data")) is None
        record(resource)
        whole, found = read_all(tmp_path / "whole"), read_all(tmp_path / "data")
        assert list(episode_hashes(found).values()) == list(episode_hashes(whole).values())
        assert leftovers(tmp_path / "data") == []


class TestResuming:
    def test_an_interrupted_recording_goes_on(
        self, tmp_path: Path, walks: Path, reporter: MemoryReporter
    ) -> None:
        resource = recording(tmp_path, output={"maxRowsPerFile": 8})
        with pytest.raises(Interrupted):
            record(resource, StopAfter(20))
        assert set(read_commits(resolve(tmp_path))) == {0}
        record(resource, reporter=reporter)
        assert any("resum" in note for note in reporter.notes)
        assert episode_hashes(read_all(tmp_path)) == episode_hashes(read_all(walks))
        assert leftovers(tmp_path) == []

    def test_committed_ranges_are_not_made_again(self, tmp_path: Path) -> None:
        resource = recording(tmp_path)
        with pytest.raises(Interrupted):
            record(resource, StopAfter(20))
        before = {name: data for name, data in files(tmp_path).items() if name.endswith(".parquet")}
        record(resource)
        after = files(tmp_path)
        assert before
        assert all(after[name] == data for name, data in before.items())

    def test_what_is_finished_stays_untouched(self, walks: Path, reporter: MemoryReporter) -> None:
        before = files(walks)
        outcome = record(recording(walks, output={"maxRowsPerFile": 8}), reporter=reporter)
        assert outcome.state == "AlreadyFinished"
        assert outcome.metrics["episodes"] == 40
        assert files(walks) == before
        assert reporter.stages == []

    def test_progress_counts_what_was_there(self, tmp_path: Path, reporter: MemoryReporter) -> None:
        resource = recording(tmp_path)
        with pytest.raises(Interrupted):
            record(resource, StopAfter(20))
        record(resource, reporter=reporter)
        done = [stage.done for stage in reporter.stages]
        assert done == sorted(done)
        assert done[0] == 17
        assert (done[-1], reporter.stages[-1].total, reporter.stages[-1].unit) == (40, 40, "episodes")

    def test_of_another_spec_is_refused(self, tmp_path: Path) -> None:
        record(recording(tmp_path))
        before = files(tmp_path)
        with pytest.raises(
            OutputConflict,
            match=r"holds OfflineRecording/test as it was before the spec changed \(spec\.seed: 0 → 1\): undo that",
        ):
            record(recording(tmp_path, seed=1))
        assert files(tmp_path) == before

    def test_of_another_name_is_refused(self, tmp_path: Path) -> None:
        record(recording(tmp_path))
        other = recording(tmp_path, seed=1)
        renamed = other.model_copy(update={"metadata": other.metadata.model_copy(update={"name": "other"})})
        with pytest.raises(
            OutputConflict, match=r"holds OfflineRecording/test, and this is OfflineRecording/other: "
        ):
            record(renamed)

    def test_of_a_spec_that_cannot_be_read_is_refused(self, tmp_path: Path) -> None:
        record(recording(tmp_path))
        mark = tmp_path / "_hindcast/spec.json"
        mark.write_text(mark.read_text().replace('"seed"', '"ofALaterVersion"'))
        old, new = spec_hash(recording(tmp_path)), spec_hash(recording(tmp_path, seed=1))
        with pytest.raises(OutputConflict, match=rf"the spec changed \(its hash was {old} and is {new}\)"):
            record(recording(tmp_path, seed=1))

    def test_of_another_spec_is_refused_when_it_is_unfinished_too(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted):
            record(recording(tmp_path), StopAfter(20))
        with pytest.raises(OutputConflict, match="the spec changed"):
            record(recording(tmp_path, seed=1))

    def test_a_spec_that_failed_at_once_may_be_mended(self, tmp_path: Path) -> None:
        wrong = {"id": "toy_environments:Wrong", "kwargs": {"what": "reset"}}
        with pytest.raises(UserCodeError):
            record(recording(tmp_path, environment=wrong))
        assert record(recording(tmp_path)).state == "Succeeded"

    def test_a_checkpoint_of_other_spaces_may_be_replaced(self, tmp_path: Path) -> None:
        """The policy that was copied is not taken for the mended spec's."""
        make_policy({"id": "toy_environments:Continuous"}).save(tmp_path / "wrong")
        make_policy(WALK).save(tmp_path / "right")
        with pytest.raises(SpecError, match="observation space"):
            record(recording(tmp_path / "data", policy={"checkpoint": {"path": str(tmp_path / "wrong")}}))
        right = {"checkpoint": {"path": str(tmp_path / "right")}}
        record(recording(tmp_path / "data", policy=right))
        record(recording(tmp_path / "whole", policy=right))
        assert indices(tmp_path / "data") == list(range(40))
        assert episode_hashes(read_all(tmp_path / "data")) == episode_hashes(read_all(tmp_path / "whole"))
        with pytest.raises(OutputConflict, match="the spec changed"):
            record(recording(tmp_path / "data", policy=right, seed=1))

    @pytest.mark.parametrize("killed_at", ["Location.delete", "claim"])
    def test_may_be_killed_while_a_mended_spec_takes_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
    ) -> None:
        """Either spec then records with its own policy."""
        specs = []
        for seed, name in enumerate(("first", "second")):
            make_policy(WALK, seed=seed).save(tmp_path / name)
            specs.append({"policy": {"checkpoint": {"path": str(tmp_path / name)}}})
            record(recording(tmp_path / f"{name}-whole", **specs[-1]))
        for spec, name in zip(specs, ("first", "second"), strict=True):
            data = tmp_path / f"{name}-data"
            with pytest.raises(Interrupted):
                record(recording(data, **specs[0]), StopAfter(0))
            with monkeypatch.context() as patch:
                patch.setattr(f"hindcast.run.recording.{killed_at}", Mock(side_effect=KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    record(recording(data, **specs[1]))
            record(recording(data, **spec))
            whole = episode_hashes(read_all(tmp_path / f"{name}-whole"))
            assert episode_hashes(read_all(data)) == whole

    def test_a_runner_of_a_spec_that_was_mended_may_still_commit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it commits belongs to the earlier spec, which then is worth keeping."""
        make_policy(WALK).save(tmp_path / "policy")
        spec = {"policy": {"checkpoint": {"path": str(tmp_path / "policy")}}}
        for name, looks in (("data", 0), ("late", 20)):
            with pytest.raises(Interrupted):
                record(recording(tmp_path / name, **spec), StopAfter(looks))
        before = files(tmp_path / "data")
        late = {name: data for name, data in files(tmp_path / "late").items() if name not in before}
        assert len(late) == 2  # a range and its commit

        def commits(folder: Location) -> None:
            for name, data in late.items():
                folder.child(name).write_bytes(data)

        monkeypatch.setattr(recording_module, "wait_for_runners", commits)
        with pytest.raises(OutputConflict, match="the spec changed"):
            record(recording(tmp_path / "data", seed=1, **spec))
        assert files(tmp_path / "data") == {**before, **late}

    def test_an_expert_is_worth_keeping_before_its_first_checkpoint(self, tmp_path: Path) -> None:
        """Its training took longer than it takes to copy a policy."""
        expert = {**TRAIN, "checkpointEvery": 5}
        with pytest.raises(SpecError, match="no recurrent state"):
            record(recording(tmp_path, policy={"train": expert}, output={"recurrentStates": True}))
        with pytest.raises(OutputConflict, match="the spec changed"):
            record(recording(tmp_path, policy={"train": expert}))

    def test_the_number_of_runners_may_change(self, walks: Path) -> None:
        resource = recording(walks, runners={"envsPerRunner": 4, "replicas": 2}, output={"maxRowsPerFile": 8})
        assert record(resource).state == "AlreadyFinished"


class TestOnExisting:
    def test_fail_refuses_what_is_finished(self, tmp_path: Path) -> None:
        record(recording(tmp_path))
        with pytest.raises(OutputConflict, match="onExisting is Fail"):
            record(recording(tmp_path, output={"onExisting": "Fail"}))

    def test_fail_goes_on_with_its_own_unfinished_run(self, tmp_path: Path) -> None:
        resource = recording(tmp_path, output={"onExisting": "Fail"})
        with pytest.raises(Interrupted):
            record(resource, StopAfter(20))
        assert record(resource).state == "Succeeded"

    def test_replace_deletes_what_was_recorded_and_nothing_else(self, tmp_path: Path) -> None:
        record(recording(tmp_path, seed=1))
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "mine.parquet").write_text("mine")
        old = {name for name in files(tmp_path) if name.startswith("00")}
        reporter = MemoryReporter()
        record(recording(tmp_path, output={"onExisting": "Replace"}), reporter=reporter)
        assert any("replaces" in note for note in reporter.notes)
        assert not old & files(tmp_path).keys()
        assert (tmp_path / "notes.txt").read_text() == (tmp_path / "mine.parquet").read_text() == "mine"
        manifest = read_manifest(resolve(tmp_path))
        assert manifest is not None
        assert manifest.seed == 0

    def test_replace_of_an_unfinished_one(self, tmp_path: Path, walks: Path) -> None:
        with pytest.raises(Interrupted):
            record(recording(tmp_path, seed=1), StopAfter(20))
        record(recording(tmp_path, output={"onExisting": "Replace", "maxRowsPerFile": 8}))
        assert list(episode_hashes(read_all(tmp_path)).values()) == list(
            episode_hashes(read_all(walks)).values()
        )

    def test_replace_may_be_killed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        record(recording(tmp_path, seed=1))
        resource = recording(tmp_path, output={"onExisting": "Replace"})
        delete, calls = Location.delete, 0

        def fails_later(location: Location) -> None:
            nonlocal calls
            calls += 1
            if calls == 4:
                raise KeyboardInterrupt
            delete(location)

        with monkeypatch.context() as patch:
            patch.setattr(Location, "delete", fails_later)
            with pytest.raises(KeyboardInterrupt):
                record(resource)
        record(resource)
        assert indices(tmp_path) == list(range(40))
        assert leftovers(tmp_path) == []

    def test_replace_goes_on_with_its_own_run(self, tmp_path: Path) -> None:
        resource = recording(tmp_path, output={"onExisting": "Replace"})
        with pytest.raises(Interrupted):
            record(resource, StopAfter(20))
        before = set(read_commits(resolve(tmp_path)))
        reporter = MemoryReporter()
        record(resource, reporter=reporter)
        assert before == {0}
        assert any("resum" in note for note in reporter.notes)


class TestFolder:
    @pytest.mark.parametrize("on_existing", ["Resume", "Fail", "Replace"])
    def test_of_foreign_files_is_refused(self, tmp_path: Path, on_existing: str) -> None:
        (tmp_path / "thesis.tex").write_text("years")
        with pytest.raises(OutputConflict, match=r"no recording of Hindcast made"):
            record(recording(tmp_path, output={"onExisting": on_existing}))
        assert files(tmp_path) == {"thesis.tex": b"years"}

    def test_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "data").write_text("a file")
        with pytest.raises((StorageError, OutputConflict), match=str(tmp_path / "data")):
            record(recording(tmp_path / "data"))

    def test_that_another_process_writes_to(self, tmp_path: Path) -> None:
        with (
            sole_writer(resolve(tmp_path / "_hindcast")),
            pytest.raises(OutputConflict, match="another process is writing"),
        ):
            record(recording(tmp_path))
        assert record(recording(tmp_path)).state == "Succeeded"

    def test_that_is_read_only(self, small_disk: Callable[[str], Path]) -> None:
        folder = small_disk("size=4m") / "data"
        with pytest.raises(Interrupted):
            record(recording(folder), StopAfter(20))
        small_disk("remount,ro")
        with pytest.raises(StorageError, match=rf"{folder}.*read-only"):
            record(recording(folder))
        with pytest.raises(StorageError, match=r"new.*read-only"):
            record(recording(folder.with_name("new")))
        small_disk("remount,rw")
        record(recording(folder))
        assert indices(folder) == list(range(40))

    def test_with_a_damaged_commit(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted):
            record(recording(tmp_path), StopAfter(20))
        (tmp_path / "_hindcast/commits/000000.json").write_text("{")
        with pytest.raises(DataError, match=r"000000\.json.*delete it"):
            record(recording(tmp_path))


class TestPolicy:
    def test_from_a_checkpoint(self, tmp_path: Path) -> None:
        policy = make_policy(CARTPOLE)
        policy.save(tmp_path / "policy")
        spec = {"environment": CARTPOLE, "policy": {"checkpoint": {"path": str(tmp_path / "policy")}}}
        record(recording(tmp_path / "data", **spec))
        block = read_all(tmp_path / "data")
        assert {"action_logp", "action_dist_inputs"} <= set(block.columns)
        again = policy.act(block.columns["obs"][:8]).dist_inputs
        np.testing.assert_allclose(block.columns["action_dist_inputs"][:8], again, rtol=1e-4, atol=1e-5)

    def test_copied_once_and_used_again_after_an_interruption(self, tmp_path: Path) -> None:
        make_policy(WALK).save(tmp_path / "policy")
        spec = {"policy": {"checkpoint": {"path": str(tmp_path / "policy")}}}
        record(recording(tmp_path / "whole", **spec))
        with pytest.raises(Interrupted):
            record(recording(tmp_path / "data", **spec), StopAfter(20))
        shutil.rmtree(tmp_path / "policy")
        record(recording(tmp_path / "data", **spec))
        hashes = episode_hashes(read_all(tmp_path / "whole"))
        assert episode_hashes(read_all(tmp_path / "data")) == hashes

    def test_of_other_spaces_is_refused(self, tmp_path: Path) -> None:
        make_policy({"id": "toy_environments:Continuous"}).save(tmp_path / "policy")
        with pytest.raises(SpecError, match=r"observation space.*Box.*\(3,\).*\(4,\)"):
            record(recording(tmp_path / "data", policy={"checkpoint": {"path": str(tmp_path / "policy")}}))

    def test_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=str(tmp_path / "nothing")):
            record(recording(tmp_path / "data", policy={"checkpoint": {"path": str(tmp_path / "nothing")}}))

    def test_from_a_training(self, tmp_path: Path, walks: Path) -> None:
        outcome = train(training(tmp_path / "runs", walks))
        path = outcome.metrics["checkpoint"]
        record(recording(tmp_path / "data", policy={"trainingRef": {"name": "clone"}}), checkpoint=path)
        assert "action_logp" in read_all(tmp_path / "data").columns

    def test_without_exploration(self, tmp_path: Path) -> None:
        make_policy(WALK).save(tmp_path / "policy")
        spec = {"checkpoint": {"path": str(tmp_path / "policy")}, "explore": False}
        record(recording(tmp_path / "data", policy=spec))
        block = read_all(tmp_path / "data")
        inputs, actions = block.columns["action_dist_inputs"], block.columns["actions"]
        np.testing.assert_array_equal(inputs.argmax(-1), actions)

    def test_trained_first(self, tmp_path: Path, reporter: MemoryReporter) -> None:
        record(recording(tmp_path, policy={"train": TRAIN}), reporter=reporter)
        assert {stage.stage for stage in reporter.stages} == {"Training the expert", "Recording"}
        lines = (tmp_path / "_hindcast/policy/results.jsonl").read_text().splitlines()
        assert [json.loads(line)["training_iteration"] for line in lines] == [1, 2, 3]
        assert indices(tmp_path) == list(range(40))
        assert leftovers(tmp_path) == []

    def test_trained_first_from_one_that_was_trained_offline(self, tmp_path: Path, walks: Path) -> None:
        trained = train(training(tmp_path / "runs", walks, model=TRAIN["model"])).metrics["checkpoint"]
        still = {**TRAIN, "config": {**TRAIN["config"], "lr": 1e-30}, "initialCheckpoint": trained}
        record(recording(tmp_path / "data", policy={"train": still}))
        module = Policy.load(tmp_path / "data/_hindcast/policy/module").module
        for name, given in Policy.load(trained).module.named_parameters():
            assert torch.equal(dict(module.named_parameters())[name], given), name

    def test_trained_first_from_one_that_is_not_there(self, tmp_path: Path) -> None:
        expert = {**TRAIN, "initialCheckpoint": "nowhere"}
        with pytest.raises(DataError, match=r"spec\.policy\.train\.initialCheckpoint: .*nowhere"):
            record(recording(tmp_path / "data", policy={"train": expert}))


class TestLeftovers:
    def test_of_a_killed_expert_are_removed(self, tmp_path: Path) -> None:
        resource = recording(tmp_path, policy={"train": TRAIN})
        with pytest.raises(Interrupted):
            record(resource, StopAfter(2))
        policy = tmp_path / "_hindcast/policy"
        for place in ("", "module", "checkpoints", "checkpoints/checkpoint-000000002/module"):
            (policy / place).mkdir(parents=True, exist_ok=True)
            (policy / place / ".weights.safetensors.0a1b2c3d.tmp").write_text("half")
        (policy / "checkpoints/checkpoint-000009999").mkdir()
        (policy / "checkpoints/checkpoint-000009999/learner.safetensors").write_text("half")
        record(resource)
        assert leftovers(tmp_path) == []
        assert not (policy / "checkpoints/checkpoint-000009999").exists()

    def test_of_runners_that_died_meanwhile_are_removed(self, tmp_path: Path) -> None:
        class Dying(MemoryReporter):
            def progress(self, progress: Any) -> None:
                (tmp_path / "000001-dead0000-000.parquet").write_text("complete, never committed")
                (tmp_path / ".000001-dead0000-001.parquet.0a1b2c3d.tmp").write_text("half")

        record(recording(tmp_path), reporter=Dying())
        assert leftovers(tmp_path) == []


class TestFailure:
    def test_of_the_environment_leaves_what_is_committed(self, tmp_path: Path) -> None:
        """It falls over in the second range; the first is kept, and nothing half-written."""
        environment = {"id": "test_run_recording:FallsOver"}
        FallsOver.patience = 20
        with pytest.raises(UserCodeError, match=r"test_run_recording\.py:\d+: enough"):
            record(recording(tmp_path, environment=environment))
        assert set(read_commits(resolve(tmp_path))) == {0}
        assert leftovers(tmp_path) == []
        with pytest.raises(UserCodeError):
            record(recording(tmp_path, environment=environment))
        FallsOver.patience = 10**9
        record(recording(tmp_path, environment=environment))
        assert indices(tmp_path) == list(range(40))

    def test_readers_see_only_what_is_committed(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted):
            record(recording(tmp_path), StopAfter(3))
        with pytest.raises(DataError, match="committed no episodes yet"):
            open_dataset(str(tmp_path))
        with pytest.raises(Interrupted):
            record(recording(tmp_path), StopAfter(20))
        assert open_dataset(str(tmp_path)).num_episodes == 16


class FallsOver(Walk):
    """Raises once so many episodes were begun."""

    patience = 10**9

    def reset(self, **options: Any) -> Any:
        if FallsOver.patience == 0:
            raise RuntimeError("enough")
        FallsOver.patience -= 1
        return super().reset(**options)


def test_resumes_in_memory(memory_path: str, walks: Path) -> None:
    spec: dict[str, Any] = {"policy": {"train": TRAIN}}
    with pytest.raises(Interrupted):
        record(recording(memory_path, **spec), StopAfter(22))
    record(recording(memory_path, **spec))
    assert indices(memory_path) == list(range(40))
    names = fsspec.filesystem("memory").find("/run-tests")
    assert any(name.endswith("policy/results.jsonl") for name in names)
