"""RLlib 2.60 reads converted data like data that were recorded for RLlib: all values are equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_interop_rllib import RunScript, flatten_episodes, make_row, timestep_rows

from episode_kit import read_block
from hindcast.datasets.curate.operations import convert_data
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.target import Target
from hindcast.storage.location import resolve
from support import CARTPOLE, record, recording

pytestmark = pytest.mark.timeout(1200)


def test_rllib_reads_data_converted_through_text(run_script: RunScript, tmp_path: Path) -> None:
    record(recording(tmp_path / "arrow", environment=CARTPOLE, duration={"episodes": 10}))
    block, source = read_block(open_dataset(tmp_path / "arrow")), tmp_path / "arrow"
    for format_name in ("CSV", "MessagePack", "Columns"):
        convert_data(Reading((str(source),)), Target(resolve(tmp_path / format_name), format_name))
        source = tmp_path / format_name

    run_script("rllib_read.py", "episodes", tmp_path / "MessagePack", tmp_path / "episodes.npz")
    expected, actual = flatten_episodes(block), dict(np.load(tmp_path / "episodes.npz"))
    assert actual.keys() == expected.keys()
    for name, leaf in expected.items():
        np.testing.assert_array_equal(actual[name], leaf, err_msg=name)

    run_script("rllib_read.py", "columns", tmp_path / "Columns", tmp_path / "columns.npz")
    rows: dict[str, dict[str, np.ndarray]] = {}
    for key, leaf in np.load(tmp_path / "columns.npz").items():
        episode_index, eps_id, name = key.split("|")
        rows.setdefault(f"{episode_index}|{eps_id}", {})[name] = leaf
    block_without_infos = block.with_columns(
        {name: leaf for name, leaf in block.columns.items() if name != "infos"}
    )
    assert {make_row(key.split("|")[1], values) for key, values in rows.items()} == timestep_rows(
        block_without_infos
    )
