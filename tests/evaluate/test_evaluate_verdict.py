"""A verdict is wrong no more often than it says, and names why nothing can be said."""

from __future__ import annotations

import numpy as np
import pytest
from chain_mdp import Chain

from hindcast.evaluate.estimators import effective_episodes, estimates
from hindcast.evaluate.intervals import resamples
from hindcast.evaluate.verdict import Verdict, no_verdict, verdict_from_model, verdict_from_resamples


@pytest.mark.parametrize("by", ["wdr", "pdwis"])
def test_is_wrong_in_its_share_of_cases(by: str) -> None:
    """200 recordings of random MDPs; in half of them it does not matter what is done."""
    wrong = right = 0
    for seed in range(200):
        chain = Chain(seed, actions_matter=seed % 2 == 0)
        recorded = chain.recorded(200, seed)
        found = estimates(recorded, resamples(200, 200, seed))
        effective = effective_episodes(recorded.weights[recorded.last_step])
        verdict = verdict_from_resamples(
            found[by][1:] - found["behaviour"][1:], found["behaviour"][1:], by, effective
        )
        gain = chain.truth - chain.truth_of_behaviour
        truth = "unknown" if abs(gain) < 1e-9 else "better" if gain > 0 else "worse"
        wrong += verdict.answer not in ("unknown", truth)
        right += verdict.answer == truth != "unknown"
    assert wrong <= 0.05 * 200, wrong
    assert right >= 50


def test_says_how_likely_it_is() -> None:
    gains = np.append(np.ones(96), -np.ones(4))
    assert verdict_from_resamples(gains, gains, "wdr", 412.3) == Verdict(
        "better",
        pytest.approx(0.96),
        "wdr",
        "better than the behaviour: 0.96 likely; 412 effective episodes",
    )
    assert verdict_from_resamples(-gains, gains, "wdr", 412.3).answer == "worse"
    assert verdict_from_resamples(gains[50:], gains, "wdr", 20).sentence == (
        "inconclusive: 0.92 likely to be better than the behaviour; 20 effective episodes"
    )


def test_without_any_difference_either_is_as_likely() -> None:
    returns = np.linspace(0, 1, 100)
    assert verdict_from_resamples(np.full(100, 1e-6), returns, "wdr", 100).probability == 0.5


def test_of_a_model_alone() -> None:
    verdict = verdict_from_model(2.0, 1.0, "dm", "the policy's actions have no density")
    assert (verdict.answer, verdict.probability) == ("better", pytest.approx(0.977, abs=1e-3))
    assert "by the model alone: the policy's actions have no density" in verdict.sentence
    assert verdict_from_model(1.0, 0.0, "dm", "").answer == "unknown"


def test_says_why_nothing_can_be_said() -> None:
    assert no_verdict("no model was asked for").sentence == "nothing can be said: no model was asked for"
    assert verdict_from_resamples(np.array([1.0, np.nan]), np.ones(2), "wdr", 3).answer == "unknown"
