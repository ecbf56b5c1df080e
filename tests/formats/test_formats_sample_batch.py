"""SampleBatch JSON in the forms that versions of RLlib's old API wrote."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table_reading import PickleBomb, find_format, pack_lz4_cell, read_table

from hindcast.errors import DataError


def make_batch(num_steps: int = 3, **changes: Any) -> dict[str, Any]:
    """Return the batch of a line.

    Args:
        num_steps: number of timesteps.
        **changes: column -> value; None leaves the column out.
    """
    columns = {
        "type": "SampleBatch",
        "obs": [[float(i), 0.5] for i in range(num_steps)],
        "new_obs": [[float(i + 1), 0.5] for i in range(num_steps)],
        "actions": list(range(num_steps)),
        "rewards": [1] * num_steps,
        "dones": [i == num_steps - 1 for i in range(num_steps)],
        "eps_id": [7] * num_steps,
        "t": list(range(num_steps)),
        "agent_index": [0] * num_steps,
        "unroll_id": [3] * num_steps,
        **changes,
    }
    return {name: value for name, value in columns.items() if value is not None}


def write_batches(path: Path, *batches: Any) -> Path:
    path.write_text("".join(json.dumps(sample_batch) + "\n" for sample_batch in batches))
    return path


def pack_value(value: Any) -> str:
    return pack_lz4_cell(np.array(value, dtype=np.float32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "output-2019-01-01_15-58-57_worker-0_0.json"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"obs": pack_value(make_batch()["obs"]), "new_obs": pack_value(make_batch()["new_obs"])},
        {
            "obs": [pack_value(row) for row in make_batch()["obs"]],
            "new_obs": [pack_value(row) for row in make_batch()["new_obs"]],
        },
    ],
    ids=["plain", "packed columns", "packed rows"],
)
def test_batch_form_is_read(path: Path, changes: dict[str, Any]) -> None:
    assert find_format(write_batches(path, make_batch(**changes))).name == "SampleBatch"
    rows = read_table(path)
    assert sorted(rows.columns) == ["actions", "new_obs", "obs", "rewards"]
    assert rows.columns["obs"].tolist() == make_batch()["obs"]
    assert rows.columns["new_obs"].tolist() == make_batch()["new_obs"]
    assert rows.columns["obs"].dtype == (np.float32 if changes else np.float64)
    assert rows.columns["rewards"].dtype == np.float64
    assert rows.terminated.tolist() == [False, False, True]
    assert not rows.truncated.any()
    assert rows.eps_id.tolist() == ["7"] * 3
    assert rows.t.tolist() == [0, 1, 2]


def test_fragments_in_several_lines_share_episode_id(path: Path) -> None:
    first_batch = make_batch(2, dones=[False, False], t=[0, 1])
    rows = read_table(write_batches(path, first_batch, make_batch(2, t=[2, 3])))
    assert rows.eps_id.tolist() == ["7"] * 4
    assert rows.t.tolist() == rows.row.tolist() == [0, 1, 2, 3]
    assert rows.terminated.tolist() == [False, False, False, True]


def test_line_without_id_is_split_at_flags(path: Path) -> None:
    second_batch = make_batch(3, eps_id=None, dones=[True, False, False])
    rows = read_table(write_batches(path, make_batch(2, eps_id=None), second_batch))
    assert rows.eps_id.tolist() == [f"{path}:0"] * 2 + [f"{path}:1"] + [f"{path}:1.1"] * 2


def test_batch_without_flags_is_unfinished(path: Path) -> None:
    rows = read_table(write_batches(path, make_batch(dones=None)))
    assert not rows.terminated.any()
    assert not rows.truncated.any()


def test_agents_and_policies_have_separate_episodes(path: Path) -> None:
    columns = {name: value for name, value in make_batch().items() if name != "type"}
    with_agents = {**columns, "agent_index": [0, 1, 0]}
    policy_batches = {"left": columns, "right": with_agents}
    multi_agent_batch = {"type": "MultiAgentBatch", "count": 3, "policy_batches": policy_batches}
    rows = read_table(write_batches(path, multi_agent_batch))
    assert rows.eps_id.tolist() == ["7/left/0"] * 3 + ["7/right/0", "7/right/1", "7/right/0"]
    rows = read_table(write_batches(path, make_batch(agent_index=[0, 2, 0])))
    assert rows.eps_id.tolist() == ["7", "7/2", "7"]


def test_infos_outputs_and_composites_are_read(path: Path) -> None:
    infos = [{}, {"x": 1}, {"TimeLimit.truncated": True}]
    obs = {"camera": [[1, 2]] * 3, "pose": {"0": [0.5, 1.5, 2.5]}}
    sample_batch = make_batch(obs=obs, new_obs=None, infos=infos, action_logp=[-0.5] * 3, seq_lens=[3])
    rows = read_table(write_batches(path, sample_batch))
    assert rows.columns["obs/camera"].tolist() == [[1, 2]] * 3
    assert rows.columns["obs/pose/0"].tolist() == [0.5, 1.5, 2.5]
    assert rows.columns["action_logp"].tolist() == [-0.5] * 3
    assert [json.loads(text or "{}") for text in rows.columns["infos"]] == infos
    assert rows.truncated.tolist() == [False, False, True]
    assert not rows.terminated.any()


def test_schema_columns_and_filter_select_values(path: Path) -> None:
    renamed_columns = {"observation": make_batch()["obs"], "reward": [1, 2, 3]}
    sample_batch = make_batch(obs=None, new_obs=None, rewards=None, **renamed_columns)
    rows = read_table(
        write_batches(path, sample_batch, sample_batch),
        columns=["obs", "actions"],
        filter=[("reward", ">=", 2)],
        schema={"obs": "observation"},
    )
    assert sorted(rows.columns) == ["actions", "obs"]
    assert rows.row.tolist() == [1, 2, 4, 5]


def test_nan_and_gzip_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    line = json.dumps(make_batch(rewards=[np.nan, 1, np.inf])) + "\n"
    path.write_bytes(gzip.compress(line.encode()))
    np.testing.assert_array_equal(read_table(path).columns["rewards"], [np.nan, 1, np.inf])


@pytest.mark.parametrize("is_whole_column", [True, False], ids=["column", "row"])
def test_pickle_that_runs_code_raises_with_function_name(path: Path, is_whole_column: bool) -> None:
    created_file = path.parent / "exploded"
    bomb_cell, valid_cell = pack_lz4_cell(PickleBomb(created_file)), pack_value([0.0, 1.0])
    cells = bomb_cell if is_whole_column else [valid_cell, bomb_cell, valid_cell]
    write_batches(path, make_batch(), make_batch(obs=cells))
    with pytest.raises(DataError, match=r"line 2: 'obs': it holds a pickle that calls pathlib"):
        read_table(path)
    assert not created_file.exists()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_different_pickles_of_equal_length_are_read(path: Path, protocol: int) -> None:
    """The cached wrapper of a pickle is reused only for pickles that match it."""
    rng = np.random.default_rng(protocol)
    dtypes = ("<f4", "<i4", ">i4", "<u4", "<f4")
    arrays = [rng.integers(0, 99, (3, 2)).astype(kind) for kind in dtypes for _ in range(3)]
    # another memory order, and another shape with as many bytes; then a pickle with the first wrapper again
    arrays += [np.asfortranarray(arrays[0]), np.zeros((3, 1), "<f8"), np.ones((3, 1), "<f8"), arrays[1]]
    write_batches(path, *(make_batch(x=pack_lz4_cell(array, protocol)) for array in arrays))
    columns = [rows.columns["x"] for rows in read_lines_separately(path)]
    for column, array in zip(columns, arrays, strict=True):
        native_array = array.astype(array.dtype.newbyteorder("="))
        assert column.astype(native_array.dtype, casting="equiv").tobytes() == native_array.tobytes()


def read_lines_separately(path: Path) -> list[Any]:
    """Read each line of a file as a file of its own; return the rows of each line."""
    rows = []
    for line in path.read_text().splitlines():
        path.write_text(f"{line}\n")
        rows.append(read_table(path))
    return rows


def test_object_array_raises_unless_its_column_is_not_read(path: Path) -> None:
    objects = np.array([{"x": 1}, {}, {}], dtype=object)
    write_batches(path, make_batch(infos=pack_lz4_cell(objects)))
    with pytest.raises(DataError, match=r"line 1: 'infos': it holds an object array"):
        read_table(path)
    schema = {"terminateds": "dones"}  # so that infos are not searched for a time limit
    assert len(read_table(path, columns=["obs", "actions", "rewards"], schema=schema)) == 3


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([make_batch(), {"type": "Other"}], "line 2: its type is 'Other': expected one of SampleBatch"),
        ([make_batch(), {"type": "MultiAgentBatch"}], "line 2: its type is 'MultiAgentBatch'"),
        ([make_batch(), [1]], "line 2: its type is None"),
        ([make_batch(actions=[0])], "line 1: 'actions' has 1 value for 3 timesteps"),
        ([make_batch(dones=[True])], "line 1: its columns differ in length"),
        ([make_batch(obs=[[1.0], [1.0, 2.0], [1.0]])], "line 1: 'obs'"),
        ([make_batch(obs="text")], "line 1: 'obs': it holds text that is not base64"),
        ([make_batch(obs=None)], "line 1: it has no column 'obs'"),
        ([make_batch(action_logp=[None] * 3)], "line 1: 'action_logp' holds values that are neither"),
    ],
)
def test_invalid_line_raises(path: Path, lines: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_table(write_batches(path, *lines), format="SampleBatch")
    assert path.name in str(caught.value)
