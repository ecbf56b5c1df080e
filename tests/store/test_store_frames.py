"""Columns of frames: read by the page where the pages are as they were written, and by Arrow where they are not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.storage.location import resolve
from hindcast.store.dataset import open_dataset
from hindcast.store.parquet import open_source
from hindcast.store.spec import DataSpec
from hindcast.store.tabular import frames as reading
from hindcast.store.tabular.frames import read_frames
from hindcast.store.writer import EpisodeWriter

LENGTHS = np.array([7, 1, 60, 12])


def make_block(shape: tuple[int, ...], dtype: str, camera: str = "obs") -> Block:
    rng, steps = np.random.default_rng(0), int(LENGTHS.sum())
    count = (steps + len(LENGTHS), *shape)
    raw = rng.integers(0, 256, (*count, np.dtype(dtype).itemsize), dtype=np.uint8)
    observations = raw.view(dtype).reshape(count) if np.dtype(dtype).kind != "f" else rng.normal(size=count)
    columns = {
        camera: observations.astype(dtype),
        "actions": rng.integers(0, 4, steps),
        "rewards": rng.normal(size=steps).astype(np.float32),
    }
    if camera != "obs":
        columns["obs/vector"] = rng.normal(size=(count[0], 3)).astype(np.float32)
    return Block(
        columns=columns,
        length=LENGTHS,
        eps_id=np.array([f"e-{i}" for i in range(len(LENGTHS))], dtype=object),
        t_started=np.zeros(len(LENGTHS), dtype=np.int64),
        terminated=np.array([True, False, True, False]),
        truncated=np.array([False, True, False, False]),
    )


def write(folder, block, **options):
    with EpisodeWriter(resolve(folder), DataSpec.of_block(block), "s", layout="columns", **options) as writer:
        writer.write(block)
    return folder / writer.close()[0].path


def read_all(path) -> Block:
    dataset = open_dataset(path)
    return Block.concat([dataset.read(unit) for unit in dataset.units])


def taken_by_the_page(path) -> list[str]:
    """The leaves that need no help of Arrow's reader."""
    spec = open_dataset(path).spec
    with open_source(resolve(path)) as source:
        groups = range(source.file.num_row_groups)
        return list(read_frames(source, groups, LENGTHS, spec, list(spec.leaves)))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32", "float32", "float64"])
def test_frames_of_any_numbers_survive_and_are_read_by_the_page(kit, tmp_path, dtype):
    block = make_block((33, 32), dtype)
    path = write(tmp_path, block)
    kit.assert_same(read_all(path), block)
    assert taken_by_the_page(path) == ["obs"]


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_frames_beside_other_leaves_survive(kit, tmp_path, compression):
    block = make_block((40, 40, 3), "uint8", camera="obs/camera")
    path = write(tmp_path, block, compression=compression, row_group_bytes=100_000)
    assert pq.ParquetFile(path).num_row_groups > 1
    kit.assert_same(read_all(path), block)
    assert taken_by_the_page(path) == ["obs/camera"]
    dataset = open_dataset(path)
    only = dataset.read(dataset.units[0], ["rewards"])
    assert list(only.columns) == ["rewards"]


def test_frames_whose_pages_end_within_them_survive(kit, tmp_path):
    """A page has about a mebibyte, whatever a frame has."""
    block = make_block((300, 301), "uint8")
    path = write(tmp_path, block, row_group_bytes=64 << 20)
    assert taken_by_the_page(path) == ["obs"]
    kit.assert_same(read_all(path), block)


@pytest.mark.parametrize(
    "options", [{"compression": "snappy"}, {"use_dictionary": True}, {"data_page_version": "2.0"}]
)
def test_a_file_that_another_tool_wrote_anew_is_read_by_arrow(kit, tmp_path, options):
    block = make_block((32, 32), "uint8")
    path = write(tmp_path, block)
    pq.write_table(pq.read_table(path), path, **{"use_dictionary": False, **options})
    assert taken_by_the_page(path) == []
    kit.assert_same(read_all(path), block)


def test_lists_of_other_lengths_are_refused_though_there_are_as_many_numbers(tmp_path):
    block = make_block((32, 32), "uint8")
    path = write(tmp_path, block)
    table = pq.read_table(path)
    rows = table["obs"].to_pylist()
    rows[3], rows[4] = rows[3][:-1], [*rows[4], 0]
    place = table.schema.get_field_index("obs")
    field = table.schema.field("obs")
    odd = table.set_column(place, field, pa.array(rows, field.type))
    pq.write_table(odd, path, use_dictionary=False, compression="lz4")
    with pytest.raises(DataError, match=r"'obs' has 1023 numbers where the row before has 1024"):
        read_all(path)


def test_no_flipped_bit_gives_other_frames(kit, tmp_path):
    """It is refused with the file; or it is in a next observation that is an observation too, and changes nothing."""
    block = make_block((32, 32), "uint8")
    path = write(tmp_path, block)
    whole = bytearray(path.read_bytes())
    column = next(
        found
        for found in map(pq.ParquetFile(path).metadata.row_group(0).column, range(10))
        if found.path_in_schema.startswith("obs.")
    )
    first, rng = column.data_page_offset, np.random.default_rng(0)
    refused = 0
    for place in (
        first,
        first + 1,
        first + 5,
        *rng.integers(first, first + column.total_compressed_size, 60),
    ):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            kit.assert_same(read_all(path), block)
        except DataError as error:
            refused += 1
            assert str(path) in str(error)
    assert refused > 50


def test_pandas_reads_frames_as_arrays(tmp_path):
    block = make_block((32, 32), "uint8")
    steps = pd.read_parquet(write(tmp_path, block))
    frames = np.stack(steps["obs"].tolist())
    assert frames.dtype == np.uint8
    assert (frames.reshape(-1, 32, 32) == block.columns["obs"][block.obs_row]).all()


def test_small_vectors_are_left_to_arrow(tmp_path):
    path = write(tmp_path, make_block((4,), "float32"))
    assert taken_by_the_page(path) == []
    assert not reading.split_columns(open_dataset(path).spec.leaves)
