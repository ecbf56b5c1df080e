"""The page's section about choosing a policy without a simulator: estimates, true returns and the regret."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tasks import Environment

from hindcast import formatting

ESTIMATORS = ("dm", "dr", "wdr", "is", "wis", "pdis", "pdwis")
LOW_END = "low end of dm"
"""Choosing by the lower end of the interval of `dm`."""
LOW_DIFFERENCE = "low end of the difference"
"""Choosing by the lower end of the interval of the difference to the recorded policy."""

SIGNALS = {
    "critic_initial_value": 1.0,
    "mean_q": 1.0,
    "td_error": -1.0,
    "imitation_loss": -1.0,
}
"""Cheap signals that a policy could be chosen by; 1 if higher values are better, -1 if lower ones."""

MIN_POLICIES = 3
"""Minimum number of policies for a rank correlation."""

Judgement = dict[str, Any]
"""The result of `judging.judge`."""


def estimates_section(environment: Environment, judgements: Sequence[Judgement]) -> list[str]:
    """Return the lines of the section; none if no policy was judged.

    Args:
        environment: environment of the policies.
        judgements: one dictionary per policy, see `judging.judge`.
    """
    if not judgements:
        return []
    num_seeds = len({judgement["seed"] for judgement in judgements})
    return [
        "### Choosing without a simulator",
        "",
        "Each of Hindcast's policies was evaluated after its training on new episodes of the same recorded policy, as "
        f"many as it was trained on. Estimates and truth are of the return discounted by {judgements[0]['gamma']:g}; "
        "the policy samples its actions if they have a density, and takes its mode otherwise. The truth is the mean "
        "over "
        "100 played episodes of 500 steps, ± its standard error. `dm` is followed by its 90% interval. Other "
        f"estimators are shown unless they were refused. {formatting.plural(num_seeds, 'seed')} each; Decision "
        "Transformers are not evaluated, since the models do not include their memory.",
        "",
        *_table(_policy_rows(environment, judgements)),
        "",
        "The rank correlation (Spearman's) of estimate and truth over all policies trained on the same data, and the "
        "regret: how much less the policy with the highest estimate earns than the best one, also as a share of the "
        "difference between best and worst. For `td_error` and `imitation_loss` the lowest estimate is chosen. "
        "`estimated` counts the policies that have the estimate; one of these is chosen, and the regret is relative to "
        "the best of all policies. The last row of each data set is the average of a random choice.",
        "",
        *_table(_estimator_rows(environment, judgements)),
        "",
        coverage_sentence(judgements),
        "",
        *_verdict_section(environment, judgements),
    ]


def get_value(judgement: Judgement, name: str) -> float:
    """Return an estimate or signal of a policy, the higher the better; NaN if it was refused or is missing."""
    if name == LOW_DIFFERENCE:
        return (judgement["verdict"]["interval"] or [math.nan])[0]
    if name == LOW_END:
        return judgement["estimates"].get("dm", {}).get("interval", [math.nan])[0]
    if name in SIGNALS:
        return SIGNALS[name] * judgement["signals"].get(name, math.nan)
    return judgement["estimates"].get(name, {}).get("value", math.nan)


def spearman(values_a: np.ndarray, values_b: np.ndarray) -> float:
    """Return the rank correlation of two arrays `[N]`; NaN if either is constant."""
    ranks = rank_values(values_a), rank_values(values_b)
    if min(rank.std() for rank in ranks) == 0:
        return math.nan
    return float(np.corrcoef(*ranks)[0, 1])


def rank_values(values: np.ndarray) -> np.ndarray:
    """Return ranks from 0, `[N]`; equal values get the mean of their ranks."""
    num_below = (values[:, None] > values).sum(1)
    num_equal = (values[:, None] == values).sum(1)
    return num_below + (num_equal - 1) / 2


def coverage_sentence(judgements: Sequence[Judgement]) -> str:
    """Say how often the interval of `dm` contains the truth, and its median error."""
    matches = [
        (judgement["estimates"]["dm"], judgement["truth"])
        for judgement in judgements
        if "dm" in judgement["estimates"]
    ]
    num_inside = sum(dm["interval"][0] <= truth <= dm["interval"][1] for dm, truth in matches)
    error = np.median([abs(dm["value"] - truth) for dm, truth in matches])
    return (
        f"The interval of `dm` contains the truth for {num_inside} of {len(matches)} policies; the median error is "
        f"{error:.0f}."
    )


def _verdict_section(environment: Environment, judgements: Sequence[Judgement]) -> list[str]:
    """Return the lines about verdicts and truths."""
    answers = [(judgement["verdict"]["answer"], judgement["difference"]) for judgement in judgements]
    num_sure = sum(answer != "unknown" for answer, _ in answers)
    num_right = sum(answer == ("better" if truth > 0 else "worse") for answer, truth in answers)
    intervals = [
        (judgement["verdict"]["interval"], judgement["difference"])
        for judgement in judgements
        if judgement["verdict"]["interval"]
    ]
    num_inside = sum(low <= truth <= high for (low, high), truth in intervals)
    rows = [["data", "algorithm", "verdict", "by", "difference", "true difference"]]
    order = [(data, algorithm) for data in environment.data for algorithm in environment.algorithms]
    for judgement in sorted(judgements, key=lambda item: order.index((item["data"], item["algorithm"]))):
        verdict = judgement["verdict"]
        low, high = verdict["interval"] or (math.nan, math.nan)
        difference = f"{verdict['difference']:.0f} ({low:.0f} to {high:.0f})" if verdict["interval"] else ""
        truth = f"{judgement['difference']:.0f} ± {judgement['difference_error']:.0f}"
        cells = [verdict["answer"], verdict["estimate"] or "", difference, truth]
        rows.append([judgement["data"], judgement["algorithm"], *cells])
    return [
        "### Verdicts and truth",
        "",
        "The verdict on the difference to the recorded policy, with its 90% interval, beside the true difference ± its "
        "standard error. Both policies start in the initial states of the recorded episodes, and both are continued by "
        f"the evaluated policy after the recorded length. Verdicts other than unknown: {num_sure}, right: {num_right}. "
        f"Intervals that contain the truth: {num_inside} of {len(intervals)}.",
        "",
        *_table(rows),
        "",
        "The regret of choosing the policy with the highest low end of the difference, or of keeping the recorded "
        "policy if no low end is above 0, relative to the best of all these policies, the recorded one included:",
        "",
        *_table(_keeping_rows(environment, judgements)),
        "",
    ]


def _keeping_rows(environment: Environment, judgements: Sequence[Judgement]) -> list[list[str]]:
    rows = [["data", "policies", "choice", "regret", "regret of a random choice"]]
    for data in environment.data:
        matches = [judgement for judgement in judgements if judgement["data"] == data]
        if not matches:
            continue
        lows = np.array([get_value(judgement, LOW_DIFFERENCE) for judgement in matches])
        # The recorded policy comes first, with the difference 0.
        low_ends = np.append(0.0, np.nan_to_num(lows, nan=-math.inf))
        truths = np.append(0.0, [judgement["difference"] for judgement in matches])
        names = ["the recorded policy", *(judgement["algorithm"] for judgement in matches)]
        choice = int(low_ends.argmax())
        cells = [regret(float(truth), truths) for truth in (truths[choice], truths.mean())]
        rows.append([data, str(len(matches)), names[choice], *cells])
    return rows


def _policy_rows(environment: Environment, judgements: Sequence[Judgement]) -> list[list[str]]:
    estimator_names = [
        name
        for name in ESTIMATORS
        if any(math.isfinite(get_value(judgement, name)) for judgement in judgements)
    ]
    rows = [["data", "algorithm", "truth", *estimator_names, "critic_initial_value"]]
    for data in environment.data:
        for algorithm in environment.algorithms:
            matches = [
                judgement
                for judgement in judgements
                if (judgement["data"], judgement["algorithm"]) == (data, algorithm)
            ]
            if matches:
                truth = np.mean([judgement["truth"] for judgement in matches])
                error = math.hypot(*(judgement["truth_error"] for judgement in matches)) / len(matches)
                cells = [_format_mean(matches, name) for name in (*estimator_names, "critic_initial_value")]
                rows.append([data, algorithm, f"{truth:.0f} ± {error:.0f}", *cells])
    return rows


def _format_mean(matches: Sequence[Judgement], name: str) -> str:
    values = np.array([get_value(judgement, name) for judgement in matches])
    finite_values = values[np.isfinite(values)]
    if not len(finite_values):
        return ""
    text = f"{finite_values.mean():.0f}"
    if name != "dm" or len(matches) > 1:
        return text
    low, high = matches[0]["estimates"][name]["interval"]
    return f"{text} ({low:.0f} to {high:.0f})"


def _estimator_rows(environment: Environment, judgements: Sequence[Judgement]) -> list[list[str]]:
    rows = [["data", "by", "estimated", "rank correlation", "regret"]]
    for data in environment.data:
        matches = [judgement for judgement in judgements if judgement["data"] == data]
        if len(matches) < MIN_POLICIES:
            continue
        truths = np.array([judgement["truth"] for judgement in matches])
        for name in (LOW_DIFFERENCE, LOW_END, *ESTIMATORS, *SIGNALS):
            values = np.array([get_value(judgement, name) for judgement in matches])
            is_finite = np.isfinite(values)
            if is_finite.any():
                cells = _choice_cells(values[is_finite], truths[is_finite], truths)
                rows.append([data, name, f"{is_finite.sum()} of {len(matches)}", *cells])
        rows.append([data, "at random", "", "", regret(float(truths.mean()), truths)])
    return rows


def _choice_cells(values: np.ndarray, truths: np.ndarray, all_truths: np.ndarray) -> list[str]:
    """Return rank correlation and regret of choosing by `values` `[K]` among policies with returns `truths` `[K]`."""
    correlation = spearman(values, truths) if len(values) >= MIN_POLICIES else math.nan
    text = "" if math.isnan(correlation) else f"{correlation:.2f}"
    return [text, regret(float(truths[values.argmax()]), all_truths)]


def regret(chosen: float, all_truths: np.ndarray) -> str:
    """Return the regret of choosing a policy with true return `chosen` among all with `all_truths` `[N]`."""
    difference, spread = all_truths.max() - chosen, np.ptp(all_truths)
    return f"{difference:.0f} ({difference / spread:.0%})" if spread > 0 else f"{difference:.0f}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body_rows = rows
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *body_rows)]
