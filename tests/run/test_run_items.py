"""Algorithms on each kind of item and with targets: streaming equals resident, and trainings resume exactly."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from hindcast.algorithms import build
from hindcast.errors import Interrupted, UserError
from hindcast.learn.checkpoint import CheckpointStore
from hindcast.run.interruption import Interruption
from hindcast.storage.location import resolve
from layers import slow_except
from run_results import read_results
from support import StopAfter, train, training

TOYS: dict[str, dict[str, Any]] = {
    "LambdaReturns": {},
    "LambdaReturns, refreshed": {"targetsEvery": 4},
    "NStepQ": {},
    "CausalMean": {},
    "CausalMean, long sequences": {"maxSeqLen": 17},
    "CausalMean, long burn-in": {"burnIn": 5},
    "PrioritisedQ": {},
    "WithoutPriorities": {},
}
"""Algorithm of algorithm_toys.py, and what distinguishes a case of it -> its options."""
MISTAKES = {
    "CausalMean, long sequences": "16 timesteps, which make 0 sequences of 17: each learner needs at least one",
    "CausalMean, long burn-in": r"CausalMean\.needs raised ValueError at .*toys\.py:\d+: burn_in is 5",
    "WithoutPriorities": "the losses of the previous batch returned no priorities",
}
STREAMED_TOYS = [toy for toy in TOYS if toy not in (*MISTAKES, "PrioritisedQ")]


class KillAfter(StopAfter):
    """Ends the training without a checkpoint, as a kill does."""

    def check(self) -> None:
        try:
            super().check()
        except Interrupted:
            raise RuntimeError("killed") from None


def fit(
    toy: str, folder: Path, data: Path, interruption: Interruption | None = None, **pipeline: Any
) -> list[Any]:
    """Train; return metrics of each iteration and the hash of the final weights."""
    resource = training(
        folder,
        data,
        algorithm=f"algorithm_toys:{toy.partition(',')[0]}",
        customConfig={"trainBatchSizePerLearner": 16, **TOYS[toy]},
        config={},
        stop={"iterations": 4},
        checkpoint={"every": 1},
        pipeline={"windowSteps": 60, "datasetNumItersPerLearner": 9, **pipeline},
    )
    train(resource, interruption)
    store = CheckpointStore(resolve(folder / "test/r1/checkpoints"))
    weights = store.latest().record.files["module/weights.safetensors"]
    return [[result["learners"]["default_policy"] for result in read_results(folder)], weights.sha256]


@pytest.fixture(scope="module")
def fit_uninterrupted(
    walks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], list[Any]]:
    """`fit_uninterrupted(toy, residency)` returns the `fit` of a training without interruptions."""

    @cache
    def train_once(toy: str, residency: str) -> list[Any]:
        return fit(toy, tmp_path_factory.mktemp("uninterrupted"), walks, residency=residency)

    return train_once


@pytest.mark.parametrize("toy", STREAMED_TOYS)
def test_streaming_equals_resident(toy: str, fit_uninterrupted: Callable[[str, str], list[Any]]) -> None:
    resident = fit_uninterrupted(toy, "Resident")
    assert resident == fit_uninterrupted(toy, "Streaming")
    first_loss, last_loss = (iteration["total_loss"] for iteration in (resident[0][0], resident[0][-1]))
    assert last_loss < first_loss


@pytest.mark.parametrize(
    ("toy", "residency"),
    slow_except(
        [*((toy, "Streaming") for toy in STREAMED_TOYS), ("PrioritisedQ", "Resident")],
        [*product(STREAMED_TOYS, ("Streaming", "Resident")), ("PrioritisedQ", "Resident")],
    ),
)
@pytest.mark.parametrize("stop", [StopAfter, KillAfter])
def test_stopped_training_equals_uninterrupted_training(
    toy: str,
    residency: str,
    *,
    stop: type[StopAfter],
    walks: Path,
    tmp_path: Path,
    fit_uninterrupted: Callable[[str, str], list[Any]],
) -> None:
    for updates in (13, 12):  # within an iteration, and once more after resuming
        with pytest.raises((Interrupted, RuntimeError)):
            fit(toy, tmp_path, walks, stop(updates), residency=residency)
    assert fit(toy, tmp_path, walks, residency=residency) == fit_uninterrupted(toy, residency)


def test_age_of_targets_is_reported(walks: Path, tmp_path: Path) -> None:
    fit("LambdaReturns, refreshed", tmp_path, walks)
    assert all(1 <= result["targets_age"] <= 4 for result in read_results(tmp_path))


def test_timesteps_of_sequences_include_padding(walks: Path, tmp_path: Path) -> None:
    """A batch of 16 timesteps has three sequences of 5."""
    fit("CausalMean", tmp_path, walks)
    result = read_results(tmp_path)[-1]
    assert result["num_env_steps_trained_lifetime"] == result["num_updates_lifetime"] * (16 // 5) * 5


@pytest.mark.parametrize("toy", MISTAKES)
def test_invalid_algorithm_is_reported(toy: str, walks: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=MISTAKES[toy]):
        fit(toy, tmp_path, walks)


def test_n_step_option_sets_needs() -> None:
    assert build("algorithm_toys:NStepQ", {"nStep": 7}).needs().n_step == 7
