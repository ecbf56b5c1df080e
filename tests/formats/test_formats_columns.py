"""The layout "Columns": one row per timestep, for other tools to read."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from episode_kit import replace_columns
from hindcast.datasets.assembly.blocks import read_exported_file
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.columns.infos import RESET_HEAD, prepend_entry, split_entry
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve


def read_all(folder) -> Block:
    files = sorted(folder.glob("*.parquet"))
    return Block.concat([read_exported_file(resolve(file), "columns") for file in files])


def write(folder, spec, *blocks, **options):
    with BlockWriter(resolve(folder), spec, "s", layout="columns", **options) as writer:
        for block in blocks:
            writer.write(block)
    return writer.close()


def test_file_has_documented_columns_and_one_row_per_timestep(kit, tmp_path):
    """Columns have RLlib's names (and `t`); vectors are lists; flags are set only in the last row of an episode."""
    block = kit.block([2, 3])
    block = replace_columns(block, action_logp=np.zeros(5, np.float32))
    (entry,) = write(tmp_path, kit.spec(block), block)
    table = pq.read_table(tmp_path / entry.path)
    assert table.column_names == [
        "eps_id", "agent_id", "module_id", "t", "obs", "actions", "rewards", "new_obs", "terminateds", "truncateds",
        "action_logp",
    ]  # fmt: skip
    assert table.schema.field("obs").type == pa.large_list(pa.float32())
    assert table["eps_id"].to_pylist() == ["e0"] * 2 + ["e1"] * 3
    assert table["t"].to_pylist() == [0, 1, 0, 1, 2]
    assert table["terminateds"].to_pylist() == [False, True, False, False, False]
    assert table["truncateds"].to_pylist() == [False] * 4 + [True]
    obs = block.columns["obs"].tolist()
    assert table["obs"].to_pylist() == obs[0:2] + obs[3:6]
    assert table["new_obs"].to_pylist() == obs[1:3] + obs[4:7]
    assert (entry.rows, entry.timesteps, entry.row_groups[0].lengths) == (2, 5, (2, 3))


def test_frames_are_written_as_flat_lists_with_rays_shape(kit, tmp_path):
    block = kit.block([2])
    frames = np.arange(3 * 24, dtype=np.uint8).reshape(3, 2, 4, 3)
    block = replace_columns(block, obs=frames)
    (entry,) = write(tmp_path, DataSpec.from_block(block), block)
    field = pq.read_schema(tmp_path / entry.path).field("obs")
    assert field.type == pa.large_list(pa.uint8())
    assert field.metadata == {
        b"ARROW:extension:name": b"ray.data.arrow_tensor_v2",
        b"ARROW:extension:metadata": b"[2, 4, 3]",
    }
    kit.assert_same(read_all(tmp_path), block)


class TestInfos:
    def test_column_is_left_out_when_all_infos_are_empty(self, kit, tmp_path):
        block = kit.block([2, 1])
        for text in ("", "{}"):
            block = replace_columns(block, infos=np.full(5, text, dtype=object))
            (entry,) = write(tmp_path, DataSpec.from_block(block), block)
            assert "infos" not in pq.read_schema(tmp_path / entry.path).names
            assert read_all(tmp_path).columns["infos"].tolist() == [""] * 5

    def test_new_file_starts_at_first_block_with_infos(self, kit, tmp_path):
        blocks = [kit.block([2], first=i) for i in range(4)]
        texts = [["", "", ""], ["", '{"a":1}', ""], ["", "", ""], ['{"r":1}', "", '{"b":2}']]
        blocks = [
            replace_columns(block, infos=np.array(block_texts, dtype=object))
            for block, block_texts in zip(blocks, texts, strict=True)
        ]
        entries = write(tmp_path, DataSpec.from_block(blocks[0]), *blocks, row_group_bytes=1)
        assert [entry.rows for entry in entries] == [1, 3]
        assert "infos" not in pq.read_schema(tmp_path / entries[0].path).names
        block_read = read_exported_file(resolve(tmp_path / entries[1].path), "columns")
        kit.assert_same(block_read, Block.concat(blocks[1:]))

    @pytest.mark.parametrize(
        "cell_text", ["", '{"a":1}', '{"reset_info":{"x":"}"},"a":1}', '{ "a": [1, {"b": 2}] }']
    )
    @pytest.mark.parametrize("reset", ["", '{"seed":3}', '{"t":"\\",\\"reset_info\\":{}"}'])
    def test_split_entry_inverts_prepend_entry_of_reset_info(self, cell_text, reset):
        cell = prepend_entry(RESET_HEAD, reset, cell_text)
        assert split_entry(RESET_HEAD, cell) == (reset, cell_text)
        if reset and "reset_info" not in cell_text:
            assert json.loads(cell)["reset_info"] == json.loads(reset)


def test_long_episodes_are_split_on_disk_and_joined_when_read(kit, tmp_path, monkeypatch):
    monkeypatch.setattr("hindcast.formats.columns.layout.ColumnsEncoder.max_episode_bytes", 4_000)
    block = kit.block([5, 100, 5])
    infos = np.array([f'{{"i":{i}}}' for i in range(113)], dtype=object)
    block = replace_columns(block, infos=infos)
    (entry,) = write(tmp_path, kit.spec(block), block)
    assert entry.rows > 6
    assert entry.episodes == 3
    kit.assert_same(read_all(tmp_path), block)


def test_max_rows_per_file_counts_timesteps_of_whole_episodes(kit, tmp_path):
    blocks = [kit.block([4, 4, 4, 30, 4, 4], first=6 * i) for i in range(3)]
    entries = write(tmp_path, kit.spec(blocks[0]), *blocks, max_rows_per_file=10)
    assert [entry.timesteps for entry in entries] == [8, 4, 30, 8, 8, 4, 30, 8, 8, 4, 30, 8]
    kit.assert_same(read_all(tmp_path), Block.concat(blocks))


def test_files_are_limited_by_size(kit, tmp_path):
    blocks = [kit.block([50] * 10, first=10 * i) for i in range(10)]
    limits = {"row_group_bytes": 20_000, "max_file_bytes": 150_000, "compression": "none"}
    entries = write(tmp_path, kit.spec(blocks[0]), *blocks, **limits)
    assert len(entries) == 3
    assert all(entry.bytes <= 150_000 for entry in entries)
    kit.assert_same(read_all(tmp_path), Block.concat(blocks))


def test_encode_episode_without_timesteps_raises(kit, tmp_path):
    block = kit.block([3, 0, 2])
    with pytest.raises(DataError, match="episode e1 has no timesteps, so it has no row in Columns"):
        write(tmp_path, kit.spec(block), block)


def test_model_output_named_like_a_layout_column_raises(kit, tmp_path):
    block = kit.block([3])
    block = replace_columns(block, t=np.zeros(3))
    with pytest.raises(DataError, match="a model output is named 't'"):
        write(tmp_path, DataSpec.from_block(block), block)
