"""Inspecting foreign data with bad files: bad files are listed, and the other files are inspected."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import prepare_kit as kit
import pytest
from tool_tables import STEP, encode_table, make_steps, write

from hindcast.datasets.inspection.inspecting import inspect_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import DataError
from user_errors import raises_user_error


def write_json_lines(
    path, first_episode: int, *, width: int = 2, num_episodes: int = 3, text: str | None = None
) -> None:
    """Write episodes of five steps as JSON Lines, or `text` instead."""
    rows = [
        {
            "eps_id": f"e{episode}",
            "t": t,
            "obs": [t / 7] * width,
            "actions": t % 2,
            "rewards": 1.0,
            "new_obs": [(t + 1) / 7] * width,
            "terminateds": t == 4,
        }
        for episode in range(first_episode, first_episode + num_episodes)
        for t in range(5)
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text(text if text is not None else "".join(json.dumps(row) + "\n" for row in rows))


def write_d4rl(path, num_rows: int = 100, num_rewards: int = 100, width: int = 3) -> None:
    """Write an HDF5 file in D4RL's format with episodes of 50 steps; it is invalid if the numbers differ."""
    rng = np.random.default_rng(0)
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        observations = rng.normal(size=(num_rows, width)).astype(np.float32)
        file["observations"] = file["next_observations"] = observations
        file["actions"] = rng.uniform(-1, 1, (num_rows, 2)).astype(np.float32)
        file["rewards"] = np.ones(num_rewards, np.float32)
        file["terminals"], file["timeouts"] = np.arange(num_rows) % 50 == 49, np.zeros(num_rows, np.bool_)


def inspect(*paths):
    return inspect_data(Reading(tuple(map(str, paths))))


def list_errors(summary):
    return [(problem.kind, problem.path) for problem in summary.problems if problem.severity == "error"]


def test_bad_file_is_listed_and_the_others_inspected(tmp_path):
    folder = tmp_path / "data"
    write_json_lines(folder / "a.json", 0)
    write_json_lines(folder / "b.json", 3)
    write_json_lines(folder / "cut.json", 0, text='{"eps_id": "e9", "t": 0, "obs": [1')
    summary = inspect(folder)
    assert (summary.episodes, summary.timesteps) == (6, 30)
    assert list_errors(summary) == [("unreadable", str(folder / "cut.json"))]
    assert "it is not JSON" in summary.problems[0].message


def test_damaged_hdf5_file_is_listed_and_the_others_inspected(tmp_path):
    folder = tmp_path / "data"
    write_d4rl(folder / "a.hdf5")
    write_d4rl(folder / "b.hdf5", num_rewards=97)
    write_d4rl(folder / "c.hdf5")
    content = (folder / "c.hdf5").read_bytes()
    (folder / "c.hdf5").write_bytes(content[: len(content) // 2])
    summary = inspect(folder)
    assert (summary.episodes, summary.timesteps) == (2, 100)
    assert list_errors(summary) == [("unreadable", str(folder / f"{name}.hdf5")) for name in "bc"]


def test_drifting_files_are_listed_in_favour_of_most_timesteps(tmp_path):
    folder = tmp_path / "data"
    write_json_lines(folder / "a.json", 0, width=3)
    write_json_lines(folder / "b.json", 3, num_episodes=4)
    write_json_lines(folder / "c.json", 7, num_episodes=4)
    summary = inspect(folder)
    assert summary.episodes == 8
    assert list_errors(summary) == [("drift", str(folder / "a.json"))]
    assert "its 15 timesteps are not counted" in summary.problems[0].message


def test_files_of_other_shapes_are_listed_with_their_dtypes(tmp_path):
    folder = tmp_path / "data"
    write_d4rl(folder / "a.hdf5")
    write_d4rl(folder / "b.hdf5", width=4)
    (error,) = [problem for problem in inspect(folder).problems if problem.severity == "error"]
    assert "'new_obs' is float32 [3] in one and float32 [4] in the other" in error.message


def test_bad_files_are_each_listed_if_all_are_bad(tmp_path):
    folder = tmp_path / "data"
    for name in ("a.json", "b.json"):
        write_json_lines(folder / name, 0, text='{"eps_id": "e9"')
    summary = inspect(folder)
    assert summary.episodes == 0
    assert list_errors(summary) == [("unreadable", str(folder / f"{name}.json")) for name in "ab"]


def test_single_bad_file_is_an_error(tmp_path):
    write_json_lines(tmp_path / "a.json", 0, text='{"eps_id": "e9"')
    with raises_user_error(DataError, "it is not JSON", path="a.json", row=0):
        inspect(tmp_path / "a.json")


def test_readable_files_that_break_a_rule_together_are_an_error(tmp_path):
    folder = tmp_path / "data"
    write_json_lines(folder / "a.json", 0)
    (folder / "b.json").write_text((folder / "a.json").read_text().replace('"t": 2', '"t": 3'))
    with pytest.raises(DataError, match="episode e0"):
        inspect(folder)


def test_invalid_value_names_the_source_and_not_the_prepared_copy(tmp_path):
    table = kit.make_table(kit.make_block([4, 7, 3]), tmp_path / "table")
    rewards = table["rewards"].to_numpy().copy()
    rewards[5] = np.inf
    rows = kit.scramble_rows(kit.replace_column(table, "rewards", rewards))
    path = kit.write_files(tmp_path / "data", rows)
    (error,) = [problem for problem in inspect(path).problems if problem.severity == "error"]
    assert error.message == f"{path} (episode e1, t 1): 'rewards' has inf, expected a finite number"
    assert (error.path, error.row) == (path, None)


@pytest.mark.parametrize("suffix", ["csv", "arrow"])
def test_files_without_rows_are_not_described(tmp_path, suffix):
    """A file without rows before the others says nothing about formats and columns."""
    columns = {"obs": STEP * 1.0, "next_obs": STEP + 1.0}
    path = Path(write(tmp_path / "data", make_steps(**columns), "b.parquet"))
    empty_table = make_steps(**columns, comment=[""] * 15).slice(0, 0)
    (path / f"a.{suffix}").write_bytes(encode_table(empty_table, suffix))
    summary = inspect(path)
    assert summary.layouts == ("Parquet",)
    assert [column.name for column in summary.table_columns] == make_steps().column_names
    assert f"1 file without rows was left out: a.{suffix}" in [
        problem.message for problem in summary.problems
    ]
