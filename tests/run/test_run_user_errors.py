"""User errors are one sentence with cause and location, and the right type, without a traceback."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from hindcast.algorithms import build
from hindcast.api import load_resources
from hindcast.api.options import algorithms
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError, SpecError, UserCodeError, UserError
from hindcast.formats.spec import DataSpec
from hindcast.run.execute import execute
from hindcast.run.training.algorithm import make_algorithm
from hindcast.storage.location import resolve
from support import WALK, MemoryReporter, read_all, record, recording, train, training
from user_errors import raises_user_error

ALGORITHMS_WITH_REWARDS = [
    name for name in algorithms("OfflineTraining") if "rewards" in build(name, {}).needs().columns
]
DISCRETE_ALGORITHMS = ("DQN", "DiscreteCQL")
TRAINING = """
apiVersion: hindcast.dev/v1alpha1
kind: OfflineTraining
metadata: {name: clone}
spec:
  algorithm: BC
  config: {lr: 1.0e-3}
  environment: {id: CartPole-v1}
  input: [{path: data}]
  stop: {iterations: 1}
"""


def message_of(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def refusal_of_text(tmp_path: Path, old: str, new: str) -> str:
    """Return the message of loading and executing the training with one part replaced."""
    assert old in TRAINING
    file = tmp_path / "training.yaml"
    file.write_text(TRAINING.replace(old, new))
    with pytest.raises(SpecError) as error:
        execute(load_resources(file), MemoryReporter())
    return message_of(error).replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("old", "new", "expected_parts"),
    [
        ("algorithm: BC", "algoritm: BC", ["training.yaml:6", "spec.algoritm", "did you mean 'algorithm'?"]),
        ("lr: 1.0e-3", "lr: fast", ["training.yaml:7", "spec.config.lr", "'fast'", "expected a number"]),
        ("lr: 1.0e-3", "clipParam: 0.2", ["training.yaml:7", "spec.config.clipParam", "PPO"]),
        (
            "id: CartPole-v1",
            "id: CartPol-v1",
            ["spec.environment.id", "'CartPol-v1'", "did you mean 'CartPole-v1'?"],
        ),
        (
            "path: data",
            "recordingRef: {name: expert}",
            ["spec.input[0].recordingRef", "'expert'", "the files define none"],
        ),
        (
            "path: data",
            "sampler: {}",
            ["training.yaml:9", "spec.input has a sampler", "BC cannot learn from"],
        ),
        ("stop: {iterations: 1}", "stop: {}", ["spec.stop", "at least one of", "episodeReturnMean"]),
        ("metadata: {name: clone}", "metadata: {name: [", ["training.yaml:", "not valid YAML"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_resource_names_line_and_field(
    tmp_path: Path, old: str, new: str, expected_parts: list[str]
) -> None:
    text = refusal_of_text(tmp_path, old, new)
    assert all(part in text for part in expected_parts), text


def write_block(folder: Path, block: Block) -> Path:
    with BlockWriter(resolve(folder), DataSpec.from_block(block), "000000-test") as writer:
        writer.write(block)
    return folder


def refusal_of_data(
    tmp_path: Path, data: Path, environment: dict[str, object] | None = None, **spec: object
) -> str:
    resource = training(tmp_path / "runs", data, environment=environment or WALK, **spec)
    with pytest.raises(DataError) as error:
        train(resource)
    return message_of(error)


def test_dataset_without_episodes_is_named(tmp_path: Path) -> None:
    empty_folder = tmp_path / "empty"
    empty_folder.mkdir()
    assert "empty holds no files" in refusal_of_data(tmp_path, empty_folder)


def test_missing_initial_checkpoint_is_refused_before_data_are_opened(tmp_path: Path) -> None:
    file = tmp_path / "training.yaml"
    file.write_text(TRAINING + "  initialCheckpoint: DOES_NOT_EXIST\n")
    with pytest.raises(DataError) as error:
        execute(load_resources(file), MemoryReporter())
    assert re.search(
        r"training\.yaml:\d+: OfflineTraining/clone: spec\.initialCheckpoint: ", message_of(error)
    )


def test_missing_option_of_custom_algorithm_is_named(walks: Path, tmp_path: Path) -> None:
    resource = training(tmp_path / "runs", walks, algorithm="algorithm_toys:WithRequiredOption", config={})
    with raises_user_error(SpecError, "is missing$", field="spec.customConfig.z"):
        make_algorithm(resource)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    assert "nowhere does not exist" in refusal_of_data(tmp_path, tmp_path / "nowhere")


def test_observations_that_do_not_fit_environment_are_named(walks: Path, tmp_path: Path) -> None:
    text = refusal_of_data(tmp_path, walks, {"id": "Pendulum-v1"})
    assert str(walks) in text
    assert "'obs' is float32 [4]" in text
    assert "(3,)" in text


def test_nan_in_observation_names_file_row_and_step(walks: Path, tmp_path: Path) -> None:
    block = read_all(walks)
    block.columns["obs"] = block.columns["obs"].copy()
    block.columns["obs"][block.obs_start[7] + 2, 1] = np.nan
    text = refusal_of_data(tmp_path, write_block(tmp_path / "bad", block))
    assert "000000-test-000.parquet" in text
    assert "row 7" in text
    assert "t 2)" in text
    assert "'obs' has nan" in text


def test_action_outside_space_names_file_and_row(walks: Path, tmp_path: Path) -> None:
    block = read_all(walks)
    block.columns["actions"] = block.columns["actions"].copy()
    block.columns["actions"][block.start[4]] = 9
    text = refusal_of_data(tmp_path, write_block(tmp_path / "bad", block))
    assert "000000-test-000.parquet" in text
    assert "row 4" in text
    assert "9" in text


def test_truncated_file_is_named(walks: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(walks, folder)
    file = sorted(folder.glob("*.parquet"))[1]
    file.write_bytes(file.read_bytes()[:-50])
    assert file.name in refusal_of_data(tmp_path, folder)


def test_missing_actions_are_named(walks: Path, tmp_path: Path) -> None:
    block = read_all(walks)
    block_without_actions = block.with_columns(
        {name: column for name, column in block.columns.items() if name != "actions"}
    )
    assert "actions" in refusal_of_data(tmp_path, write_block(tmp_path / "bad", block_without_actions))


@pytest.mark.parametrize("algorithm", ALGORITHMS_WITH_REWARDS)
def test_missing_rewards_are_named(tmp_path: Path, algorithm: str) -> None:
    environment = WALK["id"] if algorithm in DISCRETE_ALGORITHMS else "toy_environments:SteeredWalk"
    record(recording(tmp_path / "data", environment={"id": environment}, duration={"episodes": 3}))
    block = read_all(tmp_path / "data")
    block_without_rewards = block.with_columns(
        {name: column for name, column in block.columns.items() if name != "rewards"}
    )
    data = write_block(tmp_path / "bad", block_without_rewards)
    text = refusal_of_data(tmp_path, data, {"id": environment}, algorithm=algorithm, config={})
    assert "has no column rewards, which the algorithm needs" in text


def test_environment_error_names_line(walks: Path, tmp_path: Path) -> None:
    resource = training(
        tmp_path,
        walks,
        environment={"id": "toy_environments:FaultyEnv", "kwargs": {"what": "step"}},
        evaluation={"interval": 1, "duration": 2},
    )
    with pytest.raises(UserCodeError, match=r"toy_environments\.py:\d+") as error:
        train(resource)
    assert message_of(error)
