"""`TrainingRun`: what is trained on, when it stops, what it keeps, how it goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
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
from hindcast.formats.dataset_folder.commits import Commit, file_stem, write_commit
from hindcast.formats.dataset_folder.manifest import Manifest, write_manifest
from hindcast.formats.spec import DataSpec
from hindcast.learn.checkpoint import CheckpointStore, find_checkpoint
from hindcast.models.policy import Policy
from hindcast.pipeline.offline_data import Source
from hindcast.report.results import ResultsLog
from hindcast.run.claim import claim, claimed_hashes, first_learners
from hindcast.run.offline_trainer import make_offline_trainer
from hindcast.run.stop_criteria import measurement_hash
from hindcast.run.trainer import Trainer
from hindcast.storage.lease import sole_writer
from hindcast.storage.location import resolve
from support import WALK, MemoryReporter, StopAfter, make_policy, record, recording, train, training
from toy_pipeline import Noting

STEPS = 1000


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1000 timesteps whose observations are their numbers, in many small units; final observations are -1."""
    from gymnasium.spaces import Box, Discrete

    folder = resolve(tmp_path_factory.mktemp("data") / "numbered")
    lengths = np.random.default_rng(0).multinomial(STEPS - 60, [1 / 60] * 60) + 1
    ends = np.cumsum(lengths)
    obs = np.full((STEPS + 60, 2), -1, dtype=np.float32)
    obs[np.arange(STEPS) + np.repeat(np.arange(60), lengths), 0] = np.arange(STEPS)
    block = Block(
        columns={"obs": obs, "actions": np.arange(STEPS) % 2, "rewards": np.ones(STEPS)},
        length=lengths,
        eps_id=np.array([f"e{i}" for i in range(60)], dtype=object),
        t_started=np.zeros(60, dtype=np.int64),
        terminated=np.ones(60, dtype=np.bool_),
        truncated=np.zeros(60, dtype=np.bool_),
    )
    assert ends[-1] == STEPS
    spec = DataSpec.from_block(block, Box(-np.inf, np.inf, (2,)), Discrete(2))
    writer = BlockWriter(folder, spec, file_stem(0, "a"), max_rows_per_file=7)
    writer.write(block)
    files = writer.close()
    write_commit(folder, Commit(range=0, files=files, episodes=60, timesteps=STEPS, first=0))
    write_manifest(folder, Manifest(spec=spec.to_json(), files=files))
    return Path(folder.path)


def results(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "test/r1/results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    timings = {"time_total_s", "timesteps_per_s", "timers"}
    return [{key: value for key, value in line.items() if key not in timings} for line in lines]


def checkpoints(folder: Path) -> list[int]:
    names = sorted(path.name for path in (folder / "test/r1/checkpoints").glob("checkpoint-*"))
    return [int(name.partition("-")[2]) for name in names]


def weights(folder: Path | str) -> dict[str, np.ndarray]:
    """Of a checkpoint, or the last one of a run."""
    path = Path(folder)
    if (path / "test").exists():
        path = path / f"test/r1/checkpoints/checkpoint-{checkpoints(path)[-1]:09d}"
    return safetensors.numpy.load_file(path / "module/weights.safetensors")


def assert_same_weights(one: Path | str, other: Path | str) -> None:
    own, others = weights(one), weights(other)
    assert own.keys() == others.keys()
    for name, value in own.items():
        np.testing.assert_array_equal(value, others[name])


@pytest.fixture
def delivered() -> Iterator[list[torch.Tensor]]:
    """What `Noting` saw."""
    Noting.seen.clear()
    yield Noting.seen
    Noting.seen.clear()


def noting(**pipeline: Any) -> dict[str, Any]:
    return {"offlineData": "toy_pipeline:Noting", **pipeline}


class TestCoverage:
    @pytest.mark.parametrize("residency", ["Resident", "Streaming"])
    @pytest.mark.parametrize("window_steps", [200, 2**20])
    def test_an_epoch_is_a_permutation_of_what_was_recorded(
        self,
        tmp_path: Path,
        numbered: Path,
        delivered: list[torch.Tensor],
        residency: str,
        window_steps: int,
    ) -> None:
        pipeline = noting(residency=residency, windowSteps=window_steps)
        train(training(tmp_path, numbered, pipeline=pipeline, stop={"epochs": 3}))
        stream = torch.cat(delivered).numpy()
        assert len(stream) >= 3 * STEPS
        epochs = [stream[epoch * STEPS : (epoch + 1) * STEPS] for epoch in range(3)]
        for epoch in epochs:
            np.testing.assert_array_equal(np.sort(epoch), np.arange(STEPS))
        assert not np.array_equal(epochs[0], epochs[1])
        assert not np.array_equal(epochs[0], np.arange(STEPS))

    def test_is_reported(self, tmp_path: Path, numbered: Path) -> None:
        pipeline = {"datasetNumItersPerLearner": 10}
        train(training(tmp_path, numbered, pipeline=pipeline, stop={"iterations": 4}))
        assert [line["coverage"] for line in results(tmp_path)] == [0.32, 0.64, 0.96, 1.0]
        assert [line["epoch"] for line in results(tmp_path)] == [0.32, 0.64, 0.96, 1.28]

    def test_batches_are_the_same_wherever_the_data_live(
        self, tmp_path: Path, numbered: Path, delivered: list[torch.Tensor]
    ) -> None:
        streams = []
        for residency in ("Resident", "Streaming"):
            pipeline = noting(residency=residency, windowSteps=300)
            train(training(tmp_path / residency, numbered, pipeline=pipeline))
            streams.append([batch.tolist() for batch in delivered])
            delivered.clear()
        assert streams[0] == streams[1]
        assert_same_weights(tmp_path / "Resident", tmp_path / "Streaming")

    def test_batches_depend_on_the_seed(
        self, tmp_path: Path, numbered: Path, delivered: list[torch.Tensor]
    ) -> None:
        streams = []
        for run, seed in enumerate((0, 0, 1)):
            train(training(tmp_path / str(run), numbered, pipeline=noting(), seed=seed))
            streams.append([batch.tolist() for batch in delivered])
            delivered.clear()
        assert streams[0] == streams[1]
        assert streams[0][0] != streams[2][0]


class TestBatchesLargerThanTheData:
    def test_are_told(self, tmp_path: Path, numbered: Path, reporter: MemoryReporter) -> None:
        config = {"trainBatchSizePerLearner": 2500}
        train(training(tmp_path, numbered, config=config, stop={"updates": 1}), reporter=reporter)
        note = (
            "spec.config.trainBatchSizePerLearner: a batch has 2,500 timesteps, and the data have 1,000: each is in "
            "every batch 2.5 times on average"
        )
        assert note in reporter.notes

    def test_take_timesteps_again(
        self, tmp_path: Path, numbered: Path, delivered: list[torch.Tensor]
    ) -> None:
        config = {"trainBatchSizePerLearner": 2500}
        train(training(tmp_path, numbered, config=config, stop={"updates": 1}, pipeline=noting()))
        counts = np.bincount(delivered[0].long().numpy(), minlength=STEPS)
        assert set(counts) == {2, 3}

    def test_are_refused_where_no_memory_holds_them(self, tmp_path: Path, numbered: Path) -> None:
        config = {"trainBatchSizePerLearner": 10**14}
        said = (
            r"spec\.config\.trainBatchSizePerLearner: a learner's batch would take [\d.]+ TiB, more than the "
        )
        with pytest.raises(SpecError, match=said):
            train(training(tmp_path, numbered, config=config, stop={"updates": 1}))


class TestStop:
    def last(self, folder: Path, data: Path, stop: dict[str, Any], **spec: Any) -> dict[str, Any]:
        train(training(folder, data, stop=stop, **spec))
        return results(folder)[-1]

    def test_by_iterations(self, tmp_path: Path, numbered: Path) -> None:
        last = self.last(tmp_path, numbered, {"iterations": 2})
        assert last["training_iteration"] == 2
        assert last["num_updates_lifetime"] == 2 * 32  # batches of 32 in 1000 steps, rounded up

    def test_by_updates(self, tmp_path: Path, numbered: Path) -> None:
        last = self.last(tmp_path, numbered, {"updates": 50})
        assert last["num_updates_lifetime"] == 50
        assert last["training_iteration"] == 2

    def test_by_timesteps(self, tmp_path: Path, numbered: Path) -> None:
        last = self.last(tmp_path, numbered, {"timesteps": 1500})
        assert last["num_env_steps_trained_lifetime"] == 1504  # 47 batches of 32

    def test_by_epochs(self, tmp_path: Path, numbered: Path) -> None:
        last = self.last(tmp_path, numbered, {"epochs": 1.5})
        assert last["epoch"] == 1.504

    def test_by_return(self, tmp_path: Path, numbered: Path, walks: Path) -> None:
        train(
            training(
                tmp_path,
                walks,
                environment=WALK,
                evaluation={"interval": 2, "duration": 4},
                stop={"episodeReturnMean": -1.0, "iterations": 9},
            )
        )
        assert [line["training_iteration"] for line in results(tmp_path)] == [1, 2]

    def test_leaves_nothing_to_train(self, tmp_path: Path, numbered: Path) -> None:
        """An iteration without updates is none."""
        trainer = make_offline_trainer(
            training(tmp_path, numbered, stop={"updates": 5}), [Source(str(numbered), open_dataset(numbered))]
        )
        trainer.begin()
        assert trainer.iterate()["num_updates_lifetime"] == 5
        with pytest.raises(
            SpecError, match=r"spec\.stop: the training ended with update 5; raise it to continue"
        ):
            trainer.iterate()
        assert trainer.iteration == 1

    def test_by_whichever_comes_first(self, tmp_path: Path, numbered: Path) -> None:
        last = self.last(tmp_path, numbered, {"updates": 500, "epochs": 30, "iterations": 1})
        assert last["training_iteration"] == 1


class TestCheckpoints:
    pipeline = {"datasetNumItersPerLearner": 2}

    def test_every_and_keep(self, tmp_path: Path, numbered: Path) -> None:
        checkpoint = {"every": 3, "keep": 2}
        train(
            training(
                tmp_path, numbered, pipeline=self.pipeline, checkpoint=checkpoint, stop={"iterations": 10}
            )
        )
        assert checkpoints(tmp_path) == [18, 20]

    def test_the_best_is_kept_besides(self, tmp_path: Path, numbered: Path, walks: Path) -> None:
        outcome = train(
            training(
                tmp_path,
                walks,
                environment=WALK,
                config={"lr": 0.05, "trainBatchSizePerLearner": 32},
                pipeline=self.pipeline,
                evaluation={"interval": 1, "duration": 20},
                checkpoint={"every": 100, "keep": 1},
                stop={"iterations": 12},
            )
        )
        scores = [line["evaluation"]["env_runners"]["episode_return_mean"] for line in results(tmp_path)]
        best = int(np.argmax(scores)) + 1
        assert best < 12, "the seed was chosen so that the last is not the best"
        assert checkpoints(tmp_path) == [2 * best, 24]
        assert outcome.metrics["best"]["score"] == max(scores)
        assert outcome.metrics["best"]["path"].endswith(f"checkpoint-{2 * best:09d}")
        assert_same_weights(outcome.metrics["best"]["path"], tmp_path / "test/r1")

    def test_a_best_checkpoint_that_a_kill_left_unmarked_is_the_best_all_the_same(
        self, tmp_path: Path, walks: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resource = training(
            tmp_path,
            walks,
            environment=WALK,
            config={"lr": 0.05, "trainBatchSizePerLearner": 32},
            pipeline=self.pipeline,
            evaluation={"interval": 1, "duration": 2},
            stop={"iterations": 2},
        )
        with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
            killed.setattr(CheckpointStore, "mark_best", Mock(side_effect=KeyboardInterrupt))
            train(resource)
        score = results(tmp_path)[0]["evaluation"]["env_runners"]["episode_return_mean"]
        monkeypatch.setattr(Trainer, "iterate", Mock(side_effect=Interrupted))
        with pytest.raises(Interrupted):
            train(resource)
        best = CheckpointStore(resolve(tmp_path / "test/r1/checkpoints"))
        assert (best.best().updates, best.best_score()) == (2, score)

    def test_the_message_gives_the_return_of_the_checkpoint_that_it_names(
        self, tmp_path: Path, walks: Path
    ) -> None:
        outcome = train(
            training(
                tmp_path,
                walks,
                environment=WALK,
                config={"lr": 0.05, "trainBatchSizePerLearner": 32},
                pipeline=self.pipeline,
                evaluation={"interval": 1, "duration": 20},
                stop={"iterations": 12},
            )
        )
        assert f"return {outcome.metrics['best']['score']:.1f}" in outcome.message
        assert outcome.metrics["best"]["path"] in outcome.message

    def test_a_policy_comes_out_that_acts(self, tmp_path: Path, walks: Path) -> None:
        outcome = train(training(tmp_path, walks, environment=WALK))
        policy = Policy.load(outcome.metrics["checkpoint"])
        assert policy.action_space.contains(policy(np.zeros(4, np.float32)))
        assert policy.digest == Policy.load(str(tmp_path / "test/r1/module")).digest


def test_the_losses_of_several_optimisers_are_one_in_what_is_told(
    tmp_path: Path, numbered: Path, reporter: MemoryReporter
) -> None:
    resource = training(tmp_path, numbered, algorithm="toy_pipeline:TwoOptimisers", config={})
    outcome = train(resource, reporter=reporter)
    learned = results(tmp_path)[-1]["learners"]["default_policy"]
    assert learned["total_loss"] == pytest.approx(
        learned["total_loss/weights"] + learned["total_loss/biases"]
    )
    assert reporter.stages[-1].metrics["loss"] == outcome.metrics["loss"] == learned["total_loss"]
    assert f"loss {learned['total_loss']:.4g} after" in outcome.message


def test_a_finished_training_without_a_loss_is_told(tmp_path: Path, numbered: Path) -> None:
    """As earlier versions left it behind for several optimisers."""
    train(training(tmp_path, numbered))
    marker = tmp_path / "test/r1/success.json"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"loss": None}))
    assert "is finished already after 96 updates" in train(training(tmp_path, numbered)).message


class TestInterruption:
    """100 updates are 50, a checkpoint and 50 again; see test_faults_training for new processes."""

    pipeline = {"datasetNumItersPerLearner": 30}

    def interrupted(self, folder: Path, data: Path, looks: list[int], **spec: Any) -> None:
        resource = training(folder, data, pipeline=self.pipeline, stop={"updates": 100}, **spec)
        for number in looks:
            with pytest.raises(Interrupted, match=r"interrupted at update \d+; run the same command again"):
                train(resource, StopAfter(number))
        assert train(resource).state == "Succeeded"

    @pytest.mark.parametrize("looks", [[50], [0], [30], [60, 30], [1, 1, 1]], ids=str)
    def test_changes_nothing(self, tmp_path: Path, numbered: Path, looks: list[int]) -> None:
        config = {"lr": [[0, 1e-3], [3200, 1e-5]], "trainBatchSizePerLearner": 32, "gradClip": 0.5}
        train(
            training(
                tmp_path / "whole", numbered, pipeline=self.pipeline, config=config, stop={"updates": 100}
            )
        )
        self.interrupted(tmp_path / "parts", numbered, looks, config=config)
        assert_same_weights(tmp_path / "whole", tmp_path / "parts")
        assert without_times(results(tmp_path / "whole")) == without_times(results(tmp_path / "parts"))

    def test_changes_nothing_with_filters_and_stacks(self, tmp_path: Path, walks: Path) -> None:
        model = {"fcnetHiddens": [16], "observationFilter": "MeanStd", "frameStack": 3}
        train(training(tmp_path / "whole", walks, pipeline=self.pipeline, model=model, stop={"updates": 100}))
        self.interrupted(tmp_path / "parts", walks, [45], model=model)
        assert_same_weights(tmp_path / "whole", tmp_path / "parts")

    def test_of_a_finished_one_is_not_possible(self, tmp_path: Path, numbered: Path) -> None:
        train(training(tmp_path, numbered))
        assert train(training(tmp_path, numbered), StopAfter(0)).state == "AlreadyFinished"


class TestGoingOn:
    """A training of more updates makes those of a shorter one first."""

    pipeline = {"datasetNumItersPerLearner": 30}

    def test_after_the_end_is_as_if_asked_for_from_the_start(self, tmp_path: Path, numbered: Path) -> None:
        config = {"lr": [[0, 1e-3], [3200, 1e-5]], "trainBatchSizePerLearner": 32}

        def to(folder: str, updates: int) -> str:
            stop = {"updates": updates}
            return train(
                training(tmp_path / folder, numbered, pipeline=self.pipeline, config=config, stop=stop)
            ).state

        assert to("whole", 100) == "Succeeded"
        # 40 and 75 end in mid-iteration, 60 with one.
        assert [to("parts", updates) for updates in (40, 60, 75, 100)] == ["Succeeded"] * 4
        assert to("parts", 100) == "AlreadyFinished"
        assert_same_weights(tmp_path / "whole", tmp_path / "parts")
        whole, parts = results(tmp_path / "whole"), results(tmp_path / "parts")
        assert [line["num_updates_lifetime"] for line in parts] == [30, 60, 90, 100]
        assert without_times(parts) == without_times(whole)

    @pytest.mark.parametrize("keep", [1, 3])
    @pytest.mark.parametrize(
        "evaluation",
        [
            {"duration": 5},
            {"interval": 1, "duration": 5},
            {"interval": 2, "duration": 5},
            {"offline": {"heldOut": 0.4, "estimates": ["wis"], "explore": True}},
            {"offline": {"heldOut": 0.4, "estimates": ["wis"], "explore": True, "interval": 1}},
        ],
        ids=["at the end", "of each", "of every other", "estimated at the end", "estimated of each"],
    )
    def test_forgets_what_only_the_end_evaluated(
        self, tmp_path: Path, walks: Path, evaluation: dict[str, Any], keep: int
    ) -> None:
        # 8 and 16 end with an iteration, the others in one; 10 is better than all of these.
        self.assert_as_whole(tmp_path, walks, (6, 8, 10, 16), evaluation, keep)

    @pytest.mark.slow
    @pytest.mark.parametrize("keep", [1, 3])
    @pytest.mark.parametrize("interval", [1, 2])
    def test_repeats_the_evaluation_that_an_iteration_cut_short_used(
        self, tmp_path: Path, walks: Path, interval: int, keep: int
    ) -> None:
        evaluation = {"interval": interval, "duration": 5, "parallelToTraining": True}
        self.assert_as_whole(tmp_path, walks, (6, 8, 11), evaluation, keep)

    @pytest.mark.parametrize("raised", [6, 14])
    @pytest.mark.parametrize(
        "evaluation",
        [{"duration": 5}, {"interval": 1, "duration": 5}],
        ids=["at the end", "of each"],
    )
    def test_after_a_kill_at_the_end_is_as_if_there_was_none(
        self,
        tmp_path: Path,
        walks: Path,
        monkeypatch: pytest.MonkeyPatch,
        evaluation: dict[str, Any],
        raised: int,
    ) -> None:
        """Before the last weights are marked, and after."""
        mark, calls, last = CheckpointStore.mark_best, iter(range(99)), int("interval" in evaluation)

        def killed(*given: Any, **named: Any) -> bool:
            number = next(calls)
            is_best = number != last and mark(*given, **named)
            if number >= last:
                raise KeyboardInterrupt
            return is_best

        for _ in range(2):
            with monkeypatch.context() as kill, pytest.raises(KeyboardInterrupt):
                kill.setattr(CheckpointStore, "mark_best", killed)
                train(self.evaluated(tmp_path / "parts", walks, 6, evaluation))
        self.assert_as_whole(tmp_path, walks, (raised,), evaluation)

    def evaluated(
        self, folder: Path, data: Path, updates: int, evaluation: dict[str, Any], keep: int = 3
    ) -> OfflineTraining:
        """A training in iterations of 4 updates, of which each makes another policy."""
        return training(
            folder,
            data,
            environment=WALK,
            config={"lr": 0.05, "trainBatchSizePerLearner": 32},
            pipeline={"datasetNumItersPerLearner": 4},
            evaluation=evaluation,
            checkpoint={"keep": keep},
            stop={"updates": updates},
        )

    def assert_as_whole(
        self, folder: Path, data: Path, ends: Sequence[int], evaluation: dict[str, Any], keep: int = 3
    ) -> None:
        """That a training that is raised to each of these ends is at each as if it had been asked for that one."""
        for end in ends:
            whole = folder / f"to {end}"
            said = [
                train(self.evaluated(each, data, end, evaluation, keep)).metrics
                for each in (folder / "parts", whole)
            ]
            best = [
                each["best"] and {**each["best"], "path": Path(each["best"]["path"]).name} for each in said
            ]
            assert best[0] == best[1]
            assert without_times(results(folder / "parts")) == without_times(results(whole))
            assert_same_weights(folder / "parts", whole)
            assert_same_weights(folder / "parts/test/r1", whole / "test/r1")

    def test_after_an_interruption(self, tmp_path: Path, numbered: Path, reporter: MemoryReporter) -> None:
        train(training(tmp_path / "whole", numbered, stop={"updates": 100}))
        with pytest.raises(Interrupted):
            train(training(tmp_path / "parts", numbered, stop={"updates": 50}), StopAfter(20))
        train(training(tmp_path / "parts", numbered, stop={"updates": 100}), reporter=reporter)
        assert reporter.notes[-1].startswith("resuming at update 20")
        assert_same_weights(tmp_path / "whole", tmp_path / "parts")

    def test_with_another_evaluation(self, tmp_path: Path, walks: Path) -> None:
        folder: dict[str, Any] = {"environment": WALK, "pipeline": self.pipeline}
        train(training(tmp_path, walks, stop={"iterations": 1}, **folder))
        evaluation = {"interval": 1, "duration": 2}
        train(training(tmp_path, walks, stop={"iterations": 2}, evaluation=evaluation, **folder))
        assert ["evaluation" in line for line in results(tmp_path)] == [False, True]

    @pytest.mark.parametrize(
        ("first", "then"),
        [
            ({"interval": 1, "duration": 1}, {"interval": 1, "duration": 20, "explore": True}),
            (
                {"offline": {"heldOut": 0.4, "interval": 1, "estimates": ["dm"], "modelUpdates": 300}},
                {
                    "offline": {
                        "heldOut": 0.4,
                        "interval": 1,
                        "estimates": ["dm"],
                        "modelUpdates": 300,
                        "gamma": 0,
                    }
                },
            ),
        ],
        ids=["returns", "estimates"],
    )
    def test_with_another_evaluation_chooses_among_those_measured_by_it(
        self, tmp_path: Path, walks: Path, first: dict[str, Any], then: dict[str, Any]
    ) -> None:
        before = train(self.evaluated(tmp_path, walks, 12, first)).metrics["best"]
        after = train(self.evaluated(tmp_path, walks, 20, then)).metrics["best"]
        assert before["score"] > after["score"]
        assert find_checkpoint(after["path"]).updates > 12

    def test_with_another_evaluation_forgets_what_a_kill_left_unmarked(
        self, tmp_path: Path, walks: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as kill, pytest.raises(KeyboardInterrupt):
            kill.setattr(CheckpointStore, "mark_best", Mock(side_effect=KeyboardInterrupt))
            train(self.evaluated(tmp_path, walks, 12, {"interval": 1, "duration": 1}))
        monkeypatch.setattr(Trainer, "iterate", Mock(side_effect=Interrupted))
        with pytest.raises(Interrupted):
            train(self.evaluated(tmp_path, walks, 12, {"interval": 1, "duration": 20}))
        assert CheckpointStore(resolve(tmp_path / "test/r1/checkpoints")).best() is None

    def test_to_an_end_that_was_reached_before_makes_no_update(self, tmp_path: Path, numbered: Path) -> None:
        train(training(tmp_path, numbered, stop={"updates": 60}))
        outcome = train(training(tmp_path, numbered, stop={"updates": 50}))
        assert (outcome.state, outcome.metrics["updates"]) == ("Succeeded", 60)

    def test_is_refused_where_more_is_changed(self, tmp_path: Path, numbered: Path) -> None:
        train(training(tmp_path, numbered, stop={"updates": 10}))
        with pytest.raises(OutputConflict, match=r"raise spec\.revision"):
            train(training(tmp_path, numbered, stop={"updates": 20}, seed=1))
        assert train(training(tmp_path, numbered, stop={"updates": 10})).state == "AlreadyFinished"

    def test_keeps_the_global_batch_that_it_began_with(self, tmp_path: Path, numbered: Path) -> None:
        began = training(tmp_path, numbered, learners={"replicas": 2}, stop={"updates": 10})
        longer = training(tmp_path, numbered, stop={"updates": 20})
        state = resolve(tmp_path / "run")
        claim(state, began, has_progress=False)
        assert claim(state, longer, has_progress=True)
        assert first_learners(state, longer) == 2
        assert claimed_hashes(state) == {spec_hash(began), spec_hash(longer)}


class TestFolder:
    def test_is_finished_by_the_last_write(
        self, tmp_path: Path, numbered: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What fails at the end of a training must not leave one that counts as finished."""

        def fails(**_: object) -> None:
            raise ValueError("told badly")

        monkeypatch.setattr("hindcast.run.training.Outcome", fails)
        with pytest.raises(ValueError, match="told badly"):
            train(training(tmp_path, numbered))
        assert not (tmp_path / "test/r1/success.json").exists()

    def test_a_longer_training_drops_the_report_of_the_shorter_one(
        self, tmp_path: Path, numbered: Path
    ) -> None:
        """The new report follows the marker: without it the old one would pass for that of the new weights."""
        train(training(tmp_path, numbered, stop={"updates": 10}))
        report = tmp_path / "test/r1/report.html"
        report.write_text("of 10 updates")
        assert train(training(tmp_path, numbered, stop={"updates": 10})).state == "AlreadyFinished"
        assert report.exists()
        train(training(tmp_path, numbered, stop={"updates": 20}))
        assert not report.exists()

    def test_finished_work_stays_finished(
        self, tmp_path: Path, numbered: Path, reporter: MemoryReporter
    ) -> None:
        first = train(training(tmp_path, numbered))
        second = train(training(tmp_path, numbered), reporter=reporter)
        assert second.state == "AlreadyFinished"
        assert second.metrics["checkpoint"] == first.metrics["checkpoint"]
        assert reporter.stages == []

    def test_of_another_spec_is_refused(self, tmp_path: Path, numbered: Path) -> None:
        train(training(tmp_path, numbered))
        with pytest.raises(OutputConflict, match=r"\(spec\.seed: 0 → 1\): undo that, raise spec\.revision"):
            train(training(tmp_path, numbered, seed=1))

    def test_that_lost_its_spec_is_known_by_its_checkpoint(self, tmp_path: Path, numbered: Path) -> None:
        with pytest.raises(Interrupted):
            train(training(tmp_path, numbered), StopAfter(5))
        (tmp_path / "test/r1/spec.json").unlink()
        with pytest.raises(
            OutputConflict, match=r"checkpoint-000000005 was written with spec hash .*: raise spec"
        ):
            train(training(tmp_path, numbered, config={"lr": 0.5}))

    def test_a_higher_revision_has_a_folder_of_its_own(self, tmp_path: Path, numbered: Path) -> None:
        train(training(tmp_path, numbered))
        assert train(training(tmp_path, numbered, seed=1, revision=2)).folder == str(tmp_path / "test/r2")

    def test_that_another_process_writes_to(self, tmp_path: Path, numbered: Path) -> None:
        with (
            sole_writer(resolve(tmp_path / "test/r1")),
            pytest.raises(OutputConflict, match="another process is writing"),
        ):
            train(training(tmp_path, numbered))

    def test_nothing_temporary_is_left(self, tmp_path: Path, numbered: Path) -> None:
        with pytest.raises(Interrupted):
            train(training(tmp_path, numbered), StopAfter(40))
        run = tmp_path / "test/r1"
        (run / ".results.jsonl.01234567.tmp").write_text("half")
        (run / "checkpoints/checkpoint-000000035/module").mkdir(parents=True)
        (run / "checkpoints/checkpoint-000000035/module/.weights.safetensors.01234567.tmp").write_text("half")
        train(training(tmp_path, numbered))
        assert checkpoints(tmp_path) == [40, 96]
        assert [path for path in run.rglob("*") if path.suffix == ".tmp" or path.name == "lock"] == []

    def test_data_that_changed_are_not_gone_on_with(self, tmp_path: Path, numbered: Path) -> None:
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

    def test_in_memory(self, tmp_path: Path, memory_path: str, numbered: Path) -> None:
        with pytest.raises(Interrupted):
            train(training(memory_path, numbered), StopAfter(40))
        train(training(memory_path, numbered))
        train(training(tmp_path, numbered))
        policy = Policy.load(f"{memory_path}/test/r1/module")
        assert policy.digest == Policy.load(str(tmp_path / "test/r1/module")).digest
        lines = resolve(f"{memory_path}/test/r1/results.jsonl").read_bytes().splitlines()
        assert without_times(list(map(json.loads, lines))) == without_times(results(tmp_path))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}"])
def test_a_run_whose_mark_is_damaged_is_refused(tmp_path: Path, walks: Path, content: bytes) -> None:
    resource = training(tmp_path, walks, stop={"updates": 2})
    train(resource)
    (tmp_path / "test/r1/spec.json").write_bytes(content)
    with pytest.raises(DataError, match=r"test/r1/spec\.json, which says whose the folder is, is damaged"):
        train(resource)


class TestInitialCheckpoint:
    def start(self, folder: Path, data: Path, path: Path, **spec: Any) -> None:
        config = {"lr": 1e-30, "trainBatchSizePerLearner": 32}
        train(training(folder, data, config=config, initialCheckpoint=str(path), **spec))

    def test_gives_the_weights_to_begin_with(self, tmp_path: Path, walks: Path) -> None:
        policy = make_policy(WALK, seed=5)
        policy.save(tmp_path / "policy")
        self.start(tmp_path / "runs", walks, tmp_path / "policy")
        begun, given = weights(tmp_path / "runs"), dict(policy.module.named_parameters())
        assert begun
        for name, value in begun.items():
            np.testing.assert_array_equal(value, given[name].detach().numpy())

    def test_gives_the_filter_too(self, tmp_path: Path, walks: Path) -> None:
        policy = make_policy(WALK, observationFilter="MeanStd")
        policy.preprocessing.update({"obs": np.arange(40, dtype=np.float32).reshape(10, 4)})
        policy.save(tmp_path / "policy")
        model = {"fcnetHiddens": [16], "observationFilter": "MeanStd"}
        self.start(tmp_path / "runs", walks, tmp_path / "policy", model=model)
        trained = Policy.load(str(tmp_path / "runs/test/r1/module"))
        for name, numbers in policy.preprocessing.state().items():
            np.testing.assert_array_equal(trained.preprocessing.state()[name], numbers)

    @pytest.mark.parametrize(
        "model",
        [
            {"fcnetHiddens": [32]},
            {"fcnetHiddens": [16, 16]},
            {"fcnetHiddens": [16], "headFcnetHiddens": [8]},
            {"fcnetHiddens": [16], "observationFilter": "MeanStd"},
            {"fcnetHiddens": [16], "frameStack": 2},
            {"fcnetHiddens": [16], "fcnetActivation": "relu"},
        ],
        ids=str,
    )
    def test_of_another_model_is_refused(self, tmp_path: Path, walks: Path, model: dict[str, Any]) -> None:
        make_policy(WALK).save(tmp_path / "policy")
        with pytest.raises(SpecError, match=r"spec\.initialCheckpoint: .*model"):
            self.start(tmp_path / "runs", walks, tmp_path / "policy", model=model)

    @pytest.mark.parametrize(
        ("model", "difference"),
        [
            ({"fcnetHiddens": [32]}, r"has model\.fcnetHiddens \[16\], this one has \[32\]"),
            (
                {"fcnetHiddens": [16], "headFcnetHiddens": [8]},
                r"has model\.headFcnetHiddens \[\], this one has \[8\]",
            ),
            ({"fcnetHiddens": [16], "recurrent": "GRU"}, r"has model\.recurrent None, this one has GRU"),
        ],
    )
    def test_of_other_sizes_names_the_option(
        self, tmp_path: Path, walks: Path, model: dict[str, Any], difference: str
    ) -> None:
        make_policy(WALK).save(tmp_path / "policy")
        with pytest.raises(SpecError, match=f"{difference}; the model sections must be the same"):
            self.start(tmp_path / "runs", walks, tmp_path / "policy", model=model)

    @pytest.mark.parametrize(
        ("before", "after", "sentence"),
        [
            (
                ("BC", {}),
                ("DQN", {}),
                r"test/r1 holds an action distribution that BC trained, and DQN trains action values: start from a "
                r"checkpoint of DQN or DiscreteCQL, or leave it out",
            ),
            (
                ("DiscreteCQL", {}),
                ("BC", {}),
                r"action values that DiscreteCQL trained, and BC trains an action distribution: .* of BC, .* or TD3BC,",
            ),
            (
                ("DQN", {"dueling": False}),
                ("DQN", {"numQuantiles": 3}),
                r"test/r1 has config\.dueling False, this one has True; the config sections must be the same",
            ),
        ],
        ids=["BC-DQN", "DiscreteCQL-BC", "DQN-DQN"],
    )
    def test_of_another_kind_of_policy_is_refused(
        self, tmp_path: Path, walks: Path, before: Any, after: Any, sentence: str
    ) -> None:
        algorithm, config = before
        train(training(tmp_path / "before", walks, algorithm=algorithm, config=config, stop={"updates": 1}))
        algorithm, config = after
        start = {
            "algorithm": algorithm,
            "config": config,
            "initialCheckpoint": str(tmp_path / "before/test/r1"),
        }
        with pytest.raises(SpecError, match=rf"^spec\.initialCheckpoint: .*{sentence}"):
            train(training(tmp_path / "after", walks, **start))

    def test_of_another_kind_that_was_saved_by_itself(self, tmp_path: Path, walks: Path) -> None:
        make_policy(WALK).save(tmp_path / "policy")
        with pytest.raises(
            SpecError, match="policy holds an action distribution, and DQN trains action values: "
        ):
            train(
                training(
                    tmp_path, walks, algorithm="DQN", config={}, initialCheckpoint=str(tmp_path / "policy")
                )
            )

    def test_of_another_distribution_is_refused(self, tmp_path: Path, walks: Path) -> None:
        """Whose weights have the same shapes."""
        environment = {"id": "toy_environments:Steered"}
        make_policy(environment).save(tmp_path / "policy")
        given = {"algorithm": "SAC", "config": {}, "environment": environment, "input": [{"sampler": {}}]}
        with pytest.raises(SpecError, match=r"has model\.distribution Auto, this one has SquashedGaussian"):
            train(training(tmp_path, walks, initialCheckpoint=str(tmp_path / "policy"), **given))

    def test_of_other_spaces_is_refused(self, tmp_path: Path, walks: Path) -> None:
        make_policy({"id": "toy_environments:Continuous"}).save(tmp_path / "policy")
        with pytest.raises(
            SpecError, match=r"policy is for the observation space Box\(.*, this training's is Box\("
        ):
            self.start(tmp_path / "runs", walks, tmp_path / "policy")

    @pytest.mark.parametrize(("place", "gives_all"), [("r1", True), ("r1/module", False)])
    @pytest.mark.parametrize(
        "start",
        [
            ("CQL", {"numActions": 2, "lagrangian": True}, "SAC", {"critics", "target_critics", "alpha"}),
            ("IQL", {}, "SAC", {"critics", "target_critics"}),
            ("DiscreteCQL", {}, "DQN", {"target"}),
        ],
        ids=lambda start: f"{start[0]}-{start[2]}",
    )
    def test_gives_other_networks_of_equal_shapes_too(
        self, start: tuple[str, dict[str, Any], str, set[str]], place: str, gives_all: bool, tmp_path: Path
    ) -> None:
        """To an algorithm that then plays; a policy saved by itself has none."""
        offline, config, online, shared = start
        environment = WALK if online == "DQN" else {"id": "toy_environments:Steered"}
        record(recording(tmp_path / "data", environment=environment))
        model = {"fcnetHiddens": [8]} | ({"distribution": "SquashedGaussian"} if offline == "IQL" else {})
        given = {"algorithm": offline, "config": config, "model": model, "stop": {"updates": 3}}
        train(training(tmp_path / "offline", tmp_path / "data", **given))
        plays = {"algorithm": online, "config": {}, "environment": environment, "input": [{"sampler": {}}]}
        plays["initialCheckpoint"] = str(tmp_path / "offline/test" / place)
        trainer = make_offline_trainer(training(tmp_path, "", model=model, **plays), [])
        trainer.begin()
        nets = trainer.learner.nets
        theirs = find_checkpoint(tmp_path / "offline/test/r1/checkpoints").learner_state().tensors
        assert shared < set(nets)
        for name, tensor in nets.state_dict().items():
            taken = name.startswith("policy.") or (gives_all and name.split(".")[0] in shared)
            assert torch.equal(tensor, theirs.get(f"nets/{name}", torch.empty(0))) == taken, name

    def test_gives_target_networks_what_the_policy_alone_has(self, tmp_path: Path, walks: Path) -> None:
        """DQN would otherwise learn towards the values of its first, random weights."""
        train(training(tmp_path / "offline", walks, algorithm="DQN", config={}, stop={"updates": 3}))
        start = str(tmp_path / "offline/test/r1/module")
        plays = {"algorithm": "DQN", "config": {}, "environment": WALK, "input": [{"sampler": {}}]}
        trainer = make_offline_trainer(training(tmp_path, "", initialCheckpoint=start, **plays), [])
        trainer.begin()
        policy, target = (trainer.learner.nets[name] for name in ("policy", "target"))
        for name, tensor in target.state_dict().items():
            assert torch.equal(tensor, policy.values.state_dict()[name]), name

    def test_that_is_not_there(self, tmp_path: Path, walks: Path) -> None:
        with pytest.raises(DataError, match=r"spec\.initialCheckpoint: .*nowhere"):
            self.start(tmp_path / "runs", walks, tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("evaluation", "equal", "other"),
    [
        (
            {"interval": 2},
            {"interval": 5, "parallelToTraining": True, "runners": 2, "duration": 10},
            [
                {"interval": 2, **given}
                for given in ({"duration": 20}, {"explore": True}, {"customFunction": "toy_pipeline:judge"})
            ],
        ),
        (
            {"offline": {"heldOut": 0.4, "estimates": ["dm"]}},
            {"offline": {"heldOut": 0.4, "estimates": ["dm", "is"], "interval": 3}, "duration": 20},
            [
                {"offline": {"heldOut": 0.4, "estimates": ["dm"], **given}}
                for given in ({"gamma": 0.5}, {"explore": True}, {"clip": 2}, {"modelUpdates": 5})
            ],
        ),
    ],
    ids=["return", "estimate"],
)
def test_how_a_metric_is_measured_does_not_depend_on_when_or_where(
    tmp_path: Path, evaluation: dict[str, Any], equal: dict[str, Any], other: list[dict[str, Any]]
) -> None:
    words = [
        measurement_hash(training(tmp_path, "data", environment=WALK, evaluation=given).spec)
        for given in (evaluation, equal, *other)
    ]
    assert words[0] == words[1]
    assert len(set(words)) == 1 + len(other)


def evaluations(folder: Path) -> dict[int, tuple[int, dict[str, Any]]]:
    """Evaluated iteration -> (iteration that used the result, result)."""
    found = [line for line in results(folder) if "evaluation" in line]
    return {
        line["evaluation"]["training_iteration"]: (
            line["training_iteration"],
            line["evaluation"]["env_runners"],
        )
        for line in found
    }


EVALUATED = {
    "environment": WALK,
    "config": {"lr": 0.05, "trainBatchSizePerLearner": 32},
    "pipeline": {"datasetNumItersPerLearner": 2},
    "stop": {"iterations": 8},
}


@pytest.fixture(scope="module")
def sequential(tmp_path_factory: pytest.TempPathFactory, walks: Path) -> Path:
    """A training evaluated in its own process every 3 iterations."""
    folder = tmp_path_factory.mktemp("sequential")
    train(training(folder, walks, **EVALUATED, evaluation={"interval": 3, "duration": 20}))
    return folder


@pytest.mark.slow
class TestEvaluation:
    def test_at_its_interval(self, sequential: Path) -> None:
        found = evaluations(sequential)
        assert {evaluated: used for evaluated, (used, _) in found.items()} == {3: 3, 6: 6}
        assert all(report["num_episodes"] == 20 for _, report in found.values())
        assert found[3][1]["episode_return_mean"] != found[6][1]["episode_return_mean"]

    def test_beside_training_gives_the_same_one_iteration_later(
        self, tmp_path: Path, walks: Path, sequential: Path
    ) -> None:
        evaluation = {"interval": 3, "duration": 20, "parallelToTraining": True, "runners": 2}
        outcome = train(training(tmp_path, walks, **EVALUATED, evaluation=evaluation))
        found, expected = evaluations(tmp_path), evaluations(sequential)
        assert {evaluated: used for evaluated, (used, _) in found.items()} == {3: 4, 6: 7}
        assert [report for _, report in found.values()] == [report for _, report in expected.values()]
        assert_same_weights(tmp_path, sequential)
        best = max(found, key=lambda evaluated: found[evaluated][1]["episode_return_mean"])
        assert outcome.metrics["best"]["path"].endswith(f"checkpoint-{2 * best:09d}")
        assert outcome.metrics["best"]["score"] == found[best][1]["episode_return_mean"]

    def test_a_checkpoint_says_the_return_of_its_own_weights(self, tmp_path: Path, walks: Path) -> None:
        evaluation = {"interval": 1, "duration": 20, "parallelToTraining": True}
        train(training(tmp_path, walks, **EVALUATED, evaluation=evaluation, checkpoint={"keep": 20}))
        for updates in checkpoints(tmp_path):
            file = tmp_path / f"test/r1/checkpoints/checkpoint-{updates:09d}/checkpoint.json"
            said = json.loads(file.read_text())["training"]["metrics"].get("episode_return_mean")
            own = evaluations(tmp_path)[updates // 2][1]["episode_return_mean"]
            assert said in (None, own)

    def test_the_last_one_beside_training_is_waited_for(self, tmp_path: Path, walks: Path) -> None:
        evaluation = {"interval": 4, "duration": 20, "parallelToTraining": True}
        train(training(tmp_path, walks, **EVALUATED, evaluation=evaluation))
        assert sorted(evaluations(tmp_path)) == [4, 8]

    def test_the_last_one_is_not_lost_by_a_kill_after_the_last_checkpoint(
        self, tmp_path: Path, walks: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        evaluation = {"interval": 4, "duration": 20, "parallelToTraining": True}
        resource = training(tmp_path, walks, **EVALUATED, evaluation=evaluation)
        append = ResultsLog.append

        def killed(log: ResultsLog, result: dict[str, Any]) -> None:
            if "learners" not in result:
                raise KeyboardInterrupt
            append(log, result)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(ResultsLog, "append", killed)
            train(resource)
        assert sorted(evaluations(tmp_path)) == [4]
        train(resource)
        assert sorted(evaluations(tmp_path)) == [4, 8]

    @pytest.mark.parametrize("looks", [7, 8, 13])
    def test_under_way_when_interrupted_is_begun_again(
        self, tmp_path: Path, walks: Path, sequential: Path, looks: int
    ) -> None:
        evaluation = {"interval": 3, "duration": 20, "parallelToTraining": True}
        resource = training(tmp_path, walks, **EVALUATED, evaluation=evaluation)
        with pytest.raises(Interrupted):
            train(resource, StopAfter(looks))
        train(resource)
        found, expected = evaluations(tmp_path), evaluations(sequential)
        assert {evaluated: used for evaluated, (used, _) in found.items()} == {3: 4, 6: 7}
        assert [report for _, report in found.values()] == [report for _, report in expected.values()]

    def test_without_an_interval_it_comes_at_the_end(self, tmp_path: Path, walks: Path) -> None:
        outcome = train(training(tmp_path, walks, **EVALUATED, evaluation={"duration": 20}))
        assert {evaluated: used for evaluated, (used, _) in evaluations(tmp_path).items()} == {8: 8}
        assert outcome.metrics["best"]["path"] == outcome.metrics["checkpoint"]

    def test_without_an_interval_beside_training(self, tmp_path: Path, walks: Path) -> None:
        evaluation = {"duration": 20, "parallelToTraining": True}
        train(training(tmp_path, walks, **EVALUATED, evaluation=evaluation))
        assert {evaluated: used for evaluated, (used, _) in evaluations(tmp_path).items()} == {8: 8}

    def test_with_runners_but_not_beside_training(
        self, tmp_path: Path, walks: Path, sequential: Path
    ) -> None:
        evaluation = {"interval": 3, "duration": 20, "runners": 2}
        train(training(tmp_path, walks, **EVALUATED, evaluation=evaluation))
        assert evaluations(tmp_path) == evaluations(sequential)

    def test_as_long_as_an_iteration_takes(self, tmp_path: Path, walks: Path) -> None:
        evaluation = {"interval": 2, "duration": "Auto", "parallelToTraining": True, "envsPerRunner": 4}
        train(training(tmp_path, walks, **EVALUATED, evaluation=evaluation))
        for _, report in evaluations(tmp_path).values():
            assert report["num_episodes"] >= 4
            assert report["num_episodes"] % 4 == 0

    def test_by_a_runner_that_is_killed_is_done_again(
        self, tmp_path: Path, walks: Path, sequential: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The environment kills its process, once."""
        monkeypatch.setenv("TOY_KILL_ONCE", str(tmp_path / "killed"))
        (tmp_path / "killed").touch()
        spec = {**EVALUATED, "environment": {"id": "toy_environments:Deadly"}}
        evaluation = {"interval": 3, "duration": 20, "parallelToTraining": True}
        train(training(tmp_path, walks, **spec, evaluation=evaluation))
        assert not (tmp_path / "killed").exists()
        found, expected = evaluations(tmp_path), evaluations(sequential)
        assert [report for _, report in found.values()] == [report for _, report in expected.values()]

    def test_of_timesteps(self, tmp_path: Path, walks: Path) -> None:
        evaluation = {"interval": 8, "duration": 50, "durationUnit": "Timesteps"}
        train(training(tmp_path, walks, **EVALUATED, evaluation=evaluation))
        assert evaluations(tmp_path)[8][1]["num_env_steps"] >= 50

    def test_that_takes_too_long_is_left_out(
        self, tmp_path: Path, walks: Path, reporter: MemoryReporter
    ) -> None:
        evaluation = {
            "interval": 4,
            "duration": 5000,  # seconds of work
            "parallelToTraining": True,
            "sampleTimeoutSeconds": 1e-6,
        }
        train(training(tmp_path, walks, **EVALUATED, evaluation=evaluation), reporter=reporter)
        assert evaluations(tmp_path) == {}
        assert any("sampleTimeoutSeconds" in note for note in reporter.notes)

    @pytest.mark.parametrize("parallel", [False, True])
    def test_of_an_environment_that_falls_over(self, tmp_path: Path, walks: Path, parallel: bool) -> None:
        spec = {**EVALUATED, "environment": {"id": "toy_environments:Wrong", "kwargs": {"what": "step"}}}
        evaluation = {"interval": 1, "duration": 4, "parallelToTraining": parallel}
        with pytest.raises(UserCodeError, match=r"toy_environments\.py:\d+: the simulator fell over"):
            train(training(tmp_path, walks, **spec, evaluation=evaluation))


class TestEvaluationFunction:
    def test_is_used(self, tmp_path: Path, walks: Path) -> None:
        evaluation = {
            "interval": 4,
            "customFunction": "toy_pipeline:judge",
        }
        outcome = train(training(tmp_path, walks, **EVALUATED, evaluation=evaluation))
        norms = {
            evaluated: report["episode_return_mean"]
            for evaluated, (_, report) in evaluations(tmp_path).items()
        }
        assert sorted(norms) == [4, 8]
        final = sum(float((value.astype(np.float64) ** 2).sum()) for value in weights(tmp_path).values())
        assert norms[8] == pytest.approx(final)
        assert outcome.metrics["best"]["score"] == max(norms.values())

    def test_may_give_no_return(self, tmp_path: Path, walks: Path) -> None:
        evaluation = {
            "interval": 4,
            "customFunction": "toy_pipeline:judge_nothing",
        }
        outcome = train(training(tmp_path, walks, **EVALUATED, evaluation=evaluation))
        assert outcome.metrics["best"] is None
        assert evaluations(tmp_path)[8][1] == {"episode_len_mean": 1.0}

    def test_that_raises_is_one_sentence(self, tmp_path: Path, walks: Path) -> None:
        evaluation = {
            "interval": 4,
            "customFunction": "toy_pipeline:judge_badly",
        }
        with pytest.raises(UserCodeError, match=r"judge_badly.*toy_pipeline\.py:\d+: no episodes at all"):
            train(training(tmp_path, walks, **EVALUATED, evaluation=evaluation))

    def test_that_is_not_there(self, tmp_path: Path, walks: Path) -> None:
        evaluation = {"interval": 4, "customFunction": "toy_pipeline:nothing"}
        with pytest.raises(SpecError, match=r"customFunction.*has no 'nothing'"):
            train(training(tmp_path, walks, **EVALUATED, evaluation=evaluation))

    def test_beside_training_is_refused(self, tmp_path: Path, walks: Path) -> None:
        evaluation = {"interval": 4, "customFunction": "toy_pipeline:judge", "parallelToTraining": True}
        with pytest.raises(SpecError, match="customFunction with parallelToTraining"):
            training(tmp_path, walks, **EVALUATED, evaluation=evaluation)
