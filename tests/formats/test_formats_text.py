"""The text layouts (JSON lines, CSV, SampleBatch JSON): common tools read the same data from them."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import itertools
import json
import pickle

import gymnasium as gym
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given

from episode_kit import build_block, replace_columns
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError, SpecError, StorageError
from hindcast.formats.columns.infos import make_info_cells
from hindcast.formats.columns.pickles import pickle_arrays
from hindcast.formats.dataset_folder.commits import Commit, ExportedFiles, write_commit
from hindcast.formats.dataset_folder.manifest import Manifest, write_manifest
from hindcast.formats.layouts import WRITTEN_FORMATS, make_encoder
from hindcast.formats.parquet.opening import UnknownLayoutError
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve
from layers import examples
from random_data import recordings

LAYOUT_NAMES = ("JSON", "CSV", "SampleBatch")
SUFFIX_BY_LAYOUT = {"JSON": ".json", "CSV": ".csv", "SampleBatch": ".json"}
SPECIAL_VALUES = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}


def write(folder, block, spec, layout, **options):
    with BlockWriter(resolve(folder), spec, "000000-a1", layout=layout, **options) as writer:
        writer.write(block)
    return writer.close()


def read_text(folder, entries) -> str:
    return "".join((folder / entry.path).read_text() for entry in entries)


def get_leaf(value, leaf: str):
    """Return the leaf of a row with this path, such as `obs/camera`."""
    for key in leaf.split("/"):
        value = value[key]
    return value


def parse_non_finite(values) -> object:
    """Replace the texts for NaN and infinities in nested lists by floats."""
    if isinstance(values, list):
        return [parse_non_finite(value) for value in values]
    return SPECIAL_VALUES.get(values, values) if isinstance(values, str) else values


def to_column(values: list, spec: DataSpec, leaf: str) -> np.ndarray:
    leaf_spec = spec.leaves[leaf]
    if leaf_spec.dtype is None:
        return np.array(values, dtype=object)
    if leaf_spec.dtype.kind == "c":
        pairs = np.array(parse_non_finite(values), dtype=np.float64)
        return (pairs[..., 0] + 1j * pairs[..., 1]).astype(leaf_spec.dtype)
    return np.array(parse_non_finite(values), dtype=leaf_spec.dtype).reshape(len(values), *leaf_spec.shape)


def make_step_columns(block: Block) -> dict[str, np.ndarray]:
    """Return column -> values at each timestep, taken directly from the block; without infos."""
    steps = {}
    for name, column in block.columns.items():
        if name == "infos":
            continue
        if name.split("/")[0] == "obs":
            steps[name], steps[f"new_{name}"] = column[block.obs_row], column[block.obs_row + 1]
        else:
            steps[name] = column
    return steps


def check_rows(rows: dict[str, list], block: Block, spec: DataSpec) -> None:
    """Assert that rows have the block's values, in the order of the timesteps, bit for bit."""
    for name, column in make_step_columns(block).items():
        values = to_column(rows[name], spec, name.removeprefix("new_"))
        assert values.dtype == column.dtype.newbyteorder("<"), name
        assert values.tolist() == column.tolist(), name
    assert rows["eps_id"] == [str(block.eps_id[i]) for i in block.episode_of_step]
    assert rows["t"] == [t for length in block.length.tolist() for t in range(length)]
    assert rows["terminateds"] == block.step_flags(block.terminated).tolist()
    assert rows["truncateds"] == block.step_flags(block.truncated).tolist()
    texts = make_info_cells(block)
    if texts is None:
        texts = [""] * block.num_steps
    assert rows["infos"] == [json.loads(text or "{}") for text in texts]


STEP_COLUMNS = ["eps_id", "t", "terminateds", "truncateds"]


@examples(60)
@given(recording=recordings())
def test_json_lines_contain_all_data(tmp_path_factory, recording):
    block, spec = recording
    folder = tmp_path_factory.mktemp("f")
    lines = read_text(folder, write(folder, block, spec, "JSON")).splitlines()
    steps = [json.loads(line) for line in lines]
    names = [*STEP_COLUMNS, *make_step_columns(block)]
    rows = {name: [get_leaf(row, name) for row in steps] for name in names}
    check_rows({**rows, "infos": [row.get("infos", {}) for row in steps]}, block, spec)


@examples(60)
@given(recording=recordings())
def test_sample_batches_contain_all_data(tmp_path_factory, recording):
    block, spec = recording
    folder = tmp_path_factory.mktemp("f")
    lines = read_text(folder, write(folder, block, spec, "SampleBatch")).splitlines()
    batches = [json.loads(line) for line in lines]
    assert {batch["type"] for batch in batches} == {"SampleBatch"}
    assert [len(batch["t"]) for batch in batches] == block.length.tolist()
    rows = {
        name: [value for batch in batches for value in get_leaf(batch, name)]
        for name in [*STEP_COLUMNS, *make_step_columns(block)]
    }
    infos = [info for batch in batches for info in batch.get("infos", [{}] * len(batch["t"]))]
    check_rows({**rows, "infos": infos}, block, spec)


@examples(60)
@given(recording=recordings())
def test_csv_contains_all_data(tmp_path_factory, recording):
    block, spec = recording
    folder = tmp_path_factory.mktemp("f")
    steps = list(csv.DictReader(io.StringIO(read_text(folder, write(folder, block, spec, "CSV")))))
    assert None not in {key for row in steps for key in row}
    rows = {"eps_id": [row["eps_id"] for row in steps], "t": [int(row["t"]) for row in steps]}
    for flag in ("terminateds", "truncateds"):
        rows[flag] = [{"true": True, "false": False}[row[flag]] for row in steps]
    rows["infos"] = [json.loads(row.get("infos") or "{}") for row in steps]
    for name in make_step_columns(block):
        leaf = spec.leaves[name.removeprefix("new_")]
        parsers = {"b": lambda cell: cell == "true", "i": int, "u": int, "f": float}
        parse_cell = str if leaf.dtype is None else parsers.get(leaf.dtype.kind, str)
        if leaf.shape:
            cell_names = [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*leaf.shape)]
            rows[name] = [[parse_cell(row[cell]) for cell in cell_names] for row in steps]
        else:
            rows[name] = [parse_cell(row[name]) for row in steps]
    check_rows(rows, block, spec)


def test_pandas_reads_json_and_csv(kit, tmp_path):
    block = kit.block()
    for layout, read in (("JSON", lambda path: pd.read_json(path, lines=True)), ("CSV", pd.read_csv)):
        (entry,) = write(tmp_path / layout, block, kit.spec(block), layout)
        frame = read(tmp_path / layout / entry.path)
        assert frame.groupby("eps_id")["rewards"].count().to_dict() == {"e0": 3, "e1": 5, "e2": 2}
        np.testing.assert_allclose(frame["rewards"], block.columns["rewards"], rtol=1e-6)
        assert frame["terminateds"].dtype == bool


def make_special_block(kit) -> Block:
    block = kit.block([2, 1])
    block.columns["obs"][:, 1] = [np.nan, np.inf, -np.inf, 0.1, -0.0]
    block.columns["z"] = np.array([1 + 2j, complex(np.nan, -np.inf), 3], dtype=np.complex64)
    block.columns["said"] = np.array(['a,"b"\n', "", "\u2028\\"], dtype=object)
    return block


def test_json_writes_nan_and_infinities_as_text(kit, tmp_path):
    block = make_special_block(kit)
    entries = write(tmp_path, block, DataSpec.from_block(block), "JSON")
    lines = read_text(tmp_path, entries).split("\n")[:-1]
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [row["obs"][1] for row in rows] == ["NaN", "Infinity", 0.1]
    assert [row["new_obs"][1] for row in rows] == ["Infinity", "-Infinity", -0.0]
    assert [row["z"] for row in rows] == [[1, 2], ["NaN", "-Infinity"], [3, 0]]
    assert [row["said"] for row in rows] == block.columns["said"].tolist()


def test_csv_writes_nan_and_infinities_as_text(kit, tmp_path):
    block = make_special_block(kit)
    (entry,) = write(tmp_path, block, DataSpec.from_block(block), "CSV")
    frame = pd.read_csv(tmp_path / entry.path, keep_default_na=False, na_values={"obs[1]": ["NaN"]})
    assert frame["new_obs[1]"].tolist() == [np.inf, -np.inf, -0.0]
    assert frame["said"].tolist() == block.columns["said"].tolist()
    assert frame["z[1]"].tolist() == [2, -np.inf, 0]


def test_sample_batches_write_nan_and_infinities_as_rllib_does(kit, tmp_path):
    block = make_special_block(kit)
    (entry, *_) = write(tmp_path, block, DataSpec.from_block(block), "SampleBatch")
    first_batch = json.loads((tmp_path / entry.path).read_text().splitlines()[0])
    np.testing.assert_array_equal(first_batch["obs"], block.columns["obs"][:2].astype(np.float64))


def test_infos_with_line_ends_stay_on_one_line(kit, tmp_path):
    block = kit.block([1])
    infos = np.array(['{"seed":\n 3}', '{"text": "a\\nb"}'], dtype=object)
    block = replace_columns(block, infos=infos)
    texts = {}
    for layout in LAYOUT_NAMES:
        entries = write(tmp_path / layout, block, kit.spec(block), layout)
        texts[layout] = read_text(tmp_path / layout, entries)
        assert texts[layout].count("\n") == (2 if layout == "CSV" else 1)
    (row,) = csv.DictReader(io.StringIO(texts["CSV"]))
    assert json.loads(row["infos"]) == {"reset_info": {"seed": 3}, "text": "a\nb"}
    broken = block.with_columns({**block.columns, "infos": np.array(["", "{seed}"], dtype=object)})
    with pytest.raises(DataError, match=r"an info is not JSON .* '\{seed\}'"):
        write(tmp_path / "broken", broken, kit.spec(block), "JSON")


def test_csv_files_have_the_same_columns(kit, tmp_path):
    without_infos, with_infos = kit.block([2]), kit.block([2], first=1)
    with_infos = with_infos.with_columns(
        {**with_infos.columns, "infos": np.array(["", '{"a":1}', ""], dtype=object)}
    )
    spec = kit.spec(with_infos)
    with BlockWriter(resolve(tmp_path), spec, "s", layout="CSV", max_rows_per_file=2) as writer:
        writer.write(without_infos)
        writer.write(with_infos)
    headers = {path.read_text().splitlines()[0] for path in tmp_path.glob("*.csv")}
    assert len(headers) == 1
    assert pd.read_csv(tmp_path / "s-000.csv")["infos"].isna().all()


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_files_are_limited_by_rows_and_size(kit, tmp_path, layout):
    block = kit.block([30, 50, 20, 40, 10, 60])
    spec = kit.spec(block)
    max_rows, expected = 80, [[30, 50], [20, 40, 10], [60]]
    if layout == "SampleBatch":  # a row is an episode
        max_rows, expected = 2, [[30, 50], [20, 40], [10, 60]]
    entries = write(tmp_path / "rows", block, spec, layout, max_rows_per_file=max_rows)
    assert [list(entry.episode_lengths) for entry in entries] == expected
    assert [entry.timesteps for entry in entries] == [sum(lengths) for lengths in expected]
    entries = write(tmp_path / "size", block, spec, layout, max_file_bytes=9_000, row_group_bytes=2_000)
    assert len(entries) > 2
    assert list(itertools.chain(*(entry.episode_lengths for entry in entries))) == block.length.tolist()
    for entry in entries:
        data = (tmp_path / "size" / entry.path).read_bytes()
        assert entry.bytes == len(data)
        assert len(data) <= 9_000 or entry.episodes == 1
        assert entry.checksum == hashlib.sha256(data).hexdigest()
        assert entry.path.endswith(SUFFIX_BY_LAYOUT[layout])
    text = read_text(tmp_path / "one", write(tmp_path / "one", block, spec, layout))
    lines_by_size = read_text(tmp_path / "size", entries).splitlines()
    assert [line for line in lines_by_size if not line.startswith("eps_id,")] == [
        line for line in text.splitlines() if not line.startswith("eps_id,")
    ]


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_aborted_writer_leaves_no_files(kit, tmp_path, layout):
    block = kit.block([30, 50])
    limits = {"row_group_bytes": 10, "max_rows_per_file": 1}
    writer = BlockWriter(resolve(tmp_path), kit.spec(block), "s", layout=layout, **limits)
    writer.write(block)
    writer.abort()
    assert kit.file_names(tmp_path) == []


def test_write_on_full_disk_leaves_no_files(kit, small_disk):
    folder = small_disk("size=64k")
    block = kit.block([3_000])
    with pytest.raises(StorageError, match="the disk is full"):
        write(folder, block, kit.spec(block), "JSON")
    assert kit.file_names(folder) == []


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_compression_or_episode_without_timesteps_raises(kit, tmp_path, layout):
    block = kit.block([2])
    with pytest.raises(SpecError, match=r"compression is 'zstd': allowed are none in the layout"):
        BlockWriter(resolve(tmp_path), kit.spec(block), "s", layout=layout, compression="zstd")
    block_with_empty_episode = kit.block([2, 0])
    with pytest.raises(DataError, match=f"episode e1 has no timesteps, so it has no row in {layout}"):
        write(tmp_path, block_with_empty_episode, kit.spec(block_with_empty_episode), layout)
    assert kit.file_names(tmp_path) == []


def test_csv_with_frames_raises():
    frames = gym.spaces.Box(0, 255, (84, 84, 3), np.uint8)
    columns = {"obs": np.stack([frames.sample()] * 2), "actions": np.zeros(1), "rewards": np.zeros(1)}
    spec = DataSpec.from_block(build_block(columns, [1]))
    message = r"'obs' has 21,168 numbers per timestep, but CSV allows at most 1,024 .*the format Columns"
    with pytest.raises(DataError, match=message):
        make_encoder("CSV", spec)
    make_encoder("JSON", spec)


def test_csv_with_duplicate_columns_raises():
    obs = {"obs/a": np.zeros((2, 2)), "obs/a[0]": np.zeros(2)}
    spec = DataSpec.from_block(build_block({**obs, "actions": np.zeros(1), "rewards": np.zeros(1)}, [1]))
    with pytest.raises(DataError, match=r"share the CSV column 'obs/a\[0\]'"):
        make_encoder("CSV", spec)


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_open_text_recording_requires_preparation(kit, tmp_path, layout):
    block, folder = kit.block(), resolve(tmp_path)
    files = write(tmp_path, block, kit.spec(block), layout)
    exported_files = ExportedFiles(layout=layout, spec=kit.spec(block).to_json())
    commit = Commit(range=0, files=files, episodes=3, timesteps=10, first=0, exported=exported_files)
    write_commit(folder, commit)
    with pytest.raises(UnknownLayoutError, match=f"is recorded as {layout}"):
        open_dataset(tmp_path)
    write_manifest(folder, Manifest(layout=layout, spec=kit.spec(block).to_json(), files=files))
    with pytest.raises(UnknownLayoutError, match=f"is recorded as {layout}"):
        open_dataset(tmp_path)


def test_resource_formats_match_layouts():
    assert [WRITTEN_FORMATS[name] for name in LAYOUT_NAMES] == list(LAYOUT_NAMES)


def test_packed_columns_keep_dtype_of_arrays(kit, tmp_path):
    """Columns are packed for RLlib's `unpack`: as base64 of an LZ4 frame of a pickle."""
    block = kit.block([3, 2])
    packed_columns = ("obs", "new_obs", "rewards")
    (entry,) = write(tmp_path, block, kit.spec(block), "SampleBatch", compress_columns=packed_columns)
    lines = [json.loads(line) for line in (tmp_path / entry.path).read_text().splitlines()]
    for line, start, count in zip(lines, block.start, block.length, strict=True):
        first_row = start + lines.index(line)  # each earlier episode has one more observation than steps
        for name, array_start in (("obs", first_row), ("new_obs", first_row + 1)):
            array = unpack_array(line[name])
            np.testing.assert_array_equal(array, block.columns["obs"][array_start : array_start + count])
            assert array.dtype == np.float32
        rewards, actions = (block.columns[name][start : start + count] for name in ("rewards", "actions"))
        assert unpack_array(line["rewards"]).tolist() == rewards.tolist()
        assert line["actions"] == actions.tolist()


def unpack_array(cell: str) -> np.ndarray:
    with pa.CompressedInputStream(pa.BufferReader(base64.b64decode(cell)), "lz4") as stream:
        return pickle.loads(stream.read())


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c16", "b1", "u1", "i8", "u8"])
@pytest.mark.parametrize("shape", [(3,), (2, 0), (2, 3, 1), (70_000,)])
def test_pickled_arrays_are_readable_by_pickle(dtype, shape):
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    array_read, arrays_by_key = pickle.loads(pickle_arrays((array, {"a": array, "ä": (array,)})))
    for copy in (array_read, arrays_by_key["a"], *arrays_by_key["ä"]):
        assert (copy.dtype, copy.shape, copy.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize("name", ["said", "infos", "eps_id", "nothing"])
def test_pack_text_or_unknown_column_raises(kit, tmp_path, name):
    block = make_special_block(kit)
    message = f"'{name}' is not a column of numbers that can be packed: allowed are t, obs, "
    with pytest.raises(DataError, match=message):
        write(tmp_path, block, DataSpec.from_block(block), "SampleBatch", compress_columns=[name])
