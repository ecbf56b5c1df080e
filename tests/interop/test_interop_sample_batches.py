"""SampleBatch JSON of RLlib 2.60's own JsonWriter is read like its JsonReader reads it, without any option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from episode_kit import read_block
from hindcast.datasets.prepare.opening import open_data
from hindcast.formats.format import ReadOptions
from hindcast.formats.registry import detect_format
from hindcast.formats.rows import Rows
from hindcast.storage.location import resolve

RunScript = Callable[..., str]
CASES = ("packed", "unpacked", "all-packed", "multi-packed", "multi-unpacked")

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def rllib_files(run_script: RunScript, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample-batches")
    run_script("rllib_sample_batches.py", folder)
    return folder


def read_file(path: Path) -> list[Rows]:
    location = resolve(path)
    file_format = detect_format(location)
    assert file_format is not None
    assert file_format.name == "SampleBatch"
    pieces = file_format.list_pieces(location, ReadOptions())
    return [rows for piece in pieces for rows in file_format.read(piece, ReadOptions())]


def load_columns(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Load what RLlib read: policy -> column -> values."""
    columns_by_policy: dict[str, dict[str, np.ndarray]] = {}
    for key, column in np.load(path).items():
        policy, name = key.split(":")
        columns_by_policy.setdefault(policy, {})[name] = column
    return columns_by_policy


@pytest.mark.parametrize("case", CASES)
def test_rllib_sample_batches_are_read_like_rllib_does(rllib_files: Path, case: str) -> None:
    (path,) = (rllib_files / case).glob("*.json")
    (rows,) = read_file(path)
    columns_by_policy = load_columns(rllib_files / f"{case}.npz")
    assert rows.t is not None
    assert rows.eps_id is not None
    assert sum(len(columns["t"]) for columns in columns_by_policy.values()) == len(rows)
    for policy, policy_columns in columns_by_policy.items():
        suffix = f"/{policy}/0" if policy else ""
        ids = [f"{eps_id}{suffix}" for eps_id in policy_columns["eps_id"].tolist()]
        row_mask = np.isin(rows.eps_id, ids)
        assert rows.eps_id[row_mask].tolist() == ids
        assert rows.t[row_mask].tolist() == policy_columns["t"].tolist()
        assert rows.terminated[row_mask].tolist() == policy_columns["terminateds"].tolist()
        assert rows.truncated[row_mask].tolist() == policy_columns["truncateds"].tolist()
        names = policy_columns.keys() - {
            "t",
            "eps_id",
            "terminateds",
            "truncateds",
            "agent_index",
            "unroll_id",
            "type",
        }
        assert names == set(rows.columns)
        for name in names:
            assert rows.columns[name][row_mask].dtype == policy_columns[name].dtype, name
            np.testing.assert_array_equal(rows.columns[name][row_mask], policy_columns[name], err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_rllib_sample_batches_become_its_episodes(rllib_files: Path, case: str) -> None:
    """Fragments of an episode, which RLlib writes to separate lines, become one episode again."""
    dataset = open_data(rllib_files / case)
    block = read_block(dataset)
    num_episodes = 0
    for policy, policy_columns in load_columns(rllib_files / f"{case}.npz").items():
        for eps_id in np.unique(policy_columns["eps_id"]).tolist():
            (episode,) = np.flatnonzero(block.eps_id == (f"{eps_id}/{policy}/0" if policy else str(eps_id)))
            row_mask = policy_columns["eps_id"] == eps_id
            obs = np.concatenate([policy_columns["obs"][row_mask], policy_columns["new_obs"][row_mask][-1:]])
            np.testing.assert_array_equal(block.columns["obs"][block.rows_of("obs", episode)], obs)
            for name in ("actions", "rewards", "action_logp", "vf_preds"):
                actual = block.columns[name][block.rows_of(name, episode)]
                np.testing.assert_array_equal(actual, policy_columns[name][row_mask], err_msg=name)
            assert block.terminated[episode] == policy_columns["terminateds"][row_mask][-1]
            assert block.truncated[episode] == policy_columns["truncateds"][row_mask][-1]
            num_episodes += 1
    assert num_episodes == block.num_episodes
