"""Missing values of tables, in every form in which tools write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from hindcast.datasets.prepare.opening import open_reading
from hindcast.datasets.prepare.reading import Reading
from hindcast.formats.format import ReadOptions

X = [1.0, None, 3.0, None, 5.0, 6.0]
Y = [None, 2.0, None, 4.0, 5.0, 6.0]
ROLES: dict[str, Any] = {
    "ep": [0, 0, 0, 1, 1, 1],
    "t": [0, 1, 2, 0, 1, 2],
    "act": [0, 1, 0, 1, 0, 1],
    "r": [0.5] * 6,
    "end": [False, False, True] * 2,
}
SCHEMA: dict[str, Any] = {"eps_id": "ep", "actions": "act", "rewards": "r", "terminateds": "end"}


def write_parquet(folder: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(ROLES | columns), folder / "visits.parquet", row_group_size=2)
    return folder / "visits.parquet"


def write_csv(folder: Path, columns: dict[str, Any]) -> Path:
    pacsv.write_csv(pa.table(ROLES | columns), folder / "visits.csv")
    return folder / "visits.csv"


def write_json(folder: Path, columns: dict[str, Any]) -> Path:
    rows = pa.table(ROLES | columns).to_pylist()
    (folder / "visits.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "visits.jsonl"


def write_arrow(folder: Path, columns: dict[str, Any]) -> Path:
    table = pa.table(ROLES | columns)
    with pa.ipc.new_file(str(folder / "visits.arrow"), table.schema) as writer:
        writer.write_table(table, 4)
    return folder / "visits.arrow"


FORMS: dict[str, tuple[dict[str, Any], Any]] = {
    "floats": ({"x": X, "y": Y}, ["x", "y"]),
    "integers": ({"x": [None if x is None else int(x) for x in X], "y": Y}, ["x", "y"]),
    "not a number": ({"x": [float("nan") if x is None else x for x in X], "y": Y}, ["x", "y"]),
    "lists": ({"vitals": [list(pair) for pair in zip(X, Y, strict=True)]}, "vitals"),
}


@pytest.mark.parametrize(
    ("form", "write"),
    [
        (form, write)
        for form in FORMS
        for write in (write_parquet, write_csv, write_json, write_arrow)
        if (form, write) != ("lists", write_csv)  # CSV has no lists
    ],
)
def test_missing_values_are_read_alike_from_every_form(tmp_path: Path, form: str, write: Any) -> None:
    columns, source = FORMS[form]
    path = write(tmp_path, columns)
    data = open_reading(Reading((path,), options=ReadOptions(schema={**SCHEMA, "obs": source})))
    (unit,) = data.dataset.units
    block = data.dataset.read(unit)
    expected = np.array([X, Y], np.float64).T
    np.testing.assert_array_equal(block.columns["obs"][block.obs_row], expected)
    names = ("obs[0]", "obs[1]") if form == "lists" else ("x", "y")
    assert data.dataset.spec.leaves["obs"].element_names("obs") == names
    assert {name: (finding.count, finding.row) for name, finding in data.missing.items()} == {
        names[0]: (2, 1),
        names[1]: (2, 0),
    }
    assert any("values are missing: " in note for note in data.notes)


def test_next_observation_is_missing_as_a_whole_or_value_by_value(tmp_path: Path) -> None:
    following = {
        "next_x": [None, 3.0, None, 5.0, 6.0, None],
        "next_y": [2.0, None, None, 5.0, 6.0, None],
    }
    path = write_parquet(tmp_path, {"x": X, "y": Y, **following})
    schema = {**SCHEMA, "obs": ["x", "y"], "new_obs": ["next_x", "next_y"]}
    data = open_reading(Reading((path,), options=ReadOptions(schema=schema)))
    (unit,) = data.dataset.units
    block = data.dataset.read(unit)
    last = block.obs_start + block.length
    np.testing.assert_array_equal(block.columns["obs"][last], [[3.0, np.nan], [6.0, 6.0]])


def test_column_without_any_value_is_missing_in_all_rows(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, {"x": X, "y": pa.nulls(6)})
    data = open_reading(Reading((path,), options=ReadOptions(schema={**SCHEMA, "obs": ["x", "y"]})))
    assert data.missing["y"].count == 6
