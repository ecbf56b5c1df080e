"""Searches by held-out episodes: what is tried, compared, chosen, confirmed and taken."""

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
from hindcast.models.policy import Policy
from hindcast.record import environments
from hindcast.report.text import resource_yaml
from hindcast.run.training import TrainingRun
from hindcast.search import Search, retrain, search, take
from support import MemoryReporter, recording, training

RATES = {"config.lr": [1e-3, 1e-2]}


@pytest.fixture(autouse=True)
def nothing_is_played(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """No environment may be made."""
    make = Mock(side_effect=AssertionError("nothing is to be played"))
    monkeypatch.setattr(gym, "make", make)
    monkeypatch.setattr(environments, "make_environment", make)
    return make


@pytest.fixture
def folder(walks: Path, tmp_path: Path) -> Path:
    """Where a search may go, once `walks` are recorded."""
    return tmp_path / "search"


def base(data: object, offline: dict[str, Any] | None = None, **given: Any) -> OfflineTraining:
    """Three updates on `Walk`, evaluated at the end."""
    judged = {"heldOut": 0.4, "estimates": ["wis"], "explore": True} if offline is None else offline
    given = {"stop": {"updates": 3}, "evaluation": {"offline": judged}, **given}
    return training("runs", data, config={"trainBatchSizePerLearner": 32}, **given)


def document(found: Search) -> dict[str, Any]:
    return json.loads((Path(found.folder) / "search.json").read_text())


def test_the_trial_with_the_best_estimate_is_chosen_without_an_environment(
    walks: Path, folder: Path, reporter: MemoryReporter, nothing_is_played: Mock
) -> None:
    judged = {"heldOut": 0.6, "estimates": ["wis"], "explore": True}
    resource = base(walks, judged, environment={"id": "Lost-v7"})
    found = search(resource, RATES, output=folder, seeds=2, confirm=0.25, reporter=reporter)
    assert nothing_is_played.call_count == 0
    assert [len(trial.runs) for trial in found.trials] == [2, 2]
    assert found.trials[0].figure > found.trials[1].figure
    for trial in found.trials:
        for run in trial.runs:
            (said,) = (
                line["evaluation"]["offline"]
                for line in map(json.loads, Path(run.folder, "results.jsonl").read_text().splitlines())
                if "evaluation" in line
            )
            assert run.figure == said["estimates"]["wis"]["value"]
            assert run.interval == tuple(said["estimates"]["wis"]["interval"])
            assert said["episodes"] == 18  # of the 30 that are not set aside
    assert found.run.figure == max(run.figure for run in found.best.runs)
    assert found.confirmation.episodes == 10
    assert found.confirmation.figure != found.run.figure
    assert found.confirmation.verdict in found.sentence
    assert document(found)["best"]["checkpoint"] == found.run.checkpoint
    page = Path(found.report).read_text()
    assert all(run.folder in page for trial in found.trials for run in trial.runs)
    assert [note for note in reporter.notes if note.startswith("trial 2 (config.lr=0.01) of 2, seed 1: wis ")]


def test_what_is_set_aside_neither_trains_nor_chooses(walks: Path, folder: Path) -> None:
    found = search(base(walks), {"config.lr": [1e-3]}, output=folder, confirm=0.25)
    rest, aside = open_dataset(walks).split(0.25)
    assert found.confirmation.episodes == aside.num_episodes
    offline = found.training.spec.offline
    assert (offline.set_aside, offline.held_out) == (0.25, 0.4)
    marks = json.loads(Path(found.run.folder, "results.jsonl").read_text().splitlines()[-1])
    assert marks["evaluation"]["offline"]["episodes"] == rest.split(0.4)[1].num_episodes


def test_an_interrupted_search_resumes_and_repeats_nothing(
    walks: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = search(base(walks), RATES, output=folder / "whole", confirm=0)
    trained, train = [], TrainingRun._train

    def counted(run: TrainingRun) -> Any:
        if len(trained) == 1:
            trained.append("interrupted")
            raise Interrupted("interrupted by the test")
        trained.append(run._name)
        return train(run)

    monkeypatch.setattr(TrainingRun, "_train", counted)
    with pytest.raises(Interrupted):
        search(base(walks), RATES, output=folder / "parts", confirm=0)
    found = search(base(walks), RATES, output=folder / "parts", confirm=0)
    again = search(base(walks), RATES, output=folder / "parts", confirm=0)
    assert trained == ["OfflineTraining/trial-001-seed-0", "interrupted", "OfflineTraining/trial-002-seed-0"]
    figures = [[run.figure for trial in each.trials for run in trial.runs] for each in (whole, found, again)]
    assert figures[0] == figures[1] == figures[2]


def test_a_search_is_extended_and_its_folder_holds_no_other(walks: Path, folder: Path) -> None:
    one = search(base(walks), {"config.lr": [1e-3]}, output=folder, confirm=0)
    two = search(base(walks), {"config.lr": [1e-3]}, output=folder, confirm=0, seeds=2)
    assert two.trials[0].runs[0] == one.trials[0].runs[0]
    longer = search(base(walks, stop={"updates": 5}), {"config.lr": [1e-3]}, output=folder, confirm=0)
    assert (one.run.updates, longer.run.updates) == (3, 5)
    for other in (
        {"over": {"config.lr": [1e-2]}},
        {"by": "pdis"},
        {"given": base(walks, {"heldOut": 0.4, "estimates": ["wis"], "explore": True, "clip": 2})},
        {"given": base(walks, model={"fcnetHiddens": [8]})},
    ):
        with pytest.raises(OutputConflict, match="holds another search"):
            search(**{"given": base(walks), "over": {"config.lr": [1e-3]}, **other}, output=folder, confirm=0)


def test_what_is_set_aside_leaves_too_little_for_the_trials(walks: Path, folder: Path) -> None:
    said = (
        r"heldOut is 0\.4, and .* has 1 episode left after spec\.evaluation\.offline\.setAside \(--confirm\), 0\.97: "
        r"0 would be held out and 1 trained on"
    )
    with pytest.raises(SpecError, match=said):
        search(base(walks), {"config.lr": [1e-3]}, output=folder, confirm=0.97)


def test_a_trial_that_fails_is_a_row_and_the_others_run(walks: Path, folder: Path) -> None:
    found = search(base(walks), {"config.lr": [1e38, 1e-3]}, output=folder, confirm=0)
    assert [trial.number for trial in found.trials] == [2, 1]
    assert "NaN" in str(found.trials[1].runs[0].error)
    assert "NaN" in Path(found.report).read_text()


def test_a_config_is_searched_as_its_resource_is(walks: Path, folder: Path) -> None:
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
    found = search(config, {"config.lr": rates}, output=folder, confirm=0, stop={"updates": 2})
    assert {trial.setting["config.lr"] for trial in found.trials} == {1e-4, 1e-3}
    assert found.run.updates == 2


def test_a_recording_in_the_file_gives_its_data(walks: Path, folder: Path, tmp_path: Path) -> None:
    resource = base(walks)
    recorded = recording(walks)
    source = {"recording_ref": Reference(name="test"), "path": None}
    source = resource.spec.input[0].model_copy(update=source)
    spec = resource.spec.model_copy(update={"input": [source]})
    texts = map(resource_yaml, (recorded, resource.model_copy(update={"spec": spec})))
    (tmp_path / "both.yaml").write_text("---\n".join(texts))
    found = search(tmp_path / "both.yaml", {"config.lr": [1e-3]}, output=folder, confirm=0)
    assert found.training.spec.input[0].path == str(walks)


def test_without_any_value_nothing_is_chosen(walks: Path, folder: Path, reporter: MemoryReporter) -> None:
    greedy = {"heldOut": 0.4, "estimates": ["wis"]}  # hardly an episode counts
    found = search(base(walks, greedy), {"config.lr": [1e-3]}, output=folder, confirm=0)
    assert found.best is None
    assert "no trial has a wis from all its seeds: wis cannot be computed: " in found.sentence
    with pytest.raises(SpecError, match="no trial has a wis"):
        take(found, folder / "taken")


def test_trials_are_compared_by_their_loss(walks: Path, folder: Path) -> None:
    found = search(base(walks), RATES, output=folder, by="validationLoss", confirm=0.25)
    assert found.trials[0].figure < found.trials[1].figure
    assert found.run.verdict is None
    assert found.confirmation.figure == pytest.approx(found.run.figure, rel=0.5)
    assert found.confirmation.verdict is not None


def test_all_trials_are_discounted_as_the_resource_is(walks: Path, folder: Path) -> None:
    found = search(base(walks, algorithm="MARWIL"), {"config.gamma": [0.9, 0.5]}, output=folder, confirm=0)
    assert found.training.spec.offline.gamma == 0.99
    behaviours = [trial.runs[0].behaviour for trial in found.trials]
    assert behaviours[0] == behaviours[1]


def test_the_winner_is_taken_or_trained_again_on_all_episodes(
    walks: Path, folder: Path, reporter: MemoryReporter
) -> None:
    found = search(base(walks), RATES, output=folder, confirm=0.25)
    taken = take(found, folder / "taken")
    assert Policy.load(taken).digest == Policy.load(found.run.checkpoint).digest
    assert take(found, folder / "taken") == taken
    with pytest.raises(OutputConflict, match="is not empty"):
        take(found, walks)
    outcome = retrain(found, folder / "again", reporter)
    assert outcome.metrics["updates"] == found.run.updates
    spec = json.loads(Path(outcome.folder, "spec.json").read_text())["spec"]["spec"]
    assert "evaluation" not in spec
    assert spec["config"] == found.training.spec.config
