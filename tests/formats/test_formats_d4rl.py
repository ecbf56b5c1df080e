"""D4RL's files, in the layout of the published ones: hopper-medium-v2 (next observations, timeouts, the policy's
weights), maze2d (no next observations, no terminals), kitchen (no timeouts)."""

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
TERMINAL = (True, False, True, False)
D4RL = d4rl.D4RL()


def arrays() -> dict[str, np.ndarray]:
    """Return the steps of four episodes, end to end."""
    rng = np.random.default_rng(0)
    rows = sum(LENGTHS)
    last = np.cumsum(LENGTHS) - 1
    obs = [rng.normal(size=(length + 1, 3)).astype(np.float32) for length in LENGTHS]
    terminals, timeouts = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
    terminals[last], timeouts[last] = TERMINAL, np.logical_not(TERMINAL)
    return {
        "observations": np.concatenate([one[:-1] for one in obs]),
        "next_observations": np.concatenate([one[1:] for one in obs]),
        "actions": rng.uniform(-1, 1, size=(rows, 2)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
        "infos/qpos": rng.normal(size=(rows, 2)),
        "infos/action_log_probs": rng.normal(size=rows).astype(np.float32),
    }


def write(path: Path, data: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in data.items():
            file.create_dataset(name, data=value)
        file["metadata/algorithm"] = np.bytes_("SAC")
        file["metadata/policy/fc0/weight"] = np.zeros((8, 3), dtype=np.float32)
    return path


def pieces(path: Path, options: ReadOptions) -> list[Piece]:
    return D4RL.list_pieces(resolve(path), options)


def read(path: Path, options: ReadOptions | None = None) -> list[Rows]:
    options = options or ReadOptions()
    return [rows for piece in pieces(path, options) for rows in D4RL.read(piece, options)]


def one(path: Path, options: ReadOptions | None = None) -> Rows:
    (rows,) = read(path, options)
    return rows


def test_hopper_file_is_recognised_and_read(tmp_path: Path) -> None:
    data = arrays()
    path = write(tmp_path / "hopper_medium-v2.hdf5", data)
    assert detect_format(resolve(path)) is FORMATS["D4RL"]
    rows = one(path)
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
    path = write(tmp_path / "a.hdf5", arrays())
    all_rows = one(path)
    monkeypatch.setattr(d4rl, "PIECE_BYTES", 400)
    parts = read(path)
    assert len(parts) > 1
    for name in ("eps_id", "t", "row", "terminated"):
        assert (
            np.concatenate([getattr(part, name) for part in parts]).tolist()
            == getattr(all_rows, name).tolist()
        )
    assert all((part.terminated | part.truncated)[-1] for part in parts)


def test_columns_of_one_number_are_read_flat(tmp_path: Path) -> None:
    data = arrays()
    columns = {name: data[name][:, None] for name in ("rewards", "terminals", "timeouts")}
    rows = one(
        write(tmp_path / "a.hdf5", {**data, **columns, "terminals": data["terminals"].astype(np.float32)})
    )
    assert rows.squeeze_scalars().columns["rewards"].shape == (sum(LENGTHS),)
    np.testing.assert_array_equal(rows.terminated, data["terminals"])


def test_file_without_next_observations_gives_rows_without_new_obs(tmp_path: Path) -> None:
    data = arrays()
    del data["next_observations"]
    rows = one(write(tmp_path / "a.hdf5", data))
    assert "new_obs" not in rows.columns
    assert len(rows) == sum(LENGTHS)


def test_file_without_timeouts_requires_step_limit(tmp_path: Path) -> None:
    data = arrays()
    del data["timeouts"]
    path = write(tmp_path / "kitchen.hdf5", data)
    with pytest.raises(DataError, match=r"no 'timeouts'.*max_episode_steps"):
        read(path)
    limited_rows = one(path, ReadOptions(options={"max_episode_steps": 4}))
    ends = (np.flatnonzero(limited_rows.terminated).tolist(), np.flatnonzero(limited_rows.truncated).tolist())
    assert ends == ([4, 14], [3, 8, 12, 18])
    unlimited_rows = one(path, ReadOptions(options={"max_episode_steps": 0}))
    assert not unlimited_rows.truncated.any()
    with pytest.raises(DataError, match="its own 'timeouts'"):
        read(write(tmp_path / "b.hdf5", arrays()), ReadOptions(options={"max_episode_steps": 4}))


def test_schema_columns_and_filter_select_datasets(tmp_path: Path) -> None:
    data = arrays()
    path = write(tmp_path / "a.hdf5", data)
    options = ReadOptions(
        schema={"action_logp": "infos/action_log_probs", "vf_preds": "infos/qpos"},
        columns=["obs", "actions", "rewards", "vf_preds"],
        filter=[FilterTerm(column="rewards", op=">", value=0.0)],
    )
    rows = one(path, options)
    passing_rows = np.flatnonzero(data["rewards"] > 0)
    np.testing.assert_array_equal(rows.row, passing_rows)
    np.testing.assert_array_equal(rows.columns["vf_preds"], data["infos/qpos"][passing_rows])
    assert set(rows.columns) == {"obs", "new_obs", "actions", "rewards", "vf_preds"}


@pytest.mark.parametrize(
    ("change", "sentence"),
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
def test_invalid_file_raises(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    data = {name: value for name, value in {**arrays(), **change}.items() if value is not None}
    if "observations" not in data:
        del data["next_observations"]
    with pytest.raises(DataError, match=rf"a\.hdf5.*({sentence})"):
        read(write(tmp_path / "a.hdf5", data))


def test_unknown_option_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", arrays())
    with pytest.raises(DataError, match="D4RL has no read option 'limit'"):
        read(path, ReadOptions(options={"limit": 3}))
    with pytest.raises(DataError, match="max_episode_steps is -1: expected a number of steps"):
        read(path, ReadOptions(options={"max_episode_steps": -1}))
