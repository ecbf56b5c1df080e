"""`TrainingRun`: data coverage, stop criteria, checkpoints, resuming and evaluation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import safetensors.numpy
import torch

from hindcast.api import OfflineTraining, spec_hash
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError, Interrupted, OutputConflict, SpecError, UserCodeError
from hindcast.formats.dataset_folder.commits import Commit, make_file_stem, write_commit
from hindcast.formats.dataset_folder.manifest import Manifest, write_manifest
from hindcast.formats.spec import DataSpec
from hindcast.learn.checkpoint import CheckpointStore, find_checkpoint
from hindcast.models.policy import Policy
from hindcast.pipeline.offline_data import Source
from hindcast.report.events import Outcome
from hindcast.report.results import ResultsLog
from hindcast.run.claim import claim, claimed_hashes, initial_num_learners
from hindcast.run.stop_criteria import measurement_hash
from hindcast.run.training.offline_trainer import make_offline_trainer
from hindcast.run.training.trainer import Trainer
from hindcast.storage.lease import sole_writer
from hindcast.storage.location import resolve
from layers import slow_except
from run_results import read_results, without_times
from support import WALK, MemoryReporter, StopAfter, make_policy, record, recording, train, training
from toy_pipeline import ObservationLog
from user_errors import raises_user_error

NUM_STEPS = 1000
EVALUATED_SPEC: dict[str, Any] = {
    "environment": WALK,
    "config": {"lr": 0.05, "trainBatchSizePerLearner": 32},
    "pipeline": {"datasetNumItersPerLearner": 2},
    "stop": {"iterations": 8},
}
EVALUATION = {"interval": 3, "duration": 20}
ESTIMATES = {"heldOut": 0.4, "estimates": ["wis"], "explore": True}
EVALUATIONS: dict[str, dict[str, Any]] = {
    "at end": {"duration": 5},
    "each iteration": {"interval": 1, "duration": 5},
    "every second iteration": {"interval": 2, "duration": 5},
    "estimates at end": {"offline": ESTIMATES},
    "estimates each iteration": {"offline": {**ESTIMATES, "interval": 1}},
}
DIRECT_METHOD = {"heldOut": 0.4, "interval": 1, "estimates": ["dm"], "modelUpdates": 40}
IN_PARALLEL = {**EVALUATION, "parallelToTraining": True}


@pytest.fixture(scope="module")
def numbered_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 timesteps in many small units; an observation is the number of its timestep, a final one is -1."""
    from gymnasium.spaces import Box, Discrete

    folder = resolve(tmp_path_factory.mktemp("data") / "numbered_data")
    lengths = np.random.default_rng(0).multinomial(NUM_STEPS - 60, [1 / 60] * 60) + 1
    ends = np.cumsum(lengths)
    obs = np.full((NUM_STEPS + 60, 2), -1, dtype=np.float32)
    obs[np.arange(NUM_STEPS) + np.repeat(np.arange(60), lengths), 0] = np.arange(NUM_STEPS)
    block = Block(
        columns={"obs": obs, "actions": np.arange(NUM_STEPS) % 2, "rewards": np.ones(NUM_STEPS)},
        length=lengths,
        eps_id=np.array([f"e{i}" for i in range(60)], dtype=object),
        t_started=np.zeros(60, dtype=np.int64),
        terminated=np.ones(60, dtype=np.bool_),
        truncated=np.zeros(60, dtype=np.bool_),
    )
    assert ends[-1] == NUM_STEPS
    spec = DataSpec.from_block(block, Box(-np.inf, np.inf, (2,)), Discrete(2))
    writer = BlockWriter(folder, spec, make_file_stem(0, "a"), max_rows_per_file=7)
    writer.write(block)
    files = writer.close()
    write_commit(folder, Commit(range=0, files=files, episodes=60, timesteps=NUM_STEPS, first=0))
    write_manifest(folder, Manifest(spec=spec.to_json(), files=files))
    return Path(folder.path)


def list_checkpoints(folder: Path) -> list[int]:
    names = sorted(path.name for path in (folder / "test/r1/checkpoints").glob("checkpoint-*"))
    return [int(name.partition("-")[2]) for name in names]


def read_weights(folder: Path | str) -> dict[str, np.ndarray]:
    """Return the weights of a checkpoint, or of the last checkpoint of a run."""
    path = Path(folder)
    if (path / "test").exists():
        path = path / f"test/r1/checkpoints/checkpoint-{list_checkpoints(path)[-1]:09d}"
    return safetensors.numpy.load_file(path / "module/weights.safetensors")


def assert_same_weights(path: Path | str, other_path: Path | str) -> None:
    weights, other_weights = read_weights(path), read_weights(other_path)
    assert weights.keys() == other_weights.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(value, other_weights[name])


@pytest.fixture
def delivered_batches() -> Iterator[list[torch.Tensor]]:
    """First observation values of each batch, as `ObservationLog` records them."""
    ObservationLog.seen.clear()
    yield ObservationLog.seen
    ObservationLog.seen.clear()


def make_recording_pipeline(**pipeline: Any) -> dict[str, Any]:
    """Return a pipeline section that records batches in `delivered_batches`."""
    return {"offlineData": "toy_pipeline:ObservationLog", **pipeline}


class TestCoverage:
    @pytest.mark.parametrize("residency", ["Resident", "Streaming"])
    @pytest.mark.parametrize("window_steps", [200, 2**20])
    def test_epoch_is_permutation_of_recorded_timesteps(
        self,
        tmp_path: Path,
        numbered_data: Path,
        delivered_batches: list[torch.Tensor],
        residency: str,
        window_steps: int,
    ) -> None:
        pipeline = make_recording_pipeline(residency=residency, windowSteps=window_steps)
        train(training(tmp_path, numbered_data, pipeline=pipeline, stop={"epochs": 3}))
        stream = torch.cat(delivered_batches).numpy()
        assert len(stream) >= 3 * NUM_STEPS
        epochs = [stream[epoch * NUM_STEPS : (epoch + 1) * NUM_STEPS] for epoch in range(3)]
        for epoch in epochs:
            np.testing.assert_array_equal(np.sort(epoch), np.arange(NUM_STEPS))
        assert not np.array_equal(epochs[0], epochs[1])
        assert not np.array_equal(epochs[0], np.arange(NUM_STEPS))

    def test_coverage_is_reported(self, tmp_path: Path, numbered_data: Path) -> None:
        pipeline = {"datasetNumItersPerLearner": 10}
        train(training(tmp_path, numbered_data, pipeline=pipeline, stop={"iterations": 4}))
        assert [line["coverage"] for line in read_results(tmp_path)] == [0.32, 0.64, 0.96, 1.0]
        assert [line["epoch"] for line in read_results(tmp_path)] == [0.32, 0.64, 0.96, 1.28]

    def test_batches_depend_on_seed_and_not_on_residency(
        self, tmp_path: Path, numbered_data: Path, delivered_batches: list[torch.Tensor]
    ) -> None:
        streams = []
        for run, (residency, seed) in enumerate((("Resident", 0), ("Streaming", 0), ("Resident", 1))):
            pipeline = make_recording_pipeline(residency=residency, windowSteps=300)
            train(training(tmp_path / str(run), numbered_data, pipeline=pipeline, seed=seed))
            streams.append([batch.tolist() for batch in delivered_batches])
            delivered_batches.clear()
        assert streams[0] == streams[1]
        assert streams[0][0] != streams[2][0]
        assert_same_weights(tmp_path / "0", tmp_path / "1")


class TestBatchesLargerThanTheData:
    def test_batch_larger_than_data_repeats_timesteps_with_note(
        self,
        tmp_path: Path,
        numbered_data: Path,
        delivered_batches: list[torch.Tensor],
        reporter: MemoryReporter,
    ) -> None:
        spec = {"config": {"trainBatchSizePerLearner": 2500}, "pipeline": make_recording_pipeline()}
        train(training(tmp_path, numbered_data, **spec, stop={"updates": 1}), reporter=reporter)
        note = (
            "spec.config.trainBatchSizePerLearner: a batch has 2,500 timesteps, but the data have only 1,000: each is "
            "in every batch 2.5 times on average"
        )
        assert note in reporter.notes
        counts = np.bincount(delivered_batches[0].long().numpy(), minlength=NUM_STEPS)
        assert set(counts) == {2, 3}

    def test_batch_larger_than_memory_is_refused(self, tmp_path: Path, numbered_data: Path) -> None:
        config = {"trainBatchSizePerLearner": 10**14}
        message = r"spec\.config\.trainBatchSizePerLearner: a batch would take [\d.]+ TiB, more than the "
        with pytest.raises(SpecError, match=message):
            train(training(tmp_path, numbered_data, config=config, stop={"updates": 1}))


class TestStop:
    @pytest.mark.parametrize(
        ("stop", "expected"),
        [
            # An iteration has 32 updates: batches of 32 in 1,000 timesteps, rounded up.
            ({"iterations": 2}, {"training_iteration": 2, "num_updates_lifetime": 64}),
            ({"updates": 50}, {"training_iteration": 2, "num_updates_lifetime": 50}),
            ({"timesteps": 1500}, {"num_env_steps_trained_lifetime": 1504}),
            ({"epochs": 1.5}, {"epoch": 1.504}),
            ({"updates": 500, "epochs": 30, "iterations": 1}, {"training_iteration": 1}),
        ],
        ids=str,
    )
    def test_stops_at_first_criterion(
        self, tmp_path: Path, numbered_data: Path, stop: dict[str, Any], expected: dict[str, float]
    ) -> None:
        train(training(tmp_path, numbered_data, stop=stop))
        assert expected.items() <= read_results(tmp_path)[-1].items()

    def test_stops_at_return(self, tmp_path: Path, walks: Path) -> None:
        evaluation, stop = {"interval": 2, "duration": 4}, {"episodeReturnMean": -1.0, "iterations": 9}
        train(training(tmp_path, walks, environment=WALK, evaluation=evaluation, stop=stop))
        assert [line["training_iteration"] for line in read_results(tmp_path)] == [1, 2]

    def test_iterate_after_stop_is_refused(self, tmp_path: Path, numbered_data: Path) -> None:
        """An iteration needs at least one update."""
        trainer = make_offline_trainer(
            training(tmp_path, numbered_data, stop={"updates": 5}),
            [Source(str(numbered_data), open_dataset(numbered_data))],
        )
        trainer.begin()
        assert trainer.iterate()["num_updates_lifetime"] == 5
        with raises_user_error(
            SpecError, r"the training ended at update 5; raise spec\.stop to continue", field="spec.stop"
        ):
            trainer.iterate()
        assert trainer.iteration == 1


class TestCheckpoints:
    def test_every_and_keep_select_checkpoints(self, tmp_path: Path, numbered_data: Path) -> None:
        pipeline, checkpoint = {"datasetNumItersPerLearner": 2}, {"every": 3, "keep": 2}
        stop = {"iterations": 10}
        train(training(tmp_path, numbered_data, pipeline=pipeline, checkpoint=checkpoint, stop=stop))
        assert list_checkpoints(tmp_path) == [18, 20]

    def test_best_checkpoint_is_kept_and_named(self, tmp_path: Path, walks: Path) -> None:
        spec = {"checkpoint": {"every": 100, "keep": 1}, "stop": {"iterations": 12}}
        evaluation = {"interval": 1, "duration": 20}
        outcome = train(training(tmp_path, walks, **EVALUATED_SPEC | spec, evaluation=evaluation))
        scores = [line["evaluation"]["env_runners"]["episode_return_mean"] for line in read_results(tmp_path)]
        best_iteration = int(np.argmax(scores)) + 1
        assert best_iteration < 12, "the seed was chosen so that the last policy is not the best"
        assert list_checkpoints(tmp_path) == [2 * best_iteration, 24]
        best = outcome.metrics["best"]
        assert best["score"] == max(scores)
        assert best["path"].endswith(f"checkpoint-{2 * best_iteration:09d}")
        assert_same_weights(best["path"], tmp_path / "test/r1")
        assert f"return {best['score']:.1f}" in outcome.message
        assert best["path"] in outcome.message

    def test_best_checkpoint_is_marked_after_kill(
        self, tmp_path: Path, walks: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        evaluation = {"interval": 1, "duration": 2}
        resource = training(tmp_path, walks, **EVALUATED_SPEC, evaluation=evaluation)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(CheckpointStore, "mark_best", Mock(side_effect=KeyboardInterrupt))
            train(resource)
        score = read_results(tmp_path)[0]["evaluation"]["env_runners"]["episode_return_mean"]
        monkeypatch.setattr(Trainer, "iterate", Mock(side_effect=Interrupted))
        with pytest.raises(Interrupted):
            train(resource)
        store = CheckpointStore(resolve(tmp_path / "test/r1/checkpoints"))
        assert (store.best().updates, store.best_score()) == (2, score)

    def test_trained_policy_acts_and_equals_module_of_run(self, tmp_path: Path, walks: Path) -> None:
        outcome = train(training(tmp_path, walks, environment=WALK))
        policy = Policy.load(outcome.metrics["checkpoint"])
        assert policy.action_space.contains(policy(np.zeros(4, np.float32)))
        assert policy.digest == Policy.load(str(tmp_path / "test/r1/module")).digest


def test_total_loss_sums_losses_of_optimisers(
    tmp_path: Path, numbered_data: Path, reporter: MemoryReporter
) -> None:
    resource = training(tmp_path, numbered_data, algorithm="toy_pipeline:TwoOptimisers", config={})
    outcome = train(resource, reporter=reporter)
    metrics = read_results(tmp_path)[-1]["learners"]["default_policy"]
    assert metrics["total_loss"] == pytest.approx(
        metrics["total_loss/weights"] + metrics["total_loss/biases"]
    )
    assert reporter.stages[-1].metrics["loss"] == outcome.metrics["loss"] == metrics["total_loss"]
    assert f"loss {metrics['total_loss']:.4g} after" in outcome.message


def test_finished_training_without_loss_is_reported(tmp_path: Path, numbered_data: Path) -> None:
    """Earlier versions wrote no loss for several optimisers."""
    train(training(tmp_path, numbered_data))
    marker = tmp_path / "test/r1/success.json"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"loss": None}))
    assert "has already finished after 96 updates" in train(training(tmp_path, numbered_data)).message


class TestInterruption:
    """100 updates equal 50, a checkpoint and 50 more; test_faults_training checks this in new processes."""

    pipeline = {"datasetNumItersPerLearner": 30}

    def check_interruptions(self, folder: Path, data: Path, num_checks: list[int], **spec: Any) -> None:
        """Check that a training that is stopped after these numbers of checks equals an uninterrupted one."""
        reference, resource = (
            training(folder / name, data, pipeline=self.pipeline, stop={"updates": 100}, **spec)
            for name in ("uninterrupted", "interrupted")
        )
        train(reference)
        for count in num_checks:
            with pytest.raises(Interrupted, match=r"interrupted at update \d+; run the same command again"):
                train(resource, StopAfter(count))
        assert train(resource).state == "Succeeded"
        assert_same_weights(folder / "uninterrupted", folder / "interrupted")
        assert without_times(read_results(folder / "uninterrupted")) == without_times(
            read_results(folder / "interrupted")
        )

    @pytest.mark.parametrize(
        "num_checks", slow_except([[30], [60, 30]], [[50], [0], [30], [60, 30], [1, 1, 1]]), ids=str
    )
    def test_interruption_does_not_change_results(
        self, tmp_path: Path, numbered_data: Path, num_checks: list[int]
    ) -> None:
        config = {"lr": [[0, 1e-3], [3200, 1e-5]], "trainBatchSizePerLearner": 32, "gradClip": 0.5}
        self.check_interruptions(tmp_path, numbered_data, num_checks, config=config)

    def test_interruption_with_filters_and_stacks_does_not_change_results(
        self, tmp_path: Path, walks: Path
    ) -> None:
        model = {"fcnetHiddens": [16], "observationFilter": "MeanStd", "frameStack": 3}
        self.check_interruptions(tmp_path, walks, [45], model=model)


class TestContinuation:
    """A training that is continued makes the same updates as one that was longer from the start."""

    pipeline = {"datasetNumItersPerLearner": 30}

    def test_raised_stop_equals_longer_training(self, tmp_path: Path, numbered_data: Path) -> None:
        config = {"lr": [[0, 1e-3], [3200, 1e-5]], "trainBatchSizePerLearner": 32}

        def train_to(folder: str, updates: int) -> str:
            spec = {"pipeline": self.pipeline, "config": config, "stop": {"updates": updates}}
            return train(training(tmp_path / folder, numbered_data, **spec)).state

        assert train_to("uninterrupted", 100) == "Succeeded"
        # 40 and 75 end within an iteration, 60 ends with an iteration.
        assert [train_to("interrupted", updates) for updates in (40, 60, 75, 100)] == ["Succeeded"] * 4
        assert train_to("interrupted", 100) == "AlreadyFinished"
        assert_same_weights(tmp_path / "uninterrupted", tmp_path / "interrupted")
        resumed_results = read_results(tmp_path / "interrupted")
        assert [line["num_updates_lifetime"] for line in resumed_results] == [30, 60, 90, 100]
        assert without_times(resumed_results) == without_times(read_results(tmp_path / "uninterrupted"))

    @pytest.mark.parametrize("keep", slow_except([1], [1, 3]))
    @pytest.mark.parametrize("name", slow_except(["at end", "estimates each iteration"], EVALUATIONS))
    def test_raised_stop_discards_evaluation_at_earlier_end(
        self, tmp_path: Path, walks: Path, name: str, keep: int
    ) -> None:
        # 8 and 16 end with an iteration, the others within one; the policy after 10 updates is the best.
        self.assert_equals_longer_trainings(tmp_path, walks, (6, 8, 10, 16), EVALUATIONS[name], keep)

    @pytest.mark.slow
    @pytest.mark.parametrize("keep", [1, 3])
    @pytest.mark.parametrize("interval", [1, 2])
    def test_raised_stop_repeats_evaluation_of_iteration_cut_short(
        self, tmp_path: Path, walks: Path, interval: int, keep: int
    ) -> None:
        evaluation = {"interval": interval, "duration": 5, "parallelToTraining": True}
        self.assert_equals_longer_trainings(tmp_path, walks, (6, 8, 11), evaluation, keep)

    @pytest.mark.parametrize("raised_end", [6, 14])
    @pytest.mark.parametrize("name", ["at end", "each iteration"])
    def test_raised_stop_after_kill_at_end_equals_longer_training(
        self, tmp_path: Path, walks: Path, monkeypatch: pytest.MonkeyPatch, name: str, raised_end: int
    ) -> None:
        """The first run is killed before it marks its last weights as best, the resumed run after it has marked them.

        Before its last weights, a run with an interval also marks the weights of iteration 1.
        """
        evaluation = EVALUATIONS[name]
        mark_best, calls, last_call = (
            CheckpointStore.mark_best,
            iter(range(99)),
            int("interval" in evaluation),
        )

        def kill_at_last_mark(*args: Any, **kwargs: Any) -> bool:
            call_index = next(calls)
            is_best = call_index != last_call and mark_best(*args, **kwargs)
            if call_index >= last_call:
                raise KeyboardInterrupt
            return is_best

        for _ in range(2):
            with monkeypatch.context() as kill, pytest.raises(KeyboardInterrupt):
                kill.setattr(CheckpointStore, "mark_best", kill_at_last_mark)
                train(self.make_evaluated_training(tmp_path / "interrupted", walks, 6, evaluation))
        self.assert_equals_longer_trainings(tmp_path, walks, (raised_end,), evaluation)

    def make_evaluated_training(
        self, folder: Path, data: Path, updates: int, evaluation: dict[str, Any], keep: int = 3
    ) -> OfflineTraining:
        """Make a training in iterations of 4 updates, each of which changes the policy noticeably."""
        spec = {"pipeline": {"datasetNumItersPerLearner": 4}, "stop": {"updates": updates}}
        spec |= {"evaluation": evaluation, "checkpoint": {"keep": keep}}
        return training(folder, data, **EVALUATED_SPEC | spec)

    def assert_equals_longer_trainings(
        self, folder: Path, data: Path, ends: Sequence[int], evaluation: dict[str, Any], keep: int = 3
    ) -> None:
        """Check that a training that is raised to each of these ends equals one that was started with that end."""
        for end in ends:
            reference = folder / f"to {end}"
            metrics = [
                train(self.make_evaluated_training(run_folder, data, end, evaluation, keep)).metrics
                for run_folder in (folder / "interrupted", reference)
            ]
            best, expected_best = (
                run_metrics["best"]
                and {**run_metrics["best"], "path": Path(run_metrics["best"]["path"]).name}
                for run_metrics in metrics
            )
            assert best == expected_best
            assert without_times(read_results(folder / "interrupted")) == without_times(
                read_results(reference)
            )
            assert_same_weights(folder / "interrupted", reference)
            assert_same_weights(folder / "interrupted/test/r1", reference / "test/r1")

    def test_raised_stop_after_interruption_equals_longer_training(
        self, tmp_path: Path, numbered_data: Path, reporter: MemoryReporter
    ) -> None:
        train(training(tmp_path / "uninterrupted", numbered_data, stop={"updates": 100}))
        with pytest.raises(Interrupted):
            train(training(tmp_path / "interrupted", numbered_data, stop={"updates": 50}), StopAfter(20))
        train(training(tmp_path / "interrupted", numbered_data, stop={"updates": 100}), reporter=reporter)
        assert reporter.notes[-1].startswith("resuming at update 20")
        assert_same_weights(tmp_path / "uninterrupted", tmp_path / "interrupted")

    def test_changed_evaluation_takes_effect(self, tmp_path: Path, walks: Path) -> None:
        spec: dict[str, Any] = {"environment": WALK, "pipeline": self.pipeline}
        train(training(tmp_path, walks, stop={"iterations": 1}, **spec))
        evaluation = {"interval": 1, "duration": 2}
        train(training(tmp_path, walks, stop={"iterations": 2}, evaluation=evaluation, **spec))
        assert ["evaluation" in line for line in read_results(tmp_path)] == [False, True]

    @pytest.mark.parametrize(
        ("first_evaluation", "second_evaluation"),
        [
            (
                {"interval": 1, "duration": 3, "explore": True},
                {"interval": 1, "duration": 20, "explore": True},
            ),
            pytest.param(
                {"offline": DIRECT_METHOD}, {"offline": DIRECT_METHOD | {"gamma": 0}}, marks=pytest.mark.slow
            ),
        ],
        ids=["returns", "estimates"],
    )
    def test_changed_evaluation_selects_best_by_its_own_scores(
        self, tmp_path: Path, walks: Path, first_evaluation: dict[str, Any], second_evaluation: dict[str, Any]
    ) -> None:
        first_best, second_best = (
            train(self.make_evaluated_training(tmp_path, walks, updates, evaluation)).metrics["best"]
            for updates, evaluation in ((12, first_evaluation), (20, second_evaluation))
        )
        assert first_best["score"] > second_best["score"]
        assert find_checkpoint(second_best["path"]).updates > 12

    def test_changed_evaluation_ignores_unmarked_score(
        self, tmp_path: Path, walks: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as kill, pytest.raises(KeyboardInterrupt):
            kill.setattr(CheckpointStore, "mark_best", Mock(side_effect=KeyboardInterrupt))
            train(self.make_evaluated_training(tmp_path, walks, 12, {"interval": 1, "duration": 1}))
        monkeypatch.setattr(Trainer, "iterate", Mock(side_effect=Interrupted))
        with pytest.raises(Interrupted):
            train(self.make_evaluated_training(tmp_path, walks, 12, {"interval": 1, "duration": 20}))
        assert CheckpointStore(resolve(tmp_path / "test/r1/checkpoints")).best() is None

    def test_lowered_stop_makes_no_update(self, tmp_path: Path, numbered_data: Path) -> None:
        train(training(tmp_path, numbered_data, stop={"updates": 60}))
        outcome = train(training(tmp_path, numbered_data, stop={"updates": 50}))
        assert (outcome.state, outcome.metrics["updates"]) == ("Succeeded", 60)

    def test_resume_keeps_initial_global_batch(self, tmp_path: Path, numbered_data: Path) -> None:
        first_resource = training(tmp_path, numbered_data, learners={"replicas": 2}, stop={"updates": 10})
        longer_resource = training(tmp_path, numbered_data, stop={"updates": 20})
        state = resolve(tmp_path / "run")
        claim(state, first_resource, has_progress=False)
        assert claim(state, longer_resource, has_progress=True)
        assert initial_num_learners(state, longer_resource) == 2
        assert claimed_hashes(state) == {spec_hash(first_resource), spec_hash(longer_resource)}


class TestFolder:
    def test_success_marker_is_written_last(
        self, tmp_path: Path, numbered_data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A training that fails at its end must not count as finished."""

        def raise_error(**_: object) -> None:
            raise ValueError("invalid outcome")

        monkeypatch.setattr("hindcast.run.training.training_run.Outcome", raise_error)
        with pytest.raises(ValueError, match="invalid outcome"):
            train(training(tmp_path, numbered_data))
        assert not (tmp_path / "test/r1/success.json").exists()

    def test_finished_training_is_not_repeated_and_raised_stop_deletes_report(
        self, tmp_path: Path, numbered_data: Path, reporter: MemoryReporter
    ) -> None:
        """The new report is written after the marker; until then the old one would pass as current."""
        resource = training(tmp_path, numbered_data, stop={"updates": 10})
        first_outcome = train(resource)
        report = tmp_path / "test/r1/report.html"
        report.write_text("report of 10 updates")
        second_outcome = train(resource, StopAfter(0), reporter)
        assert second_outcome.state == "AlreadyFinished"
        assert second_outcome.metrics["checkpoint"] == first_outcome.metrics["checkpoint"]
        assert reporter.stages == []
        assert report.exists()
        train(training(tmp_path, numbered_data, stop={"updates": 20}))
        assert not report.exists()

    def test_other_spec_requires_new_revision(self, tmp_path: Path, numbered_data: Path) -> None:
        resource = training(tmp_path, numbered_data, stop={"updates": 10})
        train(resource)
        message = r"\(spec\.seed: 0 → 1\): revert the change, raise spec\.revision"
        with pytest.raises(OutputConflict, match=message):
            train(training(tmp_path, numbered_data, stop={"updates": 20}, seed=1))
        assert train(resource).state == "AlreadyFinished"
        assert train(training(tmp_path, numbered_data, seed=1, revision=2)).folder == str(
            tmp_path / "test/r2"
        )

    def test_other_spec_is_refused_by_checkpoint_if_owner_record_is_lost(
        self, tmp_path: Path, numbered_data: Path
    ) -> None:
        with pytest.raises(Interrupted):
            train(training(tmp_path, numbered_data), StopAfter(5))
        (tmp_path / "test/r1/spec.json").unlink()
        with pytest.raises(
            OutputConflict, match=r"checkpoint-000000005 was written with spec hash .*: raise spec"
        ):
            train(training(tmp_path, numbered_data, config={"lr": 0.5}))

    def test_folder_with_other_writer_is_refused(self, tmp_path: Path, numbered_data: Path) -> None:
        with (
            sole_writer(resolve(tmp_path / "test/r1")),
            pytest.raises(OutputConflict, match="another process is writing"),
        ):
            train(training(tmp_path, numbered_data))

    def test_temporary_files_are_removed(self, tmp_path: Path, numbered_data: Path) -> None:
        with pytest.raises(Interrupted):
            train(training(tmp_path, numbered_data), StopAfter(40))
        run_folder = tmp_path / "test/r1"
        (run_folder / ".results.jsonl.01234567.tmp").write_text("half")
        module_folder = run_folder / "checkpoints/checkpoint-000000035/module"
        module_folder.mkdir(parents=True)
        (module_folder / ".weights.safetensors.01234567.tmp").write_text("half")
        train(training(tmp_path, numbered_data))
        assert list_checkpoints(tmp_path) == [40, 96]
        assert [path for path in run_folder.rglob("*") if path.suffix == ".tmp" or path.name == "lock"] == []

    def test_changed_data_are_refused(self, tmp_path: Path, numbered_data: Path) -> None:
        data = tmp_path / "data"
        record(recording(data))
        with pytest.raises(Interrupted):
            train(training(tmp_path / "runs", data), StopAfter(5))
        shutil.rmtree(data)
        record(recording(data, seed=1))
        with pytest.raises(
            DataError,
            match=rf"the data in {data}, or how Hindcast prepares them, have changed since the checkpoint",
        ):
            train(training(tmp_path / "runs", data))

    def test_training_in_memory_store_equals_local_one(
        self, tmp_path: Path, memory_path: str, numbered_data: Path
    ) -> None:
        with pytest.raises(Interrupted):
            train(training(memory_path, numbered_data), StopAfter(40))
        train(training(memory_path, numbered_data))
        train(training(tmp_path, numbered_data))
        policy = Policy.load(f"{memory_path}/test/r1/module")
        assert policy.digest == Policy.load(str(tmp_path / "test/r1/module")).digest
        lines = resolve(f"{memory_path}/test/r1/results.jsonl").read_bytes().splitlines()
        assert without_times(list(map(json.loads, lines))) == without_times(read_results(tmp_path))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}"])
def test_damaged_owner_record_is_refused(tmp_path: Path, walks: Path, content: bytes) -> None:
    resource = training(tmp_path, walks, stop={"updates": 2})
    train(resource)
    (tmp_path / "test/r1/spec.json").write_bytes(content)
    with pytest.raises(
        DataError, match=r"test/r1/spec\.json, which names the owner of the folder, is damaged"
    ):
        train(resource)


class TestInitialCheckpoint:
    def train_from(self, folder: Path, data: Path, path: Path, **spec: Any) -> None:
        config = {"lr": 1e-30, "trainBatchSizePerLearner": 32}
        train(training(folder, data, config=config, initialCheckpoint=str(path), **spec))

    def test_initial_checkpoint_gives_weights(self, tmp_path: Path, walks: Path) -> None:
        policy = make_policy(WALK, seed=5)
        policy.save(tmp_path / "policy")
        self.train_from(tmp_path / "runs", walks, tmp_path / "policy")
        initial_weights, parameters = read_weights(tmp_path / "runs"), dict(policy.module.named_parameters())
        assert initial_weights
        for name, value in initial_weights.items():
            np.testing.assert_array_equal(value, parameters[name].detach().numpy())

    def test_initial_checkpoint_gives_filter(self, tmp_path: Path, walks: Path) -> None:
        policy = make_policy(WALK, observationFilter="MeanStd")
        policy.preprocessing.update({"obs": np.arange(40, dtype=np.float32).reshape(10, 4)})
        policy.save(tmp_path / "policy")
        model = {"fcnetHiddens": [16], "observationFilter": "MeanStd"}
        self.train_from(tmp_path / "runs", walks, tmp_path / "policy", model=model)
        trained_policy = Policy.load(str(tmp_path / "runs/test/r1/module"))
        for name, numbers in policy.preprocessing.state().items():
            np.testing.assert_array_equal(trained_policy.preprocessing.state()[name], numbers)

    @pytest.mark.parametrize(
        ("model", "difference"),
        [
            ({"fcnetHiddens": [32]}, r"model\.fcnetHiddens \[16\], this training has \[32\]"),
            ({"fcnetHiddens": [16, 16]}, r"model\.fcnetHiddens \[16\], this training has \[16, 16\]"),
            ({"headFcnetHiddens": [8]}, r"model\.headFcnetHiddens \[\], this training has \[8\]"),
            ({"recurrent": "GRU"}, r"model\.recurrent None, this training has GRU"),
            ({"observationFilter": "MeanStd"}, r"model\.observationFilter None, this training has MeanStd"),
            ({"frameStack": 2}, r"model\.frameStack 1, this training has 2"),
            ({"fcnetActivation": "relu"}, r"model\.fcnetActivation tanh, this training has relu"),
        ],
        ids=str,
    )
    def test_other_model_is_refused(
        self, tmp_path: Path, walks: Path, model: dict[str, Any], difference: str
    ) -> None:
        make_policy(WALK).save(tmp_path / "policy")
        message = f"has {difference}; the model sections must be the same"
        with raises_user_error(SpecError, message, field="spec.initialCheckpoint"):
            self.train_from(
                tmp_path / "runs", walks, tmp_path / "policy", model={"fcnetHiddens": [16], **model}
            )

    @pytest.mark.parametrize(
        ("saved_algorithm", "new_algorithm", "message"),
        [
            (
                ("BC", {}),
                ("DQN", {}),
                r"test/r1 holds an action distribution that BC trained, and DQN trains action values: start from a "
                r"checkpoint of DQN or DiscreteCQL, or omit initialCheckpoint",
            ),
            (
                ("DiscreteCQL", {}),
                ("BC", {}),
                r"action values that DiscreteCQL trained, and BC trains an action distribution: .* of BC, .* or TD3BC,",
            ),
            (
                ("DQN", {"dueling": False}),
                ("DQN", {"numQuantiles": 3}),
                r"test/r1 has config\.dueling False, this training has True; the config sections must be the same",
            ),
        ],
        ids=["BC-DQN", "DiscreteCQL-BC", "DQN-DQN"],
    )
    def test_other_kind_of_policy_is_refused(
        self, tmp_path: Path, walks: Path, saved_algorithm: Any, new_algorithm: Any, message: str
    ) -> None:
        saved_spec, new_spec = (
            {"algorithm": algorithm, "config": config}
            for algorithm, config in (saved_algorithm, new_algorithm)
        )
        train(training(tmp_path / "saved", walks, **saved_spec, stop={"updates": 1}))
        checkpoint = str(tmp_path / "saved/test/r1")
        with pytest.raises(SpecError, match=rf"^spec\.initialCheckpoint: .*{message}"):
            train(training(tmp_path / "new", walks, **new_spec, initialCheckpoint=checkpoint))

    def test_other_kind_of_saved_policy_is_refused(self, tmp_path: Path, walks: Path) -> None:
        make_policy(WALK).save(tmp_path / "policy")
        with pytest.raises(
            SpecError, match="policy holds an action distribution, and DQN trains action values: "
        ):
            spec = {"algorithm": "DQN", "config": {}, "initialCheckpoint": str(tmp_path / "policy")}
            train(training(tmp_path, walks, **spec))

    def test_other_distribution_is_refused(self, tmp_path: Path, walks: Path) -> None:
        """The weights have equal shapes, so they could be loaded."""
        environment = {"id": "toy_environments:SteeredWalk"}
        make_policy(environment).save(tmp_path / "policy")
        spec = {"algorithm": "SAC", "config": {}, "environment": environment, "input": [{"sampler": {}}]}
        spec["model"] = {"preset": "RLlib"}
        with pytest.raises(
            SpecError, match=r"has model\.distribution Auto, this training has SquashedGaussian"
        ):
            train(training(tmp_path, walks, initialCheckpoint=str(tmp_path / "policy"), **spec))

    def test_other_spaces_are_refused(self, tmp_path: Path, walks: Path) -> None:
        make_policy({"id": "toy_environments:Continuous"}).save(tmp_path / "policy")
        with pytest.raises(
            SpecError, match=r"policy is for the observation space Box\(.*, this training's is Box\("
        ):
            self.train_from(tmp_path / "runs", walks, tmp_path / "policy")

    @pytest.mark.parametrize(("subfolder", "has_all_networks"), [("r1", True), ("r1/module", False)])
    @pytest.mark.parametrize(
        "algorithms",
        [
            ("CQL", {"numActions": 2, "lagrangian": True}, "SAC", {"critics", "target_critics", "alpha"}),
            ("IQL", {}, "SAC", {"critics", "target_critics"}),
            ("DiscreteCQL", {}, "DQN", {"target"}),
        ],
        ids=lambda algorithms: f"{algorithms[0]}-{algorithms[2]}",
    )
    def test_initial_checkpoint_gives_networks_of_equal_shapes(
        self,
        algorithms: tuple[str, dict[str, Any], str, set[str]],
        subfolder: str,
        has_all_networks: bool,
        tmp_path: Path,
    ) -> None:
        """The second algorithm plays; a `module` folder contains only the policy."""
        offline, config, online, shared_networks = algorithms
        environment = WALK if online == "DQN" else {"id": "toy_environments:SteeredWalk"}
        record(recording(tmp_path / "data", environment=environment))
        model: dict[str, Any] = {"fcnetHiddens": [8]}
        if offline == "IQL":
            model |= {"distribution": "SquashedGaussian", "freeLogStd": False}
        offline_spec = {"algorithm": offline, "config": config, "model": model, "stop": {"updates": 3}}
        train(training(tmp_path / "offline", tmp_path / "data", **offline_spec))
        online_spec = {"algorithm": online, "config": {}, "environment": environment}
        online_spec |= {
            "input": [{"sampler": {}}],
            "initialCheckpoint": str(tmp_path / "offline/test" / subfolder),
        }
        trainer = make_offline_trainer(training(tmp_path, "", model=model, **online_spec), [])
        trainer.begin()
        nets = trainer.learner.nets
        saved_tensors = find_checkpoint(tmp_path / "offline/test/r1/checkpoints").learner_state().tensors
        assert shared_networks < set(nets)
        for name, tensor in nets.state_dict().items():
            is_loaded = name.startswith("policy.") or (
                has_all_networks and name.split(".")[0] in shared_networks
            )
            assert torch.equal(tensor, saved_tensors.get(f"nets/{name}", torch.empty(0))) == is_loaded, name

    def test_target_networks_copy_initial_policy(self, tmp_path: Path, walks: Path) -> None:
        """Otherwise DQN would learn towards values of random weights."""
        train(training(tmp_path / "offline", walks, algorithm="DQN", config={}, stop={"updates": 3}))
        module = str(tmp_path / "offline/test/r1/module")
        online_spec = {"algorithm": "DQN", "config": {}, "environment": WALK, "input": [{"sampler": {}}]}
        trainer = make_offline_trainer(training(tmp_path, "", initialCheckpoint=module, **online_spec), [])
        trainer.begin()
        policy, target = (trainer.learner.nets[name] for name in ("policy", "target"))
        for name, tensor in target.state_dict().items():
            assert torch.equal(tensor, policy.values.state_dict()[name]), name


@pytest.mark.parametrize(
    ("evaluation", "equal_evaluation", "other_evaluations"),
    [
        (
            {"interval": 2},
            {"interval": 5, "parallelToTraining": True, "runners": 2, "duration": 10},
            [
                {"interval": 2, **fields}
                for fields in (
                    {"duration": 20},
                    {"explore": True},
                    {"customFunction": "toy_pipeline:evaluate_weight_norm"},
                )
            ],
        ),
        (
            {"offline": {"heldOut": 0.4, "estimates": ["dm"]}},
            {"offline": {"heldOut": 0.4, "estimates": ["dm", "is"], "interval": 3}, "duration": 20},
            [
                {"offline": {"heldOut": 0.4, "estimates": ["dm"], **fields}}
                for fields in ({"gamma": 0.5}, {"explore": True}, {"clip": 2}, {"modelUpdates": 5})
            ],
        ),
    ],
    ids=["return", "estimate"],
)
def test_measurement_hash_depends_on_what_is_measured_but_not_on_time_or_place(
    tmp_path: Path,
    evaluation: dict[str, Any],
    equal_evaluation: dict[str, Any],
    other_evaluations: list[dict[str, Any]],
) -> None:
    hashes = [
        measurement_hash(training(tmp_path, "data", environment=WALK, evaluation=section).spec)
        for section in (evaluation, equal_evaluation, *other_evaluations)
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 1 + len(other_evaluations)


def read_reports(folder: Path) -> dict[int, dict[str, Any]]:
    """Return evaluated iteration -> results of the evaluation."""
    evaluations = [line["evaluation"] for line in read_results(folder) if "evaluation" in line]
    return {evaluation["training_iteration"]: evaluation["env_runners"] for evaluation in evaluations}


def read_uses(folder: Path) -> dict[int, int]:
    """Return evaluated iteration -> iteration whose result has the evaluation."""
    lines = [line for line in read_results(folder) if "evaluation" in line]
    return {line["evaluation"]["training_iteration"]: line["training_iteration"] for line in lines}


@pytest.fixture(scope="module")
def sequential(tmp_path_factory: pytest.TempPathFactory, walks: Path) -> Path:
    """Folder of a training that evaluates in its process every 3 iterations."""
    folder = tmp_path_factory.mktemp("sequential")
    train(training(folder, walks, **EVALUATED_SPEC, evaluation=EVALUATION))
    return folder


@pytest.fixture
def train_evaluated(tmp_path: Path, walks: Path) -> Callable[..., Outcome]:
    """`train_evaluated(evaluation, **spec)` trains with an evaluation; the run folder is `tmp_path/test/r1`."""

    def train_with(evaluation: dict[str, Any], **spec: Any) -> Outcome:
        return train(training(tmp_path, walks, **EVALUATED_SPEC | spec, evaluation=evaluation))

    return train_with


@pytest.mark.slow
class TestEvaluation:
    def test_evaluation_runs_at_interval(self, sequential: Path) -> None:
        assert read_uses(sequential) == {3: 3, 6: 6}
        reports = read_reports(sequential)
        assert all(report["num_episodes"] == 20 for report in reports.values())
        assert reports[3]["episode_return_mean"] != reports[6]["episode_return_mean"]

    def test_parallel_evaluation_gives_same_result_one_iteration_later(
        self, tmp_path: Path, train_evaluated: Callable[..., Outcome], sequential: Path
    ) -> None:
        best = train_evaluated({**IN_PARALLEL, "runners": 2}).metrics["best"]
        reports = read_reports(tmp_path)
        assert read_uses(tmp_path) == {3: 4, 6: 7}
        assert reports == read_reports(sequential)
        assert_same_weights(tmp_path, sequential)
        returns = {iteration: report["episode_return_mean"] for iteration, report in reports.items()}
        best_iteration = max(returns, key=returns.__getitem__)
        assert best["path"].endswith(f"checkpoint-{2 * best_iteration:09d}")
        assert best["score"] == returns[best_iteration]

    def test_checkpoint_contains_return_of_own_weights(
        self, tmp_path: Path, train_evaluated: Callable[..., Outcome]
    ) -> None:
        train_evaluated({**IN_PARALLEL, "interval": 1}, checkpoint={"keep": 20})
        for updates in list_checkpoints(tmp_path):
            file = tmp_path / f"test/r1/checkpoints/checkpoint-{updates:09d}/checkpoint.json"
            saved_return = json.loads(file.read_text())["training"]["metrics"].get("episode_return_mean")
            assert saved_return in (None, read_reports(tmp_path)[updates // 2]["episode_return_mean"])

    def test_last_parallel_evaluation_is_awaited_and_survives_kill(
        self, tmp_path: Path, train_evaluated: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append = ResultsLog.append

        def kill_before_last_result(log: ResultsLog, result: dict[str, Any]) -> None:
            if "learners" not in result:
                raise KeyboardInterrupt
            append(log, result)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(ResultsLog, "append", kill_before_last_result)
            train_evaluated({**IN_PARALLEL, "interval": 4})
        assert sorted(read_reports(tmp_path)) == [4]
        train_evaluated({**IN_PARALLEL, "interval": 4})
        assert sorted(read_reports(tmp_path)) == [4, 8]

    @pytest.mark.parametrize("num_checks", [7, 8, 13])
    def test_interrupted_parallel_evaluation_is_repeated(
        self, tmp_path: Path, walks: Path, sequential: Path, num_checks: int
    ) -> None:
        resource = training(tmp_path, walks, **EVALUATED_SPEC, evaluation=IN_PARALLEL)
        with pytest.raises(Interrupted):
            train(resource, StopAfter(num_checks))
        train(resource)
        assert read_uses(tmp_path) == {3: 4, 6: 7}
        assert read_reports(tmp_path) == read_reports(sequential)

    @pytest.mark.parametrize("is_parallel", [False, True])
    def test_without_interval_evaluation_runs_at_end(
        self, tmp_path: Path, train_evaluated: Callable[..., Outcome], is_parallel: bool
    ) -> None:
        outcome = train_evaluated({"duration": 20, "parallelToTraining": is_parallel})
        assert read_uses(tmp_path) == {8: 8}
        assert outcome.metrics["best"]["path"] == outcome.metrics["checkpoint"]

    def test_evaluation_runners_give_same_results(
        self, tmp_path: Path, train_evaluated: Callable[..., Outcome], sequential: Path
    ) -> None:
        train_evaluated({**EVALUATION, "runners": 2})
        assert read_uses(tmp_path) == read_uses(sequential)
        assert read_reports(tmp_path) == read_reports(sequential)

    def test_auto_duration_plays_full_sets_of_episodes(
        self, tmp_path: Path, train_evaluated: Callable[..., Outcome]
    ) -> None:
        train_evaluated({**IN_PARALLEL, "interval": 2, "duration": "Auto", "envsPerRunner": 4})
        for report in read_reports(tmp_path).values():
            assert report["num_episodes"] >= 4
            assert report["num_episodes"] % 4 == 0

    def test_evaluation_of_killed_runner_is_repeated(
        self,
        tmp_path: Path,
        train_evaluated: Callable[..., Outcome],
        sequential: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The environment kills its process once."""
        monkeypatch.setenv("TOY_KILL_ONCE", str(tmp_path / "killed"))
        (tmp_path / "killed").touch()
        train_evaluated(IN_PARALLEL, environment={"id": "toy_environments:KillsProcess"})
        assert not (tmp_path / "killed").exists()
        assert read_reports(tmp_path) == read_reports(sequential)

    def test_duration_in_timesteps_is_reached(
        self, tmp_path: Path, train_evaluated: Callable[..., Outcome]
    ) -> None:
        train_evaluated({"interval": 8, "duration": 50, "durationUnit": "Timesteps"})
        assert read_reports(tmp_path)[8]["num_env_steps"] >= 50

    def test_evaluation_that_times_out_is_skipped(
        self, tmp_path: Path, walks: Path, reporter: MemoryReporter
    ) -> None:
        evaluation = {**IN_PARALLEL, "interval": 4, "sampleTimeoutSeconds": 1e-6}
        evaluation["duration"] = 5000  # seconds of work
        train(training(tmp_path, walks, **EVALUATED_SPEC, evaluation=evaluation), reporter=reporter)
        assert read_reports(tmp_path) == {}
        assert any("sampleTimeoutSeconds" in note for note in reporter.notes)

    @pytest.mark.parametrize("is_parallel", [False, True])
    def test_environment_error_in_evaluation_is_reported(
        self, train_evaluated: Callable[..., Outcome], is_parallel: bool
    ) -> None:
        environment = {"id": "toy_environments:FaultyEnv", "kwargs": {"what": "step"}}
        evaluation = {"interval": 1, "duration": 4, "parallelToTraining": is_parallel}
        with pytest.raises(UserCodeError, match=r"toy_environments\.py:\d+: the simulator fell over"):
            train_evaluated(evaluation, environment=environment)


class TestEvaluationFunction:
    def test_custom_function_gives_returns(
        self, tmp_path: Path, train_evaluated: Callable[..., Outcome]
    ) -> None:
        outcome = train_evaluated({"interval": 4, "customFunction": "toy_pipeline:evaluate_weight_norm"})
        norms = {
            iteration: report["episode_return_mean"] for iteration, report in read_reports(tmp_path).items()
        }
        assert sorted(norms) == [4, 8]
        squares = [float((value.astype(np.float64) ** 2).sum()) for value in read_weights(tmp_path).values()]
        assert norms[8] == pytest.approx(sum(squares))
        assert outcome.metrics["best"]["score"] == max(norms.values())

    def test_custom_function_may_give_no_return(
        self, tmp_path: Path, train_evaluated: Callable[..., Outcome]
    ) -> None:
        outcome = train_evaluated({"interval": 4, "customFunction": "toy_pipeline:evaluate_without_return"})
        assert outcome.metrics["best"] is None
        assert read_reports(tmp_path)[8] == {"episode_len_mean": 1.0}

    @pytest.mark.parametrize(
        ("function", "error", "message"),
        [
            ("raising_evaluation", UserCodeError, r"raising_eval.*toy_pipeline\.py:\d+: no episodes at all"),
            ("nothing", SpecError, r"customFunction.*has no 'nothing'"),
        ],
    )
    def test_custom_function_that_cannot_be_called_is_reported(
        self,
        train_evaluated: Callable[..., Outcome],
        function: str,
        error: type[UserCodeError | SpecError],
        message: str,
    ) -> None:
        with pytest.raises(error, match=message):
            train_evaluated({"interval": 4, "customFunction": f"toy_pipeline:{function}"})
