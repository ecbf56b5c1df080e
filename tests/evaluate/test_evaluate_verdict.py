"""Verdicts: wrong no more often than they state; unknown verdicts have a reason."""

from __future__ import annotations

import numpy as np
import pytest
from chain_mdp import Chain

from hindcast.evaluate.estimators import compute_estimates, effective_episodes
from hindcast.evaluate.intervals import resample_counts
from hindcast.evaluate.verdict import Verdict, no_verdict, verdict_from_model, verdict_from_resamples


@pytest.mark.parametrize("estimate", ["wdr", "pdwis"])
def test_verdict_is_wrong_no_more_often_than_stated(estimate: str) -> None:
    """In half of the 200 random MDPs, actions do not matter."""
    num_wrong = num_right = 0
    for seed in range(200):
        chain = Chain(seed, actions_matter=seed % 2 == 0)
        evidence = chain.record(200, seed)
        values = compute_estimates(evidence, resample_counts(200, 200, seed))
        num_effective = effective_episodes(evidence.weights[evidence.last_step])
        verdict = verdict_from_resamples(
            values[estimate][1:] - values["behaviour"][1:], values["behaviour"][1:], estimate, num_effective
        )
        gain = chain.target_return - chain.behaviour_return
        truth = "unknown" if abs(gain) < 1e-9 else "better" if gain > 0 else "worse"
        num_wrong += verdict.answer not in ("unknown", truth)
        num_right += verdict.answer == truth != "unknown"
    assert num_wrong <= 0.05 * 200, num_wrong
    assert num_right >= 50


def test_sentence_states_probability() -> None:
    gains = np.append(np.ones(96), -np.ones(4))
    assert verdict_from_resamples(gains, gains, "wdr", 412.3) == Verdict(
        "better",
        pytest.approx(0.96),
        "wdr",
        "probably better than the recorded policy (96 %; 412 effective episodes)",
    )
    assert verdict_from_resamples(-gains, gains, "wdr", 412.3).answer == "worse"
    assert verdict_from_resamples(gains[50:], gains, "wdr", 20).sentence == (
        "inconclusive: 92 % chance that it is better than the recorded policy (20 effective episodes)"
    )


def test_verdict_without_difference_has_probability_one_half() -> None:
    returns = np.linspace(0, 1, 100)
    assert verdict_from_resamples(np.full(100, 1e-6), returns, "wdr", 100).probability == 0.5


def test_verdict_from_model_names_reason_and_is_unknown_without_spread() -> None:
    verdict = verdict_from_model(2.0, 1.0, "dm", "the policy's actions have no density")
    assert (verdict.answer, verdict.probability) == ("better", pytest.approx(0.977, abs=1e-3))
    assert "by the model alone: the policy's actions have no density" in verdict.sentence
    assert verdict_from_model(1.0, 0.0, "dm", "").answer == "unknown"


def test_no_verdict_gives_reason() -> None:
    assert no_verdict("no model was requested").sentence == "no verdict: no model was requested"
    assert verdict_from_resamples(np.array([1.0, np.nan]), np.ones(2), "wdr", 3).answer == "unknown"
