"""`super()` of a pre-learner in RLlib's form makes the transitions that RLlib 2.60 makes of the same data."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hindcast import DQNConfig, OfflinePreLearner
from hindcast.datasets.curate.operations import convert_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.target import Target
from hindcast.run.execute import FileReferences
from hindcast.run.inputs import open_inputs, resolve_inputs
from hindcast.storage.location import resolve

RunScript = Callable[..., str]
pytestmark = pytest.mark.timeout(600)
SPACES = (gym.spaces.Box(-99, 99, (2,), np.float32), gym.spaces.Discrete(20))
LENGTHS = (3, 1, 7)
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "table": {},
    "sample_batch": {"input_read_sample_batches": True},
    "rllib": {"input_read_episodes": True},
}


class CallsSuper(OfflinePreLearner):
    def _map_to_episodes(self, batch, to_numpy=False, **kwargs):
        return super()._map_to_episodes(batch, to_numpy)

    def _map_sample_batch_to_episode(self, batch, to_numpy=False, **kwargs):
        return super()._map_sample_batch_to_episode(batch, to_numpy)


def write_data(folder: Path) -> None:
    """Write the same episodes of each kind; a fragment of SampleBatch is an episode, since RLlib joins none."""
    rng, starts = np.random.default_rng(1), np.cumsum([0, *LENGTHS])
    observations = [rng.normal(size=(length + 1, 2)).astype(np.float32) for length in LENGTHS]
    num_steps = sum(LENGTHS)
    columns: dict[str, list[Any]] = {
        "eps_id": np.repeat(["e0", "e1", "e2"], LENGTHS).tolist(),
        "obs": np.concatenate([values[:-1] for values in observations]).tolist(),
        "new_obs": np.concatenate([values[1:] for values in observations]).tolist(),
        "actions": list(range(num_steps)),
        "rewards": rng.normal(size=num_steps).tolist(),
        "terminateds": [step + 1 in starts for step in range(num_steps)],
        "truncateds": [False] * num_steps,
    }
    for kind in OPTIONS:
        (folder / kind).mkdir()
    pq.write_table(pa.table(columns), folder / "table" / "rows.parquet")
    with (folder / "sample_batch" / "batches.json").open("w") as file:
        for start, stop in itertools.pairwise(starts):
            batch = {name: values[start:stop] for name, values in columns.items()}
            file.write(json.dumps({"type": "SampleBatch", **batch}) + "\n")
    convert_data(Reading((str(folder / "table"),)), Target(resolve(folder / "messagepack"), "MessagePack"))
    cells = pq.read_table(next((folder / "messagepack").glob("*.parquet")), columns=["item"])
    pq.write_table(cells, folder / "rllib" / "items.parquet")


def test_super_makes_the_transitions_of_rllib(run_script: RunScript, tmp_path: Path) -> None:
    write_data(tmp_path)
    files = ("table/rows.parquet", "sample_batch/batches.json", "rllib/items.parquet")
    run_script("rllib_prelearners.py", *(tmp_path / file for file in files), tmp_path)
    for kind, options in OPTIONS.items():
        config = DQNConfig().environment(observation_space=SPACES[0], action_space=SPACES[1])
        config.offline_data(input_=str(tmp_path / kind), prelearner_class=CallsSuper, **options)
        training = config.plan().training
        assert training is not None
        (opened_input,) = open_inputs(training, resolve_inputs(training, FileReferences({})))
        dataset = opened_input.dataset
        (block,) = (dataset.read(unit) for unit in dataset.units)
        assert sorted(block.length.tolist()) == sorted(LENGTHS)
        order = np.argsort(block.columns["actions"], kind="stable")
        actual = {
            "obs": block.columns["obs"][block.obs_row][order],
            "new_obs": block.columns["obs"][block.obs_row + 1][order],
            "actions": block.columns["actions"][order],
            "rewards": block.columns["rewards"][order],
            "terminateds": block.step_flags(block.terminated)[order],
        }
        expected = np.load(tmp_path / f"{kind}.npz")
        for name, values in actual.items():
            np.testing.assert_allclose(values, expected[name], rtol=1e-6, err_msg=f"{kind}: {name}")
