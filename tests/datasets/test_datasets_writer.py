"""`BlockWriter` and the files that it writes."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episode_kit import read_block
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.file_index import index_file
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError, SpecError, StorageError
from hindcast.formats.dataset_folder.commits import Commit, make_file_stem, remove_orphans
from hindcast.formats.entries import FileEntry
from hindcast.formats.parquet.fragments import find_continued, join_fragments, split_long_episodes
from hindcast.storage.location import resolve
from layers import examples


def read_all(folder) -> Block:
    """Read all episodes of a folder."""
    return read_block(open_dataset(folder))


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_written_episodes_are_read_back(kit, tmp_path, compression):
    blocks = [kit.block([3, 1, 4], first=0), kit.block([0, 2], first=3)]
    (entry,) = kit.write(tmp_path / "d", *blocks, compression=compression)
    kit.assert_same(read_all(tmp_path / "d"), Block.concat(blocks))
    path = tmp_path / "d" / entry.path
    assert entry.path == "000000-a1-000.parquet"
    assert (entry.rows, entry.timesteps, entry.episodes) == (5, 10, 5)
    assert entry.bytes == path.stat().st_size
    assert entry.checksum == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [group.lengths for group in entry.row_groups] == [(3, 1, 4, 0, 2)]
    assert kit.file_names(tmp_path / "d") == [entry.path]


def test_columns_have_no_dictionary_and_no_statistics(kit, tmp_path):
    (entry,) = kit.write(tmp_path, kit.block())
    group = pq.ParquetFile(tmp_path / entry.path).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    for leaf in ("obs", "actions", "rewards"):
        assert columns[leaf].compression == "LZ4"
        assert not columns[leaf].has_dictionary_page
        assert not columns[leaf].is_stats_set
        assert "PLAIN" in columns[leaf].encodings


def test_rows_per_file_are_limited(kit, tmp_path):
    entries = kit.write(tmp_path, kit.block([2] * 7), kit.block([2] * 4, first=7), max_rows_per_file=3)
    assert [entry.rows for entry in entries] == [3, 3, 3, 2]
    assert [entry.path for entry in entries] == [f"000000-a1-00{i}.parquet" for i in range(4)]
    assert read_all(tmp_path).eps_id.tolist() == [f"e{i}" for i in range(11)]


def test_bytes_per_file_and_per_row_group_are_limited(kit, tmp_path):
    blocks = [kit.block([50] * 10, first=10 * i) for i in range(20)]  # 1,416 bytes per episode
    entries = kit.write(tmp_path, *blocks, row_group_bytes=8_000, max_file_bytes=40_000, compression="none")
    assert len(entries) > 5
    assert all(entry.bytes <= 40_000 for entry in entries)
    assert all(entry.bytes > 25_000 for entry in entries[:-1])
    groups = [group for entry in entries for group in entry.row_groups]
    assert {group.rows for group in groups[:-1]} == {5}
    kit.assert_same(read_all(tmp_path), Block.concat(blocks))


def test_episode_larger_than_a_file_gets_a_separate_file(kit, tmp_path):
    entries = kit.write(tmp_path, kit.block([5, 500, 5]), max_file_bytes=2_000)
    assert [entry.rows for entry in entries] == [1, 1, 1]


def test_small_blocks_share_a_row_group(kit, tmp_path):
    blocks = [kit.block([3], first=i) for i in range(30)]
    (entry,) = kit.write(tmp_path, *blocks)
    assert [group.rows for group in entry.row_groups] == [30]
    kit.assert_same(read_all(tmp_path), Block.concat(blocks))


def test_close_without_episodes_writes_no_file(kit, tmp_path):
    assert kit.write(tmp_path / "d", kit.block([])) == ()
    assert not (tmp_path / "d").exists()


def test_wrong_columns_are_refused_and_all_files_deleted(kit, tmp_path):
    options = {"max_rows_per_file": 1, "row_group_bytes": 10}
    writer = BlockWriter(resolve(tmp_path), kit.spec(kit.block()), "s", **options)
    writer.write(kit.block([3, 3, 3]))
    assert [name for name in kit.file_names(tmp_path) if not name.startswith(".")]
    block = kit.block()
    with pytest.raises(DataError, match="'actions' is float32"):
        writer.write(block.with_columns({**block.columns, "actions": block.columns["rewards"]}))
    assert kit.file_names(tmp_path) == []


def test_unknown_compression_is_named(kit, tmp_path):
    with pytest.raises(SpecError, match="'gzip': allowed are lz4, zstd, none"):
        BlockWriter(resolve(tmp_path), kit.spec(kit.block()), "s", compression="gzip")


def test_leaving_the_context_closes_or_aborts(kit, tmp_path):
    with BlockWriter(resolve(tmp_path), kit.spec(kit.block()), "s") as writer:
        writer.write(kit.block())
    assert kit.file_names(tmp_path) == ["s-000.parquet"]
    with (
        pytest.raises(KeyboardInterrupt),
        BlockWriter(resolve(tmp_path), kit.spec(kit.block()), "t", row_group_bytes=10) as writer,
    ):
        writer.write(kit.block())
        raise KeyboardInterrupt
    assert kit.file_names(tmp_path) == ["s-000.parquet"]


def test_close_twice_returns_the_same_files(kit, tmp_path):
    with BlockWriter(resolve(tmp_path), kit.spec(kit.block()), "s") as writer:
        writer.write(kit.block())
        files = writer.close()
    assert writer.close() == files


def test_memory_file_system_is_written(kit, memory_path):
    entries = kit.write(memory_path, kit.block([2] * 5), max_rows_per_file=2)
    assert [entry.rows for entry in entries] == [2, 2, 1]
    kit.assert_same(read_all(memory_path), kit.block([2] * 5))
    writer = BlockWriter(resolve(memory_path), kit.spec(kit.block()), "t", row_group_bytes=10)
    writer.write(kit.block())
    writer.abort()
    assert len(resolve(memory_path).list()) == 3


# --- failing storage


def test_full_disk_is_reported_and_leaves_no_files(kit, small_disk):
    folder = small_disk("size=1m") / "d"
    options = {"row_group_bytes": 1 << 17, "compression": "none"}
    writer = BlockWriter(resolve(folder), kit.spec(kit.block()), "s", **options)
    with pytest.raises(StorageError, match=r"cannot write .*s-000.parquet: the disk is full"):
        for i in range(100):
            writer.write(kit.block([5000], first=i))
    assert kit.file_names(folder) == []
    del writer
    gc.collect()  # the Parquet writer underneath must not try to finish its file
    assert kit.file_names(folder) == []


def test_disk_full_at_close_leaves_no_files(kit, tmp_path, monkeypatch):
    writer = BlockWriter(resolve(tmp_path), kit.spec(kit.block()), "s")
    writer.write(kit.block())

    def raise_disk_full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with pytest.raises(StorageError, match="the disk is full"):
        writer.close()
    assert kit.file_names(tmp_path) == []
    assert writer.close() == ()


def test_read_only_file_system_is_reported(kit, small_disk):
    folder = small_disk("size=1m")
    small_disk("remount,ro")
    with pytest.raises(StorageError, match=r"cannot write .*: the file system is read-only"):
        kit.write(folder / "d", kit.block())


def test_path_of_a_file_is_reported(kit, tmp_path):
    (tmp_path / "d").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot write .*d/000000-a1-000.parquet: a file is in the way"):
        kit.write(tmp_path / "d", kit.block())


WRITE_SCRIPT = """
import os, signal, numpy as np
from hindcast.episodes.block import Block
from hindcast.storage.location import resolve
from hindcast.formats.spec import DataSpec
from hindcast.datasets.writer import BlockWriter
block = Block({"obs": np.zeros((101, 4))}, np.array([100]), np.array(["e"], object), np.zeros(1, np.int64),
              np.ones(1, bool), np.zeros(1, bool))
writer = BlockWriter(
    resolve(FOLDER), DataSpec.from_block(block), "000003-b2", max_rows_per_file=2, row_group_bytes=100
)
for _ in range(5):
    writer.write(block)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_leaves_only_complete_and_temporary_files(kit, tmp_path):
    script = WRITE_SCRIPT.replace("FOLDER", repr(str(tmp_path)))
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    names = kit.file_names(tmp_path)
    assert names[0].startswith(".000003-b2-002.parquet.")
    assert names[1:] == ["000003-b2-000.parquet", "000003-b2-001.parquet"]
    assert [pq.ParquetFile(tmp_path / name).metadata.num_rows for name in names[1:]] == [2, 2]
    files = (FileEntry.from_row_groups(names[1], 0, "", []),)
    commit = Commit(range=3, files=files, episodes=2, timesteps=2, first=0)
    remove_orphans(resolve(tmp_path), [commit])
    assert kit.file_names(tmp_path) == [names[1]]


# --- fragments


@examples(100)
@given(st.lists(st.integers(0, 20), max_size=6), st.integers(30, 400))
def test_fragments_are_joined_to_the_same_episodes(kit, lengths, limit):
    block = kit.block(lengths)
    nbytes = 20 * block.length
    sub_blocks = list(split_long_episodes(block, nbytes, limit))
    stored_rows, is_continued = Block.concat([sub_block for sub_block, _ in sub_blocks]), []
    for sub_block, continues in sub_blocks:
        assert sub_block.num_episodes == 1 or not continues
        is_continued += [continues] + [False] * (sub_block.num_episodes - 1) if sub_block.num_episodes else []
        assert (20 * sub_block.length <= max(limit, 20)).all()
    kit.assert_same(join_fragments(stored_rows, np.array(is_continued, dtype=bool)), block)
    continued = find_continued(stored_rows.eps_id, stored_rows.t_started, stored_rows.length)
    assert continued.tolist() == is_continued


@pytest.fixture
def small_fragments(monkeypatch):
    """Store episodes over 4,000 bytes in fragments."""
    monkeypatch.setattr(
        "hindcast.formats.parquet.file.split_long_episodes",
        lambda block, size, episode_bytes: split_long_episodes(block, size, 4_000),
    )


@pytest.mark.usefixtures("small_fragments")
def test_long_episode_stored_in_fragments_is_read_whole(kit, tmp_path):
    block = kit.block([10, 700, 10, 400])
    (entry,) = kit.write(tmp_path, block)
    assert entry.episodes == 4
    assert entry.rows > 10
    assert [group.continued for group in entry.row_groups][:4] == [(), (0,), (0,), (0,)]
    dataset = open_dataset(tmp_path)
    assert dataset.num_episodes == 4
    assert [unit.lengths.tolist() for unit in dataset.units] == [[10, 700, 10, 400]]
    kit.assert_same(dataset.read(dataset.units[0]), block)
    path = str(resolve(tmp_path).child(entry.path))
    assert [dataset.locate(dataset.units[0], i) for i in (0, 1)] == [(path, 0), (path, 1)]
    num_fragments = 700 * 28 // 2_000 + 1  # 28 bytes per step, in fragments of at most half of 4,000 bytes
    assert dataset.locate(dataset.units[0], 2) == (path, 1 + num_fragments)


@pytest.mark.usefixtures("small_fragments")
def test_episode_is_never_in_two_units_or_files(kit, tmp_path):
    entries = kit.write(tmp_path, kit.block([300, 300]), max_rows_per_file=1)
    assert [entry.episodes for entry in entries] == [1, 1]

    files = [index_file(resolve(tmp_path / entry.path), entry.path) for entry in entries]
    dataset = EpisodeDataset(files[0].spec, files, unit_bytes=3_000)
    assert [unit.lengths.tolist() for unit in dataset.units] == [[300], [300]]


def test_file_stem_contains_range_and_suffix():
    assert make_file_stem(12, "ab12") == "000012-ab12"
