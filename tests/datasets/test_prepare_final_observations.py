"""Tests that data without final observations give the numbers of the same data with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pytest

from hindcast.datasets.inspection.inspecting import inspect_data
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.formats.format import ReadOptions

NUMBER_OF_EPISODES = 40


def make_vitals(rng: np.random.Generator) -> tuple[pa.Table, np.ndarray]:
    """Make visits of patients, with vitals far from zero; return the table and the vitals."""
    lengths = rng.integers(1, 8, NUMBER_OF_EPISODES)
    episode = np.repeat(np.arange(NUMBER_OF_EPISODES), lengths)
    is_last = np.append(np.diff(episode) != 0, True)
    vitals = rng.normal([37.3, 96.0, 120.0], [0.5, 2.0, 15.0], (len(episode), 3))
    table = pa.table(
        {
            "eps_id": episode,
            "obs": list(vitals),
            "actions": rng.integers(0, 3, len(episode)),
            "rewards": rng.normal(size=len(episode)),
            "terminateds": is_last,
        }
    )
    return table, vitals


def open_vitals(folder: Path, table: pa.Table) -> Reading:
    path = kit.write_files(folder, table)
    return Reading((path,), options=ReadOptions(ignore_final_observation=True))


@pytest.mark.parametrize("seed", range(3))
def test_inspect_without_new_obs_gives_the_coverage_with_new_obs(tmp_path, seed):
    table, vitals = make_vitals(np.random.default_rng(seed))
    is_last = np.array(table["terminateds"])
    new_obs = np.concatenate([vitals[1:], vitals[:1]])
    new_obs[is_last] = vitals[is_last] + 0.1
    with_new_obs = table.append_column("new_obs", pa.array(list(new_obs)))
    first = inspect_data(open_vitals(tmp_path / "without", table))
    second = inspect_data(open_vitals(tmp_path / "with", with_new_obs))
    assert first.coverage == second.coverage
    assert first.coverage is not None
    assert first.coverage.observations == len(vitals)
    (observations,) = first.observations
    assert observations.low == pytest.approx(vitals.min(axis=0))
    assert observations.high == pytest.approx(vitals.max(axis=0))


def test_final_observation_without_new_obs_is_the_last_one(tmp_path):
    table, vitals = make_vitals(np.random.default_rng(0))
    block = kit.read_block(open_data(open_vitals(tmp_path / "rows", table)))
    final_rows = block.obs_start + block.length
    assert block.columns["obs"][final_rows].tolist() == vitals[np.array(table["terminateds"])].tolist()
