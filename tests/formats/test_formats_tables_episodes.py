"""Tables of users with whole episodes as rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_reading import read_table

from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions

EPISODES: dict[str, list[Any]] = {
    "observations": [[[0.0], [1.0]], [], [[2.0], [3.0], [4.0]]],
    "actions": [[0, 1], [], [1, 0, 1]],
    "rewards": [[1, 2], [], [3, 4, 5]],
    "dones": [[False, True], [], [False, False, False]],
    "source": ["a", "b", "c"],
}


@pytest.fixture(params=["episodes.parquet", "episodes.jsonl"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return tmp_path / request.param


def write(path: Path, columns: dict[str, list[Any]]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_list_items_are_timesteps(path: Path) -> None:
    write(path, EPISODES)
    rows = read_table(path)
    assert rows.columns["obs"].tolist() == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    assert rows.columns["actions"].tolist() == [0, 1, 1, 0, 1]
    assert rows.columns["rewards"].tolist() == [1, 2, 3, 4, 5]
    assert rows.columns["source"].tolist() == ["a", "a", "c", "c", "c"]
    assert rows.row.tolist() == [0, 0, 2, 2, 2]
    assert rows.terminated.tolist() == [False, True, False, False, False]
    assert rows.truncated.tolist() == [False, False, False, False, True]


def test_rows_of_lists_become_episodes(path: Path) -> None:
    write(path, EPISODES)
    dataset = open_data(Reading((str(path),), options=ReadOptions(ignore_final_observation=True)))
    block = dataset.read(dataset.units[0])
    assert block.eps_id.tolist() == [f"{path}:0", f"{path}:2"]
    assert block.terminated.tolist() == [True, False]
    assert block.num_steps == 5


def test_rows_with_same_id_are_joined(path: Path) -> None:
    dones = [[False] * 2, [], [False] * 3]
    write(path, {**EPISODES, "episode": [7, 8, 7], "t": [[0, 1], [], [2, 3, 4]], "dones": dones})
    dataset = open_data(Reading((str(path),), options=ReadOptions(ignore_final_observation=True)))
    block = dataset.read(dataset.units[0])
    assert block.eps_id.tolist() == ["7"]
    assert block.columns["rewards"].tolist() == [1, 2, 3, 4, 5]


def test_filter_compares_episode_and_timestep_columns(path: Path) -> None:
    write(path, EPISODES)
    assert read_table(path, filter=[("source", "==", "c")]).columns["rewards"].tolist() == [3, 4, 5]
    if path.suffix == ".jsonl":  # Parquet compares the filter with statistics, which lists do not have
        assert read_table(path, filter=[("rewards", ">", 3)]).row.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"rewards": [[1, 2], [], [3, 4]]},
            "row 2: 'observations' has 3 items and 'rewards' has 2: .* whole episode",
        ),
        ({"actions": [[0, 1], None, [1, 0, 1]]}, "row 1: 'actions' is null: expected a list"),
        ({"rewards": [[1, 2], None, [3, 4, 5]]}, "row 1: 'rewards' is null: expected a list"),
    ],
)
def test_lists_of_different_lengths_raise(path: Path, columns: dict[str, Any], message: str) -> None:
    write(path, {**EPISODES, **columns})
    with pytest.raises(DataError, match=message):
        read_table(path)
