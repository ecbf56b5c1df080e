"""Data in the exported layouts, which are written for other tools, are read back bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from episode_kit import read_block
from hindcast.datasets.assembly.blocks import read_exported_file
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.columns.infos import make_info_cells
from hindcast.formats.dataset_folder.commits import Commit, ExportedFiles, make_file_stem, write_commit
from hindcast.formats.dataset_folder.manifest import Manifest, write_manifest
from hindcast.formats.layouts import EXPORTED_LAYOUTS
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve
from layers import examples
from random_data import recordings


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
    with BlockWriter(resolve(folder / "data"), spec, "000000-a1", layout=layout) as writer:
        writer.write(block)
    manifest = Manifest(layout=layout, spec=spec.to_json(), files=writer.close())
    write_manifest(resolve(folder / "data"), manifest)
    dataset = open_data(folder / "data", cache=folder / "cache")
    block_read = read_block(dataset)
    read_order = np.argsort(block_read.eps_id.astype(str), kind="stable")
    block_order = np.argsort(block.eps_id.astype(str), kind="stable")
    kit.assert_same(drop_empty_infos(block_read.take(read_order)), drop_empty_infos(block.take(block_order)))
    assert dataset.spec.observation_space == spec.observation_space
    assert dataset.spec.action_space == spec.action_space


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
