"""The layout "Episodes / Arrow": encoding and decoding of blocks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episode_kit import build_block
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.arrow.layout import ArrowEncoder, ArrowEpisodes
from hindcast.formats.layout import CellError
from hindcast.formats.parquet.description import read_description
from hindcast.formats.spec import DataSpec, Leaf
from layers import examples

DTYPES = ["bool", "uint8", "int8", "int16", "uint32", "int64"]
DTYPES += ["float16", "float32", "float64", "complex64", ">f4", ">i8"]


def encode(block: Block, spec: DataSpec) -> pa.Table:
    return ArrowEncoder(spec).encode(block).table


def decode(table: pa.Table, spec: DataSpec, leaves: list[str] | None = None) -> Block:
    return ArrowEpisodes().decode(table, spec, list(spec.leaves) if leaves is None else leaves)


def make_random_block(lengths: list[int], leaves: dict[str, tuple[str, tuple[int, ...]]], seed: int) -> Block:
    """Make a block of random bytes in each dtype, so that floats include NaNs and infinities.

    Args:
        lengths: length of each episode.
        leaves: leaf name -> dtype and shape; the dtype "str" makes text.
        seed: seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    num_episodes, num_steps = len(lengths), sum(lengths)
    columns = {}
    for name, (dtype, shape) in leaves.items():
        num_rows = num_steps + num_episodes if name.startswith(("obs", "infos")) else num_steps
        if dtype == "str":
            texts = np.array(["", "a", "ä✓", '{"x": [1, 2]}', "long " * 20], dtype=object)
            columns[name] = texts[rng.integers(0, 5, num_rows)]
        elif dtype == "bool":
            columns[name] = rng.random((num_rows, *shape)) < 0.5
        else:
            num_bytes = num_rows * int(np.prod(shape)) * np.dtype(dtype).itemsize
            columns[name] = np.frombuffer(rng.bytes(num_bytes), dtype).reshape(num_rows, *shape)
    return build_block(
        columns,
        lengths,
        eps_id=np.array([f"é{i}" for i in range(num_episodes)], dtype=object),
        t_started=rng.integers(0, 5, num_episodes),
        terminated=rng.random(num_episodes) < 0.5,
        truncated=rng.random(num_episodes) < 0.5,
    )


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
leaf_types = st.one_of(st.tuples(st.sampled_from(DTYPES), shapes), st.just(("str", ())))
names = st.sampled_from(["obs", "obs/a", "obs/b/0", "actions", "rewards", "infos", "prompt", "vf_preds"])
episode_lengths = st.lists(st.integers(0, 6), max_size=6)
cases = st.tuples(episode_lengths, st.dictionaries(names, leaf_types), st.integers(0, 99))


@examples(200)
@given(cases)
def test_block_round_trip_is_bit_exact(kit, case):
    block = make_random_block(*case)
    spec = DataSpec.from_block(block)
    kit.assert_same(decode(encode(block, spec), spec), block)


@examples(100)
@given(cases, st.data())
def test_decode_slices_and_chunks_gives_their_episodes(kit, case, data):
    block = make_random_block(*case)
    spec = DataSpec.from_block(block)
    table = encode(block, spec)
    split = data.draw(st.integers(0, block.num_episodes))
    kit.assert_same(decode(table.slice(split), spec), block.take(range(split, block.num_episodes)))
    two_chunks = pa.concat_tables([table.slice(split), table.slice(0, split)])
    order = [*range(split, block.num_episodes), *range(split)]
    kit.assert_same(decode(two_chunks, spec), block.take(order))


def test_decode_one_chunk_copies_nothing(kit):
    block = kit.block([50, 60])
    spec = DataSpec.from_block(block)
    block_read = decode(encode(block, spec), spec)
    for name, column in block.columns.items():
        assert np.shares_memory(block_read.columns[name], column), name


def test_cells_are_the_documented_bytes(kit):
    block = kit.block([2, 1])
    table = encode(block, DataSpec.from_block(block))
    assert table.column("obs")[0].as_py() == block.columns["obs"][:3].tobytes()
    assert table.column("obs")[1].as_py() == block.columns["obs"][3:].tobytes()
    assert table.column("actions")[0].as_py() == block.columns["actions"][:2].astype("<i8").tobytes()
    assert table.column("length").to_pylist() == [2, 1]
    assert table.column("obs").type == pa.large_binary()


def test_schema_contains_spec_and_damaged_spec_or_missing_column_raises(kit, tmp_path):
    block = kit.block()
    table = encode(block, kit.spec(block))
    assert read_description(table.schema).spec == kit.spec(block)
    newer_schema = table.schema.with_metadata({b"hindcast": b'{"formatVersion": 9}'})
    with pytest.raises(DataError, match="format version is 9, but this Hindcast reads 1"):
        read_description(newer_schema)
    with pytest.raises(DataError, match="cannot be read"):
        read_description(newer_schema.with_metadata({b"hindcast": b"{"}))
    pq.write_table(table.drop_columns(["obs"]), tmp_path / "x.parquet")
    file = pq.ParquetFile(tmp_path / "x.parquet")
    with file, pytest.raises(DataError, match=r"\['obs'\] are missing"):
        ArrowEpisodes().read_contents(file)


def test_decode_returns_only_requested_leaves(kit):
    block = kit.block()
    spec = DataSpec.from_block(block)
    assert decode(encode(block, spec), spec, ["rewards"]).columns.keys() == {"rewards"}


def test_missing_or_empty_json_takes_no_bytes(kit):
    block = kit.block([2, 1])
    spec = DataSpec({**DataSpec.from_block(block).leaves, "infos": Leaf(None, (), "json")})
    for infos in ({}, {"infos": np.full(5, "", dtype=object)}):
        table = encode(block.with_columns({**block.columns, **infos}), spec)
        assert [len(cell.as_py()) for cell in table.column("infos")] == [0, 0]
        assert decode(table, spec).columns["infos"].tolist() == [""] * 5
    partly_empty = block.with_columns(
        {**block.columns, "infos": np.array(["", "{}", "", "", ""], dtype=object)}
    )
    table = encode(partly_empty, spec)
    assert len(table.column("infos")[1].as_py()) == 0
    assert decode(table, spec).columns["infos"].tolist() == ["", "{}", "", "", ""]


def replace_column(table: pa.Table, name: str, cells: list[bytes | None]) -> pa.Table:
    i = table.schema.get_field_index(name)
    return table.set_column(i, name, pa.array(cells, pa.large_binary()))


@pytest.mark.parametrize(
    ("cell", "message"),
    [(b"1234567", r"'obs' has 7 bytes: expected 48 \(3 x float32 \[4\]\)"), (None, "'obs' is null")],
)
def test_decode_invalid_cell_raises_with_row(kit, cell, message):
    block = kit.block([1, 2, 3])
    spec = DataSpec.from_block(block)
    table = encode(block, spec)
    cells = [value.as_py() for value in table.column("obs")]
    with pytest.raises(CellError, match=message) as caught:
        decode(replace_column(table, "obs", [cells[0], cell, cells[2]]), spec)
    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (b"x", "does not hold 3 strings"),
        (np.array([0, 1, 2, 9], "<i8").tobytes() + b"abc", "does not hold 3 strings"),
        (np.array([0, 2, 1, 3], "<i8").tobytes() + b"abc", "does not hold 3 strings"),
        (np.array([1, 2, 3, 3], "<i8").tobytes() + b"abc", "does not hold 3 strings"),
        (np.array([0, 1, 2, 3], "<i8").tobytes() + b"a\xff\xfe", "not UTF-8"),
    ],
)
def test_decode_invalid_text_cell_raises_with_row(cell, message):
    block = make_random_block([3, 3], {"prompt": ("str", ())}, 0)
    spec = DataSpec.from_block(block)
    table = encode(block, spec)
    valid_cell = table.column("prompt")[0].as_py()
    with pytest.raises(CellError, match=message) as caught:
        decode(replace_column(table, "prompt", [valid_cell, cell]), spec)
    assert caught.value.row == 1


def test_decode_negative_length_raises(kit):
    block = kit.block([1, 2])
    spec = DataSpec.from_block(block)
    table = encode(block, spec)
    table = table.set_column(table.schema.get_field_index("length"), "length", pa.array([1, -2]))
    with pytest.raises(CellError, match="length is -2"):
        decode(table, spec)


def test_estimate_bytes_of_episodes(kit):
    block = kit.block([0, 2])
    encoder = ArrowEncoder(DataSpec.from_block(block))
    assert encoder.estimate_bytes(block).tolist() == [16, 3 * 16 + 2 * 8 + 2 * 4]
