"""Inspecting foreign data with bad files, which are listed while the rest is inspected."""

from __future__ import annotations

import json

import h5py
import numpy as np
import prepare_kit as kit
import pytest

from hindcast.datasets.inspection.inspecting import inspect_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path / "cache"))


def lines(path, first: int, *, width: int = 2, episodes: int = 3, text: str | None = None) -> None:
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
        for episode in range(first, first + episodes)
        for t in range(5)
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text(text if text is not None else "".join(json.dumps(row) + "\n" for row in rows))


def d4rl(path, rows: int = 100, rewards: int = 100, width: int = 3) -> None:
    rng = np.random.default_rng(0)
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        file["observations"] = file["next_observations"] = rng.normal(size=(rows, width)).astype(np.float32)
        file["actions"] = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
        file["rewards"] = np.ones(rewards, np.float32)
        file["terminals"], file["timeouts"] = np.arange(rows) % 50 == 49, np.zeros(rows, np.bool_)


def look(*paths):
    return inspect_data(Reading(tuple(map(str, paths))))


def errors(summary):
    return [(problem.kind, problem.path) for problem in summary.problems if problem.severity == "error"]


def test_bad_file_is_listed_and_the_others_inspected(tmp_path):
    folder = tmp_path / "data"
    lines(folder / "a.json", 0)
    lines(folder / "b.json", 3)
    lines(folder / "cut.json", 0, text='{"eps_id": "e9", "t": 0, "obs": [1')
    summary = look(folder)
    assert (summary.episodes, summary.timesteps) == (6, 30)
    assert errors(summary) == [("unreadable", str(folder / "cut.json"))]
    assert "it is not JSON" in summary.problems[0].message


def test_damaged_hdf5_file_is_listed_and_the_others_inspected(tmp_path):
    folder = tmp_path / "data"
    d4rl(folder / "a.hdf5")
    d4rl(folder / "b.hdf5", rewards=97)
    d4rl(folder / "c.hdf5")
    content = (folder / "c.hdf5").read_bytes()
    (folder / "c.hdf5").write_bytes(content[: len(content) // 2])
    summary = look(folder)
    assert (summary.episodes, summary.timesteps) == (2, 100)
    assert errors(summary) == [
        ("unreadable", str(folder / "b.hdf5")),
        ("unreadable", str(folder / "c.hdf5")),
    ]


def test_drifting_files_are_listed_in_favour_of_most_timesteps(tmp_path):
    folder = tmp_path / "data"
    lines(folder / "a.json", 0, width=3)
    lines(folder / "b.json", 3, episodes=4)
    lines(folder / "c.json", 7, episodes=4)
    summary = look(folder)
    assert summary.episodes == 8
    assert errors(summary) == [("drift", str(folder / "a.json"))]
    assert "its 15 timesteps are not counted" in summary.problems[0].message


def test_files_of_other_shapes_are_listed_with_their_dtypes(tmp_path):
    folder = tmp_path / "data"
    d4rl(folder / "a.hdf5")
    d4rl(folder / "b.hdf5", width=4)
    (problem,) = [one for one in look(folder).problems if one.severity == "error"]
    assert "'new_obs' is float32 [3] in one and float32 [4] in the other" in problem.message


def test_bad_files_are_each_listed_if_all_are_bad(tmp_path):
    folder = tmp_path / "data"
    for name in ("a.json", "b.json"):
        lines(folder / name, 0, text='{"eps_id": "e9"')
    summary = look(folder)
    assert summary.episodes == 0
    assert errors(summary) == [
        ("unreadable", str(folder / "a.json")),
        ("unreadable", str(folder / "b.json")),
    ]


def test_single_bad_file_is_an_error(tmp_path):
    lines(tmp_path / "a.json", 0, text='{"eps_id": "e9"')
    with pytest.raises(DataError, match=r"a\.json, row 0: it is not JSON"):
        look(tmp_path / "a.json")


def test_readable_files_that_break_a_rule_together_are_an_error(tmp_path):
    folder = tmp_path / "data"
    lines(folder / "a.json", 0)
    (folder / "b.json").write_text((folder / "a.json").read_text().replace('"t": 2', '"t": 3'))
    with pytest.raises(DataError, match="episode e0"):
        look(folder)


def test_invalid_value_names_the_source_and_not_the_prepared_copy(tmp_path):
    table = kit.table_of(kit.make_block([4, 7, 3]), tmp_path / "table")
    rewards = table["rewards"].to_numpy().copy()
    rewards[5] = np.inf
    rows = table.set_column(table.schema.get_field_index("rewards"), "rewards", [rewards])
    path = kit.write_files(tmp_path / "data", kit.scramble_rows(rows))
    (problem,) = [one for one in look(path).problems if one.severity == "error"]
    assert problem.message == f"{path} (episode e1), t = 1: 'rewards' has inf, expected a finite number"
    assert (problem.path, problem.row) == (path, None)
