"""State in one sentence whether a policy is better than the one that recorded the data.

The verdict is read off the interval of the difference between the two returns on the same episodes, so that their luck
cancels. tests/evaluate/test_evaluate_verdict.py measures how often it is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hindcast import formatting
from hindcast.api.evaluation import MODEL_ESTIMATES
from hindcast.evaluate.estimators import (
    Evidence,
    continuation_values,
    mean_contributions,
    missing_weight_margins,
)
from hindcast.evaluate.intervals import (
    F64,
    Interval,
    Variance,
    student_interval,
    t_probability,
    total_variance,
)

MIN_RECORDED_ACTIONS: Final = 10
"""Number of times that an action must be recorded before a verdict on a policy that takes it more often."""

_NEGLIGIBLE_ERROR: Final = 1e-6
"""Standard error up to which a difference counts as zero, in standard errors of the recorded return."""
_MAX_WEIGHT_ERRORS: Final = 2.0
"""Standard errors by which the mean weight of whole episodes may differ from 1 without a margin."""

Answer = Literal["better", "worse", "unknown"]


@dataclass(frozen=True)
class Verdict:
    """The comparison of a policy with the recorded policy.

    Attributes:
        answer: "better" or "worse" than the recorded policy if the interval excludes 0; else "unknown".
        probability: probability that the policy is better, 0 to 1; None without a usable estimate.
        estimate: name of the estimate that the verdict is based on; None without one.
        difference: the policy's discounted return minus the recorded policy's, on the same episodes; None without an
            estimate.
        interval: interval of the difference; None without one.
        sentence: the verdict in words.
    """

    answer: Answer
    probability: float | None
    estimate: str | None
    difference: float | None
    interval: Interval | None
    sentence: str


@dataclass(frozen=True)
class Difference:
    """The return of a policy minus the return of the recorded policy on the same episodes.

    Attributes:
        value: the difference.
        error: its standard error.
        degrees_of_freedom: degrees of freedom of the standard error.
        margin: width to add on each side of the interval.
    """

    value: float
    error: float
    degrees_of_freedom: float
    margin: float = 0.0

    @classmethod
    def by_ratios(
        cls,
        evidence: Evidence,
        name: str,
        estimates: Mapping[str, F64],
        contributions: Mapping[str, F64],
        model_variances: Sequence[Variance] = (),
    ) -> Difference | None:
        """Return the difference by an estimate that uses ratios, with its error and margin.

        Args:
            evidence: the recorded episodes.
            name: name of the estimate.
            estimates: result of `compute_estimates`, with the original episodes first.
            contributions: result of `jackknife_contributions`.
            model_variances: result of `estimators.model_variances`; they are added to the jackknife variance.

        Returns:
            The difference; None if one episode has all the weight.
        """
        value, behaviour_contributions = difference_to_recorded(evidence, name, estimates, contributions)
        return_error = float(np.sqrt(np.square(contributions["behaviour"]).sum()))
        squares = np.square(contributions[name] - behaviour_contributions)
        total = float(squares.sum())
        if not np.isfinite(total):
            return None
        error = float(np.sqrt(total * (1 - 1 / len(squares))))
        # Equal policies differ by rounding errors, which must not count as gains.
        if error <= _NEGLIGIBLE_ERROR * return_error:
            return cls(value, 0.0, 1)
        # Satterthwaite's degrees of freedom: 2·V² / Var(V), where V is the estimated variance, here the sum Σ qᵢ of N
        # squares. Var(V) is estimated by Σ qᵢ² - (Σ qᵢ)² / N. Normal samples have N - 1 degrees of freedom, the upper
        # bound; if one episode has all the variance, 2 remain.
        squared_total, num_episodes = total**2, len(squares)
        variance = float(np.square(squares).sum()) - squared_total / num_episodes
        degrees_of_freedom = 2 * squared_total / max(variance, 2 * squared_total / (num_episodes - 1))
        total_error = total_variance([Variance(error**2, degrees_of_freedom), *model_variances])
        weights = evidence.weights[evidence.last_step]
        weight_error = float(weights.std()) / np.sqrt(len(weights))
        # A smaller gap is chance, which the error includes: a margin for it would leave a third of the better policies
        # without a verdict (17 instead of 27 of 30 in tests/evaluate/test_evaluate_verdict.py).
        is_weight_missing = abs(float(weights.mean()) - 1) > _MAX_WEIGHT_ERRORS * weight_error
        margin = missing_weight_margins(evidence).get(name, 0.0) if is_weight_missing else 0.0
        return cls(value, float(np.sqrt(total_error.value)), total_error.degrees_of_freedom, margin)


def difference_to_recorded(
    evidence: Evidence, name: str, estimates: Mapping[str, F64], contributions: Mapping[str, F64]
) -> tuple[float, F64]:
    """Return an estimate minus the return of the recorded policy, and the contributions `[N]` to that return.

    Arguments: see `Difference.by_ratios`.
    """
    recorded_return, recorded_contributions = float(estimates["behaviour"][0]), contributions["behaviour"]
    if name in MODEL_ESTIMATES:
        # The recorded return does not include what followed cut-off episodes, so the model's value of it is added:
        # both policies are assumed to continue in the same way.
        continuation = continuation_values(evidence)
        recorded_return += float(continuation.mean())
        recorded_contributions = recorded_contributions + mean_contributions(continuation)
    return float(estimates[name][0]) - recorded_return, recorded_contributions


def compared_behaviour(evaluation: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    """Return the recorded policy's return that an estimate is compared with, as JSON.

    Estimates by a model include what followed cut-off episodes, so the recorded policy's return must too.

    Args:
        evaluation: `OfflineReport.to_json`.
        name: name of the estimate; None for none.

    Returns:
        The value and the interval; empty if there are none.
    """
    continued = evaluation.get("behaviour_continued") if name in MODEL_ESTIMATES else None
    behaviour: Mapping[str, Any] = continued or evaluation.get("behaviour", {})
    return behaviour


def find_under_recorded(
    num_recorded: NDArray[np.int64], num_expected: F64, num_episodes: int
) -> NDArray[np.bool_]:
    """Return a mask `[A]` of the actions that were recorded too rarely to judge a policy that takes them.

    Such an action may cause a disaster that was never recorded, so no interval covers it.

    Args:
        num_recorded: `[A]` number of times that each action was recorded.
        num_expected: `[A]` number of times that the policy would take each action in the recorded states.
        num_episodes: number of recorded episodes.
    """
    # One expected use in 20 episodes is rare enough to ignore.
    return np.asarray(
        (num_recorded < MIN_RECORDED_ACTIONS)
        & (num_expected > 2 * num_recorded)
        & (num_expected > num_episodes / 20)
    )


def no_verdict(reason: str) -> Verdict:
    """Return the verdict "unknown" with a reason."""
    return Verdict("unknown", None, None, None, None, f"no verdict: {reason}")


def make_verdict(difference: Difference | None, estimate: str, level: float, *remarks: str) -> Verdict:
    """Return the verdict from the interval of the difference.

    Args:
        difference: the difference; None gives no verdict.
        estimate: name of the estimate.
        level: confidence level of the interval.
        remarks: texts that the sentence adds in brackets; empty ones are left out.
    """
    if difference is None:
        return no_verdict("one episode has all the weight")
    answer: Answer = "unknown"
    interval: Interval | None = (difference.value, difference.value)
    probability = 0.5
    if difference.error > 0:
        freedom = difference.degrees_of_freedom
        interval = student_interval(difference.value, difference.error, level, freedom, difference.margin)
        distance = max(0.0, abs(difference.value) - difference.margin) / difference.error
        certainty = t_probability(distance, freedom)
        probability = certainty if difference.value > 0 else 1 - certainty
        if interval is not None and not interval[0] <= 0 <= interval[1]:
            answer = "better" if interval[0] > 0 else "worse"
    assert interval is not None
    low, high = map(formatting.significant, interval)
    sign = "+" if difference.value >= 0 else ""
    numbers = f"{sign}{formatting.significant(difference.value)} [{low}, {high}]"
    if answer == "unknown":
        claim = "inconclusive"
        chance = f"{_percent(probability)} chance that it is better than the recorded policy"
    else:
        claim = f"probably {answer} than the recorded policy"
        chance = _percent(probability if answer == "better" else 1 - probability)
    brackets = "; ".join((chance, f"by {estimate}", *filter(None, remarks)))
    return Verdict(
        answer, probability, estimate, difference.value, interval, f"{numbers}: {claim} ({brackets})"
    )


def _percent(probability: float) -> str:
    if probability > 0.99:
        return ">99 %"
    return "<1 %" if probability < 0.01 else formatting.as_percentage(probability)
