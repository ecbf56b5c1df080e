"""Verdicts: wrong no more often than they state, and right about as often as before; unknown verdicts have a reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from null_recordings import NULL_KINDS, Recording, make_better, with_rare_catastrophe
from recorded_mdp import ContinuousMdp, TabularMdp

from hindcast.api.evaluation import RATIO_ESTIMATES
from hindcast.evaluate.behaviour_clone import CloneOptions
from hindcast.evaluate.estimators import (
    Evidence,
    compute_estimates,
    effective_episodes,
    jackknife_contributions,
)
from hindcast.evaluate.fitted_q import FittedQOptions
from hindcast.evaluate.intervals import t_probability, t_quantile
from hindcast.evaluate.offline import MIN_EFFECTIVE_EPISODES, OfflineOptions, evaluate_offline
from hindcast.evaluate.verdict import Difference, Verdict, make_verdict, no_verdict
from layers import repeats

LEVEL = 0.9
NUM_RECORDINGS = repeats(30, soak=200)


def judge(recording: Recording, estimate: str) -> Verdict:
    """Return the verdict as an evaluation gives it."""
    evidence = recording.evidence()
    if recording.has_under_recorded_actions:
        return no_verdict("the policy takes actions that were hardly recorded")
    if effective_episodes(evidence.weights[evidence.last_step]) < MIN_EFFECTIVE_EPISODES:
        return no_verdict("too little overlap")
    estimates = compute_estimates(evidence, np.ones((1, len(evidence.length))))
    difference = Difference.by_ratios(evidence, estimate, estimates, jackknife_contributions(evidence))
    return make_verdict(difference, estimate, LEVEL)


def count_answers(make: Callable[[int], Recording], estimate: str) -> dict[str, int]:
    """Return answer -> number of recordings with it."""
    answers = [judge(make(seed), estimate).answer for seed in range(NUM_RECORDINGS)]
    return {answer: answers.count(answer) for answer in ("better", "worse", "unknown")}  # type: ignore[arg-type]


def is_at_most(count: int, share: float, total: int = NUM_RECORDINGS) -> bool:
    """Return True if a count of the recordings is at most a share plus two standard errors."""
    return count <= total * share + 2 * math.sqrt(total * share * (1 - share))


@pytest.mark.soak
@pytest.mark.parametrize("kind", NULL_KINDS)
def test_verdict_without_difference_is_wrong_no_more_often_than_stated(kind: str) -> None:
    if kind == "2,000 episodes" and NUM_RECORDINGS < 200:
        pytest.skip("takes seconds, and differs from 200 episodes in their number only")
    # A clone alone gives no verdict: see `test_clone_alone_gives_no_verdict`.
    for estimate in ("wdr",) if kind == "cloned" else ("wdr", "pdwis"):
        answers = count_answers(NULL_KINDS[kind], estimate)
        assert is_at_most(answers["better"] + answers["worse"], 1 - LEVEL), (estimate, answers)


@pytest.mark.soak
@pytest.mark.parametrize("num_episodes", [200, 600])
@pytest.mark.parametrize("estimate", ["wdr", "pdwis"])
def test_verdict_on_under_recorded_catastrophe_is_not_better(estimate: str, num_episodes: int) -> None:
    answers = count_answers(lambda seed: with_rare_catastrophe(seed, num_episodes), estimate)
    assert is_at_most(answers["better"], 0.05), answers


@pytest.mark.soak
@pytest.mark.parametrize(("estimate", "min_share"), [("pdwis", 0.7), ("wdr", 0.4)])
def test_verdict_with_difference_is_right_in_most_recordings(estimate: str, min_share: float) -> None:
    answers = count_answers(lambda seed: make_better(seed, 0.2, 200), estimate)
    assert is_at_most(NUM_RECORDINGS - answers["better"], 1 - min_share), answers
    assert is_at_most(answers["worse"], 0.05)


@pytest.mark.soak
@pytest.mark.slow
def test_verdict_without_difference_on_scaled_actions_is_wrong_no_more_often_than_stated(
    tmp_path: Path,
) -> None:
    """The target acts as far above the goal as the recorded policy does below it."""
    answers = []
    for seed in range(repeats(6, soak=200)):
        mdp = ContinuousMdp(3)
        mdp.behaviour, mdp.target = mdp.goal - 0.1, mdp.goal + 0.1
        policy, data = mdp.record_scaled(tmp_path / str(seed), 100, seed=seed)
        options = OfflineOptions(explore=True, gamma=mdp.gamma, fit=None, resamples=2, level=LEVEL)
        answers.append(evaluate_offline(policy, data, "data", options).verdict.answer)
    assert is_at_most(len(answers) - answers.count("unknown"), 1 - LEVEL, len(answers)), answers


@pytest.mark.parametrize(("weights", "answer"), [((0.8, 0.6), "unknown"), ((1.1, 0.9), "better")])
def test_missing_weight_widens_the_interval(weights: tuple[float, float], answer: str) -> None:
    """Half of the episodes have the first weight and the return 1, the others the second one and 0."""
    rewards = np.tile([1.0, 0.0], 100)
    evidence = Evidence(np.ones(200, np.int64), rewards, 1.0, np.log(np.tile(weights, 100)))
    estimates = compute_estimates(evidence, np.ones((1, 200)))
    difference = Difference.by_ratios(evidence, "wis", estimates, jackknife_contributions(evidence))
    assert make_verdict(difference, "wis", LEVEL).answer == answer


@pytest.mark.parametrize("logp_factor", [1.0, 2.0])
def test_ratios_are_one_when_densities_follow_scaled_actions(tmp_path: Path, logp_factor: float) -> None:
    mdp = ContinuousMdp(3)
    mdp.target = mdp.behaviour
    policy, data = mdp.record_scaled(tmp_path, 60, logp_factor=logp_factor)
    report = evaluate_offline(policy, data, "data", OfflineOptions(explore=True, gamma=0.9, fit=None))
    if logp_factor == 1.0:
        assert report.effective_episodes == pytest.approx(60, rel=1e-3)
        assert report.estimates["is"].value == pytest.approx(report.behaviour.value, rel=1e-3)
    else:
        reason = "the importance ratios of single steps have the mean 2, expected 1"
        assert report.verdict.sentence.startswith(f"no verdict: {reason}")
    assert report.verdict.answer == "unknown"


@pytest.mark.parametrize("estimates", [(), *((name,) for name in RATIO_ESTIMATES), RATIO_ESTIMATES])
def test_clone_alone_gives_no_verdict(tmp_path: Path, estimates: tuple[str, ...]) -> None:
    """Commands, pages, JSON and searches show this verdict; a gate refuses data without log-probabilities."""
    mdp = TabularMdp(5)
    data = mdp.record(tmp_path, 60, 0, logp=False)
    clone = CloneOptions(updates=20)
    options = OfflineOptions(explore=True, fit=None, clone=clone, estimates=estimates)
    verdict = evaluate_offline(mdp.make_policy(), data, "data", options).verdict
    assert "a clone of it decides nothing alone" in verdict.sentence


def test_model_that_has_not_converged_does_not_decide(tmp_path: Path) -> None:
    mdp = TabularMdp(5)
    data = mdp.record(tmp_path, 60, 0, logp=True)
    options = OfflineOptions(explore=True, fit=FittedQOptions(updates=20), estimates=("wdr",))
    verdict = evaluate_offline(mdp.make_policy(), data, "data", options).verdict
    assert verdict.sentence.startswith("no verdict: the model has not converged: its value changed by ")


def test_action_that_was_hardly_recorded_is_named(tmp_path: Path) -> None:
    mdp = TabularMdp(5)
    mdp.chain.behaviour, mdp.chain.target = np.full(4, 0.004), np.full(4, 0.04)
    data = mdp.record(tmp_path, 200, 0, logp=True)
    report = evaluate_offline(mdp.make_policy(), data, "data", OfflineOptions(explore=True, fit=None))
    assert list(report.under_recorded) == ["1"], "keys as in JSON"
    reason = "the policy takes actions that were recorded fewer than 10 times: 1 ("
    assert report.verdict.sentence.startswith(f"no verdict: {reason}")


def test_sentence_begins_with_difference_and_states_probability() -> None:
    assert make_verdict(Difference(1.0, 0.25, 1000), "wdr", LEVEL, "412 effective episodes").sentence == (
        "+1 [0.588, 1.41]: probably better than the recorded policy (>99 %; by wdr; 412 effective episodes)"
    )
    assert make_verdict(Difference(-1.0, 0.25, 1000), "wdr", LEVEL).answer == "worse"
    assert make_verdict(Difference(0.1, 0.25, 1000), "wdr", LEVEL, "greedy actions").sentence == (
        "+0.1 [-0.312, 0.512]: inconclusive (66 % chance that it is better than the recorded policy; by wdr; "
        "greedy actions)"
    )


def test_verdict_without_error_has_probability_one_half() -> None:
    assert make_verdict(Difference(1e-9, 0.0, 1), "wdr", LEVEL).probability == 0.5


def test_no_verdict_gives_reason() -> None:
    assert no_verdict("no model was requested").sentence == "no verdict: no model was requested"
    assert make_verdict(None, "wdr", LEVEL).sentence == "no verdict: one episode has all the weight"


@pytest.mark.parametrize("degrees_of_freedom", [1, 1.5, 2, 3, 10, 1000, 1e6])
def test_t_probability_inverts_t_quantile(degrees_of_freedom: float) -> None:
    for probability in (0.5, 0.6, 0.9, 0.95, 0.9995):
        quantile = t_quantile(probability, degrees_of_freedom)
        assert t_probability(quantile, degrees_of_freedom) == pytest.approx(probability, abs=1e-6)
        assert t_probability(-quantile, degrees_of_freedom) == pytest.approx(1 - probability, abs=1e-6)


@pytest.mark.parametrize(
    ("num_different", "expected"),
    [
        # One episode has all of the variance; ten equal ones share it; the gains of all are +1 or -1.
        (1, 2.0),
        (10, 20.0),
        (200, 199.0),
    ],
)
def test_degrees_of_freedom_count_the_episodes_that_cause_the_variance(
    num_different: int, expected: float
) -> None:
    ratios = np.ones(200)
    ratios[:num_different] += np.resize([0.5, -0.5], num_different)
    evidence = Evidence(np.ones(200, np.int64), np.ones(200), 1.0, np.log(ratios))
    estimates = compute_estimates(evidence, np.ones((1, 200)))
    difference = Difference.by_ratios(evidence, "is", estimates, jackknife_contributions(evidence))
    assert difference is not None
    assert difference.degrees_of_freedom == pytest.approx(expected, rel=0.06)
