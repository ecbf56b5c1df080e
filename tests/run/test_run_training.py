"""What a training delivers, remembers and leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch

from hindcast.api import OfflineTraining
from hindcast.errors import Interrupted, OutputConflict
from hindcast.evaluate.environment import EnvEvaluator
from hindcast.learn.checkpoint import CheckpointStore, find_checkpoint
from hindcast.models.policy import Policy
from hindcast.run.evaluations import Evaluations
from hindcast.run.results import read_results
from hindcast.run.session import TrainingSession
from hindcast.run.training import run_folder
from hindcast.store.filesystem import resolve
from support import CARTPOLE, WALK, After, Heard, read_all, record, recording, train, training

TIMINGS = ("time_total_s", "timesteps_per_s", "timers")


def session_of(resource: OfflineTraining) -> TrainingSession:
    return TrainingSession(resource, [(str(source.path), source.weight) for source in resource.spec.input])


def batches(resource: OfflineTraining, count: int) -> list[dict[str, torch.Tensor]]:
    session = session_of(resource)
    try:
        return [session.data.next() for _ in range(count)]
    finally:
        session.close()


def results_of(resource: OfflineTraining) -> list[dict[str, Any]]:
    """The results without what depends on the clock."""
    return [
        {key: value for key, value in result.items() if key not in TIMINGS}
        for result in read_results(run_folder(resource))
    ]


def same_tensors(one: Path, other: Path) -> bool:
    """Whether the two run folders end with the same weights, optimiser and randomness, bit for bit."""
    latest = [CheckpointStore(resolve(folder / "checkpoints")).latest() for folder in (one, other)]
    states = [checkpoint.learner_state().tensors for checkpoint in latest if checkpoint]
    assert len(states) == 2
    return states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][name], states[1][name]) for name in states[0]
    )


@pytest.mark.parametrize("residency", ["Resident", "Streaming"])
def test_an_epoch_delivers_each_recorded_timestep_once(walks: Path, tmp_path: Path, residency: str) -> None:
    recorded = read_all(walks)
    pipeline = {"residency": residency, "windowSteps": 100}
    config = {"trainBatchSizePerLearner": 1}
    resource = training(tmp_path, walks, pipeline=pipeline, config=config)
    delivered = torch.cat([batch["obs"] for batch in batches(resource, recorded.num_steps)]).numpy()
    observed = recorded.columns["obs"][recorded.obs_row]
    assert len(delivered) == len(observed)
    assert np.array_equal(np.unique(delivered, axis=0), np.unique(observed, axis=0))
    assert len(np.unique(delivered[:, :2], axis=0)) == recorded.num_steps


def test_the_same_seed_gives_the_same_batches_wherever_the_data_are(walks: Path, tmp_path: Path) -> None:
    def of(seed: int, residency: str) -> torch.Tensor:
        pipeline = {"residency": residency, "windowSteps": 100}
        return torch.cat(
            [b["obs"] for b in batches(training(tmp_path, walks, seed=seed, pipeline=pipeline), 30)]
        )

    assert torch.equal(of(0, "Resident"), of(0, "Streaming"))
    assert not torch.equal(of(0, "Resident"), of(1, "Resident"))


def test_100_updates_are_50_a_checkpoint_a_new_process_and_50(walks: Path, tmp_path: Path) -> None:
    pipeline = {"datasetNumItersPerLearner": 20}
    stop = {"updates": 100}
    whole = training(tmp_path / "whole", walks, pipeline=pipeline, stop=stop)
    halves = training(tmp_path / "halves", walks, pipeline=pipeline, stop=stop)
    train(whole)
    with pytest.raises(Interrupted, match="at update 50"):
        train(halves, After(50))
    file = tmp_path / "training.yaml"
    file.write_text(halves.model_dump_json(by_alias=True, exclude_none=True, exclude_unset=True))
    subprocess.run([sys.executable, "-m", "hindcast.cli.main", "--quiet", "run", str(file)], check=True)
    assert same_tensors(tmp_path / "whole/test/r1", tmp_path / "halves/test/r1")
    assert results_of(whole) == results_of(halves)
    positions = [
        find_checkpoint(run_folder(resource).child("checkpoints")).training.feed
        for resource in (whole, halves)
    ]
    assert positions[0] == positions[1]


@pytest.mark.parametrize("looks", [5, 20])
def test_an_interrupted_training_ends_like_an_uninterrupted_one(
    walks: Path, tmp_path: Path, looks: int
) -> None:
    def resource(name: str) -> OfflineTraining:
        evaluation = {"interval": 2, "duration": 4, "parallelToTraining": True}
        return training(
            tmp_path / name, walks, environment=WALK, evaluation=evaluation, checkpoint={"every": 3}
        )

    train(resource("whole"))
    interrupted = 0
    while True:
        try:
            train(resource("pieces"), After(looks))
            break
        except Interrupted:
            interrupted += 1
    assert interrupted >= 1
    assert same_tensors(tmp_path / "whole/test/r1", tmp_path / "pieces/test/r1")
    assert results_of(resource("whole")) == results_of(resource("pieces"))


@pytest.mark.parametrize(
    ("stop", "updates"),
    [
        ({"iterations": 2}, 20),
        ({"updates": 5}, 5),
        ({"timesteps": 100}, 4),
        ({"epochs": 0.5}, 5),
        ({"iterations": 9, "updates": 3}, 3),
    ],
)
def test_it_stops_at_the_first_criterion(
    walks: Path, tmp_path: Path, stop: dict[str, float], updates: int
) -> None:
    assert read_all(walks).num_steps == 308, "the figures below are of these data"
    assert train(training(tmp_path, walks, stop=stop)).metrics["updates"] == updates


def test_the_evaluated_weights_are_the_ones_reported_and_kept(walks: Path, tmp_path: Path) -> None:
    evaluation = {"interval": 1, "duration": 6, "parallelToTraining": True}
    resource = training(tmp_path, walks, environment=WALK, evaluation=evaluation, stop={"iterations": 4})
    train(resource)
    lines = read_results(run_folder(resource))
    evaluated = {line["evaluation"]["training_iteration"]: line for line in lines if "evaluation" in line}
    assert [line["training_iteration"] for line in lines] == [1, 2, 3, 4, 4]
    assert list(evaluated) == [1, 2, 3, 4], "each is used one iteration later, the last at the end"
    store = CheckpointStore(run_folder(resource).child("checkpoints"))
    best = store.best()
    assert best is not None
    assert resource.spec.environment is not None
    evaluator = EnvEvaluator(resource.spec.environment, 6)
    seed = Evaluations(resource, store, Heard())._seed(best.training.iteration)
    again = evaluator(Policy.load(best.location), seed).summary()
    assert again == evaluated[best.training.iteration]["evaluation"]["env_runners"]
    scores = [line["evaluation"]["env_runners"]["episode_return_mean"] for line in evaluated.values()]
    assert store.best_score() == max(scores)
    assert Policy.load(run_folder(resource)).digest == Policy.load(best.location).digest


def test_a_finished_training_is_not_done_again(walks: Path, tmp_path: Path) -> None:
    resource = training(tmp_path, walks)
    first = train(resource)
    again = train(resource, After(0))
    assert (first.state, again.state) == ("Succeeded", "AlreadyFinished")
    assert (
        orjson.loads((tmp_path / "test/r1/success.json").read_bytes())["updates"] == again.metrics["updates"]
    )


def test_another_spec_is_refused_and_a_higher_revision_is_a_new_run(walks: Path, tmp_path: Path) -> None:
    train(training(tmp_path, walks))
    with pytest.raises(OutputConflict, match=r"raise spec\.revision"):
        train(training(tmp_path, walks, seed=1))
    assert train(training(tmp_path, walks, seed=1, revision=2)).folder.endswith("r2")


def test_a_spec_that_failed_at_once_can_be_mended(walks: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no Gymnasium environment"):
        train(training(tmp_path, walks, environment={"id": "Nowhere-v0"}))
    assert train(training(tmp_path, walks)).state == "Succeeded"


def test_old_checkpoints_go_and_the_best_stays(walks: Path, tmp_path: Path) -> None:
    evaluation = {"interval": 1, "duration": 4}
    checkpoint = {"every": 1, "keep": 2}
    resource = training(
        tmp_path,
        walks,
        environment=WALK,
        evaluation=evaluation,
        checkpoint=checkpoint,
        stop={"iterations": 6},
    )
    train(resource)
    store = CheckpointStore(run_folder(resource).child("checkpoints"))
    best = store.best()
    assert best is not None
    kept = [checkpoint.updates for checkpoint in store.all()]
    assert best.updates in kept
    assert len(kept) <= 3
    assert kept[-1] == 6 * 10


def test_a_warm_start_begins_with_the_checkpoints_weights(walks: Path, tmp_path: Path) -> None:
    first = training(tmp_path / "first", walks)
    train(first)
    trained = Policy.load(run_folder(first))
    second = training(tmp_path / "second", walks, initialCheckpoint=str(run_folder(first)), seed=5)
    session = session_of(second)
    session.begin()
    assert all(
        torch.equal(tensor, trained.module.state_dict()[name])
        for name, tensor in session.policy.module.state_dict().items()
    )
    session.close()


@pytest.mark.learning
def test_a_clone_plays_as_well_as_the_expert(tmp_path: Path) -> None:
    expert = {
        "config": {"numEpochs": 6, "trainBatchSizePerLearner": 4096},
        "model": {"fcnetHiddens": [64, 64]},
        "stop": {"episodeReturnMean": 450},
        "evaluation": {"duration": 20},
    }
    record(
        recording(
            tmp_path / "data",
            environment=CARTPOLE,
            policy={"train": expert},
            duration={"episodes": 100},
            runners={"envsPerRunner": 8},
        )
    )
    outcome = train(
        training(
            tmp_path,
            tmp_path / "data",
            environment=CARTPOLE,
            config={"lr": 8e-4, "trainBatchSizePerLearner": 1024},
            model={"fcnetHiddens": [64, 64]},
            evaluation={"interval": 1, "duration": 20},
            stop={"episodeReturnMean": 450, "iterations": 20},
        )
    )
    assert outcome.metrics["best"]["score"] >= 450
