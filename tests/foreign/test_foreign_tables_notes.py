"""What formats say of how they take a user's data, where these leave it open."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hindcast.foreign.format import ReadOptions, Telling
from hindcast.foreign.formats import format_of
from hindcast.prepare.opening import open_data
from hindcast.store.filesystem import resolve

STEP = {"obs": [1.5], "actions": 0, "rewards": 1.0, "new_obs": [2.5], "eps_id": "e", "t": 0}


def notes_of(path: Path, **options: object) -> str:
    location = resolve(path)
    known = format_of(location)
    assert isinstance(known, Telling)
    return "; ".join(known.notes(location, ReadOptions(**options)))


@pytest.mark.parametrize("name", ["a.parquet", "a.json", "array.json", "a.csv"])
def test_a_done_that_stands_alone(tmp_path: Path, name: str) -> None:
    path, step = tmp_path / name, {**STEP, "done": True, "info": "{}"}
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist([{"observations": step.pop("obs"), **step}]), path)
    elif name == "a.csv":
        path.write_text("obs[0],new_obs[0],actions,rewards,eps_id,t,done,info\n1.5,2.5,0,1,e,0,1,{}\n")
    else:
        path.write_text(json.dumps([step] if name == "array.json" else step))
    assert "'done' says that an episode is over, and not why" in notes_of(path)
    assert "unless its 'info' tells of a time limit" in notes_of(path)
    assert "'done' says" not in notes_of(path, schema={"terminateds": "done"})
    assert any("'done' says" in note for note in open_data(path).notes)


def test_columns_whose_place_others_have(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.Table.from_pylist([{**STEP, "features": [0.5], "terminateds": True, "done": True}]), path
    )
    assert "the columns ['obs', 'done'] are not read" in notes_of(path, schema={"obs": "features"})


def test_text_does_not_tell_types(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**STEP, "terminateds": True}))
    assert "JSON does not tell types" in notes_of(tmp_path / "a.json")


def test_batches_without_flags(tmp_path: Path) -> None:
    batch = {name: [value, value] for name, value in STEP.items()}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"type": "SampleBatch", **batch}) + "\n")
    assert "no flag says that an episode ended" in notes_of(path)
    path.write_text(json.dumps({"type": "SampleBatch", **batch, "dones": [False, True]}) + "\n")
    assert "'dones' says that an episode is over" in notes_of(path)
