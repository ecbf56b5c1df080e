"""SampleBatch JSON of RLlib 2.60's own JsonWriter is read as its JsonReader reads it, without an option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hindcast.datasets.prepare.opening import open_data
from hindcast.episodes.block import Block
from hindcast.formats.format import ReadOptions
from hindcast.formats.registry import detect_format
from hindcast.formats.rows import Rows
from hindcast.storage.location import resolve

Run = Callable[..., str]
CASES = ("packed", "unpacked", "all-packed", "multi-packed", "multi-unpacked")

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def written(rllib: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample-batches")
    rllib("rllib_sample_batches.py", folder)
    return folder


def read_file(path: Path) -> list[Rows]:
    location = resolve(path)
    known = detect_format(location)
    assert known is not None
    assert known.name == "SampleBatch"
    options = ReadOptions()
    return [rows for piece in known.pieces(location, options) for rows in known.read(piece, options)]


@pytest.mark.parametrize("case", CASES)
def test_its_batches_are_read_as_it_reads_them(written: Path, case: str) -> None:
    (path,) = (written / case).glob("*.json")
    (rows,) = read_file(path)
    expected = dict(np.load(written / f"{case}.npz"))
    policies = dict.fromkeys(name.split(":")[0] for name in expected)
    assert rows.t is not None
    assert rows.eps_id is not None
    assert sum(len(expected[f"{policy}:t"]) for policy in policies) == len(rows)
    for policy in policies:
        theirs = {name.split(":")[1]: v for name, v in expected.items() if name.startswith(f"{policy}:")}
        ids = [f"{eps_id}/{policy}/0" if policy else str(eps_id) for eps_id in theirs["eps_id"].tolist()]
        own = np.isin(rows.eps_id, ids)
        assert rows.eps_id[own].tolist() == ids
        assert rows.t[own].tolist() == theirs["t"].tolist()
        assert rows.terminated[own].tolist() == theirs["terminateds"].tolist()
        assert rows.truncated[own].tolist() == theirs["truncateds"].tolist()
        names = set(theirs) - {"t", "eps_id", "terminateds", "truncateds", "agent_index", "unroll_id", "type"}
        assert names == set(rows.columns)
        for name in names:
            assert rows.columns[name][own].dtype == theirs[name].dtype, name
            np.testing.assert_array_equal(rows.columns[name][own], theirs[name], err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_its_batches_become_its_episodes(written: Path, case: str) -> None:
    """The parts of an episode, which it writes to lines of their own, are one episode again."""
    dataset = open_data(written / case)
    block = Block.concat([dataset.read(unit) for unit in dataset.units])
    expected = dict(np.load(written / f"{case}.npz"))
    count = 0
    for policy in dict.fromkeys(name.split(":")[0] for name in expected):
        theirs = {name.split(":")[1]: v for name, v in expected.items() if name.startswith(f"{policy}:")}
        for eps_id in np.unique(theirs["eps_id"]).tolist():
            (episode,) = np.flatnonzero(block.eps_id == (f"{eps_id}/{policy}/0" if policy else str(eps_id)))
            own = theirs["eps_id"] == eps_id
            obs = np.concatenate([theirs["obs"][own], theirs["new_obs"][own][-1:]])
            np.testing.assert_array_equal(block.columns["obs"][block.rows_of("obs", episode)], obs)
            for name in ("actions", "rewards", "action_logp", "vf_preds"):
                found = block.columns[name][block.rows_of(name, episode)]
                np.testing.assert_array_equal(found, theirs[name][own], err_msg=name)
            assert block.terminated[episode] == theirs["terminateds"][own][-1]
            assert block.truncated[episode] == theirs["truncateds"][own][-1]
            count += 1
    assert count == block.num_episodes
