"""The sentence on what bounds a training's speed."""

from __future__ import annotations

import re

import pytest

from hindcast.errors import Problem
from hindcast.report.bottleneck import describe_bottleneck
from hindcast.report.curves import Curves
from hindcast.rllib.builder.options import use_option_names


def shares(**stages: float) -> dict[str, float]:
    return {"wait": 0.0, "update": 0.0, "allReduce": 0.0} | stages


@pytest.mark.parametrize(
    ("learners", "start", "field"),
    [
        ([shares(wait=0.4, read=3.0, prelearn=0.2)], "Learners wait for data 40 % of", "residentBudget"),
        (
            [shares(), shares(wait=0.2, prelearn=0.9)],
            "Learners wait for data 20 % of",
            "dataWorkers.maxReplicas",
        ),
        ([shares(wait=0.2, copy=0.5)], "Learners wait for data 20 % of", "windowBytes"),
        (
            [shares(update=0.6, allReduce=0.4)],
            "Learners exchange gradients 40 % of",
            "trainBatchSizePerLearner",
        ),
        ([shares(update=0.9, wait=0.05, read=0.8)], "Updates take 90 % of the time", "learners.replicas"),
    ],
)
def test_bottleneck_names_the_stage_and_the_field(
    learners: list[dict[str, float]], start: str, field: str
) -> None:
    sentence = describe_bottleneck(learners)
    assert sentence.startswith(start)
    assert field in sentence
    python_sentence = use_option_names(Problem((), sentence))
    assert not re.search(r"spec\.|[a-z][A-Z]", str(python_sentence))
    results = [
        {"timers": {"bottleneck": "an earlier one"}},
        {"timers": {"bottleneck": sentence}},
        {"timers": {}},
    ]
    assert Curves(results).bottleneck == sentence
