"""Fragments, commits and damage in the layouts that are opened directly, and datasets with several layouts."""

from __future__ import annotations

from functools import partial
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from damaged_files import check_truncations, count_refusals
from episode_kit import read_block, replace_columns
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.commits import Commit, write_commit
from hindcast.formats.dataset_folder.manifest import Manifest, write_manifest
from hindcast.formats.layouts import LAYOUTS, make_encoder
from hindcast.storage.location import resolve
from layers import examples, repeats
from random_data import recordings

LAYOUT_NAMES = list(LAYOUTS)


def write(folder, block, spec, layout, **options):
    with BlockWriter(resolve(folder), spec, "000000-a1", layout=layout, **options) as writer:
        writer.write(block)
    return writer.close()


def read_all(folder) -> Block:
    return read_block(open_dataset(folder))


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
@examples(30)
@given(recording=recordings())
def test_fragments_of_any_episode_are_joined(kit, tmp_path_factory, layout, recording):
    block, spec = recording
    folder = tmp_path_factory.mktemp("f")
    encoder_class = type(make_encoder(layout, spec))
    limit = int(make_encoder(layout, spec).estimate_bytes(block).max() // 3)
    with mock.patch.object(encoder_class, "max_episode_bytes", max(2, limit)):
        entries = write(folder, block, spec, layout)
    if block.length.max() > 6:
        assert sum(entry.rows for entry in entries) > block.num_episodes
    assert sum(entry.episodes for entry in entries) == block.num_episodes
    kit.assert_same(read_all(folder), block)


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
@pytest.mark.parametrize("has_manifest", [True, False])
def test_recording_in_each_layout_is_opened(kit, tmp_path, layout, has_manifest):
    block = kit.block([30, 50, 20])
    folder = resolve(tmp_path / "d")
    files = write(folder, block, kit.spec(block), layout, row_group_bytes=1_000)
    write_commit(folder, Commit(range=0, files=files, episodes=3, timesteps=100, first=0))
    if has_manifest:
        write_manifest(folder, Manifest(layout=layout, spec=kit.spec(block).to_json(), files=files))
    kit.assert_same(read_block(open_dataset(folder, verify=True)), block)


def test_folders_of_each_layout_are_one_dataset(kit, tmp_path):
    blocks = [kit.block([3, 4], first=2 * i) for i in range(len(LAYOUT_NAMES))]
    folders = [tmp_path / layout.replace("/", "-") for layout in LAYOUT_NAMES]
    for block, folder, layout in zip(blocks, folders, LAYOUT_NAMES, strict=True):
        write(folder, block, kit.spec(block), layout)
    kit.assert_same(read_all(folders), Block.concat(blocks))


def test_open_unknown_layout_raises_with_its_name(kit, tmp_path):
    (entry,) = write(tmp_path, kit.block(), kit.spec(kit.block()), "columns")
    table = pq.read_table(tmp_path / entry.path)
    metadata = {b"hindcast": table.schema.metadata[b"hindcast"].replace(b'"columns"', b'"hypercubes"')}
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / entry.path)
    with pytest.raises(DataError, match=r"000000-a1-000\.parquet: it is written in the layout 'hypercubes'"):
        open_dataset(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("compression", ["lz4", "none"])
@pytest.mark.parametrize("layout", LAYOUT_NAMES[1:])  # test_datasets_corrupt tests Episodes / Arrow
def test_flipped_byte_is_reported_or_harmless(kit, tmp_path, layout, compression):
    """Pages have checksums, so data are either read correctly or refused."""
    block = kit.block([30, 50, 20])
    infos = np.array([f'{{"i":{i}}}' for i in range(103)], dtype=object)
    block = replace_columns(block, infos=infos)
    (entry,) = write(tmp_path, block, kit.spec(block), layout, compression=compression, row_group_bytes=3_000)
    path = tmp_path / entry.path
    check_block = partial(kit.assert_same, expected=block)
    times = repeats(80, soak=1000)
    assert count_refusals(path, lambda: read_all(tmp_path), check_block, times, seed=1) > times * 3 // 5
    check_truncations(path, lambda: read_all(tmp_path), every=repeats(423, soak=53))
