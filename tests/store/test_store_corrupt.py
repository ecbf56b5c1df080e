"""Files that something happened to: a sentence that names the file, never other data, never a crash."""

from __future__ import annotations

import random
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.store.arrow_layout import arrow_schema
from hindcast.store.dataset import open_dataset


@pytest.fixture
def block(kit):
    block = kit.block([30, 50, 20, 0, 7])
    infos = np.array([f'{{"i": {i}}}' for i in range(112)], dtype=object)
    return block.with_columns({**block.columns, "infos": infos})


@pytest.fixture(params=["lz4", "zstd", "none"])
def path(request, kit, tmp_path, block):
    (entry,) = kit.write(tmp_path / "d", block, compression=request.param, row_group_bytes=1_500)
    return tmp_path / "d" / entry.path


def read_all(folder) -> Block:
    dataset = open_dataset(folder)
    return Block.concat([dataset.read(unit) for unit in dataset.units])


def test_truncated_anywhere(path):
    whole = path.read_bytes()
    for size in [*range(1, len(whole), 97), *range(len(whole) - 12, len(whole))]:
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=re.escape(str(path))) as caught:
            read_all(path.parent)
        if size >= 4:
            assert "truncated" in str(caught.value)
            assert "copy it again" in str(caught.value)


def test_empty(path):
    path.write_bytes(b"")
    with pytest.raises(DataError, match=rf"{path} is empty \(0 bytes\): delete it"):
        open_dataset(path.parent)


def test_another_kind_of_file(path):
    path.write_bytes(b"\x89HDF\r\n" + bytes(1000))
    with pytest.raises(DataError, match=r"is not a Parquet file: it begins with b'\\x89HDF'"):
        open_dataset(path.parent)


def test_a_flipped_bit_in_the_magic(path):
    whole = path.read_bytes()
    for position in (0, 3, len(whole) - 4, len(whole) - 1):
        changed = bytearray(whole)
        changed[position] ^= 4
        path.write_bytes(changed)
        with pytest.raises(DataError, match=r"is not a Parquet file|is truncated"):
            open_dataset(path.parent)


def test_a_flipped_bit_in_the_values(path):
    """The page checksums find it."""
    whole = path.read_bytes()
    group = pq.ParquetFile(path).metadata.row_group(1)
    rng = random.Random(0)
    for i in range(group.num_columns):
        column = group.column(i)
        if column.path_in_schema not in ("obs", "rewards"):
            continue
        last = column.data_page_offset + column.total_compressed_size - 1
        for _ in range(20):
            changed = bytearray(whole)
            changed[last - rng.randrange(column.total_compressed_size // 2)] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)
            with pytest.raises(DataError, match=rf"{path} is damaged .*copy it again"):
                read_all(path.parent)


def test_damage_anywhere_is_found_or_harmless(kit, path, block):
    whole = path.read_bytes()
    rng = random.Random(1)
    found = 0
    for _ in range(300):
        changed = bytearray(whole)
        start = rng.randrange(len(whole))
        for position in range(start, min(len(whole), start + rng.choice([1, 1, 8, 64]))):
            changed[position] = rng.randrange(256)
        path.write_bytes(changed)
        try:
            kit.assert_same(read_all(path.parent), block)
        except DataError as error:
            assert str(path) in str(error)
            found += 1
    assert found > 200


def test_every_changed_byte_of_a_recording_is_found_when_verified(kit, tmp_path, block):
    folder = kit.record(tmp_path / "d", kit.block([3, 5]))
    path = tmp_path / "d" / "000000-a1-000.parquet"
    whole = path.read_bytes()
    for position in range(0, len(whole), 53):
        changed = bytearray(whole)
        changed[position] ^= 128
        path.write_bytes(changed)
        with pytest.raises(DataError, match="was changed since it was recorded"):
            open_dataset(folder, verify=True)


def test_no_rows(kit, tmp_path, block):
    schema = arrow_schema(kit.spec(block))
    pq.write_table(schema.empty_table(), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="holds no episodes: record some first"):
        open_dataset(tmp_path)
    pq.ParquetWriter(tmp_path / "x.parquet", schema).close()
    with pytest.raises(DataError, match="holds no episodes: record some first"):
        open_dataset(tmp_path)


def test_no_rows_beside_some(kit, tmp_path):
    block = kit.block()
    kit.write(tmp_path, block, stem="b")
    pq.write_table(arrow_schema(kit.spec(block)).empty_table(), tmp_path / "a.parquet")
    kit.assert_same(read_all(tmp_path), block)


def test_nulls(kit, tmp_path):
    block = kit.block([2])
    schema = arrow_schema(kit.spec(block))
    nullable = pa.schema([field.with_nullable(True) for field in schema], schema.metadata)
    rows = {name: [None] for name in schema.names} | {"length": [2], "t_started": [0]}
    pq.write_table(pa.table(rows, schema=nullable), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet is damaged \(row 0: 'eps_id' is null"):
        read_all(tmp_path)
    for length in (None, -2):
        pq.write_table(pa.table(rows | {"length": [length]}, schema=nullable), tmp_path / "x.parquet")
        with pytest.raises(DataError, match=r"x\.parquet is damaged .*'length'"):
            open_dataset(tmp_path)


def test_one_bad_file_among_good_ones_is_named(kit, tmp_path):
    for i in range(5):
        kit.write(tmp_path, kit.block(first=3 * i), stem=f"f{i}")
    bad = tmp_path / "f3-000.parquet"
    bad.write_bytes(bad.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"f3-000\.parquet is truncated"):
        open_dataset(tmp_path)
