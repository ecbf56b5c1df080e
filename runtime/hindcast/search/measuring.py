"""From a training to its figure: what the held-out episodes said of its best checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hindcast.evaluate.intervals import Interval
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.report.events import Outcome
from hindcast.report.results import ITERATION, Result, read_results
from hindcast.run.stopping import VALIDATION_LOSS
from hindcast.search.found import Confirmation, Run
from hindcast.search.trials import LOSS
from hindcast.storage.location import resolve


def measured(outcome: Outcome, seed: int, by: str) -> Run:
    """A finished training as a row of the table."""
    results = read_results(resolve(outcome.folder))
    seconds = next(result["time_total_s"] for result in reversed(results) if "time_total_s" in result)
    run = Run(seed, outcome.folder, seconds=seconds)
    best = outcome.metrics["best"]
    if by != LOSS and best is None:
        why = _judged(results, None).get("refused", {}).get(by, "no evaluation was due")
        return replace(run, error=f"{by} cannot be computed: {why}")
    checkpoint = find_checkpoint(outcome.metrics["checkpoint"] if by == LOSS else best["path"])
    judged = _judged(results, checkpoint.training.iteration)
    figure = _figure(judged, by)
    return replace(
        run,
        figure=figure,
        interval=_interval(judged, by),
        verdict=_verdict(judged),
        behaviour=_behaviour(judged),
        checkpoint=str(checkpoint.location),
        updates=checkpoint.updates,
        error=f"{by} is not a finite number" if figure is None else None,
    )


def confirmation(judged: Result, by: str) -> Confirmation:
    """The last evaluation of the winner."""
    return Confirmation(
        figure=_figure(judged, by),
        interval=_interval(judged, by),
        verdict=_verdict(judged),
        behaviour=_behaviour(judged),
        episodes=judged["episodes"],
    )


def _judged(results: list[Result], iteration: int | None) -> dict[str, Any]:
    """The last offline evaluation, or the last of the weights after an iteration."""
    for result in reversed(results):
        offline: dict[str, Any] = result.get("evaluation", {}).get("offline", {})
        if offline and iteration in (None, offline[ITERATION]):
            return offline
    return {}


def _figure(judged: Mapping[str, Any], by: str) -> float | None:
    if by == LOSS:
        return judged.get(VALIDATION_LOSS)
    return judged.get("estimates", {}).get(by, {}).get("value")


def _interval(judged: Mapping[str, Any], by: str) -> Interval | None:
    found = judged.get("estimates", {}).get(by, {}).get("interval")
    return None if found is None else (found[0], found[1])


def _behaviour(judged: Mapping[str, Any]) -> float | None:
    return judged.get("behaviour", {}).get("value")


def _verdict(judged: Mapping[str, Any]) -> str | None:
    return judged.get("verdict", {}).get("sentence")
