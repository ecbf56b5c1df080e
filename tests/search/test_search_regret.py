"""A search chooses what an environment would have chosen; the environment is used only to check that."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from hindcast.api import EnvironmentSpec
from hindcast.evaluate.environment import evaluate_policy
from hindcast.models.policy import Policy
from hindcast.search import Trial, search
from support import WALK, record, recording, training
from toy_environments import Walk

SPEC = EnvironmentSpec.model_validate(WALK)


def play_trial(trial: Trial) -> float:
    """Return the true mean return of a trial's first run."""
    policy = Policy.load(str(trial.runs[0].checkpoint))
    return float(
        evaluate_policy(policy, SPEC, duration=200, seed=7, explore=True).summary()["episode_return_mean"]
    )


@pytest.mark.slow
def test_winner_is_near_best_in_hindsight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The regret is at most a tenth of the difference between the best trial and the worst.

    `Walk` pays the number of the action, 0 to 2, and was played at random: a clone earns half of the maximum.
    """
    record(recording(tmp_path / "data", duration={"episodes": 400}))
    resource = training(
        tmp_path / "runs",
        tmp_path / "data",
        algorithm="MARWIL",
        config={"trainBatchSizePerLearner": 256, "lr": 0.01},
        evaluation={"offline": {"heldOut": 0.3, "estimates": ["pdwis"], "explore": True, "gamma": 1.0}},
        stop={"updates": 30},
    )
    steps = Mock(side_effect=AssertionError("nothing is to be played"))
    with monkeypatch.context() as patch:
        patch.setattr(Walk, "step", steps)
        result = search(resource, {"config.beta": [0.0, 0.5, 2.0]}, output=tmp_path / "search")
    assert steps.call_count == 0
    returns = {trial.number: play_trial(trial) for trial in result.trials}
    best, worst = max(returns.values()), min(returns.values())
    assert result.best is not None
    assert returns[result.best.number] >= best - 0.1 * (best - worst)
