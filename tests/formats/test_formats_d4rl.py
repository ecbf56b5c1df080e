"""Files like those that D4RL published.

hopper-medium-v2 has next observations, timeouts and the policy's weights; maze2d has no next observations; kitchen has
no timeouts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hindcast.api.input import FilterTerm
from hindcast.errors import DataError
from hindcast.formats.d4rl import format as d4rl
from hindcast.formats.format import Piece, ReadOptions
from hindcast.formats.registry import FORMATS, detect_format
from hindcast.formats.rows import Rows
from hindcast.storage.location import resolve

LENGTHS = (5, 3, 7, 4)
IS_TERMINAL = (True, False, True, False)
D4RL_FORMAT = d4rl.D4RL()


def make_arrays() -> dict[str, np.ndarray]:
    """Return dataset name -> array, with the steps of four episodes end to end."""
    rng = np.random.default_rng(0)
    num_rows = sum(LENGTHS)
    last_rows = np.cumsum(LENGTHS) - 1
    obs = [rng.normal(size=(length + 1, 3)).astype(np.float32) for length in LENGTHS]
    terminals, timeouts = np.zeros(num_rows, dtype=bool), np.zeros(num_rows, dtype=bool)
    terminals[last_rows], timeouts[last_rows] = IS_TERMINAL, np.logical_not(IS_TERMINAL)
    return {
        "observations": np.concatenate([episode_obs[:-1] for episode_obs in obs]),
        "next_observations": np.concatenate([episode_obs[1:] for episode_obs in obs]),
        "actions": rng.uniform(-1, 1, size=(num_rows, 2)).astype(np.float32),
        "rewards": rng.normal(size=num_rows).astype(np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
        "infos/qpos": rng.normal(size=(num_rows, 2)),
        "infos/action_log_probs": rng.normal(size=num_rows).astype(np.float32),
    }


def write_file(path: Path, data: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in data.items():
            file.create_dataset(name, data=value)
        file["metadata/algorithm"] = np.bytes_("SAC")
        file["metadata/policy/fc0/weight"] = np.zeros((8, 3), dtype=np.float32)
    return path


def list_pieces(path: Path, options: ReadOptions) -> list[Piece]:
    return D4RL_FORMAT.list_pieces(resolve(path), options)


def read_parts(path: Path, options: ReadOptions | None = None) -> list[Rows]:
    options = options or ReadOptions()
    return [rows for piece in list_pieces(path, options) for rows in D4RL_FORMAT.read(piece, options)]


def read_single_part(path: Path, options: ReadOptions | None = None) -> Rows:
    (rows,) = read_parts(path, options)
    return rows


def test_hopper_file_is_recognised_and_read(tmp_path: Path) -> None:
    data = make_arrays()
    path = write_file(tmp_path / "hopper_medium-v2.hdf5", data)
    assert detect_format(resolve(path)) is FORMATS["D4RL"]
    rows = read_single_part(path)
    for name, column in {
        "obs": "observations",
        "new_obs": "next_observations",
        "actions": "actions",
        "rewards": "rewards",
        "qpos": "infos/qpos",
        "action_logp": "infos/action_log_probs",
    }.items():
        assert rows.columns[name].dtype == data[column].dtype
        np.testing.assert_array_equal(rows.columns[name], data[column])
    assert set(rows.columns) == {"obs", "new_obs", "actions", "rewards", "qpos", "action_logp"}
    np.testing.assert_array_equal(rows.terminated, data["terminals"])
    np.testing.assert_array_equal(rows.truncated, data["timeouts"])
    np.testing.assert_array_equal(rows.t, np.concatenate([np.arange(length) for length in LENGTHS]))
    np.testing.assert_array_equal(rows.row, np.arange(sum(LENGTHS)))
    assert [list(rows.eps_id).count(name) for name in dict.fromkeys(rows.eps_id)] == list(LENGTHS)


def test_pieces_contain_whole_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_file(tmp_path / "a.hdf5", make_arrays())
    all_rows = read_single_part(path)
    monkeypatch.setattr(d4rl, "PIECE_BYTES", 400)
    parts = read_parts(path)
    assert len(parts) > 1
    for name in ("eps_id", "t", "row", "terminated"):
        column = np.concatenate([getattr(part, name) for part in parts])
        assert column.tolist() == getattr(all_rows, name).tolist()
    assert all((part.terminated | part.truncated)[-1] for part in parts)


def test_rewards_and_flags_of_shape_rows_by_one_become_vectors(tmp_path: Path) -> None:
    data = make_arrays()
    columns = {name: data[name][:, None] for name in ("rewards", "timeouts")}
    columns["terminals"] = data["terminals"].astype(np.float32)
    rows = read_single_part(write_file(tmp_path / "a.hdf5", {**data, **columns}))
    assert rows.squeeze_scalars().columns["rewards"].shape == (sum(LENGTHS),)
    np.testing.assert_array_equal(rows.terminated, data["terminals"])


def test_file_without_next_observations_gives_rows_without_new_obs(tmp_path: Path) -> None:
    data = make_arrays()
    del data["next_observations"]
    rows = read_single_part(write_file(tmp_path / "a.hdf5", data))
    assert "new_obs" not in rows.columns
    assert len(rows) == sum(LENGTHS)


def test_step_limit_is_required_without_timeouts_and_refused_with_them(tmp_path: Path) -> None:
    data = make_arrays()
    del data["timeouts"]
    path = write_file(tmp_path / "kitchen.hdf5", data)
    with pytest.raises(DataError, match=r"no 'timeouts'.*max_episode_steps"):
        read_parts(path)
    limited_rows = read_single_part(path, ReadOptions(options={"max_episode_steps": 4}))
    # the limit cuts off every fourth step since the last terminal (rows 4 and 14)
    ends = (np.flatnonzero(limited_rows.terminated).tolist(), np.flatnonzero(limited_rows.truncated).tolist())
    assert ends == ([4, 14], [3, 8, 12, 18])
    unlimited_rows = read_single_part(path, ReadOptions(options={"max_episode_steps": 0}))
    assert not unlimited_rows.truncated.any()
    path = write_file(tmp_path / "b.hdf5", make_arrays())
    with pytest.raises(DataError, match="its own 'timeouts'"):
        read_parts(path, ReadOptions(options={"max_episode_steps": 4}))


def test_schema_columns_and_filter_select_datasets(tmp_path: Path) -> None:
    data = make_arrays()
    path = write_file(tmp_path / "a.hdf5", data)
    options = ReadOptions(
        schema={"action_logp": "infos/action_log_probs", "vf_preds": "infos/qpos"},
        columns=["obs", "actions", "rewards", "vf_preds"],
        filter=[FilterTerm(column="rewards", op=">", value=0.0)],
    )
    rows = read_single_part(path, options)
    passing_rows = np.flatnonzero(data["rewards"] > 0)
    np.testing.assert_array_equal(rows.row, passing_rows)
    np.testing.assert_array_equal(rows.columns["vf_preds"], data["infos/qpos"][passing_rows])
    assert set(rows.columns) == {"obs", "new_obs", "actions", "rewards", "vf_preds"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": np.zeros(3)}, "3 rows at /rewards, but 19 in other datasets"),
        ({"terminals": np.full(19, 2)}, "row 0: /terminals is 2"),
        ({"terminals": np.zeros((19, 2))}, "expected flags"),
        ({"observations": None}, "neither|no column 'obs'"),
        ({"terminals": None}, "no 'terminals'"),
        (
            {"actions": None, "action_0": np.zeros(19), "action_1": np.zeros(19)},
            "one column into .'action_0', ",
        ),
    ],
)
def test_invalid_file_raises(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    data = {name: value for name, value in {**make_arrays(), **change}.items() if value is not None}
    if "observations" not in data:
        del data["next_observations"]
    with pytest.raises(DataError, match=rf"a\.hdf5.*({message})"):
        read_parts(write_file(tmp_path / "a.hdf5", data))


def test_unknown_option_raises(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.hdf5", make_arrays())
    with pytest.raises(DataError, match="has 'limit', which D4RL does not have"):
        read_parts(path, ReadOptions(options={"limit": 3}))
    with pytest.raises(DataError, match="max_episode_steps is -1: expected a number of steps"):
        read_parts(path, ReadOptions(options={"max_episode_steps": -1}))
