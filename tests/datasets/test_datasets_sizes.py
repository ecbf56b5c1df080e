"""The size of a unit is what its arrays take in memory, however small a file stores them."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.layouts import LAYOUTS
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve

WIDTH, LENGTH, EPISODES = 100, 20, 40
UNIT, WINDOW = 40 << 10, 100 << 10


def bytes_read(dataset) -> list[int]:
    return [dataset.read(unit).nbytes for unit in dataset.units]


def block_of(observations: str) -> Block:
    rng = np.random.default_rng(0)
    n, length = 30, 50
    steps = n * length
    obs = {
        "frames": rng.integers(0, 4, (steps + n, 8, 8)).astype(np.uint8),
        "constant": np.zeros((steps + n, 7), np.float32),
        "text": np.array(["again", ""] * ((steps + n) // 2), dtype=object),
    }[observations]
    return Block(
        columns={"obs": obs, "actions": np.zeros(steps, np.int64), "rewards": np.ones(steps)},
        length=np.full(n, length),
        eps_id=np.array([f"e{i}" for i in range(n)], dtype=object),
        t_started=np.zeros(n, np.int64),
        terminated=np.ones(n, np.bool_),
        truncated=np.zeros(n, np.bool_),
    )


@pytest.mark.parametrize("observations", ["frames", "constant", "text"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_units_of_our_own_files_keep_their_sizes(kit, tmp_path, layout, observations):
    """Runs that read them are resumed with the order that they began with."""
    block = block_of(observations)
    with BlockWriter(resolve(tmp_path), DataSpec.of_block(block), "s", layout=layout) as writer:
        writer.write(block)
    (entry,) = writer.close()
    dataset = open_dataset(tmp_path)
    assert [unit.nbytes for unit in dataset.units] == [group.bytes for group in entry.row_groups]
    assert dataset.nbytes >= sum(column.nbytes for column in block.columns.values() if column.dtype != object)


def test_episodes_that_another_tool_wrote_anew_keep_their_size_in_memory(kit, tmp_path):
    kit.write(tmp_path / "own", *(kit.block([50] * 4, first=0) for _ in range(5)))
    (own,) = (tmp_path / "own").iterdir()
    (tmp_path / "anew").mkdir()
    pq.write_table(pq.read_table(own), tmp_path / "anew" / "d.parquet", compression="zstd")
    dataset = open_dataset(tmp_path / "anew")
    assert dataset.nbytes >= sum(bytes_read(dataset))
