"""The same connectors, pre-learner and network give equal batches in RLlib 2.60 and in Hindcast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import customised_components as components
import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hindcast import BCConfig, ConnectorV2, OfflinePreLearner, RLModule, RLModuleSpec, SingleAgentEpisode
from hindcast.rllib.row_mapping import prelearn_rows
from hindcast.run.training.options_document import training_options

RunScript = Callable[..., str]
pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


class CustomConnectorConfig(BCConfig):
    def build_learner_connector(self, *args: Any, **kwargs: Any) -> Any:
        pipeline = super().build_learner_connector(*args, **kwargs)
        pipeline.append(components.make_last_connector_class(ConnectorV2)())
        return pipeline


def make_rows() -> dict[str, Any]:
    rng, lengths = np.random.default_rng(0), (3, 1, 7)
    columns: dict[str, list[Any]] = {}
    for index, num_steps in enumerate(lengths):
        observations = rng.normal(size=(num_steps + 1, 4)).astype(np.float32)
        columns.setdefault("eps_id", []).extend([f"e{index}"] * num_steps)
        columns.setdefault("obs", []).extend(observations[:-1].tolist())
        columns.setdefault("new_obs", []).extend(observations[1:].tolist())
        columns.setdefault("actions", []).extend(rng.integers(0, 2, num_steps).tolist())
        columns.setdefault("rewards", []).extend(rng.normal(size=num_steps).tolist())
        columns.setdefault("terminateds", []).extend([False] * (num_steps - 1) + [True])
    return columns


def test_same_components_give_the_same_batch(run_script: RunScript, tmp_path: Path) -> None:
    types = {"obs": pa.list_(pa.float32()), "new_obs": pa.list_(pa.float32())}
    table = pa.table({name: pa.array(values, types.get(name)) for name, values in make_rows().items()})
    pq.write_table(table, tmp_path / "rows.parquet")
    run_script("rllib_customised.py", tmp_path / "rows.parquet", tmp_path / "batch.npz")
    columns = np.load(tmp_path / "batch.npz").items()
    rllib_batch = {name.removeprefix("default_policy/"): column for name, column in columns}

    connector_class = components.make_connector_class(ConnectorV2)
    prelearner_class = components.make_prelearner_class(OfflinePreLearner, SingleAgentEpisode)
    config = (
        CustomConnectorConfig()
        .environment(
            observation_space=gym.spaces.Box(-np.inf, np.inf, (4,), np.float32),
            action_space=gym.spaces.Discrete(2),
        )
        .learners(learner_connector=lambda *spaces: connector_class(*spaces, scale=3.0))
        .offline_data(input_=str(tmp_path / "rows.parquet"), prelearner_class=prelearner_class)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=components.make_network_class(RLModule)))
    )
    training = config.plan().training
    assert training is not None
    rows = {name: np.array(table[name].to_pylist()) for name in table.column_names}
    for name, list_type in types.items():
        rows[name] = rows[name].astype(list_type.value_type.to_pandas_dtype())
    source = training.spec.input[0]
    block = prelearn_rows(prelearner_class, rows, {}, training_options(training, source), "rows")

    batch = {**block.columns, "obs": block.columns["obs"][block.obs_row], "terminateds": block.terminated}
    column_names = {"obs", "actions", "rewards", "terminateds", "returns_to_go", "number", "logits"}
    assert column_names <= rllib_batch.keys() & batch.keys()
    for name in sorted(column_names):
        np.testing.assert_allclose(batch[name], rllib_batch[name], rtol=1e-6, atol=0, err_msg=name)
        assert batch[name].shape == rllib_batch[name].shape
