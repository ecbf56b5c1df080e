"""The size of a unit is that of its arrays in memory, however small they are in the file."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from hindcast.api.pipeline import PipelineSpec
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.file_index import index_file
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.layouts import LAYOUTS
from hindcast.formats.spec import DataSpec
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from hindcast.storage.location import resolve


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
def test_units_of_hindcast_files_keep_their_sizes(kit, tmp_path, layout, observations):
    """A resumed run must read them in the order in which it started."""
    block = block_of(observations)
    with BlockWriter(resolve(tmp_path), DataSpec.from_block(block), "s", layout=layout) as writer:
        writer.write(block)
    (entry,) = writer.close()
    dataset = open_dataset(tmp_path)
    assert [unit.nbytes for unit in dataset.units] == [group.bytes for group in entry.row_groups]
    assert dataset.nbytes >= sum(column.nbytes for column in block.columns.values() if column.dtype != object)


def test_files_rewritten_by_another_tool_keep_their_size_in_memory(kit, tmp_path):
    kit.write(tmp_path / "own", *(kit.block([50] * 4, first=0) for _ in range(5)))
    (hindcast_file,) = (tmp_path / "own").iterdir()
    (tmp_path / "anew").mkdir()
    pq.write_table(pq.read_table(hindcast_file), tmp_path / "anew" / "d.parquet", compression="zstd")
    dataset = open_dataset(tmp_path / "anew")
    assert dataset.nbytes >= sum(bytes_read(dataset))


def test_windows_respect_their_limit_in_bytes(tmp_path):
    """Another tool's dictionary stores the equal cells of ten episodes (22 KiB in memory) once."""
    block, window_bytes = block_of("constant"), 50 << 10
    with BlockWriter(resolve(tmp_path / "own"), DataSpec.from_block(block), "s") as writer:
        writer.write(block)
    (hindcast_file,) = (tmp_path / "own").iterdir()
    pq.write_table(pq.read_table(hindcast_file), tmp_path / "anew.parquet", row_group_size=10)
    file = index_file(resolve(tmp_path / "anew.parquet"), "anew.parquet")
    dataset = EpisodeDataset(file.spec, [file], unit_bytes=window_bytes // 2)
    read = bytes_read(dataset)
    assert sum(group.bytes for group in file.entry.row_groups) < sum(read) / 2, "the file is no example"
    pipeline = PipelineSpec.model_validate({"windowBytes": str(window_bytes)})
    needs = Needs(frozenset({"obs", "actions"}))
    data = OfflineData([Source("data", dataset)], needs, batch_size=10, pipeline=pipeline)
    windows = data._sources[0].order.windows(0)
    assert all(sum(read[unit] for unit in window.units) <= window_bytes for window in windows)
    assert any(len(window.units) > 1 for window in windows)
