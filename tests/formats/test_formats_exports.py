"""Data in the exported layouts, which are written for other tools, are read back bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from table_reading import read_table

from episode_kit import build_block, read_block
from hindcast.datasets.assembly.blocks import read_exported_file
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.columns.infos import make_info_cells
from hindcast.formats.dataset_folder.commits import Commit, ExportedFiles, make_file_stem, write_commit
from hindcast.formats.dataset_folder.manifest import Manifest, write_manifest
from hindcast.formats.layouts import EXPORTED_LAYOUTS
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve
from layers import examples
from random_data import recordings


def write(folder: Path, block: Block, spec: DataSpec, layout: str) -> list[Path]:
    """Write a recording in a layout, with a manifest; return the paths of its files."""
    with BlockWriter(resolve(folder), spec, "r", max_rows_per_file=10, layout=layout) as writer:
        writer.write(block)
    files = writer.close()
    write_manifest(resolve(folder), Manifest(layout=layout, spec=spec.to_json(), files=files))
    return [folder / file.path for file in files]


def drop_empty_infos(block: Block) -> Block:
    """Return the block without `infos` if all infos are empty; otherwise replace empty dicts by ""."""
    columns = dict(block.columns)
    infos = columns.pop("infos", None)
    if infos is not None and make_info_cells(block) is not None:
        columns["infos"] = np.where(infos == "{}", "", infos)
    return block.with_columns(columns)


@pytest.mark.parametrize("layout", list(EXPORTED_LAYOUTS))
@examples(20)
@given(recording=recordings())
def test_exported_layout_round_trip(kit, tmp_path_factory, layout, recording):
    block, spec = recording
    folder = tmp_path_factory.mktemp("f")
    write(folder / "data", block, spec, layout)
    dataset = open_data(folder / "data", cache=folder / "cache")
    block_read = read_block(dataset)
    read_order = np.argsort(block_read.eps_id.astype(str), kind="stable")
    block_order = np.argsort(block.eps_id.astype(str), kind="stable")
    kit.assert_same(drop_empty_infos(block_read.take(read_order)), drop_empty_infos(block.take(block_order)))
    assert dataset.spec.observation_space == spec.observation_space
    assert dataset.spec.action_space == spec.action_space


FLOATS = np.array([np.nan, np.inf, -np.inf, 1e-45, -0.0, 3.4e38, 0.1], np.float32)
INTEGERS = np.array([2**64 - 1, 2**63, 0, 1], np.uint64)
NOTHING = np.zeros((3, 0, 2), np.float32)
SPECIAL_COLUMNS = {
    "floats": {"obs": np.stack([FLOATS, FLOATS[::-1]], 1), "logits": FLOATS[:6].astype(np.complex64)},
    "large integers": {"obs": np.stack([INTEGERS, INTEGERS[::-1]], 1), "logits": INTEGERS[:3]},
    "empty columns": {"obs": np.zeros((4, 0, 2)), "actions": NOTHING, "logits": np.zeros(3)},
    "empty leaves": {"obs/empty": np.zeros((4, 0)), "obs/full": np.arange(4.0), "logits": NOTHING},
}
LOST_IN_TEXT = {("large integers", "SampleBatch")}
"""RLlib's JSON has no integers beyond int64."""
TEXT_CASES = [(name, layout) for name in SPECIAL_COLUMNS for layout in ("JSON", "CSV", "SampleBatch")]


@pytest.mark.parametrize(("name", "layout"), [case for case in TEXT_CASES if case not in LOST_IN_TEXT])
def test_special_values_in_text_round_trip(kit, tmp_path, name, layout):
    columns = SPECIAL_COLUMNS[name]
    num_steps = len(columns["logits"])
    rewards = FLOATS[:num_steps] if name == "floats" else np.ones(num_steps)
    block = build_block({"actions": np.arange(num_steps), "rewards": rewards, **columns}, [num_steps])
    write(tmp_path / "data", block, DataSpec.from_block(block), layout)
    kit.assert_same(read_block(open_data(tmp_path / "data", cache=tmp_path / "cache")), block)


@pytest.mark.parametrize("layout", ["JSON", "CSV", "SampleBatch"])
def test_file_of_other_size_than_recorded_raises(kit, tmp_path, layout):
    (path,) = write(tmp_path, kit.block(), kit.spec(kit.block()), layout)
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(DataError, match="but was recorded with"):
        read_table(path)


@pytest.mark.parametrize("layout", list(EXPORTED_LAYOUTS))
def test_exported_file_is_read_back_by_its_commit(kit, tmp_path, layout):
    """The commit describes the files of an unfinished recording, since text files cannot."""
    block = kit.block([30, 50, 20, 40])
    block.columns["said"] = np.array([f'"{i}\n,' for i in range(140)], dtype=object)
    spec = DataSpec.from_block(block)
    with BlockWriter(resolve(tmp_path), spec, make_file_stem(0, "a1"), layout=layout) as writer:
        writer.write(block)
    (file,) = files = writer.close()
    exported_files = ExportedFiles(layout=layout, spec=spec.to_json())
    commit = Commit(range=0, files=files, episodes=4, timesteps=140, first=0, exported=exported_files)
    write_commit(resolve(tmp_path), commit)
    kit.assert_same(read_exported_file(resolve(tmp_path / file.path), layout), block)
