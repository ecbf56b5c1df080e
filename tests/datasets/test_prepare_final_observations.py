"""Data without final observations give the numbers of the same data with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pytest

from hindcast.datasets.inspection.inspecting import inspect_data
from hindcast.datasets.prepare.opening import open_data, open_reading
from hindcast.datasets.prepare.reading import Reading
from hindcast.formats.format import ReadOptions
from support import train, training

NUM_EPISODES = 100


def make_vitals(rng: np.random.Generator) -> tuple[pa.Table, np.ndarray]:
    """Make visits of patients, with vitals far from zero; return the table and the vitals."""
    lengths = rng.integers(1, 8, NUM_EPISODES)
    episode = np.repeat(np.arange(NUM_EPISODES), lengths)
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


def train_on(folder: Path, table: pa.Table) -> tuple[list[bytes], dict[str, Any]]:
    """Clone the policy of a table; return the files of the policy with its filter, and the last offline evaluation."""
    opened_data = open_reading(open_vitals(folder / "rows", table))
    offline = {"heldOut": 0.4, "estimates": ["wis", "dr"], "explore": True, "modelUpdates": 20}
    resource = training(
        folder / "run",
        opened_data.paths[0],
        model={"fcnetHiddens": [8], "observationFilter": "MeanStd"},
        observationSpace={"type": "Box", "low": "-inf", "high": "inf", "shape": [3]},
        actionSpace={"type": "Discrete", "n": 3},
        evaluation={"offline": offline},
    )
    run_folder = Path(train(resource).folder)
    results = [json.loads(line) for line in (run_folder / "results.jsonl").read_text().splitlines()]
    files = sorted((run_folder / "module").glob("*.safetensors"))
    return [file.read_bytes() for file in files], results[-1]["evaluation"]["offline"]


@pytest.mark.slow
def test_training_without_new_obs_gives_the_filter_policy_and_estimates_with_new_obs(tmp_path):
    table, vitals = make_vitals(np.random.default_rng(0))
    new_obs = np.concatenate([vitals[1:], vitals[:1]])
    files, evaluation = train_on(tmp_path / "without", table)
    with_new_obs = table.append_column("new_obs", pa.array(list(new_obs)))
    expected_files, expected_evaluation = train_on(tmp_path / "with", with_new_obs)
    assert len(files) == 2
    assert files == expected_files
    assert {"wis", "dr"} <= evaluation["estimates"].keys()
    assert evaluation == expected_evaluation
