"""The size of a unit is what its arrays take in memory, however small a file stores them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hindcast.api.pipeline import PipelineSpec
from hindcast.episodes.block import Block
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from hindcast.storage.location import resolve
from hindcast.store.dataset import open_dataset
from hindcast.store.episode_dataset import EpisodeDataset
from hindcast.store.footers import index_file
from hindcast.store.layouts import LAYOUTS
from hindcast.store.spec import DataSpec
from hindcast.store.writer import EpisodeWriter

WIDTH, LENGTH, EPISODES = 100, 20, 40
UNIT, WINDOW = 40 << 10, 100 << 10


@pytest.fixture
def one_hot_table(tmp_path):
    """One-hot observations as any tool writes them: with their dictionary they take hardly any space."""
    steps = LENGTH * EPISODES
    hot = np.eye(WIDTH, dtype=np.float32)[np.arange(steps + 1) % WIDTH]
    columns = {
        "eps_id": np.repeat(np.arange(EPISODES), LENGTH),
        "t": np.tile(np.arange(LENGTH), EPISODES),
        "obs": list(hot[:-1]),
        "new_obs": list(hot[1:]),
        "actions": np.zeros(steps, np.int64),
        "rewards": np.ones(steps, np.float32),
        "terminateds": np.tile(np.arange(LENGTH) == LENGTH - 1, EPISODES),
    }
    pq.write_table(pa.table(columns), tmp_path / "table.parquet", row_group_size=2 * LENGTH)
    return tmp_path


def opened(folder) -> EpisodeDataset:
    """The files of a folder in small units."""
    files = [index_file(entry.location, entry.relative) for entry in resolve(folder).files()]
    return EpisodeDataset(files[0].spec, files, unit_bytes=UNIT)


def bytes_read(dataset) -> list[int]:
    return [dataset.read(unit).nbytes for unit in dataset.units]


def test_units_of_a_table_count_as_large_as_they_are_decoded(one_hot_table):
    dataset = opened(one_hot_table)
    read = bytes_read(dataset)
    assert dataset.nbytes_stored < sum(read) / 5, "the file is no example"
    assert max(read) <= UNIT
    assert [unit.nbytes for unit in dataset.units] == read


def test_windows_of_a_table_keep_to_their_bytes_once_it_is_decoded(one_hot_table):
    dataset = opened(one_hot_table)
    pipeline = PipelineSpec.model_validate({"windowBytes": str(WINDOW)})
    data = OfflineData(
        [Source("data", dataset)], Needs(frozenset({"obs", "actions"})), batch_size=10, pipeline=pipeline
    )
    windows, read = data._sources[0].order.windows(0), bytes_read(dataset)
    assert all(sum(read[unit] for unit in window.units) <= WINDOW for window in windows)
    assert any(len(window.units) > 1 for window in windows)


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
    with EpisodeWriter(resolve(tmp_path), DataSpec.of_block(block), "s", layout=layout) as writer:
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
