"""Algorithms on each kind of item and with targets: streaming equals resident, and trainings resume exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from hindcast.algorithms import build
from hindcast.errors import Interrupted, UserError
from hindcast.learn.checkpoint import CheckpointStore
from hindcast.run.interruption import Interruption
from hindcast.storage.location import resolve
from layers import slow_except
from support import StopAfter, train, training

TOYS: dict[str, dict[str, Any]] = {
    "LambdaReturns": {},
    "LambdaReturns, refreshed": {"targetsEvery": 4},
    "NStepQ": {},
    "CausalMean": {},
    "PrioritisedQ": {},
    "WithoutPriorities": {},
}
toys = pytest.mark.parametrize(
    "toy", [toy for toy in TOYS if toy not in ("PrioritisedQ", "WithoutPriorities")]
)


class KillAfter(StopAfter):
    """Ends the training without a checkpoint, as a kill does."""

    def check(self) -> None:
        try:
            super().check()
        except Interrupted:
            raise RuntimeError("killed") from None


stops = pytest.mark.parametrize("stop", [StopAfter, KillAfter])


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
    (run_folder,) = (folder / "test").iterdir()
    results = [orjson.loads(line) for line in (run_folder / "results.jsonl").read_text().splitlines()]
    store = CheckpointStore(resolve(run_folder / "checkpoints"))
    weights = store.latest().record.files["module/weights.safetensors"]
    return [[result["learners"]["default_policy"] for result in results], weights.sha256]


@toys
def test_streaming_equals_resident(toy: str, walks: Path, tmp_path: Path) -> None:
    resident = fit(toy, tmp_path / "resident", walks, residency="Resident")
    assert resident == fit(toy, tmp_path / "streaming", walks, residency="Streaming")
    first_loss, last_loss = (iteration["total_loss"] for iteration in (resident[0][0], resident[0][-1]))
    assert last_loss < first_loss


@toys
@pytest.mark.parametrize("residency", slow_except(["Streaming"], ["Resident", "Streaming"]))
@stops
def test_stopped_training_equals_uninterrupted_training(
    toy: str, residency: str, stop: type[StopAfter], walks: Path, tmp_path: Path
) -> None:
    reference = fit(toy, tmp_path / "uninterrupted", walks, residency=residency)
    for updates in (13, 12):  # within an iteration, and once more after resuming
        with pytest.raises((Interrupted, RuntimeError)):
            fit(toy, tmp_path / "interrupted", walks, stop(updates), residency=residency)
    assert fit(toy, tmp_path / "interrupted", walks, residency=residency) == reference


@stops
def test_training_on_prioritised_draws_resumes_exactly(
    stop: type[StopAfter], walks: Path, tmp_path: Path
) -> None:
    reference = fit("PrioritisedQ", tmp_path / "uninterrupted", walks)
    for updates in (13, 12):
        with pytest.raises((Interrupted, RuntimeError)):
            fit("PrioritisedQ", tmp_path / "interrupted", walks, stop(updates))
    assert fit("PrioritisedQ", tmp_path / "interrupted", walks) == reference


def test_missing_priorities_are_reported(walks: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the losses of the previous batch returned no priorities"):
        fit("WithoutPriorities", tmp_path, walks)


def test_age_of_targets_is_reported(walks: Path, tmp_path: Path) -> None:
    fit("LambdaReturns, refreshed", tmp_path, walks)
    lines = (tmp_path / "test" / "r1" / "results.jsonl").read_text().splitlines()
    ages = [orjson.loads(line)["targets_age"] for line in lines]
    assert all(1 <= age <= 4 for age in ages)


def test_timesteps_of_sequences_include_padding(walks: Path, tmp_path: Path) -> None:
    """A batch of 16 timesteps has three sequences of 5."""
    fit("CausalMean", tmp_path, walks)
    last_result = orjson.loads((tmp_path / "test" / "r1" / "results.jsonl").read_text().splitlines()[-1])
    assert (
        last_result["num_env_steps_trained_lifetime"] == last_result["num_updates_lifetime"] * (16 // 5) * 5
    )


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "CausalMean": (
        {"maxSeqLen": 17},
        "16 timesteps, which make 0 sequences of 17: each learner needs at least one",
    ),
    "CausalMean, burn-in": (
        {"burnIn": 5},
        r"CausalMean\.needs raised ValueError at .*algorithm_toys.py:\d+: burn_in is 5",
    ),
    "ShortTargets": (
        {},
        r"ShortTargets\.targets at .*algorithm_toys.py:\d+ returned 'value_targets' of shape \[\d+\] for a window of",
    ),
    "RaisingTargets": (
        {},
        r"RaisingTargets\.targets raised KeyError at .*algorithm_toys.py:\d+: 'no_such_column'",
    ),
}


@pytest.mark.parametrize("toy", MISTAKES)
def test_invalid_algorithm_is_reported(
    toy: str, walks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, message = MISTAKES[toy]
    monkeypatch.setitem(TOYS, toy, options)
    with pytest.raises(UserError, match=message):
        fit(toy, tmp_path, walks)


def test_n_step_option_sets_needs() -> None:
    assert build("algorithm_toys:NStepQ", {"nStep": 7}).needs().n_step == 7
