"""A mistake in data or components is one sentence with its place; test_api_loading.py has mistakes in resources."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hindcast.algorithms import build
from hindcast.api.options import algorithms
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError, SpecError, UserCodeError, UserError
from hindcast.formats.spec import DataSpec
from hindcast.run.training.algorithm import make_algorithm
from hindcast.storage.location import resolve
from support import WALK, read_all, record, recording, train, training
from user_errors import raises_user_error

ALGORITHMS_WITH_REWARDS = [
    name for name in algorithms("OfflineTraining") if "rewards" in build(name, {}).needs().columns
]
DISCRETE_ALGORITHMS = ("DQN", "DiscreteCQL", "DiscreteSAC")
STEERED_WALK = {"id": "toy_environments:SteeredWalk"}
FAULTY_ENVIRONMENT = {"id": "toy_environments:FaultyEnv", "kwargs": {"what": "step"}}


def train_and_fail(
    folder: Path, data: object, error: type[UserError], match: str, place: dict[str, Any], **spec: Any
) -> None:
    """Check that a training fails with an error of one line, at this place."""
    with raises_user_error(error, match, **place) as error_info:
        train(training(folder / "runs", data, **{"environment": WALK, **spec}))
    assert "\n" not in str(error_info.value)


def write_changed_copy(source: Path, folder: Path, change: Callable[[Block], object]) -> Path:
    """Write the episodes of a dataset after a change in place, eight to a file."""
    block = read_all(source)
    block = block.with_columns({name: column.copy() for name, column in block.columns.items()})
    change(block)
    with BlockWriter(resolve(folder), DataSpec.from_block(block), "data", max_rows_per_file=8) as writer:
        writer.write(block)
    return folder


def narrow_observations(block: Block) -> None:
    block.columns["obs"] = block.columns["obs"][:, :3]


def set_observation(value: float) -> Callable[[Block], None]:
    """Return a change of an observation at t = 2 of episode 10."""

    def change(block: Block) -> None:
        block.columns["obs"][block.obs_start[10] + 2, 1] = value

    return change


def set_first_action(block: Block) -> None:
    block.columns["actions"][0] = 7


def add_half_to_actions(block: Block) -> None:
    block.columns["actions"] = block.columns["actions"].astype(np.float32) + 0.5


FIRST_ROW = {"path": "data-000.parquet", "row": 0}
IN_EPISODE_10 = {"path": "data-001.parquet", "row": 2, "step": 2}
DATA_MISTAKES: dict[str, tuple[Callable[[Block], object], str, dict[str, Any]]] = {
    "shape": (
        narrow_observations,
        r"data-000.parquet, row 0: 'obs' is float32 \[3\], but the space has .*\[4\]",
        {},
    ),
    "NaN": (set_observation(np.nan), "'obs' has nan.*expected a finite number", IN_EPISODE_10),
    "infinity": (set_observation(np.inf), "'obs' has inf.*expected a finite number", IN_EPISODE_10),
    "action": (set_first_action, r"'actions' has 7, expected .*\[0, 2\]", {**FIRST_ROW, "step": 0}),
    "fraction": (add_half_to_actions, r"'actions' has \d\.5, expected an integer", FIRST_ROW),
    "no actions": (lambda block: block.columns.pop("actions"), "'actions'", {}),
}
"""Name -> change of valid episodes, pattern of the message, place of the error."""


@pytest.mark.parametrize("mistake", DATA_MISTAKES)
def test_invalid_data_are_reported_with_their_place(tmp_path: Path, walks: Path, mistake: str) -> None:
    change, message, place = DATA_MISTAKES[mistake]
    train_and_fail(tmp_path, write_changed_copy(walks, tmp_path / "data", change), DataError, message, place)


def test_missing_or_damaged_data_are_named(tmp_path: Path, walks: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun/_hindcast").mkdir(parents=True)
    damaged_folder = Path(shutil.copytree(walks, tmp_path / "damaged"))
    damaged_file, removed_file, *_ = sorted(damaged_folder.glob("*.parquet"))
    damaged_file.write_bytes(damaged_file.read_bytes()[:-50])
    for name, message in {
        "nowhere": f"{tmp_path}/nowhere does not exist",
        "empty": "empty holds no files",
        "begun": "committed no episodes yet",
        "damaged": str(damaged_file),
    }.items():
        train_and_fail(tmp_path, tmp_path / name, DataError, message, {})
    shutil.copy(walks / damaged_file.name, damaged_file)
    removed_file.unlink()
    train_and_fail(tmp_path, damaged_folder, DataError, str(removed_file), {})


def test_recordings_of_different_spaces_are_refused(tmp_path: Path, walks: Path) -> None:
    record(recording(tmp_path / "other", environment={"id": "toy_environments:Continuous"}))
    inputs = [{"path": str(walks)}, {"path": str(tmp_path / "other")}]
    train_and_fail(tmp_path, "", DataError, "cannot be one dataset", {}, input=inputs)


@pytest.fixture(scope="module")
def data_without_rewards(tmp_path_factory: pytest.TempPathFactory, walks: Path) -> dict[str, Path]:
    """Environment -> episodes without rewards."""
    folder = tmp_path_factory.mktemp("without_rewards")
    record(recording(folder / "steered", environment=STEERED_WALK, duration={"episodes": 3}))
    sources = {WALK["id"]: walks, STEERED_WALK["id"]: folder / "steered"}
    return {
        environment: write_changed_copy(
            source, folder / str(index), lambda block: block.columns.pop("rewards")
        )
        for index, (environment, source) in enumerate(sources.items())
    }


@pytest.mark.parametrize("algorithm", ALGORITHMS_WITH_REWARDS)
def test_missing_rewards_are_named(
    tmp_path: Path, algorithm: str, data_without_rewards: dict[str, Path]
) -> None:
    environment = WALK if algorithm in DISCRETE_ALGORITHMS else STEERED_WALK
    message = "has no column rewards, which the algorithm needs"
    spec = {"environment": environment, "algorithm": algorithm, "config": {}}
    train_and_fail(tmp_path, data_without_rewards[environment["id"]], DataError, message, {}, **spec)


def test_missing_option_of_custom_algorithm_is_named(walks: Path, tmp_path: Path) -> None:
    resource = training(tmp_path / "runs", walks, algorithm="algorithm_toys:WithRequiredOption", config={})
    with raises_user_error(SpecError, "is missing$", field="spec.customConfig.z"):
        make_algorithm(resource)


@pytest.mark.parametrize(
    ("toy", "options", "message"),
    [
        (
            "Sequences",
            {"maxSeqLen": 17},
            "16 timesteps, which make 0 sequences of 17: each learner needs at least one",
        ),
        ("Sequences", {"burnIn": 5}, r"Sequences\.needs raised ValueError at .*toys\.py:\d+: burn_in is 5"),
        ("WithoutPriorities", {}, "the losses of the previous batch returned no priorities"),
    ],
)
def test_items_that_a_custom_algorithm_cannot_have_are_reported(
    toy: str, options: dict[str, Any], message: str, walks: Path, tmp_path: Path
) -> None:
    options = {"trainBatchSizePerLearner": 16, **options}
    spec = {"algorithm": f"algorithm_toys:{toy}", "config": {}, "customConfig": options}
    train_and_fail(tmp_path, walks, UserError, message, {}, stop={"iterations": 2}, **spec)


def test_unknown_environment_suggests_id_and_corrected_training_succeeds(walks: Path, tmp_path: Path) -> None:
    message = "there is no Gymnasium environment 'CartPoel-v1'.*'CartPole-v1'"
    place = {"field": "spec.environment.id"}
    train_and_fail(tmp_path, walks, SpecError, message, place, environment={"id": "CartPoel-v1"})
    assert train(training(tmp_path / "runs", walks)).state == "Succeeded"


def test_environment_error_names_line(walks: Path, tmp_path: Path) -> None:
    evaluation = {"interval": 1, "duration": 2}
    spec = {"environment": FAULTY_ENVIRONMENT, "evaluation": evaluation}
    train_and_fail(tmp_path, walks, UserCodeError, r"toy_environments\.py:\d+", {}, **spec)
