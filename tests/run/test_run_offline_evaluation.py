"""Trainings that are evaluated on held-out episodes: the split, estimates, stop criteria and best checkpoint."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
import torch

from hindcast.api import course_hash
from hindcast.api.evaluation import OfflineEvaluationSpec
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import Interrupted, SpecError
from hindcast.evaluate import offline
from hindcast.evaluate.behaviour_clone import CloneOptions
from hindcast.formats.format import ReadOptions
from hindcast.formats.spec import DataSpec
from hindcast.learn.checkpoint import CheckpointStore, find_checkpoint
from hindcast.models.policy import Policy
from hindcast.pipeline.offline_data import Source
from hindcast.record import environments
from hindcast.run.evaluation.held_out_evaluation import open_evaluation_data
from hindcast.run.execute import FileReferences, execute_training
from hindcast.run.export.exporting import export_policy
from hindcast.run.inputs import resolve_inputs
from hindcast.run.interruption import Interruption
from hindcast.storage.location import resolve
from layers import slow_except
from run_results import read_results
from support import MemoryReporter, StopAfter, read_all, record, recording, train, training
from toy_pipeline import ObservationLog

CONFIG = {"lr": 0.01, "trainBatchSizePerLearner": 32}
SHORT_PIPELINE = {"datasetNumItersPerLearner": 5}


@pytest.fixture(scope="module")
def unknown_environment_data(walks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The episodes of `walks` with other ids, as of an environment that does not exist."""
    folder = tmp_path_factory.mktemp("unknown_environment_data") / "data"
    spec = open_dataset(walks).spec
    spaces = spec.observation_space, spec.action_space
    block = read_all(walks)
    block = replace(block, eps_id=np.array([f"there-{eps_id}" for eps_id in block.eps_id], dtype=object))
    with BlockWriter(resolve(folder), DataSpec.from_block(block, *spaces, "Lost-v7"), "s") as writer:
        writer.write(block)
    return folder


def make_evaluated_training(
    folder: object, data: object, stop: dict[str, Any] | None = None, **fields: Any
) -> Any:
    """Make a training of three short iterations, with an evaluation after each."""
    algorithm, config = fields.pop("algorithm", "BC"), fields.pop("config", CONFIG)
    evaluation = {"heldOut": 0.4, "interval": 1, **fields}
    return training(
        folder,
        data,
        algorithm=algorithm,
        config=config,
        pipeline=SHORT_PIPELINE,
        evaluation={"offline": {name: value for name, value in evaluation.items() if value is not None}},
        stop=stop or {"iterations": 3},
    )


def select_columns(resource: Any, *columns: str) -> Any:
    """Return the training with only these columns of its data."""
    source = resource.spec.input[0].model_copy(update={"columns": list(columns)})
    return resource.model_copy(update={"spec": resource.spec.model_copy(update={"input": [source]})})


def read_evaluations(folder: Path) -> list[dict[str, Any]]:
    return [line["evaluation"]["offline"] for line in read_results(folder) if "evaluation" in line]


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    return Policy.load(str(find_checkpoint(str(folder / "test/r1/checkpoints")).location)).module.state_dict()


def test_training_without_environment_succeeds(
    tmp_path: Path, unknown_environment_data: Path, reporter: MemoryReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym, "make", Mock(side_effect=AssertionError("nothing is to be played")))
    monkeypatch.setattr(environments, "make_environment", gym.make)
    # An import of torch's compiler, which takes longer than a short training, would fail.
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    resource = make_evaluated_training(
        tmp_path,
        unknown_environment_data,
        stop={"estimatedReturn": -1e9, "iterations": 9},
        estimates=["wis", "dr"],
        explore=True,
        modelUpdates=5,
    )
    outcome = execute_training(
        resource, resolve_inputs(resource, FileReferences({})), reporter, Interruption()
    )
    (evaluation,) = read_evaluations(tmp_path)
    assert evaluation["estimated_return"] == evaluation["estimates"]["wis"]["value"]
    low, high = evaluation["estimates"]["wis"]["interval"]
    assert low < evaluation["estimated_return"] < high
    assert set(evaluation["estimates"]) == {"wis", "dr"}
    assert outcome.metrics["best"]["metric"] == "wis"
    assert outcome.metrics["best"]["score"] == evaluation["estimated_return"]
    assert f"estimated return {evaluation['estimated_return']:.1f} (wis) after 5 updates" in outcome.message
    assert reporter.stages[-1].verdict == evaluation["verdict"]["sentence"] == outcome.metrics["verdict"]
    page = (tmp_path / "test/r1/report.html").read_text()
    assert evaluation["verdict"]["sentence"][1:] in page  # the page capitalises the first letter
    assert (tmp_path / "test/r1/plots/estimate.png").exists()
    export_policy(outcome.folder, str(tmp_path / "out"), "safetensors", None)
    assert Policy.load(str(tmp_path / "out")).digest == Policy.load(outcome.metrics["best"]["path"]).digest


def test_held_out_episodes_follow_split_and_are_never_trained_on(tmp_path: Path, walks: Path) -> None:
    ObservationLog.seen.clear()
    pipeline = {"offlineData": "toy_pipeline:ObservationLog", "datasetNumItersPerLearner": None}
    evaluation = {"offline": {"heldOut": 0.25, "heldOutSeed": 3}}
    train(training(tmp_path, walks, pipeline=pipeline, evaluation=evaluation, stop={"epochs": 2}))
    train_dataset, held_out = open_dataset(walks).split(0.25, seed=3)
    seen_values = set(torch.cat(ObservationLog.seen).tolist())
    ObservationLog.seen.clear()
    assert seen_values == first_observation_values(train_dataset)
    assert not seen_values & first_observation_values(held_out)
    (result,) = read_evaluations(tmp_path)
    assert (result["episodes"], result["timesteps"]) == (held_out.num_episodes, held_out.num_steps)


def test_validation_loss_covers_all_held_out_timesteps(tmp_path: Path, walks: Path) -> None:
    train(make_evaluated_training(tmp_path, walks, stop={"iterations": 1}))
    (evaluation,) = read_evaluations(tmp_path)
    policy = Policy.load(str(tmp_path / "test/r1/module"))
    _, held_out = open_dataset(walks).split(0.4)
    blocks = [held_out.read(unit) for unit in held_out.units]
    losses = []
    for block in blocks:
        for episode in range(block.num_episodes):
            obs = block.columns["obs"][block.rows_of("obs", episode)][:-1]
            actions = block.columns["actions"][block.rows_of("actions", episode)]
            inputs = policy.module.forward_train({"obs": torch.from_numpy(obs)})["action_dist_inputs"]
            losses.append(-policy.module.distribution(inputs).logp(torch.from_numpy(actions)).detach())
    assert evaluation["validation_loss"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)
    assert set(evaluation["signals"]) == {"action_agreement", "imitation_loss"}
    assert "verdict" not in evaluation


def test_signals_contain_values_of_algorithm_critics(tmp_path: Path, walks: Path) -> None:
    """DQN's policy contains its critics, and takes the best action."""
    train(make_evaluated_training(tmp_path, walks, algorithm="DQN", stop={"iterations": 1}))
    (evaluation,) = read_evaluations(tmp_path)
    values = Policy.load(str(tmp_path / "test/r1/module")).module.values
    _, held_out = open_dataset(walks).split(0.4)
    block = Block.concat([held_out.read(unit) for unit in held_out.units])
    with torch.no_grad():
        q = values({"obs": torch.from_numpy(block.columns["obs"][block.obs_row])})
        action_q = values.gather(q, torch.from_numpy(block.columns["actions"]))[0]
    starts = np.cumsum(block.length) - block.length
    signals = evaluation["signals"]
    assert signals["critic_initial_value"] == pytest.approx(float(q[0, starts].amax(-1).mean()), rel=1e-5)
    assert signals["critic_mean_q"] == pytest.approx(float(action_q.mean()), rel=1e-5)
    assert signals["critic_max_q"] == pytest.approx(float(action_q.max()), rel=1e-5)


def test_policy_without_density_is_evaluated_by_model(tmp_path: Path) -> None:
    folder = tmp_path / "moves"
    record(recording(folder, environment={"id": "toy_environments:Continuous"}, duration={"episodes": 10}))
    spec = {"algorithm": "FQL", "config": {}, "estimates": ["dm"], "explore": True, "modelUpdates": 5}
    train(make_evaluated_training(tmp_path / "runs", folder, **spec, stop={"iterations": 1}))
    (evaluation,) = read_evaluations(tmp_path / "runs")
    assert evaluation["estimates"]["dm"]["value"] == evaluation["estimated_return"]
    assert "imitation_loss" not in evaluation["signals"]
    assert "critic_initial_value" in evaluation["signals"]


def test_evaluation_runs_when_due_and_does_not_change_training(
    tmp_path: Path, walks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        evaluate_calls = Mock(wraps=offline.OfflineEvaluator.evaluate)
        patch.setattr(offline.OfflineEvaluator, "evaluate", lambda *args: evaluate_calls(*args))  # noqa: PLW0108
        train(make_evaluated_training(tmp_path / "often", walks, interval=2, stop={"iterations": 5}))
    assert evaluate_calls.call_count == 2
    assert [line["training_iteration"] for line in read_evaluations(tmp_path / "often")] == [2, 4]
    train(make_evaluated_training(tmp_path / "once", walks, interval=None, stop={"iterations": 5}))
    assert [line["training_iteration"] for line in read_evaluations(tmp_path / "once")] == [5]
    often_weights, once_weights = read_weights(tmp_path / "often"), read_weights(tmp_path / "once")
    assert all(torch.equal(value, once_weights[name]) for name, value in often_weights.items())


@pytest.mark.parametrize("num_checks", slow_except([[5, 1, 6]], [[7], [5, 1, 6]]), ids=str)
def test_interruptions_do_not_change_evaluations(tmp_path: Path, walks: Path, num_checks: list[int]) -> None:
    spec = {"estimates": ["wis", "dm"], "explore": True, "modelUpdates": 5, "stop": {"iterations": 4}}
    train(make_evaluated_training(tmp_path / "uninterrupted", walks, **spec))
    for count in num_checks:
        with pytest.raises(Interrupted):
            train(make_evaluated_training(tmp_path / "interrupted", walks, **spec), StopAfter(count))
    train(make_evaluated_training(tmp_path / "interrupted", walks, **spec))
    assert read_evaluations(tmp_path / "interrupted") == read_evaluations(tmp_path / "uninterrupted")
    best_scores = [
        CheckpointStore(resolve(tmp_path / run / "test/r1/checkpoints")).best_score("wis")
        for run in ("uninterrupted", "interrupted")
    ]
    returns = [evaluation["estimated_return"] for evaluation in read_evaluations(tmp_path / "uninterrupted")]
    assert best_scores == [max(returns)] * 2


def test_kill_during_evaluation_does_not_change_evaluations(
    tmp_path: Path, walks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"estimates": ["wis"], "explore": True, "stop": {"iterations": 4}}
    train(make_evaluated_training(tmp_path / "uninterrupted", walks, **spec))
    evaluate, calls = offline.OfflineEvaluator.evaluate, iter(range(99))

    def kill_in_third_call(*args: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return evaluate(*args)

    with monkeypatch.context() as kills, pytest.raises(KeyboardInterrupt):
        kills.setattr(offline.OfflineEvaluator, "evaluate", kill_in_third_call)
        train(make_evaluated_training(tmp_path / "killed", walks, **spec))
    train(make_evaluated_training(tmp_path / "killed", walks, **spec))
    assert read_evaluations(tmp_path / "killed") == read_evaluations(tmp_path / "uninterrupted")


def test_recorded_policy_is_cloned_once_without_log_probabilities(
    tmp_path: Path, walks: Path, reporter: MemoryReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone_calls = Mock(wraps=offline.Clone)
    monkeypatch.setattr(offline, "Clone", clone_calls)
    monkeypatch.setattr(offline, "CloneOptions", lambda: CloneOptions(updates=1))
    resource = make_evaluated_training(tmp_path, walks, estimates=["wis"], explore=True)
    train(select_columns(resource, "obs", "actions", "rewards"), reporter=reporter)
    assert clone_calls.call_count == 1
    assert all(evaluation["calibration"]["error"] < 0.5 for evaluation in read_evaluations(tmp_path))


RECURRENT = {"fcnetHiddens": [8], "recurrent": "GRU", "cellSize": 8, "maxSeqLen": 4}


def test_recurrent_policy_is_evaluated_by_ratios(tmp_path: Path, walks: Path) -> None:
    evaluation_spec = {"offline": {"heldOut": 0.4, "estimates": ["pdwis"], "explore": True}}
    train(training(tmp_path, walks, model=RECURRENT, evaluation=evaluation_spec))
    (evaluation,) = read_evaluations(tmp_path)
    assert evaluation["validation_loss"] == pytest.approx(1.1, abs=0.1)
    assert evaluation["signals"]["imitation_loss"] == pytest.approx(evaluation["validation_loss"], rel=1e-3)
    assert evaluation["estimated_return"] == evaluation["estimates"]["pdwis"]["value"]
    assert evaluation["verdict"]["estimate"] == "pdwis"


def test_recurrent_critic_gives_no_signals(tmp_path: Path, walks: Path) -> None:
    """Its values depend on the earlier observations."""
    fields = {"algorithm": "IQL", "config": {"trainBatchSizePerLearner": 32}, "model": RECURRENT}
    evaluation_spec = {"offline": {"heldOut": 0.4, "estimates": ["pdwis"], "explore": True}}
    train(training(tmp_path, walks, **fields, evaluation=evaluation_spec, stop={"updates": 5}))
    (evaluation,) = read_evaluations(tmp_path)
    assert evaluation["estimates"]["pdwis"]["value"] > 0
    assert "imitation_loss" in evaluation["signals"]
    assert not [name for name in evaluation["signals"] if name.startswith("critic")]


@pytest.mark.parametrize(
    ("estimates", "columns", "message"),
    [
        (
            ["pdwis", "dm", "dr"],
            ("obs", "actions", "rewards", "action_logp"),
            r"estimates has dm, dr, which can never be computed: the policy has a rec",
        ),
        (["wis"], ("obs", "actions", "rewards"), r"estimates has wis, which can never be .* no action_logp"),
    ],
)
def test_estimates_impossible_for_recurrent_policy_are_refused(
    tmp_path: Path, walks: Path, estimates: list[str], columns: tuple[str, ...], message: str
) -> None:
    evaluation = {"offline": {"heldOut": 0.4, "estimates": estimates, "explore": True}}
    resource = training(tmp_path, walks, model=RECURRENT, evaluation=evaluation)
    with pytest.raises(SpecError, match=message):
        train(select_columns(resource, *columns))


def test_estimate_impossible_without_density_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "moves"
    record(recording(folder, environment={"id": "toy_environments:Continuous"}, duration={"episodes": 10}))
    message = r"wis, which can never be computed, because the policy's actions have no density: set explore"
    with pytest.raises(SpecError, match=message):
        train(make_evaluated_training(tmp_path / "runs", folder, estimates=["wis"]))


def test_low_validation_loss_stops_training(tmp_path: Path, walks: Path) -> None:
    outcome = train(make_evaluated_training(tmp_path, walks, stop={"validationLoss": 100, "iterations": 9}))
    assert outcome.metrics["iterations"] == 1


def test_resume_with_other_estimates_selects_best_by_new_estimates(tmp_path: Path, walks: Path) -> None:
    train(make_evaluated_training(tmp_path, walks, estimates=["pdis"], explore=True))
    train(make_evaluated_training(tmp_path, walks, estimates=["wis"], explore=True, stop={"iterations": 5}))
    evaluations = read_evaluations(tmp_path)
    assert [line["training_iteration"] for line in evaluations if "wis" in line["estimates"]] == [4, 5]
    store = CheckpointStore(resolve(tmp_path / "test/r1/checkpoints"))
    assert store.best().updates in (20, 25)  # iterations 4 and 5, of five updates each


def test_held_out_seed_changes_course_hash_but_estimates_do_not(tmp_path: Path, walks: Path) -> None:
    reference, other_seed, with_estimates = (
        make_evaluated_training(tmp_path, walks, **fields)
        for fields in ({}, {"heldOutSeed": 1}, {"estimates": ["dm"]})
    )
    assert course_hash(reference) == course_hash(with_estimates) != course_hash(other_seed)


def test_evaluation_input_replaces_held_out_and_must_not_be_training_data(
    tmp_path: Path, walks: Path, unknown_environment_data: Path
) -> None:
    train(
        make_evaluated_training(
            tmp_path, walks, heldOut=None, input=[str(unknown_environment_data)], stop={"iterations": 1}
        )
    )
    (evaluation,) = read_evaluations(tmp_path)
    assert evaluation["episodes"] == open_dataset(walks).num_episodes
    message = r"input is .*: episode .* is also in the training data. Use spec.evaluation.offline.heldOut"
    with pytest.raises(SpecError, match=message):
        train(make_evaluated_training(tmp_path / "same", walks, heldOut=None, input=[str(walks)]))


@pytest.mark.parametrize("columns", [None, ("obs", "actions", "rewards")])
def test_evaluation_input_that_overlaps_training_data_is_refused(
    walks: Path, columns: tuple[str, ...] | None
) -> None:
    reading = Reading((str(walks),), options=ReadOptions(columns=columns))
    best_source = Source("best", open_data(reading).filter(top=0.2))
    with pytest.raises(SpecError, match=r"episode .* is also in the training data"):
        open_evaluation_data(OfflineEvaluationSpec(input=[str(walks)]), [best_source])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"heldOut": 0.001},
            r"heldOut is 0.001, and .* has 40 episodes: 0 would be held out and 40 trained on",
        ),
        (
            {"heldOut": 0.02, "estimates": ["wis"]},
            r"heldOut provides one episode: estimates need at least two, and hundreds",
        ),
        (
            {"heldOut": 0.1, "estimates": ["dm", "wis"], "explore": True},
            r"heldOut provides 4 episodes, but wis cannot be computed from fewer than 10: use more episodes",
        ),
    ],
    ids=["empty", "one episode", "no ratios"],
)
def test_too_few_episodes_are_refused(
    tmp_path: Path, walks: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        train(make_evaluated_training(tmp_path, walks, **fields))


def test_no_overlap_is_reported_and_selects_no_checkpoint(
    tmp_path: Path, walks: Path, reporter: MemoryReporter
) -> None:
    resource = make_evaluated_training(
        tmp_path, walks, estimates=["wis"], stop={"estimatedReturn": -1e9, "iterations": 2}
    )
    outcome = train(resource, reporter=reporter)  # the greedy policy has hardly any effective episodes
    assert outcome.metrics["iterations"] == 2
    for evaluation in read_evaluations(tmp_path):
        assert evaluation["estimated_return"] is None
        assert "the policy rarely takes the recorded action" in evaluation["not_estimated"]["wis"]
    assert outcome.metrics["best"] is None
    assert outcome.metrics["verdict"].startswith("no verdict: ")
    assert "the policy rarely takes the recorded action" in outcome.metrics["verdict"]
    (note,) = [note for note in reporter.notes if "wis" in note]
    assert note.startswith("iteration 1: wis cannot be computed: ")


def test_training_that_no_estimate_can_stop_is_ended(tmp_path: Path, walks: Path) -> None:
    stop = {"estimatedReturn": 1e9}
    message = (
        r"was stopped at iteration 10: spec\.stop has only criteria on held-out episodes, but 10 evaluations in a row "
        r"could not compute them \(wis: too little overlap: 16 episodes are worth .*\)\. Add a limit such as stop\."
    )
    with pytest.raises(SpecError, match=message):
        train(make_evaluated_training(tmp_path, walks, estimates=["wis"], stop=stop))
    outcome = train(
        make_evaluated_training(tmp_path, walks, estimates=["wis"], stop=stop | {"iterations": 11})
    )
    assert outcome.metrics["iterations"] == 11


def first_observation_values(dataset: Any) -> set[float]:
    """Return the first values of all observations but final ones."""
    values: set[float] = set()
    for unit in dataset.units:
        block = dataset.read(unit)
        for episode in range(block.num_episodes):
            values |= set(block.columns["obs"][block.rows_of("obs", episode)][:-1, 0].tolist())
    return values
