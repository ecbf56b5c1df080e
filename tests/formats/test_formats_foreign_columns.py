"""Parquet tables that Hindcast did not write: all forms of RLlib's columns, untrusted pickles and damaged files."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_reading import PickleBomb, pack_lz4_cell

from damaged_files import check_truncations, count_refusals
from episode_kit import read_block
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.episodes.block import Block
from hindcast.errors import DataError

OBS = np.arange(14, dtype=np.float32).reshape(7, 2)  # of episode a, with 3 steps, and episode b, with 2 steps
CURRENT_OBS, NEXT_OBS = OBS[[0, 1, 2, 4, 5]], OBS[[1, 2, 3, 5, 6]]


def pack_cell(value, protocol=pickle.DEFAULT_PROTOCOL) -> str:
    """Pack a value into a cell as `ray.rllib.utils.compression.pack` does: the LZ4 frame states its content's size."""
    data = pickle.dumps(value, protocol=protocol)
    block = pa.Codec("lz4_raw").compress(data, asbytes=True)
    head = b"\x68\x40" + len(data).to_bytes(8, "little")
    head += bytes([_compute_xxh32(head) >> 8 & 0xFF]) + len(block).to_bytes(4, "little")
    return base64.b64encode(b"\x04\x22\x4d\x18" + head + block + bytes(4)).decode()


def _compute_xxh32(data: bytes) -> int:
    """Return the xxHash32 (seed 0) of less than 16 bytes, the checksum in the header of an LZ4 frame."""
    mask, h = 0xFFFFFFFF, (374761393 + len(data)) & 0xFFFFFFFF
    while len(data) >= 4:
        h = (h + int.from_bytes(data[:4], "little") * 3266489917) & mask
        h = ((h << 17 | h >> 15) & mask) * 668265263 & mask
        data = data[4:]
    for byte in data:
        h = (h + byte * 374761393) & mask
        h = ((h << 11 | h >> 21) & mask) * 2654435761 & mask
    h = (h ^ h >> 15) * 2246822519 & mask
    h = (h ^ h >> 13) * 3266489917 & mask
    return h ^ h >> 16


def make_tensor_column(values, version="v2", metadata=None):
    """Return an array, and the field metadata of Ray's extension type for it."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    width = int(np.prod(values.shape[1:]))
    offsets = np.arange(len(values) + 1) * width
    if version == "v2":
        name, array = b"ray.data.arrow_tensor_v2", pa.LargeListArray.from_arrays(pa.array(offsets), flat)
    else:
        offsets = pa.array(offsets.astype(np.int32))
        name, array = b"ray.data.arrow_tensor", pa.ListArray.from_arrays(offsets, flat)
    shape = str(list(values.shape[1:])).encode() if metadata is None else metadata
    return array, {b"ARROW:extension:name": name, b"ARROW:extension:metadata": shape}


def make_table(**changes) -> pa.Table:
    """Make a table of two episodes as RLlib writes it.

    Args:
        **changes: column -> values, or (array, field metadata); None leaves the column out.
    """
    columns = {
        "eps_id": ["a"] * 3 + ["b"] * 2,
        "agent_id": pa.nulls(5),
        "module_id": pa.nulls(5),
        "obs": make_tensor_column(CURRENT_OBS),
        "actions": pa.array([0, 1, 2, 1, 0], pa.int32()),
        "rewards": [0.5, 1.0, 1.5, 2.0, 2.5],
        "new_obs": make_tensor_column(NEXT_OBS),
        "terminateds": [False, False, True, False, False],
        "truncateds": [False, False, False, False, True],
        "action_dist_inputs": make_tensor_column(CURRENT_OBS),
        "action_logp": pa.array([-1, -2, -3, -4, -5], pa.float32()),
        "weights_seq_no": [0] * 5,
        **changes,
    }
    fields, arrays = [], []
    for name, value in columns.items():
        if value is None:
            continue
        values, metadata = value if isinstance(value, tuple) else (value, None)
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        fields.append(pa.field(name, array.type, metadata=metadata))
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def write_tables(folder: Path, *tables: pa.Table, **options) -> Path:
    """Write one file per table, into a folder named as RLlib names it; return `folder`."""
    run_folder = folder / "cartpoleenv" / "run-000001-00001"
    run_folder.mkdir(parents=True, exist_ok=True)
    for i, table_of_file in enumerate(tables):
        pq.write_table(table_of_file, run_folder / f"uid_{i:06d}-0.parquet", **options)
    return folder


def prepare_folder(folder) -> Dataset:
    return open_data(folder, cache=Path(folder).with_name(f"{Path(folder).name}-cache"))


def read_all(folder) -> Block:
    return read_block(prepare_folder(folder))


def check_block(block: Block) -> None:
    """Assert that a block has the episodes of `make_table()`."""
    assert block.eps_id.tolist() == ["a", "b"]
    assert block.length.tolist() == [3, 2]
    assert block.columns["obs"].tolist() == OBS.tolist()
    assert block.columns["obs"].dtype == np.float32
    assert block.columns["actions"].tolist() == [0, 1, 2, 1, 0]
    assert block.columns["rewards"].tolist() == [0.5, 1, 1.5, 2, 2.5]
    assert (block.terminated.tolist(), block.truncated.tolist()) == ([True, False], [False, True])


FORMS = {
    "tensors v2": {},
    "tensors v1": {
        "obs": make_tensor_column(CURRENT_OBS, "v1"),
        "new_obs": make_tensor_column(NEXT_OBS, "v1"),
    },
    "tensors with a pickled shape": {"obs": make_tensor_column(CURRENT_OBS, metadata=pickle.dumps((2,)))},
    "Arrow's own tensors": {"obs": pa.FixedShapeTensorArray.from_numpy_ndarray(CURRENT_OBS)},
    "LZ4 cells": {
        "obs": [pack_cell(row) for row in CURRENT_OBS],
        "new_obs": [pack_cell(row) for row in NEXT_OBS],
    },
    "LZ4 cells, protocol 2": {
        "obs": [pack_cell(row, 2) for row in CURRENT_OBS],
        "new_obs": [pack_cell(row, 2) for row in NEXT_OBS],
    },
    "LZ4 cells without their size": {"obs": [pack_lz4_cell(row) for row in CURRENT_OBS]},
    "lists": {
        "obs": pa.array(CURRENT_OBS.tolist(), pa.list_(pa.float32())),
        "new_obs": pa.array(NEXT_OBS.tolist(), pa.list_(pa.float32())),
    },
    "fixed-size lists": {"obs": pa.array(CURRENT_OBS.tolist(), pa.list_(pa.float32(), 2))},
    "dictionary ids": {"eps_id": pa.array(["a"] * 3 + ["b"] * 2).dictionary_encode()},
    "t": {"t": [0, 1, 2, 0, 1]},
    "integer flags": {"terminateds": [0, 0, 1, 0, 0], "truncateds": [0.0, 0.0, 0.0, 0.0, 1.0]},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows_per_file", [5, 2, 1])
def test_column_form_is_read(tmp_path, form, rows_per_file):
    full_table = make_table(**FORMS[form])
    tables = [full_table.slice(i, rows_per_file) for i in range(0, 5, rows_per_file)]
    check_block(read_all(write_tables(tmp_path, *tables)))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tensors v2", "tensors v1", "LZ4 cells"])
def test_column_form_is_read_with_ray_imported(tmp_path, form):
    """Importing Ray Data registers extension types, and Arrow then reads a column as one of them, not as a list."""
    folder = write_tables(tmp_path, make_table(**FORMS[form]))
    script = "import sys, ray.data, test_formats_foreign_columns as t; t.check_block(t.read_all(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[:2]))}
    command = [sys.executable, "-c", script, str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert process.returncode == 0, process.stderr[-2000:]


def test_row_groups_and_files_of_any_size_are_read(tmp_path):
    folder = write_tables(tmp_path, make_table(), row_group_size=1)
    check_block(read_all(folder))


def test_extra_columns_become_model_outputs_except_rllibs_own(tmp_path):
    extra = {"agent_index": [0] * 5, "unroll_id": [1] * 5, "type": ["SampleBatch"] * 5, "vf_preds": [0.5] * 5}
    spec = prepare_folder(write_tables(tmp_path, make_table(**extra))).spec
    expected_columns = {"action_dist_inputs", "action_logp", "actions", "obs", "rewards", "weights_seq_no"}
    assert spec.leaves.keys() == expected_columns | {"vf_preds"}


INFOS_WITH_TIME_LIMIT = [None, None, {"TimeLimit.truncated": True}, None, {"TimeLimit.truncated": False}]


@pytest.mark.parametrize(
    ("infos", "is_terminated"),
    [
        (None, [True, True]),
        (INFOS_WITH_TIME_LIMIT, [False, True]),
        ([json.dumps(info or {}) for info in INFOS_WITH_TIME_LIMIT], [False, True]),
    ],
    ids=["no infos", "dicts", "text"],
)
@pytest.mark.parametrize("name", ["dones", "done"])
def test_single_flag_is_terminated_unless_infos_report_a_time_limit(tmp_path, name, infos, is_terminated):
    changes = {"terminateds": None, "truncateds": None, name: [False, False, True, False, True]}
    block = read_all(write_tables(tmp_path, make_table(**changes, infos=infos)))
    assert block.terminated.tolist() == is_terminated
    assert block.truncated.tolist() == np.logical_not(is_terminated).tolist()


def test_struct_or_pickled_observations_are_read_as_leaves(tmp_path):
    def make_structs(rows):
        struct_type = pa.struct([("a", pa.list_(pa.float32())), ("b", pa.int64())])
        return pa.array([{"a": row.tolist(), "b": int(row[0])} for row in rows], struct_type)

    table = make_table(obs=make_structs(CURRENT_OBS), new_obs=make_structs(NEXT_OBS))
    block = read_all(write_tables(tmp_path / "dict", table))
    assert block.columns["obs/a"].tolist() == OBS.tolist()
    assert block.columns["obs/b"].tolist() == OBS[:, 0].tolist()

    def pickle_rows(rows):
        cells = [pickle.dumps((row, np.int64(row[0]))) for row in rows]
        return pa.array(cells, pa.large_binary()), {b"ARROW:extension:name": b"ray.data.arrow_pickled_object"}

    table = make_table(obs=pickle_rows(CURRENT_OBS), new_obs=pickle_rows(NEXT_OBS))
    block = read_all(write_tables(tmp_path / "tuple", table))
    assert block.columns["obs/0"].tolist() == OBS.tolist()
    assert block.columns["obs/1"].dtype == np.int64


def test_infos_as_text_or_structs_are_read_as_json(tmp_path):
    struct_type = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    structs = pa.array([{"x": 1}, None, None, None, {"y": 2}], struct_type)
    for name, infos in (("text", ['{"x":1}', None, "", None, '{"y":2}']), ("struct", structs)):
        block = read_all(write_tables(tmp_path / name, make_table(infos=infos)))
        assert block.columns["infos"].tolist() == ["", '{"x":1}', "", "", "", "", '{"y":2}']
    folder = write_tables(tmp_path / "none", make_table(infos=pa.nulls(5, pa.string())))
    assert "infos" not in prepare_folder(folder).spec.leaves


class TestDuplicates:
    """RLlib's recorder writes episodes repeatedly, cut at any step."""

    def test_duplicates_count_once(self, tmp_path):
        full_table = make_table()
        pieces = [full_table.slice(*rows) for rows in ((0, 2), (2, 1), (0, 3), (3, 2), (0, 4), (4,))]
        dataset = prepare_folder(write_tables(tmp_path, *pieces))
        check_block(read_block(dataset))
        assert dataset.num_steps == 5
        assert any(note.startswith("3 stored episodes repeat others") for note in dataset.notes)

    def test_another_episode_with_the_same_id_is_kept(self, tmp_path):
        folder = write_tables(tmp_path, make_table(), make_table(rewards=[9.0] * 5))
        assert prepare_folder(folder).num_episodes == 4


def test_unfinished_episode_is_read_unfinished(tmp_path):
    block = read_all(write_tables(tmp_path, make_table(t=[0, 1, 2, 0, 1]).slice(0, 2)))
    assert block.length.tolist() == [2]
    assert (block.terminated.tolist(), block.truncated.tolist()) == ([False], [False])


def test_partial_episode_keeps_its_timesteps(tmp_path):
    block = read_all(write_tables(tmp_path, make_table(t=[0, 1, 2, 0, 1]).slice(1)))
    assert block.t_started.tolist() == [1, 0]


class TestUntrustedPickles:
    @pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
    @pytest.mark.parametrize("position", ["first cell", "in an array", "after valid cells"])
    def test_pickle_with_function_call_raises_and_calls_nothing(self, tmp_path, protocol, position):
        created_file = tmp_path / "exploded"
        bomb_array = np.empty(1, dtype=object)
        bomb_array[0] = PickleBomb(created_file)
        value = bomb_array if position == "in an array" else PickleBomb(created_file)
        cells = [pack_cell(row) for row in CURRENT_OBS]
        row = 0 if position == "first cell" else 3
        cells[row] = pack_cell(value, protocol)
        message = rf"uid_000000-0\.parquet, row {row}: it holds (a pickle|an object array)"
        with pytest.raises(DataError, match=message) as caught:
            prepare_folder(write_tables(tmp_path / "d", make_table(obs=cells)))
        if position != "in an array" and protocol >= 2:
            assert re.search(r"a pickle that calls (pathlib|__builtin__|builtins)", str(caught.value))
        assert not created_file.exists()

    def test_rays_pickled_object_or_shape_with_function_call_raises_and_calls_nothing(self, tmp_path):
        created_file = tmp_path / "exploded"
        cells = pa.array([pickle.dumps(PickleBomb(created_file))] * 5, pa.large_binary())
        metadata = {b"ARROW:extension:name": b"ray.data.arrow_pickled_object"}
        with pytest.raises(DataError, match="row 0: it holds a pickle that calls pathlib"):
            prepare_folder(write_tables(tmp_path / "d", make_table(obs=(cells, metadata))))
        pickled_bomb = pickle.dumps(PickleBomb(created_file))
        table = make_table(obs=make_tensor_column(CURRENT_OBS, metadata=pickled_bomb))
        with pytest.raises(DataError, match="the shape of the tensor cannot be read"):
            prepare_folder(write_tables(tmp_path / "e", table))
        assert not created_file.exists()

    @pytest.mark.parametrize(
        "data",
        [
            b"cos\nsystem\n(S'true'\ntR.",
            b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94.",
            b"\x80\x02cnumpy\ndtype\nq\x00.",
            b"\x80\x02]q\x00h\x00a.",
            b"\x80\x04(((((.",
            b"\x80\x04",
            b"",
            b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
            b"\x80\x04cnumpy._core.multiarray\nscalar\ncnumpy\ndtype\n(S'O'\ntRS'x'\n\x86R.",
            b"\x80\x02}q\x00K\x01h\x00s.",
        ],
    )
    def test_handwritten_pickle_raises(self, tmp_path, data):
        block = pa.Codec("lz4").compress(data, asbytes=True)
        cell = base64.b64encode(block).decode()
        with pytest.raises(DataError, match=r"row 0: it holds (a pickle|text that|an object|an array)"):
            prepare_folder(write_tables(tmp_path, make_table(obs=[cell] * 5)))

    def test_lz4_frame_with_excessive_size_raises(self, tmp_path):
        frame = bytearray(base64.b64decode(pack_cell(CURRENT_OBS[0])))
        frame[6:14] = (1 << 40).to_bytes(8, "little")
        cell = base64.b64encode(bytes(frame)).decode()
        with pytest.raises(DataError, match="claims to hold 1099511627776"):
            prepare_folder(write_tables(tmp_path, make_table(obs=[cell] * 5)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"new_obs": None}, "the column 'new_obs' is missing, so the data have no observation after the last row"),
        ({"new_obs": [1, 2, 3, 4, 5]}, "'new_obs' is int64 [] and 'obs' is float32 [2]: both must be the same"),
        ({"eps_id": ["a", None, "a", "b", "b"]}, "row 1: 'eps_id' is null: every row requires the id of its episode"),
        ({"rewards": [1.0, None, 1.0, 1.0, 1.0]}, "row 1: 'rewards' is null"),
        ({"obs": [[1.0, 2.0], [1.0], *[[2.0, 3.0]] * 3]}, "row 1: 'obs' has 1 number, but the row before has 2"),
        ({"actions": [[1.0, None]] * 5}, "'actions' holds a null: expected a number"),
        ({"terminateds": [0, 0, 7, 0, 0]}, "row 2: 'terminateds' is 7: expected true or false"),
        ({"t": [0.0, 1.5, 2.0, 0.0, 1.0]}, "row 1: 't' is 1.5: expected a whole number"),
        ({"obs": make_tensor_column(CURRENT_OBS, metadata=b"[3]")}, "expected tensors of [3]"),
        (
            {"obs": (make_tensor_column(CURRENT_OBS)[0], {b"ARROW:extension:name": b"ray.data.ragged"})},
            "extension type ray.data.ragged",
        ),
        ({"obs": ["BCJNGGhA!!"] * 5}, "row 0: it holds text that is not base64 of an LZ4 frame"),
        ({"infos": ["{}", "{'a': 1}", "{}", "{}", "{}"]}, "row 1: 'infos' is not the JSON of a dict"),
    ],
)  # fmt: skip
def test_invalid_table_raises_with_file_name(tmp_path, changes, message):
    with pytest.raises(DataError, match=r"uid_000000-0\.parquet") as caught:
        read_all(write_tables(tmp_path, make_table(**changes)))
    assert message in str(caught.value)


def test_numbers_of_several_widths_are_widened(tmp_path):
    second_table = make_table(
        eps_id=["c"] * 3 + ["d"] * 2,
        obs=make_tensor_column(CURRENT_OBS.astype(np.float64)),
        new_obs=make_tensor_column(NEXT_OBS.astype(np.float64)),
    )
    block = read_all(write_tables(tmp_path, make_table(), second_table))
    assert block.columns["obs"].dtype == np.float64
    assert block.columns["obs"].tolist() == [*OBS.tolist(), *OBS.tolist()]


def test_table_without_rows_raises(tmp_path):
    with pytest.raises(DataError, match=r"uid_000000-0\.parquet holds no rows"):
        prepare_folder(write_tables(tmp_path, make_table().slice(0, 0)))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tensors v2", "LZ4 cells", "t"])
def test_flipped_byte_is_reported_or_harmless(tmp_path, form):
    """Without checksums, a changed number may go unnoticed, but no row is lost and nothing crashes."""
    folder = write_tables(tmp_path, make_table(**FORMS[form]), compression="none", use_dictionary=False)
    path = next(folder.rglob("*.parquet"))

    def check_rows(block: Block) -> None:
        assert block.num_steps == 5

    assert count_refusals(path, lambda: read_all(folder), check_rows, times=300) > 100
    check_truncations(path, lambda: read_all(folder), every=97)


def test_pickled_tensor_shape_of_old_ray_raises(tmp_path: Path) -> None:
    """If Ray Data is imported, Arrow gets the shapes from it, and Ray Data refuses to unpickle them."""
    from ray.data._internal.tensor_extensions.arrow import ArrowTensorType

    shape = pickle.dumps((2,))
    field = pa.field(
        "obs",
        pa.list_(pa.float32()),
        metadata={b"ARROW:extension:name": b"ray.data.arrow_tensor", b"ARROW:extension:metadata": shape},
    )
    pq.write_table(pa.table([pa.array([[0.0, 1.0]], field.type)], pa.schema([field])), tmp_path / "a.parquet")
    with contextlib.suppress(pa.ArrowKeyError):
        pa.register_extension_type(ArrowTensorType((0,), pa.int64()))
    message = r"a\.parquet holds tensors with shapes that Ray 2\.49 to 2\.54 pickled"
    with pytest.raises(DataError, match=message):
        prepare_folder(str(tmp_path))
    pa.unregister_extension_type("ray.data.arrow_tensor")
