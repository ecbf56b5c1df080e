"""Tables that pandas, Polars, DuckDB, Hugging Face and Delta Lake write are read with the values written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import foreign_writers as writers
import numpy as np
import pytest

from episode_kit import read_block
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.formats.format import ReadOptions

OPTIONS: dict[str, dict[str, Any]] = {"duckdb_csv": {"options": {"delimiter": "|"}}}


@pytest.fixture(scope="module")
def folder(run_script: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    assert run_script("foreign_writers.py", path) == str(len(writers.WRITERS))
    return path


@pytest.mark.parametrize("name", writers.WRITERS)
def test_table_of_each_writer_is_read_with_its_values(folder: Path, name: str) -> None:
    options = ReadOptions(ignore_final_observation=True, **OPTIONS.get(name, {}))
    block = read_block(open_data(Reading((str(folder / name),), options=options)))
    assert block.length.tolist() == list(writers.LENGTHS)
    assert block.terminated.all()
    np.testing.assert_allclose(block.columns["obs"][block.obs_row].squeeze(), writers.OBS, rtol=1e-6)
    assert block.columns["actions"].tolist() == writers.ACTION.tolist()
    np.testing.assert_allclose(block.columns["rewards"], writers.REWARD)
