"""Fragments, commits and damage in the layouts that are opened directly, and datasets with several layouts."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from episode_kit import read_block
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.commits import Commit, write_commit
from hindcast.formats.dataset_folder.manifest import Manifest, write_manifest
from hindcast.formats.layouts import EXPORTED_LAYOUTS, LAYOUTS, make_encoder
from hindcast.storage.location import resolve
from layers import examples
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


@pytest.mark.parametrize("layout", [*LAYOUT_NAMES, *EXPORTED_LAYOUTS])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": np.zeros((13, 4), np.float64)}, r"'obs' is float64 \[4\], but float32 \[4\]"),
        ({"obs": np.zeros((13, 5), np.float32)}, r"'obs' is float32 \[5\], but float32 \[4\]"),
        ({"actions": np.zeros(10, np.float32)}, "'actions' is float32"),
        ({"extra": np.zeros(10)}, r"\['extra'\] are not in the dataset"),
        ({"rewards": None}, "'rewards' is missing"),
    ],
)
def test_encode_column_that_does_not_fit_raises(kit, layout, change, message):
    block = kit.block()
    columns = {name: column for name, column in {**block.columns, **change}.items() if column is not None}
    encoder = make_encoder(layout, kit.spec(block))
    with pytest.raises(DataError, match=message):
        encoder.encode(block.with_columns(columns))
