"""A search chooses a trial that is near the best in the environment, which is used only to check the choice."""

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

ENVIRONMENT = EnvironmentSpec.model_validate(WALK)


def play_trial(trial: Trial) -> float:
    """Return the true mean return of a trial's first run."""
    policy = Policy.load(str(trial.runs[0].checkpoint))
    return float(
        evaluate_policy(policy, ENVIRONMENT, duration=200, seed=7, explore=True).summary()[
            "episode_return_mean"
        ]
    )


@pytest.mark.slow
def test_winner_is_near_best_in_hindsight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The regret is at most a tenth of the difference between the best trial and the worst.

    The reward in `Walk` is the action, 0 to 2. The recorded actions are random, so a clone earns half of the maximum.
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
    step_mock = Mock(side_effect=AssertionError("a search must not play"))
    with monkeypatch.context() as patch:
        patch.setattr(Walk, "step", step_mock)
        result = search(resource, {"config.beta": [0.0, 0.5, 2.0]}, output=tmp_path / "search")
    assert step_mock.call_count == 0
    returns = {trial.number: play_trial(trial) for trial in result.trials}
    best, worst = max(returns.values()), min(returns.values())
    assert result.best is not None
    assert returns[result.best.number] >= best - 0.1 * (best - worst)
