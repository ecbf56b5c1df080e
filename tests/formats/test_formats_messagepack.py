"""The layout "Episodes / MessagePack": encoding to the same bytes as RLlib, and decoding."""

from __future__ import annotations

import json

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from hypothesis import given

from episode_kit import build_block, read_block
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.episodes.convert import info_from_json
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.episodes.episode_state import episode_to_state
from hindcast.episodes.nested import unflatten
from hindcast.episodes.spaces import space_struct
from hindcast.errors import DataError
from hindcast.formats.messagepack.layout import MESSAGEPACK_EPISODES, MessagePackEncoder, MessagePackEpisodes
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve
from layers import examples
from random_data import recordings

LAYOUT = MessagePackEpisodes()


def read_all(folder) -> Block:
    return read_block(open_dataset(folder))


def write(folder, blocks, spec, **options):
    with BlockWriter(resolve(folder), spec, "s", layout=MESSAGEPACK_EPISODES, **options) as writer:
        for block in blocks:
            writer.write(block)
    return writer.close()


def make_recorded_episode(block: Block, spec: DataSpec, i: int) -> SingleAgentEpisode:
    """Make episode `i` of a block from single items, as RLlib's recorder has it before packing."""

    def make_items(root, rows, space=None):
        leaves = {name: column for name, column in block.columns.items() if name.split("/")[0] == root}
        if not leaves:
            return None
        structure = space_struct(space)
        return [
            unflatten({name: leaf[row] for name, leaf in leaves.items()}, root, structure) for row in rows
        ]

    def rows_of(name):
        rows = block.rows_of(name, i)
        return range(rows.start, rows.stop)

    output_columns = {name.split("/")[0] for name in block.columns} - {"obs", "actions", "rewards", "infos"}
    output_names = [name.split("/")[0] for name in spec.leaves if name.split("/")[0] in output_columns]
    infos = None
    if "infos" in block.columns:
        infos = [info_from_json(block.columns["infos"][row]) for row in rows_of("obs")]
    return SingleAgentEpisode(
        str(block.eps_id[i]),
        observations=make_items("obs", rows_of("obs"), spec.observation_space),
        observation_space=spec.observation_space,
        actions=make_items("actions", rows_of("actions"), spec.action_space),
        action_space=spec.action_space,
        rewards=make_items("rewards", rows_of("rewards")),
        infos=infos,
        extra_model_outputs={name: make_items(name, rows_of(name)) for name in dict.fromkeys(output_names)},
        terminated=bool(block.terminated[i]),
        truncated=bool(block.truncated[i]),
        len_lookback_buffer=0,
    )


@examples(150)
@given(recordings())
def test_cell_equals_packed_state_of_episode(recording):
    block, spec = recording
    cells = MessagePackEncoder(spec).encode(block).table.column("item").to_pylist()
    for i, cell in enumerate(cells):
        state = episode_to_state(make_recorded_episode(block, spec, i))
        assert cell == msgpack.packb(state, default=msgpack_numpy.encode)


@examples(200)
@given(recordings())
def test_block_round_trip_is_bit_exact(kit, recording):
    block, spec = recording
    table = MessagePackEncoder(spec).encode(block).table
    kit.assert_same(LAYOUT.decode(table, spec, list(spec.leaves)), block)


@examples(60)
@given(recordings())
def test_decode_slices_chunks_and_single_columns_gives_their_values(kit, recording):
    block, spec = recording
    table = MessagePackEncoder(spec).encode(block).table
    split = block.num_episodes // 2
    two_chunks = pa.concat_tables([table.slice(split), table.slice(0, split)])
    order = [*range(split, block.num_episodes), *range(split)]
    expected = block.take(order)
    for name in spec.leaves:
        block_read = LAYOUT.decode(two_chunks, spec, [name])
        kit.assert_same(block_read, expected.with_columns({name: expected.columns[name]}))


@examples(25)
@given(recordings())
def test_file_without_manifest_is_read_by_its_footer(kit, tmp_path_factory, recording):
    block, spec = recording
    folder = tmp_path_factory.mktemp("m")
    entries = write(folder, [block], spec, max_rows_per_file=2)
    assert all(entry.rows <= 2 for entry in entries)
    dataset = open_dataset(folder)
    assert dataset.spec == spec
    kit.assert_same(read_block(dataset), block)


def test_file_has_only_rllibs_column(kit, tmp_path):
    block = kit.block([30, 50, 20])
    (entry,) = write(tmp_path, [block], kit.spec(block))
    file = pq.ParquetFile(tmp_path / entry.path)
    assert file.schema_arrow.remove_metadata() == pa.schema([pa.field("item", pa.binary())])
    assert entry.row_groups[0].lengths == (30, 50, 20)
    assert (entry.rows, entry.timesteps) == (3, 100)


def test_long_episodes_are_split_on_disk_and_joined_when_read(kit, tmp_path, monkeypatch):
    monkeypatch.setattr("hindcast.formats.messagepack.layout.MessagePackEncoder.max_episode_bytes", 4_000)
    block = kit.block([5, 100, 5])
    (entry,) = write(tmp_path, [block], kit.spec(block))
    assert entry.rows > 6
    kit.assert_same(read_all(tmp_path), block)
    states = [msgpack.unpackb(cell.as_py()) for cell in pq.read_table(tmp_path / entry.path)["item"]]
    fragments = [state for state in states if state["id_"] == "e1"]
    assert [state["t_started"] for state in fragments[1:]] == [state["t"] for state in fragments[:-1]]
    assert [state["is_truncated"] for state in fragments] == [False] * (len(fragments) - 1) + [True]


def test_file_size_limits_are_honoured(kit, tmp_path):
    blocks = [kit.block([50] * 10, first=10 * i) for i in range(10)]
    limits = {"row_group_bytes": 20_000, "max_file_bytes": 100_000, "compression": "none"}
    entries = write(tmp_path, blocks, kit.spec(blocks[0]), **limits)
    assert len(entries) > 5
    assert all(60_000 < entry.bytes <= 100_000 for entry in entries[:-1])
    kit.assert_same(read_all(tmp_path), Block.concat(blocks))


def test_episode_without_steps_round_trip(kit, tmp_path):
    block = kit.block([0, 3, 0])
    write(tmp_path, [block], kit.spec(block))
    kit.assert_same(read_all(tmp_path), block)


def test_encode_without_required_column_raises(kit):
    block = kit.block()
    spec = DataSpec({name: leaf for name, leaf in kit.spec(block).leaves.items() if name != "rewards"})
    with pytest.raises(DataError, match="requires rewards: the data have none"):
        MessagePackEncoder(spec)


def test_numbers_keep_their_type(kit):
    """Scalars in a composite observation stay NumPy scalars, except float64, which becomes a Python float."""
    space = spaces.Dict(a=spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (), np.float64))))
    columns = {
        "obs/a/0": np.array([1, 2]),
        "obs/a/1": np.array([0.5, 0.25]),
        "actions": np.array([True]),
        "rewards": np.array([1.5]),
    }
    block = build_block(columns, [1])
    spec = DataSpec.from_block(block, space)
    table = MessagePackEncoder(spec).encode(block).table
    state = msgpack.unpackb(table["item"][0].as_py())
    assert state["observations"]["data"][0] == {
        "a": [{b"nd": False, b"type": "<i8", b"data": (1).to_bytes(8, "little")}, 0.5]
    }
    assert state["actions"]["data"] == [{b"nd": False, b"type": "|b1", b"data": b"\x01"}]
    kit.assert_same(LAYOUT.decode(table, spec, list(spec.leaves)), block)


def test_footer_contains_lengths(kit, tmp_path):
    block = kit.block([3, 5])
    (entry,) = write(tmp_path, [block], kit.spec(block))
    metadata = pq.ParquetFile(tmp_path / entry.path).metadata.metadata
    assert json.loads(metadata[b"hindcast-index"]) == [{"lengths": [3, 5], "continued": []}]
