"""Files of other formats, or with other names, next to Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from hindcast.datasets.inspection.column_roles import read_profile
from hindcast.datasets.inspection.inspecting import inspect_data
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import DataError
from support import record, recording


def make_flat_table(tmp_path: Path) -> pa.Table:
    """Make rows of the episodes e0 (4 steps) and e1 (3 steps); an observation is one number."""
    table = kit.make_table(kit.make_block([4, 3]), tmp_path / "flat").select(["eps_id", "actions", "rewards"])
    other_columns = {
        "obs": np.arange(7.0),
        "new_obs": np.arange(1.0, 8.0),
        "t": [0, 1, 2, 3, 0, 1, 2],
        "terminateds": [False] * 3 + [True] + [False] * 2 + [True],
        "truncateds": [False] * 7,
    }
    for name, column in other_columns.items():
        table = table.append_column(name, pa.array(column))
    return table


def test_csv_next_to_parquet_is_read(tmp_path):
    table, folder = make_flat_table(tmp_path), tmp_path / "rows"
    folder.mkdir()
    pq.write_table(table.slice(0, 4), folder / "a.parquet")
    assert open_data(folder).num_episodes == 1
    pacsv.write_csv(table.slice(4), folder / "b.csv")
    dataset = open_data(folder)
    assert (dataset.num_episodes, dataset.num_steps) == (2, 7)
    assert inspect_data(Reading((str(folder),))).episodes == 2


def test_parquet_under_other_names_is_read(tmp_path):
    table, folder = make_flat_table(tmp_path), tmp_path / "rows"
    folder.mkdir()
    pq.write_table(table.slice(0, 4), folder / "a.parquet")
    pq.write_table(table.slice(4), folder / "noext")
    assert open_data(folder).num_episodes == 2


def test_named_file_is_read_alone(tmp_path):
    folder = tmp_path / "rows"
    path = kit.write_files(folder, make_flat_table(tmp_path))
    pacsv.write_csv(make_flat_table(tmp_path), folder / "b.csv")
    assert "read 1 file as Parquet" in open_data(f"{path}/part-0.parquet").notes


def test_files_that_are_not_tables_are_skipped_and_noted(tmp_path):
    folder = tmp_path / "rows"
    kit.write_files(folder, make_flat_table(tmp_path))
    (folder / "params.json").write_text(json.dumps({"lr": 1e-3}))
    (folder / "README.md").write_text("what this is")
    (folder / "_SUCCESS").write_text("")
    dataset = open_data(folder)
    assert dataset.num_episodes == 2
    assert dataset.notes[-2:] == (
        "1 file of no known format was left out: README.md",
        "1 file that is not data was left out: params.json",
    )
    messages = [problem.message for problem in inspect_data(Reading((str(folder),))).problems]
    assert any("1 file that is not data was left out" in message for message in messages)


def test_non_data_next_to_episodes_is_skipped_and_noted(tmp_path):
    record(recording(tmp_path / "data"))
    folder = tmp_path / "rows"
    folder.mkdir()
    next((tmp_path / "data").glob("*.parquet")).rename(folder / "a.parquet")
    (folder / "params.json").write_text(json.dumps({"lr": 1e-3}))
    (folder / "README.md").write_text("what this is")
    assert open_data(folder).notes == ("2 files that are not data were left out: README.md, params.json",)


def test_mixing_episodes_and_tables_names_both(tmp_path):
    record(recording(tmp_path / "data"))
    file = next((tmp_path / "data").glob("*.parquet"))
    folder = tmp_path / "rows"
    folder.mkdir()
    file.rename(folder / "a.parquet")
    pacsv.write_csv(make_flat_table(tmp_path), folder / "b.csv")
    with pytest.raises(DataError, match=r"rows mixes .*a.parquet.*b.csv.*separate folders"):
        open_data(folder)


METADATA_FILES = {
    "dataset_info.json": {"name": "mine", "version": "1.0.0", "splits": [{"name": "train"}]},
    "meta/info.json": {"codebase_version": "v3.0", "fps": 10, "features": {"action": {"dtype": "int64"}}},
    "state.json": {"_data_files": [{"filename": "data.arrow"}], "_fingerprint": "0"},
    "metadata.csv": "key,value\nfps,10\n",
}


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("name", METADATA_FILES)
def test_files_that_are_left_out_are_not_described(tmp_path, name, suffix):
    table, folder = make_flat_table(tmp_path), tmp_path / "rows"
    (folder / name).parent.mkdir(parents=True)
    content = METADATA_FILES[name]
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    (pq.write_table if suffix == "parquet" else pacsv.write_csv)(table, folder / f"steps.{suffix}")
    reading = Reading((str(folder),))
    summary, profile = inspect_data(reading), read_profile(reading)
    assert summary.layouts == (("Parquet",) if suffix == "parquet" else ("CSV",))
    assert [column.name for column in summary.table_columns] == table.column_names
    assert profile is not None
    assert profile.columns == summary.table_columns
