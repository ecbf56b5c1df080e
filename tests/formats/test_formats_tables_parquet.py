"""Parquet tables of timesteps: names of columns, vectors, cells, filters, and invalid tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_reading import PickleBomb, pack_lz4_cell, read_table

from hindcast.api.input import FilterTerm
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.registry import FORMATS
from hindcast.storage.location import resolve

COLUMNS: dict[str, Any] = {
    "obs": [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]],
    "actions": [0, 1, 0],
    "rewards": [1.0, 2.0, 3.0],
}


def write_table(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.parquet"


def test_alias_names_are_recognised(path: Path) -> None:
    write_table(
        path,
        {
            "episode": [7, 7, 8],
            "step": [0, 1, 0],
            "observations": COLUMNS["obs"],
            "next_observations": COLUMNS["obs"],
            "action": COLUMNS["actions"],
            "reward": COLUMNS["rewards"],
            "terminals": [False, True, False],
            "timeouts": [0, 0, 1],
            "logp": [-0.5, -0.25, -1.0],
            "note": ["a", "b", "c"],
        },
    )
    rows = read_table(path)
    assert sorted(rows.columns) == ["actions", "logp", "new_obs", "note", "obs", "rewards"]
    assert rows.columns["obs"].tolist() == COLUMNS["obs"]
    assert rows.eps_id.tolist() == ["7", "7", "8"]
    assert rows.t.tolist() == [0, 1, 0]
    assert rows.terminated.tolist() == [False, True, False]
    assert rows.truncated.tolist() == [False, False, True]
    assert rows.columns["note"].tolist() == ["a", "b", "c"]


def test_schema_maps_columns(path: Path) -> None:
    columns = {
        "x": COLUMNS["obs"],
        "a": [0, 1, 0],
        "r": [1, 2, 3],
        "d": [0, 0, 1],
        "p": [0.1] * 3,
        "f0": [1.0] * 3,
    }
    write_table(path, columns)
    schema = {"obs": "x", "actions": "a", "rewards": "r", "done": "d", "action_logp": "p"}
    rows = read_table(path, schema=schema)
    assert rows.terminated.tolist() == [False, False, True]
    assert sorted(rows.columns) == ["action_logp", "actions", "f0", "obs", "rewards"]
    assert rows.eps_id is None
    assert rows.t is None


@pytest.mark.parametrize("names", [["obs_0", "obs_1"], ["obs[0]", "obs[1]"], ["state_1", "state_2"]])
def test_numbered_columns_become_a_vector(path: Path, names: list[str]) -> None:
    obs_columns = {names[1]: [1, 2, 3], names[0]: [0.0, 1.0, 2.0]}
    write_table(path, {**obs_columns, "actions": [0, 1, 0], "rewards": [1.0] * 3})
    assert read_table(path).columns["obs"].tolist() == [[0, 1], [1, 2], [2, 3]]


def test_pattern_selects_columns_in_natural_order(path: Path) -> None:
    features = {f"f_{i}": [float(i)] for i in reversed(range(12))}
    write_table(path, {**features, "actions": [0], "rewards": [1.0]})
    rows = read_table(path, schema={"obs": "f_*"})
    assert rows.columns["obs"].tolist() == [[float(i) for i in range(12)]]


def test_list_selects_columns_in_its_order(path: Path) -> None:
    obs_columns = {"age": [40, 41, 42], "weight": [1.5, 2.5, 3.5]}
    write_table(path, {**obs_columns, "actions": [0, 1, 0], "pay": [1.0] * 3})
    rows = read_table(path, schema={"obs": ["weight", "age"], "rewards": ["pay"]})
    assert rows.columns["obs"].tolist() == [[1.5, 40], [2.5, 41], [3.5, 42]]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"obs": ["obs", "wight"]},
            "no column 'wight', which `schema` names for 'obs': did you mean 'weight'",
        ),
        ({"t": ["age", "weight"]}, "'t' must be one column.*'age', 'weight'"),
        ({"rewards": "*e*t"}, "'rewards' must be one column"),
    ],
)
def test_invalid_schema_list_raises(path: Path, schema: dict[str, Any], message: str) -> None:
    write_table(path, {**COLUMNS, "age": [40, 41, 42], "weight": [1.5, 2.5, 3.5], "wet": [0, 0, 0]})
    with pytest.raises(DataError, match=message):
        read_table(path, schema=schema)


def test_structs_and_tensors_are_read_as_leaves(path: Path) -> None:
    frames = np.arange(3 * 6, dtype=np.uint8).reshape(3, 2, 3)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(frames)
    obs = pa.StructArray.from_arrays([tensors, pa.array([[0.5], [1.5], [2.5]])], ["camera", "pose"])
    write_table(path, {"obs": obs, "actions": COLUMNS["actions"], "rewards": COLUMNS["rewards"]})
    rows = read_table(path)
    assert rows.columns["obs/camera"].tolist() == frames.tolist()
    assert rows.columns["obs/pose"].tolist() == [[0.5], [1.5], [2.5]]


def test_packed_cells_are_unpacked_only_in_compress_columns(path: Path) -> None:
    cells = [pack_lz4_cell(np.array(row, dtype=np.float32)) for row in COLUMNS["obs"]]
    write_table(path, {**COLUMNS, "obs": cells, "extra": cells})
    rows = read_table(path, compress_columns=["obs"])
    assert rows.columns["obs"].dtype == np.float32
    assert rows.columns["extra"].tolist() == cells
    with pytest.raises(
        DataError, match=r"it has no column 'nope', which `compressColumns` contains; choose one of"
    ):
        read_table(path, compress_columns=["obs", "nope"])


def test_json_cells_are_read_as_vectors(path: Path) -> None:
    write_table(path, {**COLUMNS, "obs": ["[0, 1]", " [1,\n2.5]", "[2, 3]"]})
    assert read_table(path).columns["obs"].tolist() == [[0, 1], [1, 2.5], [2, 3]]


def test_done_with_time_limit_is_truncated(path: Path) -> None:
    infos = [{"TimeLimit.truncated": None}, {"TimeLimit.truncated": True}, {"TimeLimit.truncated": False}]
    write_table(path, {**COLUMNS, "done": [False, True, True], "info": infos})
    rows = read_table(path, columns=["obs"])
    assert rows.truncated.tolist() == [False, True, False]
    assert rows.terminated.tolist() == [False, False, True]


def test_agents_have_separate_episodes(path: Path) -> None:
    write_table(path, {**COLUMNS, "eps_id": ["e", "e", "e"], "agent_id": ["left", "right", "left"]})
    assert read_table(path).eps_id.tolist() == ["e/left", "e/right", "e/left"]


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (("reward", ">=", 40), range(40, 50)),
        (("reward", "in", [3, 30]), [3, 30]),
        (("kind", "==", "b"), range(1, 50, 2)),
        (("kind", "!=", "b"), range(0, 50, 2)),
        (("ok", "==", True), range(0, 50, 5)),
    ],
)
def test_filtered_rows_keep_their_numbers(path: Path, term: tuple[str, str, Any], expected: Any) -> None:
    columns = {
        "obs": [[float(i)] for i in range(50)],
        "action": [0] * 50,
        "reward": list(range(50)),
        "kind": ["a", "b"] * 25,
        "ok": [i % 5 == 0 for i in range(50)],
    }
    rows = read_table(write_table(path, columns, row_group_size=7), filter=[term])
    assert rows.row.tolist() == list(expected)
    assert rows.columns["obs"][:, 0].tolist() == list(expected)


def test_row_groups_excluded_by_statistics_are_not_read(path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {"obs": rng.random(40_000), "action": np.zeros(40_000), "reward": np.arange(40_000)}
    write_table(path, columns, row_group_size=10_000)
    options = ReadOptions(filter=[FilterTerm(column="reward", op=">", value=35_000)])
    pieces = FORMATS["Parquet"].list_pieces(resolve(path), options)
    assert [piece.extent.groups for piece in pieces] == [(3,)]


def test_large_file_is_split_into_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    obs = np.random.default_rng(0).random(1000)
    columns = {"obs": obs, "action": np.arange(1000), "reward": np.ones(1000)}
    write_table(path, columns, row_group_size=100)
    monkeypatch.setattr("hindcast.formats.tables.parquet.PIECE_BYTES", 5000)
    monkeypatch.setattr("hindcast.formats.tables.parquet._MAX_TABLE_BYTES", 100)
    assert len(FORMATS["Parquet"].list_pieces(resolve(path), ReadOptions())) > 3
    rows = read_table(path)
    assert rows.row.tolist() == rows.columns["actions"].tolist() == list(range(1000))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"a": [1]}, {}, r"no column 'obs'.*the columns are \['a'\]"),
        ({**COLUMNS, "obs": [[1.0], None, [2.0]]}, {}, "row 1: 'obs' is null"),
        (
            {**COLUMNS, "obs": [[1.0], [2.0], [2.0, 3.0]]},
            {},
            "row 2: 'obs' has 2 numbers, but the row before has 1",
        ),
        ({**COLUMNS, "new_obs": [1, 2, 3]}, {}, "'new_obs' is int64 .* and 'obs' is float64"),
        ({**COLUMNS, "done": [0, 1, 2]}, {}, "row 2: 'done' is 2: expected true or false"),
        (
            {**COLUMNS, "done": [[0, 1]] * 3},
            {},
            "a row is a whole episode, actions, rewards, .* must all be lists",
        ),
        (
            {**COLUMNS, "done": [0] * 3, "terminal": [0] * 3},
            {},
            "'done' and 'terminal' could both be 'terminateds'",
        ),
        ({**COLUMNS, "obs_0": [1, 2, 3], "eps_id": ["a", None, "b"]}, {}, "row 1: 'eps_id' is null"),
        ({**COLUMNS, "t": [0.0, 0.5, 1.0]}, {}, "row 1: 't' is 0.5: expected a whole number"),
        (COLUMNS, {"schema": {"obs": "observatons"}}, "no column 'observatons', which `schema` names"),
        (
            COLUMNS,
            {"filter": [("reward", ">", 1)]},
            "no column 'reward', which `filter` names: did you mean 'rewards'",
        ),
        (
            COLUMNS,
            {"filter": [("rewards", ">", "a")]},
            "`filter` compares 'rewards', a column of double, with 'a'",
        ),
        (COLUMNS, {"columns": ["ob"]}, "no column 'ob', which `columns` names: did you mean 'obs'"),
        (
            {**COLUMNS, "done": [0, 0, 1]},
            {"columns": ["obs", "done"]},
            "`columns` requires Hindcast's names: write 'terminateds' for 'done'",
        ),
        (COLUMNS, {"options": {"delimiter": ";"}}, "has 'delimiter', but Parquet has no options"),
        (
            {"obs_0": [1], "obs_2": [1], "actions": [0], "rewards": [1]},
            {},
            "numbered for an array of .* is missing",
        ),
    ],
)
def test_invalid_table_raises(path: Path, columns: dict[str, Any], options: Any, message: str) -> None:
    write_table(path, columns)
    with pytest.raises(DataError, match=message):
        read_table(path, **options)


def test_excluded_columns_are_not_checked(path: Path) -> None:
    invalid_columns = {"when": pa.array([1, 2, 3], pa.timestamp("s")), "broken": [[1], [1, 2], None]}
    write_table(path, {**COLUMNS, **invalid_columns})
    rows = read_table(path, columns=["obs", "actions", "rewards"])
    assert sorted(rows.columns) == ["actions", "obs", "rewards"]


def test_pickle_that_runs_code_raises_with_function_name(path: Path) -> None:
    created_file = path.parent / "exploded"
    values = [np.zeros(2), PickleBomb(created_file), np.zeros(2)]
    write_table(path, {**COLUMNS, "obs": [pack_lz4_cell(value) for value in values]})
    with pytest.raises(DataError, match=r"row 1: it holds a pickle that calls pathlib"):
        read_table(path)
    assert not created_file.exists()
