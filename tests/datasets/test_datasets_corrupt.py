"""Damaged files raise an error that names the file; they never give wrong data or crash the process."""

from __future__ import annotations

import json
import random
import re
from contextlib import suppress
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from damaged_files import count_refusals
from episode_kit import read_block
from hindcast.datasets.inspection.inspecting import inspect_paths
from hindcast.datasets.opening import open_dataset
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.arrow.layout import ArrowEncoder
from layers import repeats
from user_errors import raises_user_error

LAYOUTS = ("episodes/arrow", "episodes/messagepack")
STORAGE_FORMATS = [(layout, compression) for layout in LAYOUTS for compression in ("lz4", "none")]
STORAGE_FORMATS += [("episodes/arrow", "zstd")]
COLUMNS_WITH_VALUES = ("obs", "rewards", "item", "obs.list.element")


@pytest.fixture(params=STORAGE_FORMATS, ids="-".join)
def storage_format(request):
    """Layout and compression of the file."""
    return request.param


@pytest.fixture
def block(kit, storage_format):
    lengths = [30, 50, 20, 0, 7]  # including an episode without timesteps
    block = kit.block(lengths)
    num_observations = sum(lengths) + len(lengths)
    infos = np.array([f'{{"i":{i}}}' for i in range(num_observations)], dtype=object)
    return block.with_columns({**block.columns, "infos": infos})


@pytest.fixture
def path(storage_format, kit, tmp_path, block):
    layout, compression = storage_format
    options = {"compression": compression, "row_group_bytes": 1_500, "layout": layout}
    (entry,) = kit.write(tmp_path / "d", block, **options)
    return tmp_path / "d" / entry.path


def read_all(folder) -> Block:
    """Read all episodes of a folder or file."""
    return read_block(open_dataset(folder))


@pytest.mark.soak
def test_truncated_file_is_refused(path):
    content = path.read_bytes()
    for size in [*range(1, len(content), repeats(97, soak=37)), *range(len(content) - 12, len(content))]:
        path.write_bytes(content[:size])
        with pytest.raises(DataError, match=re.escape(str(path))) as caught:
            read_all(path.parent)
        if size >= 4:
            assert "truncated" in str(caught.value)
            assert "copy it again" in str(caught.value)


def test_empty_file_is_refused(path):
    path.write_bytes(b"")
    with pytest.raises(DataError, match=rf"{path} is empty \(0 bytes\): delete it"):
        open_dataset(path.parent)


def test_file_that_is_not_parquet_is_refused(path):
    path.write_bytes(b"\x89HDF\r\n" + bytes(1000))
    with pytest.raises(DataError, match=r"is not a Parquet file: it begins with b'\\x89HDF'"):
        open_dataset(path.parent)


def test_flipped_bit_in_the_magic_number_is_found(path):
    content = path.read_bytes()
    for position in (0, 3, len(content) - 4, len(content) - 1):
        damaged_content = bytearray(content)
        damaged_content[position] ^= 4
        path.write_bytes(damaged_content)
        with pytest.raises(DataError, match=r"is not a Parquet file|is truncated"):
            open_dataset(path.parent)


@pytest.mark.soak
def test_flipped_bit_in_the_values_is_found(path):
    """Flip single bits, which the checksums of pages detect."""
    content = path.read_bytes()
    group = pq.ParquetFile(path).metadata.row_group(1)
    rng = random.Random(0)
    for i in range(group.num_columns):
        column = group.column(i)
        if column.path_in_schema not in COLUMNS_WITH_VALUES:
            continue
        last_byte = column.data_page_offset + column.total_compressed_size - 1
        for _ in range(repeats(20, soak=100)):
            damaged_content = bytearray(content)
            position = last_byte - rng.randrange(column.total_compressed_size // 2)
            damaged_content[position] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged_content)
            with pytest.raises(DataError, match=rf"{path} is damaged .*copy it again"):
                read_all(path.parent)


@pytest.mark.soak
def test_damage_anywhere_is_found_or_harmless(kit, path, block):
    check_content = partial(kit.assert_same, expected=block)
    times = repeats(300, soak=1000)
    assert count_refusals(path, lambda: read_all(path.parent), check_content, times, seed=1) > times * 2 // 3


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_flipped_bit_in_the_page_header_of_a_flag_changes_no_flag(kit, tmp_path, flag):
    """Flip a bit of each byte of a header, which has no checksum: reading fails, or returns what was written."""
    block = kit.block()
    (entry,) = kit.write(tmp_path, block, compression="none", row_group_bytes=1)
    path = tmp_path / entry.path
    content = path.read_bytes()
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    for position in range(columns[flag].total_compressed_size):
        damaged_content = bytearray(content)
        damaged_content[columns[flag].data_page_offset + position] ^= 16
        path.write_bytes(damaged_content)
        with suppress(DataError):
            kit.assert_same(read_all(tmp_path), block)


@pytest.mark.soak
def test_changed_byte_of_a_recording_is_found_when_verified(kit, tmp_path):
    folder = kit.record(tmp_path / "d", kit.block([3, 5]))
    path = tmp_path / "d" / "000000-a1-000.parquet"
    content = path.read_bytes()
    for position in range(0, len(content), repeats(53, soak=7)):
        damaged_content = bytearray(content)
        damaged_content[position] ^= 128
        path.write_bytes(damaged_content)
        with pytest.raises(DataError, match="was changed since it was recorded"):
            open_dataset(folder, verify=True)


def write_file_without_rows(template_path, path, num_groups: int) -> None:
    """Write a file in Hindcast's format that has no rows, but may have empty row groups."""
    schema = pq.read_schema(template_path)
    index = json.dumps([{"lengths": [], "continued": []}] * num_groups)
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(num_groups):
            writer.write_table(schema.empty_table())
        writer.add_key_value_metadata({"hindcast-index": index})


@pytest.mark.parametrize("num_groups", [0, 1])
def test_file_without_rows_is_refused(path, num_groups):
    write_file_without_rows(path, path.parent / "a.parquet", num_groups)
    path.unlink()
    with pytest.raises(DataError, match="holds no episodes: record some first"):
        open_dataset(path.parent)


@pytest.mark.parametrize("num_groups", [0, 1])
def test_file_without_rows_among_others_is_accepted(kit, path, block, num_groups):
    write_file_without_rows(path, path.parent / "a.parquet", num_groups)
    kit.assert_same(read_all(path.parent), block)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_with_different_schemas_are_refused(kit, tmp_path, layout):
    block = kit.block()
    kit.write(tmp_path, block, stem="a", layout=layout)
    columns = block.columns | {"actions": np.stack([block.columns["actions"]] * 2, axis=1)}
    kit.write(tmp_path, block.with_columns(columns), stem="b", layout=layout)
    message = r"a-000\.parquet and .*b-000\.parquet cannot be one dataset: 'actions' is"
    with pytest.raises(DataError, match=message):
        open_dataset(tmp_path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_with_different_layouts_are_refused(kit, tmp_path, layout):
    kit.write(tmp_path, kit.block(), stem="a", layout=layout)
    kit.write(tmp_path, kit.block(first=3), stem="b", layout=next(name for name in LAYOUTS if name != layout))
    with pytest.raises(DataError, match="mixes layouts: a-000"):
        open_dataset(tmp_path)


def test_nulls_are_refused(kit, tmp_path):
    block = kit.block([2])
    schema = ArrowEncoder(kit.spec(block)).encode(block).table.schema
    nullable = pa.schema([field.with_nullable(True) for field in schema], schema.metadata)
    rows = {name: [None] for name in schema.names} | {"length": [2], "t_started": [0]}
    pq.write_table(pa.table(rows, schema=nullable), tmp_path / "x.parquet")
    with raises_user_error(DataError, "'eps_id' is null", path="x.parquet", row=0):
        read_all(tmp_path)
    for length in (None, -2):
        pq.write_table(pa.table(rows | {"length": [length]}, schema=nullable), tmp_path / "x.parquet")
        with raises_user_error(DataError, "is damaged .*'length'", path="x.parquet", row=0):
            open_dataset(tmp_path)


def test_damaged_file_among_intact_files_is_named(kit, tmp_path):
    for i in range(5):
        kit.write(tmp_path, kit.block(first=3 * i), stem=f"f{i}")
    damaged_file = tmp_path / "f3-000.parquet"
    damaged_file.write_bytes(damaged_file.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"f3-000\.parquet is truncated"):
        open_dataset(tmp_path)


def test_inspect_damaged_data_names_the_files_and_reads_no_wrong_values(kit, path, block):
    """Damage a file at random, 20 times. If it is not named, reading it returns what was written."""
    content, folder = path.read_bytes(), path.parent
    rng = random.Random(2)
    num_found = 0
    for i in range(20):
        damaged_content = bytearray(content)
        start = rng.randrange(len(content))
        if i % 3 == 0:
            damaged_content = damaged_content[:start]
        for position in range(start, min(len(damaged_content), start + rng.choice([1, 8, 64]))):
            damaged_content[position] = rng.randrange(256)
        path.write_bytes(damaged_content)
        (folder / "x.parquet").write_bytes(bytes(damaged_content)[1:])
        summary = inspect_paths([folder], sample_limit=None)
        paths_with_errors = {problem.path for problem in summary.problems if problem.severity == "error"}
        assert str(folder / "x.parquet") in paths_with_errors
        num_found += str(path) in paths_with_errors
        if str(path) not in paths_with_errors:
            kit.assert_same(read_all(path), block)
    assert num_found > 10
