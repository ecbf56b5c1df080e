"""A connector, a pre-learner and a network, written once, give equal batches of one file in RLlib 2.60 and here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import customised_pieces as pieces
import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hindcast import BCConfig, ConnectorV2, OfflinePreLearner, RLModule, RLModuleSpec, SingleAgentEpisode
from hindcast.pipeline.rllib_prelearner import prelearn_rows
from hindcast.run.inputs import training_options

Run = Callable[..., str]
pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


class Own(BCConfig):
    def build_learner_connector(self, *args: Any, **kwargs: Any) -> Any:
        pipeline = super().build_learner_connector(*args, **kwargs)
        pipeline.append(pieces.last_piece(ConnectorV2)())
        return pipeline


def rows() -> dict[str, Any]:
    rng, lengths = np.random.default_rng(0), (3, 1, 7)
    found: dict[str, list[Any]] = {}
    for number, steps in enumerate(lengths):
        seen = rng.normal(size=(steps + 1, 4)).astype(np.float32)
        found.setdefault("eps_id", []).extend([f"e{number}"] * steps)
        found.setdefault("obs", []).extend(seen[:-1].tolist())
        found.setdefault("new_obs", []).extend(seen[1:].tolist())
        found.setdefault("actions", []).extend(rng.integers(0, 2, steps).tolist())
        found.setdefault("rewards", []).extend(rng.normal(size=steps).tolist())
        found.setdefault("terminateds", []).extend([False] * (steps - 1) + [True])
    return found


def test_the_same_pieces_give_the_same_batch(rllib: Run, tmp_path: Path) -> None:
    types = {"obs": pa.list_(pa.float32()), "new_obs": pa.list_(pa.float32())}
    table = pa.table({name: pa.array(values, types.get(name)) for name, values in rows().items()})
    pq.write_table(table, tmp_path / "rows.parquet")
    rllib("rllib_customised.py", tmp_path / "rows.parquet", tmp_path / "batch.npz")
    theirs = {
        name.removeprefix("default_policy/"): column
        for name, column in np.load(tmp_path / "batch.npz").items()
    }

    scaled = pieces.connector(ConnectorV2)
    kind = pieces.prelearner(OfflinePreLearner, SingleAgentEpisode)
    config = (
        Own()
        .environment(
            observation_space=gym.spaces.Box(-np.inf, np.inf, (4,), np.float32),
            action_space=gym.spaces.Discrete(2),
        )
        .learners(learner_connector=lambda observations, actions: scaled(observations, actions, scale=3.0))
        .offline_data(input_=str(tmp_path / "rows.parquet"), prelearner_class=kind)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=pieces.network(RLModule)))
    )
    training = config.plan().training
    assert training is not None
    read = {name: np.array(table[name].to_pylist()) for name in table.column_names}
    for name, kind_of in types.items():
        read[name] = read[name].astype(kind_of.value_type.to_pandas_dtype())
    block = prelearn_rows(kind, read, {}, training_options(training, training.spec.input[0]), "rows")

    ours = {**block.columns, "obs": block.columns["obs"][block.obs_row], "terminateds": block.terminated}
    compared = {"obs", "actions", "rewards", "terminateds", "returns_to_go", "number", "logits"}
    assert compared <= theirs.keys() & ours.keys()
    for name in sorted(compared):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, atol=0, err_msg=name)
        assert ours[name].shape == theirs[name].shape
