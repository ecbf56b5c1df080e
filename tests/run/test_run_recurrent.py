"""Recurrent policies in training, evaluation, recording and loading."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from recall_data import write_recall

from hindcast import PPOConfig
from hindcast.api import EnvironmentSpec
from hindcast.episodes.block import Block
from hindcast.errors import Interrupted, SpecError, UserError
from hindcast.evaluate.environment import evaluate_policy
from hindcast.models.policy import Policy
from hindcast.run.interruption import Interruption
from layers import slow_except
from run_results import read_results
from support import StopAfter, episode_hashes, leftovers, read_all, record, recording, train, training
from toy_environments import Recall
from user_errors import raises_user_error

RECALL = {"id": "toy_environments:Recall"}
CELLS = ["lstm", "gru"]


def fit(
    folder: Path,
    data: Path,
    interruption: Interruption | None = None,
    updates: int = 75,
    spec: Mapping[str, Any] = MappingProxyType({}),
    **model: Any,
) -> Policy:
    """Train a policy, by default clone the expert in the data; the run folder is `folder/test/r1`."""
    defaults = {
        "config": {"lr": 1e-2, "trainBatchSizePerLearner": 280},
        "model": {"fcnetHiddens": [16], "cellSize": 16, "maxSeqLen": 7, **model},
        "stop": {"updates": updates},
        "pipeline": {"datasetNumItersPerLearner": 25},
        "environment": RECALL,
        "evaluation": {"interval": 1, "duration": 40},
    }
    resource = training(folder, data, **{**defaults, **spec})
    train(resource, interruption)
    return Policy.load(folder / "test" / "r1")


def last_result(folder: Path) -> Any:
    return read_results(folder)[-1]


def mean_return(
    policy: Policy, num_envs: int = 8, environment: Mapping[str, Any] = MappingProxyType(RECALL)
) -> float:
    spec = EnvironmentSpec.model_validate(dict(environment))
    return float(np.mean(evaluate_policy(policy, spec, duration=60, num_envs=num_envs, seed=5).returns))


@pytest.mark.parametrize("cell", slow_except(["lstm"], CELLS))
def test_recurrent_policy_learns_to_recall(cell: str, recall_data: Path, tmp_path: Path) -> None:
    policy = fit(tmp_path, recall_data, recurrent=cell)
    assert mean_return(policy) == mean_return(policy, num_envs=3) == 1
    result = last_result(tmp_path)
    assert result["evaluation"]["env_runners"]["episode_return_mean"] == 1
    assert result["learners"]["default_policy"]["action_accuracy"] > 0.99


def test_policy_without_memory_stays_at_chance(recall_data: Path, tmp_path: Path) -> None:
    assert 0.25 < mean_return(fit(tmp_path, recall_data)) < 0.75


class Learning(NamedTuple):
    """An algorithm that learns to recall the cue from random actions.

    Attributes:
        algorithm: its name.
        options: its options.
        updates: number of updates in which it learns.
        is_continuous: True if it learns continuous actions.
    """

    algorithm: str
    options: dict[str, Any]
    updates: int = 150
    is_continuous: bool = False


RATES = {"actorLr": 1e-2, "criticLr": 1e-2, "tau": 0.05, "gamma": 0.9}
LEARNINGS = [
    Learning("MARWIL", {"lr": 1e-2, "beta": 3.0, "gamma": 0.9, "targetsEvery": 20}),
    Learning("IQL", {**RATES, "valueLr": 1e-2, "beta": 10.0}),
    Learning("DQN", {"lr": 1e-2, "tau": 0.05, "gamma": 0.9, "nStep": 3}),
    Learning("DiscreteCQL", {"lr": 1e-2, "tau": 0.05, "gamma": 0.9, "nStep": 3}),
    Learning("CQL", {**RATES, "numActions": 2, "minQWeight": 0.1}, 200, is_continuous=True),
    Learning("SAC", {**RATES}, 200, is_continuous=True),
]


@pytest.mark.learning
@pytest.mark.parametrize("learning", LEARNINGS, ids=lambda learning: learning.algorithm)
def test_only_memory_learns_to_recall_from_random_actions(learning: Learning, tmp_path: Path) -> None:
    data = write_recall(tmp_path / "data", Recall(is_continuous=learning.is_continuous), is_expert=False)
    environment = {**RECALL, "kwargs": {"is_continuous": learning.is_continuous}}
    spec = {
        "algorithm": learning.algorithm,
        "config": {"trainBatchSizePerLearner": 280, **learning.options},
        "environment": environment,
        "evaluation": None,
    }
    returns = [
        mean_return(
            fit(tmp_path / recurrent, data, None, learning.updates, spec, recurrent=recurrent),
            environment=environment,
        )
        for recurrent in ("GRU", "None")
    ]
    assert returns[0] >= 0.9
    assert 0.25 < returns[1] < 0.75


@pytest.mark.parametrize("cell", slow_except(["gru"], CELLS))
def test_interrupted_training_equals_uninterrupted_training(
    cell: str, recall_data: Path, tmp_path: Path
) -> None:
    model = {"recurrent": cell, "maxSeqLen": 5, "burnIn": 2}
    reference = fit(tmp_path / "uninterrupted", recall_data, **model)
    for updates in (40, 20):
        with pytest.raises(Interrupted):
            fit(tmp_path / "interrupted", recall_data, StopAfter(updates), **model)
    assert fit(tmp_path / "interrupted", recall_data, **model).digest == reference.digest
    timesteps, resumed_timesteps = (
        last_result(tmp_path / name)["num_env_steps_trained_lifetime"]
        for name in ("uninterrupted", "interrupted")
    )
    assert timesteps == resumed_timesteps == 75 * (280 // 5) * 5  # 75 updates from sequences of 5


@pytest.fixture(scope="module")
def run_folder(recall_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folder of a policy that recalls the cue."""
    folder = tmp_path_factory.mktemp("trained")
    fit(folder, recall_data, recurrent="LSTM")
    return folder / "test" / "r1"


def record_block(
    folder: Path, run_folder: Path, interruption: Interruption | None = None, **output: Any
) -> Block:
    resource = recording(
        folder,
        environment=RECALL,
        policy={"checkpoint": {"path": str(run_folder)}},
        runners={"envsPerRunner": 3},
        duration={"episodes": 40},
        output={"recurrentStates": True, **output},
    )
    record(resource, interruption)
    assert not leftovers(folder)
    return read_all(folder)


@pytest.mark.parametrize("encoding", ["Arrow", "MessagePack"])
def test_interrupted_recording_equals_uninterrupted_recording(
    encoding: str, run_folder: Path, tmp_path: Path
) -> None:
    reference = record_block(tmp_path / "uninterrupted", run_folder, encoding=encoding)
    for episodes in (5, 15, 3):
        with pytest.raises(Interrupted):
            record_block(tmp_path / "interrupted", run_folder, StopAfter(episodes), encoding=encoding)
    assert episode_hashes(
        record_block(tmp_path / "interrupted", run_folder, encoding=encoding)
    ) == episode_hashes(reference)


def test_recorded_state_is_state_after_step(run_folder: Path, tmp_path: Path) -> None:
    block = record_block(tmp_path, run_folder)
    policy = Policy.load(run_folder)
    assert block.columns["state_out/h"].shape == block.columns["state_out/c"].shape == (block.num_steps, 16)
    for episode in range(block.num_episodes):
        observations = block.columns["obs"][block.rows_of("obs", episode)][:-1]
        state = None
        for obs, h in zip(
            observations, block.columns["state_out/h"][block.rows_of("rewards", episode)], strict=True
        ):
            _, state = policy.compute_actions(obs[None], state)
            np.testing.assert_allclose(state["h"][0], h, atol=1e-5)


def test_recording_has_no_states_by_default(run_folder: Path, tmp_path: Path) -> None:
    columns = record_block(tmp_path, run_folder, recurrentStates=False).columns
    assert not [name for name in columns if name.startswith("state")]


def test_sequences_start_from_recorded_states(run_folder: Path, tmp_path: Path) -> None:
    """Sequences are too short to contain the cue, so a policy can only learn it from recorded states."""
    record_block(tmp_path / "data", run_folder)
    model = {"recurrent": "LSTM", "maxSeqLen": 3}
    zero_state_policy = fit(tmp_path / "zero", tmp_path / "data", **model)
    recorded_state_policy = fit(tmp_path / "recorded", tmp_path / "data", initialState="Recorded", **model)
    assert last_result(tmp_path / "zero")["learners"]["default_policy"]["action_accuracy"] < 0.95
    assert last_result(tmp_path / "recorded")["learners"]["default_policy"]["action_accuracy"] > 0.99
    assert zero_state_policy.digest != recorded_state_policy.digest


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no states": (
        {"initialState": "Recorded"},
        "model.initialState is Recorded, .* record them with output.recurrentStates, or leave initialState out",
    ),
    "long sequences": (
        {"maxSeqLen": 281},
        "maxSeqLen is 281, expected at most spec.config.trainBatchSizePerLearner, 280",
    ),
    "burn-in": ({"burnIn": 7}, "burnIn is 7, expected less than spec.model.maxSeqLen, 7"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_model_options_are_reported(mistake: str, recall_data: Path, tmp_path: Path) -> None:
    model, message = MISTAKES[mistake]
    with pytest.raises(UserError, match=message):
        fit(tmp_path, recall_data, recurrent="GRU", **model)


def test_recorded_states_of_other_model_are_refused(run_folder: Path, tmp_path: Path) -> None:
    record_block(tmp_path / "data", run_folder)
    with pytest.raises(
        UserError, match=r"state 'h' has shape \[40, 16\], but the policy needs shape \[40, 8\]"
    ):
        fit(tmp_path, tmp_path / "data", recurrent="LSTM", cellSize=8, initialState="Recorded")


def test_algorithm_on_single_timesteps_refuses_recurrent_policy(recall_data: Path, tmp_path: Path) -> None:
    refusal = "{} learns from single timesteps and cannot train a recurrent policy"
    expert = {"algorithm": "PPO", "model": {"recurrent": "LSTM"}, "stop": {"iterations": 1}}
    with pytest.raises(SpecError, match=refusal.format(r"model\.recurrent is LSTM, but PPO")):
        recording(tmp_path / "data", policy={"train": expert})
    with pytest.raises(SpecError, match=refusal.format(r"model_config\.use_lstm is LSTM, but PPO")):
        PPOConfig().environment("CartPole-v1").rl_module(model_config={"use_lstm": True}).validate()
    toy = {
        "algorithm": "algorithm_toys:NStepQ",
        "config": {},
        "customConfig": {},
        "model": {"recurrent": "GRU"},
    }
    with pytest.raises(SpecError, match=refusal.format("NStepQ")):
        train(training(tmp_path, recall_data, **toy))


def test_recording_states_of_stateless_policy_is_refused(tmp_path: Path) -> None:
    with raises_user_error(
        SpecError, "the policy has no recurrent state", field="spec.output.recurrentStates"
    ):
        record(recording(tmp_path, output={"recurrentStates": True}))
