"""Text that Hindcast wrote is read back exactly, with dtypes, shapes, NaN and infinities, for random spaces."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from table_reading import concat_rows, read_table

from episode_kit import build_block
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.episodes.columns import root
from hindcast.episodes.convert import info_from_json
from hindcast.formats.dataset_folder.manifest import Manifest, write_manifest
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve
from layers import examples
from random_data import recordings


def write_files(folder: Path, block: Block, spec: DataSpec, layout: str) -> list[Path]:
    """Write a recording in a layout, with a manifest; return the paths of its files."""
    with BlockWriter(resolve(folder), spec, "r", max_rows_per_file=10, layout=layout) as writer:
        writer.write(block)
    files = writer.close()
    write_manifest(resolve(folder), Manifest(layout=layout, spec=spec.to_json(), files=files))
    return [folder / file.path for file in files]


def check_rows(rows: Rows, block: Block) -> None:
    """Assert that the rows are the block's timesteps."""
    assert rows.eps_id is not None
    assert rows.eps_id.tolist() == block.eps_id[block.episode_of_step].tolist()
    assert rows.terminated.tolist() == block.step_flags(block.terminated).tolist()
    assert rows.truncated.tolist() == block.step_flags(block.truncated).tolist()
    assert rows.t is not None
    assert rows.t.tolist() == (np.arange(block.num_steps) - block.start[block.episode_of_step]).tolist()
    for name, column in block.columns.items():
        if name == "infos":
            continue
        expected = column[block.obs_row] if root(name) == "obs" else column
        assert (rows.columns[name].dtype, rows.columns[name].shape) == (expected.dtype, expected.shape), name
        np.testing.assert_array_equal(rows.columns[name], expected, err_msg=name)
        if root(name) == "obs":
            next_obs = rows.columns[f"new_obs{name.removeprefix('obs')}"]
            np.testing.assert_array_equal(next_obs, column[block.obs_row + 1])
    if "infos" in block.columns and "infos" in rows.columns:
        infos = [info_from_json(text) for text in rows.columns["infos"]]
        expected_infos = [info_from_json(text) for text in block.columns["infos"][block.obs_row + 1]]
        # the info of the reset is stored with the first step
        assert [{k: v for k, v in info.items() if k != "reset_info"} for info in infos] == expected_infos


@pytest.mark.parametrize("layout", ["JSON", "CSV", "SampleBatch"])
@examples(25)
@given(data=recordings())
def test_layout_round_trip_is_exact(layout: str, data: tuple[Block, DataSpec]) -> None:
    block, spec = data
    with tempfile.TemporaryDirectory() as folder:
        rows = concat_rows([read_table(path) for path in write_files(Path(folder), block, spec, layout)])
    check_rows(rows, block)


@pytest.mark.parametrize("layout", ["JSON", "CSV", "SampleBatch"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_nan_and_infinities_round_trip(tmp_path: Path, layout: str, dtype: str) -> None:
    num_steps = 6
    special_values = np.array([np.nan, np.inf, -np.inf, 1e-45, -0.0, 3.4e38, 0.1], dtype=np.float32)
    columns = {
        "obs": np.stack([special_values, special_values[::-1]], axis=1).astype(dtype),
        "actions": np.arange(num_steps) % 2,
        "rewards": special_values[:num_steps],
    }
    block = build_block(columns, [num_steps])
    (path,) = write_files(tmp_path, block, DataSpec.from_block(block), layout)
    check_rows(read_table(path), block)


@pytest.mark.parametrize("layout", ["JSON", "CSV"])
def test_uint64_round_trip(tmp_path: Path, layout: str) -> None:
    large = np.array([2**64 - 1, 2**63, 0, 1], dtype=np.uint64)
    columns = {"obs": np.stack([large, large[::-1]], axis=1), "actions": large[:3], "rewards": np.ones(3)}
    block = build_block(columns, [3])
    (path,) = write_files(tmp_path, block, DataSpec.from_block(block), layout)
    check_rows(read_table(path), block)


@pytest.mark.parametrize("layout", ["JSON", "CSV"])
@pytest.mark.parametrize("name", ["obs/nothing", "obs", "actions", "logits"])
def test_empty_arrays_round_trip(tmp_path: Path, layout: str, name: str) -> None:
    """CSV has no columns for empty arrays; only the manifest names them."""
    obs_name = "obs/something" if name == "obs/nothing" else "obs"
    num_steps, columns = 3, {obs_name: np.arange(4.0), "actions": np.arange(3), "rewards": np.ones(3)}
    columns[name] = np.zeros((num_steps + name.startswith("obs"), 0, 2), dtype=np.float32)
    block = build_block(columns, [num_steps])
    (path,) = write_files(tmp_path, block, DataSpec.from_block(block), layout)
    check_rows(read_table(path), block)


@pytest.mark.parametrize("layout", ["JSON", "CSV", "SampleBatch"])
def test_file_of_other_size_than_recorded_raises(tmp_path: Path, layout: str) -> None:
    block = build_block({"obs": np.arange(4.0), "actions": np.arange(3), "rewards": np.ones(3)}, [3])
    (path,) = write_files(tmp_path, block, DataSpec.from_block(block), layout)
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(Exception, match="but was recorded with"):
        read_table(path)
