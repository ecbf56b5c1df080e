"""Reads the value of a search's metric from the results of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hindcast.evaluate.verdict import compared_behaviour
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.report.events import Outcome
from hindcast.report.results import ITERATION, Result, read_results
from hindcast.run.stop_criteria import VALIDATION_LOSS
from hindcast.search.results import Confirmation, Run
from hindcast.search.trials import LOSS_METRIC
from hindcast.storage.location import resolve


def score_run(outcome: Outcome, seed: int, metric: str) -> Run:
    """Return the run of a finished training, with its value or the reason why it has none.

    Args:
        outcome: the training's outcome.
        seed: the training's seed.
        metric: name of an estimate, or `LOSS_METRIC`.
    """
    results = read_results(resolve(outcome.folder))
    seconds = next(result["time_total_s"] for result in reversed(results) if "time_total_s" in result)
    run = Run(seed, outcome.folder, seconds=seconds)
    best = outcome.metrics["best"]
    if metric != LOSS_METRIC and best is None:
        reason = _find_evaluation(results, None).get("not_estimated", {}).get(metric, "no evaluation was due")
        return replace(run, error=f"{metric} cannot be computed: {reason}")
    checkpoint = find_checkpoint(outcome.metrics["checkpoint"] if metric == LOSS_METRIC else best["path"])
    fields = _evaluation_fields(_find_evaluation(results, checkpoint.training.iteration), metric)
    return replace(
        run,
        **fields,
        checkpoint=str(checkpoint.location),
        updates=checkpoint.updates,
        error=f"{metric} is not a finite number" if fields["value"] is None else None,
    )


def make_confirmation(evaluation: Result, metric: str) -> Confirmation:
    """Return the confirmation of the winner from its evaluation on the episodes that were set aside."""
    return Confirmation(**_evaluation_fields(evaluation, metric), episodes=evaluation["episodes"])


def _find_evaluation(results: list[Result], iteration: int | None) -> dict[str, Any]:
    """Return the last offline evaluation; with `iteration`, the last one of the weights after this iteration.

    Empty if there is none.
    """
    for result in reversed(results):
        evaluation: dict[str, Any] = result.get("evaluation", {}).get("offline", {})
        if evaluation and iteration in (None, evaluation[ITERATION]):
            return evaluation
    return {}


def _evaluation_fields(evaluation: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Return the fields that `Run` and `Confirmation` share."""
    estimate = evaluation.get("estimates", {}).get(metric, {})
    interval = estimate.get("interval")
    return {
        "value": evaluation.get(VALIDATION_LOSS) if metric == LOSS_METRIC else estimate.get("value"),
        "interval": None if interval is None else tuple(interval),
        "verdict": evaluation.get("verdict", {}).get("sentence"),
        "behaviour": compared_behaviour(evaluation, metric).get("value"),
    }
