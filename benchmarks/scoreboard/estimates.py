"""The part of the board about choosing without a simulator: estimates alongside the truth, and the regret."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tasks import Environment

from hindcast import formatting

ESTIMATORS = ("dm", "dr", "wdr", "is", "wis", "pdis", "pdwis")
LOW_END = "low end of dm"
"""Choosing by what a policy is worth at least: the low end of the interval of `dm`."""

SIGNALS = {
    "critic_initial_value": 1.0,
    "mean_q": 1.0,
    "td_error": -1.0,
    "imitation_loss": -1.0,
}
"""Cheap signals that a policy could be chosen by, and whether more (1) or less (-1) is better."""

FEWEST = 3
"""Policies that a rank correlation takes."""

Judged = dict[str, Any]


def estimates_section(environment: Environment, judged: Sequence[Judged]) -> list[str]:
    """Lines of the page; none where no policy was judged.

    Args:
        environment: where the policies were trained.
        judged: a dictionary for each, see `judging.judge`.
    """
    if not judged:
        return []
    seeds = len({each["seed"] for each in judged})
    return [
        "### Choosing without a simulator",
        "",
        "Each of Hindcast's policies was evaluated after its training on new episodes of the same recorded policy, as "
        f"many as it was trained on. Estimates and truth are of the return discounted by {judged[0]['gamma']:g}; the "
        "policy samples its actions if they have a density, and takes its mode otherwise. The truth is the mean over "
        "100 played episodes of 500 steps, ± its standard error. `dm` is followed by its 90% interval. Other "
        f"estimators are shown unless they were refused. {formatting.plural(seeds, 'seed')} each; Decision "
        "Transformers are not evaluated, since the models do not include their memory.",
        "",
        *_table(_rows_of_policies(environment, judged)),
        "",
        "The rank correlation (Spearman's) of estimate and truth over all policies trained on the same data, and the "
        "regret: how much less the policy with the highest estimate earns than the best one, also as a share of the "
        "difference between best and worst. For `td_error` and `imitation_loss` the lowest estimate is chosen. "
        "`estimated` counts the policies that have the estimate; one of these is chosen, and the regret is relative to "
        "the best of all policies. The last row of each data set is the average of a random choice.",
        "",
        *_table(_rows_of_estimators(environment, judged)),
        "",
        coverage_sentence(judged),
        "",
    ]


def value(judged: Judged, name: str) -> float:
    """An estimate or signal of a policy, the more the better; NaN where it was refused or is missing."""
    if name == LOW_END:
        return judged["estimates"].get("dm", {}).get("interval", [math.nan])[0]
    if name in SIGNALS:
        return SIGNALS[name] * judged["signals"].get(name, math.nan)
    return judged["estimates"].get(name, {}).get("value", math.nan)


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    """Rank correlation of `[N]` and `[N]`; NaN where either is constant."""
    ranks = rank_values(one), rank_values(other)
    if min(each.std() for each in ranks) == 0:
        return math.nan
    return float(np.corrcoef(*ranks)[0, 1])


def rank_values(values: np.ndarray) -> np.ndarray:
    """`[N]` ranks from 0, equal values sharing the mean of theirs."""
    below = (values[:, None] > values).sum(1)
    equal = (values[:, None] == values).sum(1)
    return below + (equal - 1) / 2


def coverage_sentence(judged: Sequence[Judged]) -> str:
    """Say how often the interval of `dm` contains the truth, and its median error."""
    found = [(each["estimates"]["dm"], each["truth"]) for each in judged if "dm" in each["estimates"]]
    inside = sum(dm["interval"][0] <= truth <= dm["interval"][1] for dm, truth in found)
    error = np.median([abs(dm["value"] - truth) for dm, truth in found])
    return (
        f"The interval of `dm` contains the truth for {inside} of {len(found)} policies; the median error is "
        f"{error:.0f}."
    )


def _rows_of_policies(environment: Environment, judged: Sequence[Judged]) -> list[list[str]]:
    shown = [name for name in ESTIMATORS if any(math.isfinite(value(each, name)) for each in judged)]
    rows = [["data", "algorithm", "truth", *shown, "critic_initial_value"]]
    for data in environment.data:
        for algorithm in environment.algorithms:
            found = [each for each in judged if (each["data"], each["algorithm"]) == (data, algorithm)]
            if found:
                truth = np.mean([each["truth"] for each in found])
                error = math.hypot(*(each["truth_error"] for each in found)) / len(found)
                cells = [_mean(found, name) for name in (*shown, "critic_initial_value")]
                rows.append([data, algorithm, f"{truth:.0f} ± {error:.0f}", *cells])
    return rows


def _mean(found: Sequence[Judged], name: str) -> str:
    values = np.array([value(each, name) for each in found])
    there = values[np.isfinite(values)]
    if not len(there):
        return ""
    shown = f"{there.mean():.0f}"
    if name != "dm" or len(found) > 1:
        return shown
    low, high = found[0]["estimates"][name]["interval"]
    return f"{shown} ({low:.0f} to {high:.0f})"


def _rows_of_estimators(environment: Environment, judged: Sequence[Judged]) -> list[list[str]]:
    rows = [["data", "by", "estimated", "rank correlation", "regret"]]
    for data in environment.data:
        found = [each for each in judged if each["data"] == data]
        if len(found) < FEWEST:
            continue
        truths = np.array([each["truth"] for each in found])
        for name in (LOW_END, *ESTIMATORS, *SIGNALS):
            values = np.array([value(each, name) for each in found])
            there = np.isfinite(values)
            if there.any():
                cells = _cells(values[there], truths[there], truths)
                rows.append([data, name, f"{there.sum()} of {len(found)}", *cells])
        rows.append([data, "at random", "", "", regret(float(truths.mean()), truths)])
    return rows


def _cells(values: np.ndarray, truths: np.ndarray, of_all: np.ndarray) -> list[str]:
    """Rank correlation and regret of choosing by `values` `[K]`, of policies worth `truths` `[K]`."""
    correlation = spearman(values, truths) if len(values) >= FEWEST else math.nan
    shown = "" if math.isnan(correlation) else f"{correlation:.2f}"
    return [shown, regret(float(truths[values.argmax()]), of_all)]


def regret(chosen: float, of_all: np.ndarray) -> str:
    """Return the regret of choosing a policy worth `chosen` among policies worth `of_all` `[N]`."""
    lost, spread = of_all.max() - chosen, np.ptp(of_all)
    return f"{lost:.0f} ({lost / spread:.0%})" if spread > 0 else f"{lost:.0f}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = rows
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rest)]
