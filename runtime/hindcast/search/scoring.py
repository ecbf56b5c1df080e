"""From a training to the value that it is compared by: what the held-out episodes said of its best checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hindcast.learn.checkpoint import find_checkpoint
from hindcast.report.events import Outcome
from hindcast.report.results import ITERATION, Result, read_results
from hindcast.run.stop_criteria import VALIDATION_LOSS
from hindcast.search.results import Confirmation, Run
from hindcast.search.trials import LOSS
from hindcast.storage.location import resolve


def score_run(outcome: Outcome, seed: int, by: str) -> Run:
    """A finished training as a row of the table."""
    results = read_results(resolve(outcome.folder))
    seconds = next(result["time_total_s"] for result in reversed(results) if "time_total_s" in result)
    run = Run(seed, outcome.folder, seconds=seconds)
    best = outcome.metrics["best"]
    if by != LOSS and best is None:
        why = _judged(results, None).get("refused", {}).get(by, "no evaluation was due")
        return replace(run, error=f"{by} cannot be computed: {why}")
    checkpoint = find_checkpoint(outcome.metrics["checkpoint"] if by == LOSS else best["path"])
    said = _said(_judged(results, checkpoint.training.iteration), by)
    return replace(
        run,
        **said,
        checkpoint=str(checkpoint.location),
        updates=checkpoint.updates,
        error=f"{by} is not a finite number" if said["figure"] is None else None,
    )


def confirmation(judged: Result, by: str) -> Confirmation:
    """The last evaluation of the winner."""
    return Confirmation(**_said(judged, by), episodes=judged["episodes"])


def _judged(results: list[Result], iteration: int | None) -> dict[str, Any]:
    """The last offline evaluation, or the last of the weights after an iteration."""
    for result in reversed(results):
        offline: dict[str, Any] = result.get("evaluation", {}).get("offline", {})
        if offline and iteration in (None, offline[ITERATION]):
            return offline
    return {}


def _said(judged: Mapping[str, Any], by: str) -> dict[str, Any]:
    """What an evaluation says, by the names of `Run` and `Confirmation`."""
    estimate = judged.get("estimates", {}).get(by, {})
    interval = estimate.get("interval")
    return {
        "figure": judged.get(VALIDATION_LOSS) if by == LOSS else estimate.get("value"),
        "interval": None if interval is None else tuple(interval),
        "verdict": judged.get("verdict", {}).get("sentence"),
        "behaviour": judged.get("behaviour", {}).get("value"),
    }
