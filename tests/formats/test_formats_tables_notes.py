"""Notes of formats on how they interpret ambiguous data."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from table_reading import find_format

from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.formats.format import ReadOptions
from hindcast.storage.location import resolve

STEP = {"obs": [1.5], "actions": 0, "rewards": 1.0, "new_obs": [2.5], "eps_id": "e", "t": 0}


def join_notes(path: Path, **options: object) -> str:
    return "; ".join(find_format(path).list_notes(resolve(path), ReadOptions(**options)))


@pytest.mark.parametrize("name", ["a.parquet", "a.json", "array.json", "a.csv"])
def test_single_done_column_is_noted(tmp_path: Path, name: str) -> None:
    path, step = tmp_path / name, {**STEP, "done": True, "info": "{}"}
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist([{"observations": step.pop("obs"), **step}]), path)
    elif name == "a.csv":
        path.write_text("obs[0],new_obs[0],actions,rewards,eps_id,t,done,info\n1.5,2.5,0,1,e,0,1,{}\n")
    else:
        path.write_text(json.dumps([step] if name == "array.json" else step))
    assert "'done' does not say why an episode ends" in join_notes(path)
    assert "unless its 'info' reports a time limit" in join_notes(path)
    assert "'done' does not say" not in join_notes(path, schema={"terminateds": "done"})
    assert any("'done' does not say" in note for note in open_data(path).notes)


def test_replaced_columns_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    row = {**STEP, "features": [0.5], "terminateds": True, "done": True}
    pq.write_table(pa.Table.from_pylist([row]), path)
    assert "the columns ['obs', 'done'] are not read" in join_notes(path, schema={"obs": "features"})


def test_text_without_types_is_noted(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**STEP, "terminateds": True}))
    assert "JSON has no types" in join_notes(tmp_path / "a.json")


def test_batch_without_flags_is_noted(tmp_path: Path) -> None:
    batch = {name: [value, value] for name, value in STEP.items()}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"type": "SampleBatch", **batch}) + "\n")
    assert "no column marks the ends of episodes" in join_notes(path)
    path.write_text(json.dumps({"type": "SampleBatch", **batch, "dones": [False, True]}) + "\n")
    assert "'dones' does not say why an episode ends" in join_notes(path)


@pytest.mark.parametrize("name", ["__index_level_0__", "", "Unnamed: 0"])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_unnamed_pandas_index_is_not_read(tmp_path: Path, name: str, suffix: str) -> None:
    folder, steps = tmp_path / "rows", {"obs": [0.0, 1.0], "new_obs": [1.0, 2.0], "actions": [0, 1]}
    folder.mkdir()
    for number in range(2):
        other_columns = {"rewards": [1.0, 1.0], "eps_id": [f"e{number}"] * 2, "terminateds": [False, True]}
        flag_columns = {"truncateds": [False, False], "t": [1, 2] if number else [0, 1]}
        table = pa.table({**({name: [7, 3]} if number else {}), **steps, **other_columns, **flag_columns})
        if suffix == "csv":
            pacsv.write_csv(table, folder / f"{number}.csv")
        else:
            pq.write_table(table, folder / f"{number}.parquet")
    dataset = open_data(folder, cache=tmp_path / "cache")
    assert dataset.num_episodes == 2
    assert set(dataset.spec.leaves) == {"obs", "actions", "rewards"}


def test_unnamed_pandas_index_is_read_when_schema_names_it(tmp_path: Path) -> None:
    steps = [{**STEP, "__index_level_0__": 1}, {**STEP, "__index_level_0__": 0}]
    table = pa.Table.from_pylist(steps).drop_columns(["t"])
    table = table.append_column("terminateds", pa.array([True, False]))
    pq.write_table(table, tmp_path / "rows.parquet")
    options = ReadOptions(schema={"t": "__index_level_0__"})
    dataset = open_data(Reading((str(tmp_path / "rows.parquet"),), options=options), cache=tmp_path / "cache")
    assert (dataset.num_episodes, dataset.num_steps) == (1, 2)
