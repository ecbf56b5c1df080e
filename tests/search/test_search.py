"""Searches on held-out episodes: trials, comparison, choice, confirmation and the winner's copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest

from hindcast import BCConfig
from hindcast.api import OfflineTraining
from hindcast.api.metadata import Reference
from hindcast.datasets.opening import open_dataset
from hindcast.errors import Interrupted, OutputConflict, SpecError
from hindcast.learn.group import Group
from hindcast.models.policy import Policy
from hindcast.record import environments
from hindcast.report.text import resource_yaml
from hindcast.run.training.training_run import TrainingRun
from hindcast.search import Search, retrain, search, take
from support import MemoryReporter, recording, training

LEARNING_RATES = {"config.lr": [1e-3, 1e-2]}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Fail if an environment is created; return the mock that is called instead."""
    environment_mock = Mock(side_effect=AssertionError("a search must not create an environment"))
    monkeypatch.setattr(gym, "make", environment_mock)
    monkeypatch.setattr(environments, "make_environment", environment_mock)
    return environment_mock


@pytest.fixture
def folder(walks: Path, tmp_path: Path) -> Path:
    """Return a folder for a search of trainings on `walks`."""
    return tmp_path / "search"


def make_training(data: object, offline: dict[str, Any] | None = None, **fields: Any) -> OfflineTraining:
    """Return a training of three updates on `Walk`, evaluated at the end."""
    evaluation = {"heldOut": 0.4, "estimates": ["wis"], "explore": True} if offline is None else offline
    fields = {"stop": {"updates": 3}, "evaluation": {"offline": evaluation}, **fields}
    return training("runs", data, config={"trainBatchSizePerLearner": 32}, **fields)


def read_search_file(result: Search) -> dict[str, Any]:
    return json.loads((Path(result.folder) / "search.json").read_text())


def test_search_chooses_best_estimate_without_environment(
    walks: Path, folder: Path, reporter: MemoryReporter, no_environment: Mock
) -> None:
    evaluation = {"heldOut": 0.6, "estimates": ["wis"], "explore": True}
    resource = make_training(walks, evaluation, environment={"id": "Lost-v7"})  # does not exist
    result = search(resource, LEARNING_RATES, output=folder, seeds=2, confirm=0.25, reporter=reporter)
    assert no_environment.call_count == 0
    assert [len(trial.runs) for trial in result.trials] == [2, 2]
    assert result.trials[0].value > result.trials[1].value
    for trial in result.trials:
        for run in trial.runs:
            (offline,) = (
                line["evaluation"]["offline"]
                for line in map(json.loads, Path(run.folder, "results.jsonl").read_text().splitlines())
                if "evaluation" in line
            )
            assert run.value == offline["estimates"]["wis"]["value"]
            assert run.interval == tuple(offline["estimates"]["wis"]["interval"])
            assert offline["episodes"] == 18  # of the 30 that are not set aside
    assert result.run.value == max(run.value for run in result.best.runs)
    assert result.confirmation.episodes == 10
    assert result.confirmation.value != result.run.value
    assert result.confirmation.verdict in result.sentence
    assert read_search_file(result)["best"]["checkpoint"] == result.run.checkpoint
    page = Path(result.report).read_text()
    assert all(run.folder in page for trial in result.trials for run in trial.runs)
    assert [note for note in reporter.notes if note.startswith("trial 2 (config.lr=0.01) of 2, seed 1: wis ")]


def test_episodes_set_aside_neither_train_nor_choose(walks: Path, folder: Path) -> None:
    result = search(make_training(walks), {"config.lr": [1e-3]}, output=folder, confirm=0.25)
    remaining, set_aside = open_dataset(walks).split(0.25)
    assert result.confirmation.episodes == set_aside.num_episodes
    offline = result.training.spec.offline
    assert (offline.set_aside, offline.held_out) == (0.25, 0.4)
    last_result = json.loads(Path(result.run.folder, "results.jsonl").read_text().splitlines()[-1])
    assert last_result["evaluation"]["offline"]["episodes"] == remaining.split(0.4)[1].num_episodes


def test_interrupted_search_resumes_and_repeats_nothing(
    walks: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = search(make_training(walks), LEARNING_RATES, output=folder / "uninterrupted", confirm=0)
    trained_names, train = [], TrainingRun._train

    def train_and_interrupt(run: TrainingRun, group: Group) -> Any:
        if len(trained_names) == 1:
            trained_names.append("interrupted")
            raise Interrupted("interrupted by the test")
        trained_names.append(run._name)
        return train(run, group)

    monkeypatch.setattr(TrainingRun, "_train", train_and_interrupt)
    with pytest.raises(Interrupted):
        search(make_training(walks), LEARNING_RATES, output=folder / "interrupted", confirm=0)
    second_result = search(make_training(walks), LEARNING_RATES, output=folder / "interrupted", confirm=0)
    third_result = search(make_training(walks), LEARNING_RATES, output=folder / "interrupted", confirm=0)
    assert trained_names == [
        "OfflineTraining/trial-001-seed-0",
        "interrupted",
        "OfflineTraining/trial-002-seed-0",
    ]
    values = [
        [run.value for trial in result.trials for run in trial.runs]
        for result in (expected, second_result, third_result)
    ]
    assert values[0] == values[1] == values[2]


def test_search_can_be_extended_but_not_replaced_in_its_folder(walks: Path, folder: Path) -> None:
    first_result = search(make_training(walks), {"config.lr": [1e-3]}, output=folder, confirm=0)
    more_seeds = search(make_training(walks), {"config.lr": [1e-3]}, output=folder, confirm=0, seeds=2)
    assert more_seeds.trials[0].runs[0] == first_result.trials[0].runs[0]
    more_updates = search(
        make_training(walks, stop={"updates": 5}), {"config.lr": [1e-3]}, output=folder, confirm=0
    )
    assert (first_result.run.updates, more_updates.run.updates) == (3, 5)
    for changes in (
        {"over": {"config.lr": [1e-2]}},
        {"by": "pdis"},
        {
            "training": make_training(
                walks, {"heldOut": 0.4, "estimates": ["wis"], "explore": True, "clip": 2}
            )
        },
        {"training": make_training(walks, model={"fcnetHiddens": [8]})},
    ):
        with pytest.raises(OutputConflict, match="contains another search"):
            search(
                **{"training": make_training(walks), "over": {"config.lr": [1e-3]}, **changes},
                output=folder,
                confirm=0,
            )


def test_confirm_share_too_large_for_trials_is_refused(walks: Path, folder: Path) -> None:
    message = (
        r"heldOut is 0\.4, and .* has 1 episode left after spec\.evaluation\.offline\.setAside \(--confirm\), 0\.97: "
        r"0 would be held out and 1 trained on"
    )
    with pytest.raises(SpecError, match=message):
        search(make_training(walks), {"config.lr": [1e-3]}, output=folder, confirm=0.97)


def test_failed_trial_is_listed_and_others_run(walks: Path, folder: Path) -> None:
    result = search(make_training(walks), {"config.lr": [1e38, 1e-3]}, output=folder, confirm=0)
    assert [trial.number for trial in result.trials] == [2, 1]
    assert "NaN" in str(result.trials[1].runs[0].error)
    assert "NaN" in Path(result.report).read_text()


def test_search_accepts_config(walks: Path, folder: Path) -> None:
    config = (
        BCConfig()
        .offline_data(input_=str(walks))
        .training(train_batch_size_per_learner=32)
        .evaluation(
            offline_evaluation_held_out=0.5,
            off_policy_estimation_methods=["wis"],
            offline_evaluation_explore=True,
        )
    )
    rates = np.array([1e-4, 1e-3])
    result = search(config, {"config.lr": rates}, output=folder, confirm=0, stop={"updates": 2})
    assert {trial.setting["config.lr"] for trial in result.trials} == {1e-4, 1e-3}
    assert result.run.updates == 2


def test_recording_reference_in_file_resolves_to_its_data(walks: Path, folder: Path, tmp_path: Path) -> None:
    resource = make_training(walks)
    recording_resource = recording(walks)
    source = {"recording_ref": Reference(name="test"), "path": None}
    source = resource.spec.input[0].model_copy(update=source)
    spec = resource.spec.model_copy(update={"input": [source]})
    yaml_texts = map(resource_yaml, (recording_resource, resource.model_copy(update={"spec": spec})))
    (tmp_path / "both.yaml").write_text("---\n".join(yaml_texts))
    result = search(tmp_path / "both.yaml", {"config.lr": [1e-3]}, output=folder, confirm=0)
    assert result.training.spec.input[0].path == str(walks)


def test_search_without_any_value_chooses_nothing(
    walks: Path, folder: Path, reporter: MemoryReporter
) -> None:
    greedy_evaluation = {"heldOut": 0.4, "estimates": ["wis"]}  # few episodes have a weight
    result = search(make_training(walks, greedy_evaluation), {"config.lr": [1e-3]}, output=folder, confirm=0)
    assert result.best is None
    assert "no trial has a wis for all its seeds: wis cannot be computed: " in result.sentence
    with pytest.raises(SpecError, match="no trial has a wis"):
        take(result, folder / "taken")


def test_trials_can_be_compared_by_loss(walks: Path, folder: Path) -> None:
    result = search(make_training(walks), LEARNING_RATES, output=folder, by="validationLoss", confirm=0.25)
    assert result.trials[0].value < result.trials[1].value
    assert result.run.verdict is None
    assert result.confirmation.value == pytest.approx(result.run.value, rel=0.5)
    assert result.confirmation.verdict is not None


def test_all_trials_use_discount_of_resource(walks: Path, folder: Path) -> None:
    result = search(
        make_training(walks, algorithm="MARWIL"), {"config.gamma": [0.9, 0.5]}, output=folder, confirm=0
    )
    assert result.training.spec.offline.gamma == 0.99
    behaviours = [trial.runs[0].behaviour for trial in result.trials]
    assert behaviours[0] == behaviours[1]


def test_winner_is_copied_or_retrained_on_all_episodes(
    walks: Path, folder: Path, reporter: MemoryReporter
) -> None:
    result = search(make_training(walks), LEARNING_RATES, output=folder, confirm=0.25)
    copy = take(result, folder / "taken")
    assert Policy.load(copy).digest == Policy.load(result.run.checkpoint).digest
    assert take(result, folder / "taken") == copy
    with pytest.raises(OutputConflict, match="is not empty"):
        take(result, walks)
    outcome = retrain(result, folder / "again", reporter)
    assert outcome.metrics["updates"] == result.run.updates
    spec = json.loads(Path(outcome.folder, "spec.json").read_text())["spec"]["spec"]
    assert "evaluation" not in spec
    assert spec["config"] == result.training.spec.config
