"""A schema may name fields of structs, in each format of tables, and a wrong name lists the fields beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from tool_tables import ACTIONS, DONE, EPISODE, LENGTHS, NEXT_OBS, OBS, REWARDS, STEP, open_tool

from hindcast.datasets.inspection.column_roles import read_profile
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.layout import CellError
from hindcast.formats.tables.struct_fields import add_fields

SCHEMA = {
    "obs": "state.body.position",
    "new_obs": "state.next/position",
    "actions": "control.action",
    "rewards": "control.reward",
    "eps_id": "state.episode",
}
FORMATS = ["steps.parquet", "steps.feather", "steps.jsonl", "steps.csv", "episodes.parquet"]


def write_steps(folder: Path, name: str) -> Path:
    rows = [
        {
            "state": {
                "body": {"position": OBS[i].tolist(), "mass": 1.0},
                "next": {"position": NEXT_OBS[i].tolist()},
                "episode": int(EPISODE[i]),
            },
            "control": {"action": int(ACTIONS[i]), "reward": float(REWARDS[i])},
            "step": int(STEP[i]),
            "done": bool(DONE[i]),
        }
        for i in range(len(OBS))
    ]
    path = folder / name
    if path.suffix == ".csv":
        lines = [
            ";".join(json.dumps(value).replace('"', '""').join('""') for value in row.values())
            for row in rows
        ]
        path.write_text("\n".join(["state;control;step;done", *lines]))
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        if name.startswith("episodes"):
            starts = [sum(LENGTHS[:k]) for k in range(len(LENGTHS))]
            rows = [
                {column: [row[column] for row in rows[start : start + length]] for column in rows[0]}
                for start, length in zip(starts, LENGTHS, strict=True)
            ]
        table = pa.Table.from_pylist(rows)
        write = pa.feather.write_feather if path.suffix == ".feather" else pq.write_table
        write(table, path)
    return path


def read_options(path: Path, **schema: str) -> ReadOptions:
    options = {"delimiter": ";"} if path.suffix == ".csv" else {}
    return ReadOptions(schema=SCHEMA | schema, options=options)


@pytest.mark.parametrize("name", FORMATS)
def test_fields_of_structs_are_columns(tmp_path, name):
    path = write_steps(tmp_path, name)
    options = read_options(path)
    block = kit.read_block(open_tool(path, schema=options.schema, options=options.options))
    assert block.columns.keys() == {"obs", "actions", "rewards"}
    assert block.eps_id.tolist() == ["0", "1", "2"]
    assert block.length.tolist() == LENGTHS
    assert block.terminated.all()
    assert block.columns["obs"][block.obs_row] == pytest.approx(OBS)
    assert block.columns["obs"][block.obs_start + block.length] == pytest.approx(NEXT_OBS[DONE])
    assert block.columns["actions"].tolist() == ACTIONS.tolist()
    assert block.columns["rewards"] == pytest.approx(REWARDS)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("state.body.positon", r"'state\.body' has no field 'positon', .*did you mean 'position'\?"),
        ("state.zzz", r"'state' has no field 'zzz', .*choose one of \['body', 'next', 'episode'\]"),
        ("stat.body", r"no column 'stat\.body', .*did you mean 'state'\?|choose one of \['state'"),
        ("step.count", r"'step' is a column of .*, so it has no field 'count'"),
    ],
)
def test_wrong_field_lists_the_fields_beside_it(tmp_path, name, source, message):
    path = write_steps(tmp_path, name)
    options = read_options(path, obs=source)
    with pytest.raises(DataError, match=rf"{name}.*{message}"):
        open_tool(path, schema=options.schema, options=options.options)


def test_schema_with_fields_is_kept_by_init(tmp_path):
    path = write_steps(tmp_path, "steps.parquet")
    profile = read_profile(Reading((str(path),), options=read_options(path)))
    assert profile is not None
    roles = {column.name: column.role for column in profile.columns}
    assert roles["state.body.position"] == "obs"
    assert roles["control.action"] == "actions"


@pytest.mark.parametrize("is_encoded", [False, True])
def test_field_of_json_text_is_null_where_the_text_is(is_encoded):
    """Regression: with one null, or as categories, the column was said to be text without fields."""
    texts = pa.chunked_array([[None, '{"x": 1}'], ['{"x": 2}', None, '{"y": 3}']])
    table = pa.table({"state": texts.dictionary_encode() if is_encoded else texts})
    fields = {"state.x": ("state", "x")}
    assert add_fields(table, fields).column("state.x").to_pylist() == [None, 1, 2, None, None]
    broken = pa.table({"state": pa.chunked_array([[None, '{"x": 1}', None, '{"x": 1']])})
    with pytest.raises(CellError, match="'state' begins like JSON") as info:
        add_fields(broken, fields)
    assert info.value.row == 3


POINT = pa.struct({"x": pa.float64(), "y": pa.struct({"z": pa.int64()})})
POINTS: list[Any] = [
    [{"x": 1.0, "y": {"z": 2}}, {"x": 3.0, "y": {"z": 4}}],
    None,
    [{"x": 5.0, "y": None}, None],
]


@pytest.mark.parametrize("list_type", [pa.list_(POINT), pa.large_list(POINT), pa.list_(POINT, 2)], ids=str)
@pytest.mark.parametrize("first_row", [0, 1, 2])
def test_field_of_structs_in_lists_is_a_list(list_type, first_row):
    """Regression: the fields of structs in lists of a fixed size were refused."""
    table = pa.table({"points": pa.array(POINTS, list_type)}).slice(first_row)
    table = add_fields(table, {"x": ("points", "x"), "z": ("points", "y", "z")})
    assert table.column("x").to_pylist() == [[1.0, 3.0], None, [5.0, None]][first_row:]
    assert table.column("z").to_pylist() == [[2, 4], None, [None, None]][first_row:]


@pytest.mark.parametrize("null_type", [pa.null(), pa.string(), pa.dictionary(pa.int32(), pa.string()), POINT])
def test_field_of_a_column_of_nulls_is_null(null_type):
    """Regression: where all texts of a file are null, they were said to have no fields."""
    table = pa.table({"state": pa.nulls(3, null_type)})
    assert add_fields(table, {"state.x": ("state", "x")}).column("state.x").to_pylist() == [None] * 3


@pytest.mark.parametrize("null_type", [pa.null(), pa.string()])
def test_json_text_that_is_null_in_a_file_is_missing_there(tmp_path, null_type):
    for number, texts in enumerate((['{"pulse": 60}', '{"pulse": 61}'], [None, None])):
        steps = {"episode": [number] * 2, "obs": [0.0, 1.0], "action": [0, 1], "reward": [0.0, 1.0]}
        states = pa.array(texts, null_type if number else pa.string())
        pq.write_table(
            pa.table(steps | {"done": [False, True], "state": states}), tmp_path / f"{number}.parquet"
        )
    dataset = open_tool(tmp_path, schema={"obs": ["obs", "state.pulse"]}, ignore_final_observation=True)
    block = kit.read_block(dataset)
    assert block.columns["obs"][block.obs_row, 1] == pytest.approx([60, 61, np.nan, np.nan], nan_ok=True)
