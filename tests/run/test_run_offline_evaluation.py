"""Trainings that are judged by held-out episodes: what is held out, said, stopped and chosen by it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
import torch

from hindcast.api.evaluation import OfflineEvaluationSpec
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import Interrupted, SpecError
from hindcast.evaluate import offline
from hindcast.evaluate.behaviour_clone import CloneFit
from hindcast.formats.format import ReadOptions
from hindcast.formats.spec import DataSpec
from hindcast.learn.checkpoint import CheckpointStore, find_checkpoint
from hindcast.models.policy import Policy
from hindcast.pipeline.offline_data import Source
from hindcast.record import environments
from hindcast.run.execute import FileReferences, execute_training
from hindcast.run.exporting import export_policy
from hindcast.run.held_out_evaluation import open_evaluation_data
from hindcast.run.inputs import inputs_of
from hindcast.run.interruption import Interruption
from hindcast.storage.location import resolve
from support import MemoryReporter, StopAfter, read_all, record, recording, train, training
from toy_pipeline import Noting

CONFIG = {"lr": 0.01, "trainBatchSizePerLearner": 32}
SHORT = {"datasetNumItersPerLearner": 5}


@pytest.fixture(scope="module")
def nowhere(walks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of an environment that nobody has."""
    folder = tmp_path_factory.mktemp("nowhere") / "data"
    recorded = open_dataset(walks).spec
    spaces = recorded.observation_space, recorded.action_space
    block = read_all(walks)
    block = replace(block, eps_id=np.array([f"there-{eps_id}" for eps_id in block.eps_id], dtype=object))
    with BlockWriter(resolve(folder), DataSpec.from_block(block, *spaces, "Lost-v7"), "s") as writer:
        writer.write(block)
    return folder


def judged(folder: object, data: object, stop: dict[str, Any] | None = None, **given: Any) -> Any:
    """A training of three short iterations, each of which is judged."""
    algorithm, config = given.pop("algorithm", "BC"), given.pop("config", CONFIG)
    evaluation = {"heldOut": 0.4, "interval": 1, **given}
    return training(
        folder,
        data,
        algorithm=algorithm,
        config=config,
        pipeline=SHORT,
        evaluation={"offline": {name: value for name, value in evaluation.items() if value is not None}},
        stop=stop or {"iterations": 3},
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "test/r1/results.jsonl").read_text().splitlines()]


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return [line["evaluation"]["offline"] for line in lines(folder) if "evaluation" in line]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return Policy.load(str(find_checkpoint(str(folder / "test/r1/checkpoints")).location)).module.state_dict()


def test_a_training_without_an_environment_anywhere_ends_well(
    tmp_path: Path, nowhere: Path, reporter: MemoryReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym, "make", Mock(side_effect=AssertionError("nothing is to be played")))
    monkeypatch.setattr(environments, "make_environment", gym.make)
    resource = judged(
        tmp_path,
        nowhere,
        stop={"estimatedReturn": -1e9, "iterations": 9},
        estimates=["wis", "dr"],
        explore=True,
        modelUpdates=5,
    )
    outcome = execute_training(resource, inputs_of(resource, FileReferences({})), reporter, Interruption())
    (said,) = evaluations(tmp_path)
    assert said["estimated_return"] == said["estimates"]["wis"]["value"]
    low, high = said["estimates"]["wis"]["interval"]
    assert low < said["estimated_return"] < high
    assert set(said["estimates"]) == {"wis", "dr"}
    assert outcome.metrics["best"]["by"] == "wis"
    assert outcome.metrics["best"]["score"] == said["estimated_return"]
    assert f"return {said['estimated_return']:.1f}, as wis estimates it, after 5 updates" in outcome.message
    assert reporter.stages[-1].verdict == said["verdict"]["sentence"] == outcome.metrics["verdict"]
    page = (tmp_path / "test/r1/report.html").read_text()
    assert said["verdict"]["sentence"][1:] in page
    assert (tmp_path / "test/r1/plots/estimate.png").exists()
    export_policy(outcome.folder, str(tmp_path / "out"), "safetensors", None)
    assert Policy.load(str(tmp_path / "out")).digest == Policy.load(outcome.metrics["best"]["path"]).digest


def test_held_out_episodes_are_those_of_data_split_and_never_trained_on(tmp_path: Path, walks: Path) -> None:
    Noting.seen.clear()
    pipeline = {"offlineData": "toy_pipeline:Noting", "datasetNumItersPerLearner": None}
    evaluation = {"offline": {"heldOut": 0.25, "heldOutSeed": 3}}
    train(training(tmp_path, walks, pipeline=pipeline, evaluation=evaluation, stop={"epochs": 2}))
    trained, held = open_dataset(walks).split(0.25, seed=3)
    seen = set(torch.cat(Noting.seen).tolist())
    Noting.seen.clear()
    assert seen == first_values(trained)
    assert not seen & first_values(held)
    (said,) = evaluations(tmp_path)
    assert (said["episodes"], said["timesteps"]) == (held.num_episodes, held.num_steps)


def test_the_loss_is_over_all_held_out_timesteps(tmp_path: Path, walks: Path) -> None:
    train(judged(tmp_path, walks, stop={"iterations": 1}))
    (said,) = evaluations(tmp_path)
    policy = Policy.load(str(tmp_path / "test/r1/module"))
    _, held = open_dataset(walks).split(0.4)
    block = [held.read(unit) for unit in held.units]
    losses = []
    for part in block:
        for episode in range(part.num_episodes):
            obs = part.columns["obs"][part.rows_of("obs", episode)][:-1]
            actions = part.columns["actions"][part.rows_of("actions", episode)]
            inputs = policy.module.forward_train({"obs": torch.from_numpy(obs)})["action_dist_inputs"]
            losses.append(-policy.module.distribution(inputs).logp(torch.from_numpy(actions)).detach())
    assert said["validation_loss"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)
    assert set(said["signals"]) == {"action_agreement", "imitation_loss"}
    assert "verdict" not in said


def test_the_algorithms_own_critics_say_what_they_expect(tmp_path: Path, walks: Path) -> None:
    """DQN's: its policy holds them, and takes the best action."""
    train(judged(tmp_path, walks, algorithm="DQN", stop={"iterations": 1}))
    (said,) = evaluations(tmp_path)
    values = Policy.load(str(tmp_path / "test/r1/module")).module.values
    _, held = open_dataset(walks).split(0.4)
    block = Block.concat([held.read(unit) for unit in held.units])
    with torch.no_grad():
        found = values({"obs": torch.from_numpy(block.columns["obs"][block.obs_row])})
        taken = values.of(found, torch.from_numpy(block.columns["actions"]))[0]
    starts = np.cumsum(block.length) - block.length
    signals = said["signals"]
    assert signals["critic_initial_value"] == pytest.approx(float(found[0, starts].amax(-1).mean()), rel=1e-5)
    assert signals["critic_mean_q"] == pytest.approx(float(taken.mean()), rel=1e-5)
    assert signals["critic_max_q"] == pytest.approx(float(taken.max()), rel=1e-5)


def test_a_policy_that_samples_without_a_density_is_judged(tmp_path: Path) -> None:
    folder = tmp_path / "moves"
    record(recording(folder, environment={"id": "toy_environments:Continuous"}, duration={"episodes": 10}))
    asked = {"algorithm": "FQL", "config": {}, "estimates": ["dm"], "explore": True, "modelUpdates": 5}
    train(judged(tmp_path / "runs", folder, **asked, stop={"iterations": 1}))
    (said,) = evaluations(tmp_path / "runs")
    assert said["estimates"]["dm"]["value"] == said["estimated_return"]
    assert "imitation_loss" not in said["signals"]
    assert "critic_initial_value" in said["signals"]


def test_judging_changes_nothing_of_the_training_and_happens_once_when_it_is_due(
    tmp_path: Path, walks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as once:
        counted = Mock(wraps=offline.OfflineEvaluator.evaluate)
        once.setattr(offline.OfflineEvaluator, "evaluate", lambda *given: counted(*given))  # noqa: PLW0108
        train(judged(tmp_path / "often", walks, interval=2, stop={"iterations": 5}))
    assert counted.call_count == 2
    assert ["evaluation" in line for line in lines(tmp_path / "often")] == [False, True, False, True, False]
    train(judged(tmp_path / "once", walks, interval=None, stop={"iterations": 5}))
    assert [line["training_iteration"] for line in evaluations(tmp_path / "once")] == [5]
    often, once_weights = weights(tmp_path / "often"), weights(tmp_path / "once")
    assert all(torch.equal(value, once_weights[name]) for name, value in often.items())


@pytest.mark.parametrize("looks", [[7], [5, 1, 6]], ids=str)
def test_interruptions_change_nothing(tmp_path: Path, walks: Path, looks: list[int]) -> None:
    asked = {"estimates": ["wis", "dm"], "explore": True, "modelUpdates": 5, "stop": {"iterations": 4}}
    train(judged(tmp_path / "whole", walks, **asked))
    for number in looks:
        with pytest.raises(Interrupted):
            train(judged(tmp_path / "parts", walks, **asked), StopAfter(number))
    train(judged(tmp_path / "parts", walks, **asked))
    assert evaluations(tmp_path / "parts") == evaluations(tmp_path / "whole")
    best = [
        CheckpointStore(resolve(tmp_path / which / "test/r1/checkpoints")).best_score("wis")
        for which in ("whole", "parts")
    ]
    assert best[0] == best[1] == max(each["estimated_return"] for each in evaluations(tmp_path / "whole"))


def test_a_run_that_is_killed_while_it_is_judged_has_the_same_evaluations(
    tmp_path: Path, walks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"estimates": ["wis"], "explore": True, "stop": {"iterations": 4}}
    train(judged(tmp_path / "whole", walks, **asked))
    report, calls = offline.OfflineEvaluator.evaluate, iter(range(99))

    def killed(*given: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return report(*given)

    with monkeypatch.context() as kills, pytest.raises(KeyboardInterrupt):
        kills.setattr(offline.OfflineEvaluator, "evaluate", killed)
        train(judged(tmp_path / "killed", walks, **asked))
    train(judged(tmp_path / "killed", walks, **asked))
    assert evaluations(tmp_path / "killed") == evaluations(tmp_path / "whole")


def test_without_recorded_log_probabilities_the_behaviour_is_cloned_once(
    tmp_path: Path, walks: Path, reporter: MemoryReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Mock(wraps=offline.Clone)
    monkeypatch.setattr(offline, "Clone", made)
    monkeypatch.setattr(offline, "CloneFit", lambda: CloneFit(updates=1))
    resource = judged(tmp_path, walks, estimates=["wis"], explore=True)
    source = resource.spec.input[0].model_copy(update={"columns": ["obs", "actions", "rewards"]})
    resource = resource.model_copy(update={"spec": resource.spec.model_copy(update={"input": [source]})})
    train(resource, reporter=reporter)
    assert made.call_count == 1
    assert all(each["calibration"]["error"] < 0.5 for each in evaluations(tmp_path))


RECURRENT = {"fcnetHiddens": [8], "recurrent": "GRU", "cellSize": 8, "maxSeqLen": 4}


def test_a_recurrent_policy_is_judged_by_ratios(tmp_path: Path, walks: Path) -> None:
    asked = {"offline": {"heldOut": 0.4, "estimates": ["pdwis"], "explore": True}}
    train(training(tmp_path, walks, model=RECURRENT, evaluation=asked))
    (said,) = evaluations(tmp_path)
    assert said["validation_loss"] == pytest.approx(1.1, abs=0.1)
    assert said["signals"]["imitation_loss"] == pytest.approx(said["validation_loss"], rel=1e-3)
    assert said["estimated_return"] == said["estimates"]["pdwis"]["value"]
    assert said["verdict"]["by"] == "pdwis"


@pytest.mark.parametrize(
    ("asked", "columns", "why"),
    [
        (
            ["pdwis", "dm", "dr"],
            None,
            r"estimates has dm, dr, which can never be computed: the policy has a rec",
        ),
        (
            ["wis"],
            ["obs", "actions", "rewards"],
            r"estimates has wis, which can never be .* no action_logp",
        ),
    ],
)
def test_what_a_recurrent_policy_can_never_have_is_refused(
    tmp_path: Path, walks: Path, asked: list[str], columns: list[str] | None, why: str
) -> None:
    evaluation = {"offline": {"heldOut": 0.4, "estimates": asked, "explore": True}}
    resource = training(tmp_path, walks, model=RECURRENT, evaluation=evaluation)
    source = resource.spec.input[0].model_copy(update={"columns": columns})
    resource = resource.model_copy(update={"spec": resource.spec.model_copy(update={"input": [source]})})
    with pytest.raises(SpecError, match=why):
        train(resource)


def test_an_estimate_that_can_never_be_computed_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "moves"
    record(recording(folder, environment={"id": "toy_environments:Continuous"}, duration={"episodes": 10}))
    said = r"estimates has wis, and the policy's actions have no density, so they can never be computed: set explore"
    with pytest.raises(SpecError, match=said):
        train(judged(tmp_path / "runs", folder, estimates=["wis"]))


def test_a_low_loss_ends_it(tmp_path: Path, walks: Path) -> None:
    outcome = train(judged(tmp_path, walks, stop={"validationLoss": 100, "iterations": 9}))
    assert outcome.metrics["iterations"] == 1


def test_a_run_goes_on_with_other_estimates_and_is_chosen_by_those(tmp_path: Path, walks: Path) -> None:
    train(judged(tmp_path, walks, estimates=["pdis"], explore=True))
    train(judged(tmp_path, walks, estimates=["wis"], explore=True, stop={"iterations": 5}))
    later = [each for each in evaluations(tmp_path) if "wis" in each["estimates"]]
    assert [each["training_iteration"] for each in later] == [4, 5]
    store = CheckpointStore(resolve(tmp_path / "test/r1/checkpoints"))
    assert store.best().updates in (20, 25)


def test_other_held_out_episodes_are_another_run(tmp_path: Path, walks: Path) -> None:
    from hindcast.api import course_hash

    one, other, estimated = (
        judged(tmp_path, walks, **given) for given in ({}, {"heldOutSeed": 1}, {"estimates": ["dm"]})
    )
    assert course_hash(one) == course_hash(estimated) != course_hash(other)


def test_data_of_its_own_judge_what_is_trained_on_all_others(
    tmp_path: Path, walks: Path, nowhere: Path
) -> None:
    train(judged(tmp_path, walks, heldOut=None, input=[str(nowhere)], stop={"iterations": 1}))
    (said,) = evaluations(tmp_path)
    assert said["episodes"] == open_dataset(walks).num_episodes
    sentence = r"input is .*, of which episode .* is trained on: give spec.evaluation.offline.heldOut"
    with pytest.raises(SpecError, match=sentence):
        train(judged(tmp_path / "same", walks, heldOut=None, input=[str(walks)]))


@pytest.mark.parametrize("columns", [None, ("obs", "actions", "rewards")])
def test_data_of_its_own_are_not_trained_on_in_part(walks: Path, columns: tuple[str, ...] | None) -> None:
    reading = Reading((str(walks),), options=ReadOptions(columns=columns))
    best = Source("best", open_data(reading).filter(top=0.2))
    with pytest.raises(SpecError, match=r"of which episode .* is trained on"):
        open_evaluation_data(OfflineEvaluationSpec(input=[str(walks)]), [best])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"heldOut": 0.001},
            r"heldOut is 0.001, and .* has 40 episodes: 0 would be held out and 40 trained on",
        ),
        (
            {"heldOut": 0.02, "estimates": ["wis"]},
            r"heldOut gives one episode: estimates need at least two, and hundreds",
        ),
        (
            {"heldOut": 0.1, "estimates": ["dm", "wis"], "explore": True},
            r"heldOut gives 4 episodes, and wis cannot be computed from fewer than 10: use more episodes",
        ),
    ],
    ids=["empty", "one episode", "no ratios"],
)
def test_too_few_episodes_are_refused(tmp_path: Path, walks: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        train(judged(tmp_path, walks, **given))


def test_no_overlap_is_said_and_nothing_is_chosen_by_it(
    tmp_path: Path, walks: Path, reporter: MemoryReporter
) -> None:
    resource = judged(tmp_path, walks, estimates=["wis"], stop={"estimatedReturn": -1e9, "iterations": 2})
    outcome = train(resource, reporter=reporter)  # of a greedy policy hardly an episode counts
    assert outcome.metrics["iterations"] == 2
    for each in evaluations(tmp_path):
        assert each["estimated_return"] is None
        assert "the policy rarely does what the behaviour did" in each["refused"]["wis"]
    assert outcome.metrics["best"] is None
    assert outcome.metrics["verdict"].startswith("nothing can be said: ")
    assert "the policy rarely does what the behaviour did" in outcome.metrics["verdict"]
    (note,) = [note for note in reporter.notes if "wis" in note]
    assert note.startswith("iteration 1: wis cannot be computed: ")


def test_a_training_that_only_a_refused_estimate_could_stop_is_ended(tmp_path: Path, walks: Path) -> None:
    stop = {"estimatedReturn": 1e9}
    why = (
        r"was stopped at iteration 10: only held-out episodes could stop it, and 10 evaluations in a row gave nothing "
        r"to stop by \(wis: 16 episodes weigh .*\)\. Add a limit such as stop\.updates\."
    )
    with pytest.raises(SpecError, match=why):
        train(judged(tmp_path, walks, estimates=["wis"], stop=stop))
    outcome = train(judged(tmp_path, walks, estimates=["wis"], stop=stop | {"iterations": 11}))
    assert outcome.metrics["iterations"] == 11


def first_values(dataset: Any) -> set[float]:
    """Of the observations of all steps, final ones aside."""
    found: set[float] = set()
    for unit in dataset.units:
        block = dataset.read(unit)
        for episode in range(block.num_episodes):
            found |= set(block.columns["obs"][block.rows_of("obs", episode)][:-1, 0].tolist())
    return found
