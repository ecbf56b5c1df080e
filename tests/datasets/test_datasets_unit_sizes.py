"""The size of a unit is the size of its arrays in memory, even if the file is much smaller."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from episode_kit import build_block
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


def read_unit_bytes(dataset) -> list[int]:
    """Read all units, and return their sizes in memory."""
    return [dataset.read(unit).nbytes for unit in dataset.units]


def make_block(observations: str, num_episodes: int = 30) -> Block:
    """Make episodes of 50 steps; `observations` is "frames", "constant" or "text"."""
    rng = np.random.default_rng(0)
    length = 50
    num_steps = num_episodes * length
    obs = {
        "frames": rng.integers(0, 4, (num_steps + num_episodes, 8, 8)).astype(np.uint8),
        "constant": np.zeros((num_steps + num_episodes, 7), np.float32),
        "text": np.array(["again", ""] * ((num_steps + num_episodes) // 2), dtype=object),
    }[observations]
    columns = {"obs": obs, "actions": np.zeros(num_steps, np.int64), "rewards": np.ones(num_steps)}
    return build_block(columns, [length] * num_episodes)


@pytest.mark.parametrize("observations", ["frames", "constant", "text"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_units_of_hindcast_files_keep_their_sizes(kit, tmp_path, layout, observations):
    """The order of data depends on the sizes, so a resumed run would otherwise read data in another order."""
    block = make_block(observations)
    with BlockWriter(resolve(tmp_path), DataSpec.from_block(block), "s", layout=layout) as writer:
        writer.write(block)
    (entry,) = writer.close()
    dataset = open_dataset(tmp_path)
    assert [unit.nbytes for unit in dataset.units] == [group.bytes for group in entry.row_groups]
    assert dataset.nbytes >= sum(column.nbytes for column in block.columns.values() if column.dtype != object)


def test_files_rewritten_by_another_tool_keep_their_size_in_memory(kit, tmp_path):
    kit.write(tmp_path / "hindcast", *(kit.block([50] * 4, first=0) for _ in range(5)))
    (hindcast_file,) = (tmp_path / "hindcast").iterdir()
    (tmp_path / "rewritten").mkdir()
    pq.write_table(pq.read_table(hindcast_file), tmp_path / "rewritten" / "d.parquet", compression="zstd")
    dataset = open_dataset(tmp_path / "rewritten")
    assert dataset.nbytes >= sum(read_unit_bytes(dataset))


@pytest.mark.parametrize(("window_kib", "are_units_cut"), [(50, True), (16 * 50, False)])
def test_windows_respect_their_limit_in_bytes(tmp_path, window_kib, are_units_cut):
    """In another tool's file, a dictionary stores the equal cells of ten episodes (22 KiB in memory) once."""
    block, window_bytes = make_block("constant", 480), window_kib << 10
    with BlockWriter(resolve(tmp_path / "hindcast"), DataSpec.from_block(block), "s") as writer:
        writer.write(block)
    (hindcast_file,) = (tmp_path / "hindcast").iterdir()
    pq.write_table(pq.read_table(hindcast_file), tmp_path / "rewritten.parquet", row_group_size=10)
    file = index_file(resolve(tmp_path / "rewritten.parquet"), "rewritten.parquet")
    dataset = EpisodeDataset(file.spec, [file], unit_bytes=25 << 10)
    bytes_by_unit = read_unit_bytes(dataset)
    file_bytes = sum(group.bytes for group in file.entry.row_groups)
    assert file_bytes < sum(bytes_by_unit) / 2, "the file must be much smaller than its arrays"
    pipeline = PipelineSpec.model_validate({"windowBytes": str(window_bytes)})
    needs = Needs(frozenset({"obs", "actions"}))
    data = OfflineData([Source("data", dataset)], needs, batch_size=10, pipeline=pipeline)
    order = data._sources[0].order
    windows = [window for lane in range(order.num_lanes) for window in order.windows(lane, 0)]
    for window in windows:
        units, counts = window.pieces[:, 0], window.pieces[:, 2] - window.pieces[:, 1]
        step_bytes = np.array(bytes_by_unit)[units] / order.unit_steps[units]
        excess = (counts * step_bytes).sum() - window_bytes / order.num_lanes
        assert excess <= (step_bytes.max() if are_units_cut else 0)
    assert are_units_cut or any(len(window.pieces) > 1 for window in windows)
