"""Trainings on data that must be prepared, because they are not whole episodes in order."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hindcast import BCConfig
from hindcast.errors import DataError, OutputConflict
from hindcast.run.execute import FileReferences, train_locally
from hindcast.run.inputs import open_inputs, resolve_inputs
from hindcast.run.interruption import Interruption
from hindcast.run.planning import plan
from support import WALK, MemoryReporter, record, recording, training

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def scrambled_folder(tmp_path: Path) -> Path:
    """Tables of recorded timesteps, with the rows of each file in random order."""
    record(recording(tmp_path / "ordered", output={"format": "Columns"}))
    (tmp_path / "scrambled_folder").mkdir()
    for file in sorted((tmp_path / "ordered").glob("*.parquet")):
        table = pq.read_table(file)
        rows = np.random.default_rng(0).permutation(len(table))
        pq.write_table(table.take(rows), tmp_path / "scrambled_folder" / file.name)
    return tmp_path / "scrambled_folder"


def train(resource: Any, reporter: MemoryReporter | None = None) -> Any:
    inputs = resolve_inputs(resource, FileReferences({}))
    return train_locally(resource, inputs, reporter or MemoryReporter(), Interruption())[0]


@pytest.mark.parametrize("is_discrete", [True, False])
def test_action_units_are_noted_only_for_float_actions(tmp_path: Path, is_discrete: bool) -> None:
    rows = [
        {"eps_id": "e", "t": t, "obs": [0.5], "new_obs": [0.5], "actions": [1.5], "rewards": 0}
        for t in range(9)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    box = {"type": "Box", "low": -2, "high": 2, "shape": [1]}
    spaces = {"observationSpace": box, "actionSpace": {"type": "Discrete", "n": 2} if is_discrete else box}
    resource = training(tmp_path / "run", tmp_path / "a.jsonl", **spaces)
    reporter = MemoryReporter()
    open_inputs(resource, resolve_inputs(resource, FileReferences({})), reporter)
    notes = [note for note in reporter.notes if "actions are read in the environment's units" in note]
    assert bool(notes) != is_discrete


def test_scrambled_rows_are_sorted_and_trained_on(tmp_path: Path, scrambled_folder: Path) -> None:
    reporter = MemoryReporter()
    outcome = train(training(tmp_path / "run", scrambled_folder), reporter)
    assert outcome.state == "Succeeded"
    assert any("rows were put in order: 40 by t" in note for note in reporter.notes)
    assert any(stage.stage == "Preparing the data" for stage in reporter.stages)


def test_builder_reports_same_notes(
    tmp_path: Path, scrambled_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = MemoryReporter()
    train(training(tmp_path / "run", scrambled_folder), reporter)
    config = BCConfig().environment(WALK["id"]).offline_data(input_=str(scrambled_folder))
    with caplog.at_level("WARNING", "hindcast"), config.build_algo() as algo:
        expected_notes = [note for note in reporter.notes if note.startswith(f"{scrambled_folder}: ")]
        assert [note for note in algo.notes if note.startswith(f"{scrambled_folder}: ")] == expected_notes
        assert "rows were put in order: 40 by t" in caplog.text


def test_table_without_rewards_trains_with_selected_columns(tmp_path: Path, scrambled_folder: Path) -> None:
    for file in scrambled_folder.iterdir():
        pq.write_table(pq.read_table(file).drop_columns("rewards"), file)
    with pytest.raises(DataError, match=r"no column 'rewards'.*or read `columns: \[obs, actions\]` alone"):
        train(training(tmp_path / "run", scrambled_folder))
    source = {"path": str(scrambled_folder), "columns": ["obs", "actions"]}
    assert train(training(tmp_path / "run", scrambled_folder, input=[source])).state == "Succeeded"


def test_filter_of_input_selects_timesteps(tmp_path: Path) -> None:
    record(recording(tmp_path / "data"))
    source = {"path": str(tmp_path / "data"), "filter": [{"column": "t", "op": "<", "value": 2}]}
    document = plan(training(tmp_path / "run", tmp_path / "data", input=[source]), [])
    assert document["inputs"] == [str(tmp_path / "data")]
    assert "80" in json.dumps(document["data"])  # two timesteps of each of 40 episodes


def test_finished_training_prepares_data_only_for_higher_stop(tmp_path: Path, scrambled_folder: Path) -> None:
    resource = training(tmp_path / "run", scrambled_folder)
    plan_before = plan(resource, [])
    train(resource)
    plan_after = plan(resource, [])
    assert plan_after.pop("measured")["by"].startswith("3 iterations of this run")
    assert plan_after == plan_before
    longer_training = training(tmp_path / "run", scrambled_folder, stop={"iterations": 4})
    assert train(longer_training).state == "Succeeded"
    for file in scrambled_folder.iterdir():
        file.unlink()
    assert train(longer_training).state == "AlreadyFinished"


@pytest.mark.parametrize("is_mixed", [False, True])
def test_replaced_data_are_named(tmp_path: Path, scrambled_folder: Path, is_mixed: bool) -> None:
    """The message names the path of the input, not the path of the prepared copy."""
    record(recording(tmp_path / "other"))
    weighted_inputs = [
        {"path": str(scrambled_folder), "weight": 1.0},
        {"path": str(tmp_path / "other"), "weight": 1.0},
    ]
    fields: dict[str, Any] = {"input": weighted_inputs} if is_mixed else {}
    train(training(tmp_path / "run", scrambled_folder, stop={"updates": 2}, **fields))
    for file in scrambled_folder.iterdir():
        table = pq.read_table(file)
        pq.write_table(table.filter(pc.less(table["t"], 3)), file)
    message = rf"cannot be resumed: the data in {scrambled_folder}, .* have changed since"
    with pytest.raises(DataError, match=message) as error:
        train(training(tmp_path / "run", scrambled_folder, stop={"updates": 4}, **fields))
    assert "cache" not in str(error.value)


def test_other_spec_is_refused_before_data_are_prepared(
    tmp_path: Path, scrambled_folder: Path, cache: Path
) -> None:
    train(training(tmp_path / "run", scrambled_folder))
    shutil.rmtree(cache)
    with pytest.raises(OutputConflict, match=r"raise spec\.revision"):
        train(training(tmp_path / "run", scrambled_folder, seed=3))
    assert not cache.exists()


def test_builder_ignores_run_folder_of_same_name(
    tmp_path: Path, scrambled_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/bc/r1").mkdir(parents=True)
    (tmp_path / "runs/bc/r1/success.json").write_text("{}")
    with BCConfig().environment(WALK["id"]).offline_data(input_=str(scrambled_folder)).build_algo() as algo:
        assert any("rows were put in order" in note for note in algo.notes)


def test_unknown_spaces_are_guessed_with_a_note(tmp_path: Path, scrambled_folder: Path, cache: Path) -> None:
    table = pq.read_table(scrambled_folder).replace_schema_metadata(None)
    pq.write_table(table, tmp_path / "plain.parquet")
    reporter = MemoryReporter()
    train(training(tmp_path / "run", tmp_path / "plain.parquet"), reporter)
    assert any("observationSpace was guessed from the data: Box(" in note for note in reporter.notes)
    assert list(cache.rglob("*.parquet"))
