"""A user's mistake is one sentence that says what is wrong and where, with the right exit code and no traceback."""

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
from hindcast.run.offline_trainer import make_algorithm
from hindcast.storage.location import resolve
from support import WALK, MemoryReporter, read_all, record, recording, train, training

REWARDED = [name for name in algorithms("OfflineTraining") if "rewards" in build(name, {}).needs().columns]
OF_CHOICES = ("DQN", "DiscreteCQL")
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


def sentence_of(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def refused(tmp_path: Path, old: str, new: str) -> str:
    """What loading and carrying out the training says, with a part of it replaced."""
    assert old in TRAINING
    file = tmp_path / "training.yaml"
    file.write_text(TRAINING.replace(old, new))
    with pytest.raises(SpecError) as error:
        execute(load_resources(file), MemoryReporter())
    return sentence_of(error).replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("old", "new", "said"),
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
            ["spec.input[0].recordingRef", "'expert'", "the given files define none"],
        ),
        ("path: data", "sampler: {}", ["training.yaml:9", "spec.input[0].sampler", "does not apply to BC"]),
        ("stop: {iterations: 1}", "stop: {}", ["spec.stop", "at least one of", "episodeReturnMean"]),
        ("metadata: {name: clone}", "metadata: {name: [", ["training.yaml:", "not valid YAML"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_resource(tmp_path: Path, old: str, new: str, said: list[str]) -> None:
    text = refused(tmp_path, old, new)
    assert all(part in text for part in said), text


def write(folder: Path, block: Block) -> Path:
    with BlockWriter(resolve(folder), DataSpec.from_block(block), "000000-test") as writer:
        writer.write(block)
    return folder


def refusal(tmp_path: Path, data: Path, environment: dict[str, object] | None = None, **spec: object) -> str:
    resource = training(tmp_path / "runs", data, environment=environment or WALK, **spec)
    with pytest.raises(DataError) as error:
        train(resource)
    return sentence_of(error)


def test_a_dataset_without_episodes(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "empty holds no files" in refusal(tmp_path, empty)


def test_a_start_from_nothing_is_refused_before_data_are_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "training.yaml"
    file.write_text(TRAINING + "  initialCheckpoint: DOES_NOT_EXIST\n")
    with pytest.raises(DataError) as error:
        execute(load_resources(file), MemoryReporter())
    assert re.search(
        r"training\.yaml:\d+: OfflineTraining/clone: spec\.initialCheckpoint: ", sentence_of(error)
    )


def test_an_option_that_a_custom_algorithm_requires(walks: Path, tmp_path: Path) -> None:
    resource = training(tmp_path / "runs", walks, algorithm="algorithm_toys:Demanding", config={})
    with pytest.raises(SpecError, match=r"^spec\.customConfig\.z is missing$"):
        make_algorithm(resource)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "nowhere does not exist" in refusal(tmp_path, tmp_path / "nowhere")


def test_observations_of_another_shape_than_the_environments(walks: Path, tmp_path: Path) -> None:
    text = refusal(tmp_path, walks, {"id": "Pendulum-v1"})
    assert str(walks) in text
    assert "'obs' is float32 [4]" in text
    assert "(3,)" in text


def test_nan_in_an_observation(walks: Path, tmp_path: Path) -> None:
    block = read_all(walks)
    block.columns["obs"] = block.columns["obs"].copy()
    block.columns["obs"][block.obs_start[7] + 2, 1] = np.nan
    text = refusal(tmp_path, write(tmp_path / "bad", block))
    assert "000000-test-000.parquet" in text
    assert "row 7" in text
    assert "t = 2" in text
    assert "'obs' has nan" in text


def test_an_action_outside_the_space(walks: Path, tmp_path: Path) -> None:
    block = read_all(walks)
    block.columns["actions"] = block.columns["actions"].copy()
    block.columns["actions"][block.start[4]] = 9
    text = refusal(tmp_path, write(tmp_path / "bad", block))
    assert "000000-test-000.parquet" in text
    assert "row 4" in text
    assert "9" in text


def test_a_truncated_file(walks: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(walks, folder)
    file = sorted(folder.glob("*.parquet"))[1]
    file.write_bytes(file.read_bytes()[:-50])
    assert file.name in refusal(tmp_path, folder)


def test_a_column_that_the_algorithm_needs_is_missing(walks: Path, tmp_path: Path) -> None:
    block = read_all(walks)
    without = block.with_columns({name: c for name, c in block.columns.items() if name != "actions"})
    assert "actions" in refusal(tmp_path, write(tmp_path / "bad", without))


@pytest.mark.parametrize("algorithm", REWARDED)
def test_data_without_rewards(tmp_path: Path, algorithm: str) -> None:
    environment = WALK["id"] if algorithm in OF_CHOICES else "toy_environments:Steered"
    record(recording(tmp_path / "data", environment={"id": environment}, duration={"episodes": 3}))
    block = read_all(tmp_path / "data")
    without = block.with_columns({name: c for name, c in block.columns.items() if name != "rewards"})
    data = write(tmp_path / "bad", without)
    text = refusal(tmp_path, data, {"id": environment}, algorithm=algorithm, config={})
    assert "has no column rewards, which the algorithm needs" in text


def test_an_environment_that_raises_names_its_line(walks: Path, tmp_path: Path) -> None:
    resource = training(
        tmp_path,
        walks,
        environment={"id": "toy_environments:Wrong", "kwargs": {"what": "step"}},
        evaluation={"interval": 1, "duration": 2},
    )
    with pytest.raises(UserCodeError, match=r"toy_environments\.py:\d+") as error:
        train(resource)
    assert sentence_of(error)
