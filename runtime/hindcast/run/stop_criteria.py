"""Stop criteria of a training, the metric that selects its best checkpoint, and when evaluations are due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hindcast.api.hashing import part_hash
from hindcast.api.recording import TrainStop
from hindcast.api.training import OfflineTrainingSpec, StopSpec
from hindcast.names import EPISODE_RETURN_MEAN
from hindcast.report.results import ITERATION, Result

ESTIMATED_RETURN: Final = "estimated_return"
VALIDATION_LOSS: Final = "validation_loss"
MAX_MISSING_EVALUATIONS: Final = 10
"""Number of evaluations in a row without a value to stop by, after which a training without other limits ends."""
_FIELDS_WITHOUT_RETURN_EFFECT: Final = (
    "interval",
    "parallelToTraining",
    "envsPerRunner",
    "referenceReturns",
    "offline",
    "gate",
)
"""Fields of `evaluation` that do not change the measured return."""
_FIELDS_WITHOUT_ESTIMATE_EFFECT: Final = ("interval", "estimates")
"""Fields of `evaluation.offline` that do not change an estimate."""


def selection_metric(spec: OfflineTrainingSpec) -> str:
    """Return the metric that selects the best checkpoint: the one with the highest value.

    The metric is the return in the environment if it is measured at an interval, else the first requested estimate,
    else the return at the end; an empty string if neither is evaluated.
    """
    env_evaluation, estimates = spec.evaluation_in_environment, spec.offline.estimates if spec.offline else []
    if env_evaluation is not None and (env_evaluation.interval is not None or not estimates):
        return EPISODE_RETURN_MEAN
    return estimates[0] if estimates else ""


def measurement_hash(spec: OfflineTrainingSpec) -> str:
    """Return a hash of how the selection metric is measured; only values with equal hashes are compared.

    The hash is empty without a selection metric. It omits when and where an evaluation runs, which does not change the
    evaluation's result.
    """
    metric_name = selection_metric(spec)
    if metric_name == EPISODE_RETURN_MEAN and spec.evaluation is not None:
        return part_hash(spec.evaluation, _FIELDS_WITHOUT_RETURN_EFFECT)
    return (
        part_hash(spec.offline, _FIELDS_WITHOUT_ESTIMATE_EFFECT)
        if metric_name and spec.offline is not None
        else ""
    )


def is_due(interval: int | None, iteration: int, at_end: bool) -> bool:
    """Return True if an evaluation is due: after every `interval` iterations; with interval None, only at the end."""
    if interval is None:
        return at_end
    return not at_end and iteration % interval == 0


def evaluation_metric(result: Result, name: str) -> float | None:
    """Return a metric of the evaluation in a result, or None if the metric was not evaluated or cannot be computed.

    Args:
        result: result of an iteration.
        name: `EPISODE_RETURN_MEAN`, `ESTIMATED_RETURN` (the first estimate), `VALIDATION_LOSS`, or an estimate.
    """
    evaluation: Mapping[str, Any] = result.get("evaluation", {})
    if name == EPISODE_RETURN_MEAN:
        return evaluation.get("env_runners", {}).get(name)
    offline_evaluation: Mapping[str, Any] = evaluation.get("offline", {})
    if name in (ESTIMATED_RETURN, VALIDATION_LOSS):
        return offline_evaluation.get(name)
    return offline_evaluation.get("estimates", {}).get(name, {}).get("value")


def current_metric(result: Result, name: str) -> float | None:
    """Return the metric if it was measured with the weights after this iteration, else None."""
    evaluation = result.get("evaluation", {})
    evaluation_result = evaluation if name == EPISODE_RETURN_MEAN else evaluation.get("offline", {})
    return evaluation_metric(result, name) if evaluation_result.get(ITERATION) == result[ITERATION] else None


def add_evaluation(result: Result, env_result: Result | None, offline_result: Result | None) -> Result:
    """Return the result, extended by the results of evaluations in the environment and on held-out episodes, if any."""
    evaluation = {**(env_result or {}), **({} if offline_result is None else {"offline": offline_result})}
    return {**result, "evaluation": evaluation} if evaluation else result


def should_stop(stop: StopSpec | TrainStop, result: Result) -> bool:
    """Return True if a stop criterion holds."""
    score = evaluation_metric(result, EPISODE_RETURN_MEAN)
    if stop.episode_return_mean is not None and score is not None and score >= stop.episode_return_mean:
        return True
    if isinstance(stop, StopSpec) and _is_offline_goal_reached(stop, result):
        return True
    return any(total is not None and amount >= total for amount, total, _ in _list_counts(stop, result))


def _is_offline_goal_reached(stop: StopSpec, result: Result) -> bool:
    """Return True if a stop criterion on held-out episodes holds."""
    estimate, loss = evaluation_metric(result, ESTIMATED_RETURN), evaluation_metric(result, VALIDATION_LOSS)
    if stop.estimated_return is not None and estimate is not None and estimate >= stop.estimated_return:
        return True
    return stop.validation_loss is not None and loss is not None and loss <= stop.validation_loss


def _list_counts(stop: StopSpec | TrainStop, result: Result) -> list[tuple[float, float | None, str]]:
    """Return (amount done, total or None, unit) of each criterion on amounts.

    For an expert, sampled timesteps count instead of trained ones, and there are no epochs.
    """
    verb = "sampled" if isinstance(stop, TrainStop) else "trained"
    amounts = {
        "iterations": result[ITERATION],
        "timesteps": result.get(f"num_env_steps_{verb}_lifetime", 0),
        "updates": result.get("num_updates_lifetime", 0),
        "epochs": result.get("epoch", 0.0),
    }
    return [(count, getattr(stop, unit, None), unit) for unit, count in amounts.items()]


def find_nearest_limit(stop: StopSpec, result: Result) -> tuple[float, float | None, str]:
    """Return (amount done, total, unit) of the nearest limit; iterations without a total if there is no limit."""
    limited_counts = [
        (amount, total, unit) for amount, total, unit in _list_counts(stop, result) if total is not None
    ]
    if not limited_counts:
        return result[ITERATION], None, "iterations"
    return max(limited_counts, key=lambda count: count[0] / count[1])


class EndlessGuard:
    """Detects a training that would never end.

    Such a training can only be stopped by `stop.estimatedReturn` or `stop.validationLoss`, and evaluations do not
    produce these values. Estimates that no policy of the training can have are refused earlier, by `HeldOutEvaluator`.
    """

    def __init__(self, spec: OfflineTrainingSpec) -> None:
        stop = spec.stop
        other_limits = (stop.episode_return_mean, stop.iterations, stop.timesteps, stop.updates, stop.epochs)
        offline_limits = {ESTIMATED_RETURN: stop.estimated_return, VALIDATION_LOSS: stop.validation_loss}
        has_only_offline_limits = all(limit is None for limit in other_limits)
        self._metrics = [
            name for name, limit in offline_limits.items() if has_only_offline_limits and limit is not None
        ]
        self._first_estimate = spec.offline.estimates[0] if spec.offline and spec.offline.estimates else ""
        self._num_missing = 0

    def count_evaluation(self, evaluation: Result) -> str:
        """Count an offline evaluation; return the reason why the training would never end, or an empty string."""
        if not self._metrics or any(evaluation.get(name) is not None for name in self._metrics):
            self._num_missing = 0
            return ""
        # Overlap may grow while the policy learns, so a single evaluation without an estimate proves nothing.
        self._num_missing += 1
        if self._num_missing < MAX_MISSING_EVALUATIONS:
            return ""
        estimate_reason = evaluation.get("not_estimated", {}).get(self._first_estimate, "too few episodes")
        reasons = {
            ESTIMATED_RETURN: f"{self._first_estimate}: {estimate_reason}",
            VALIDATION_LOSS: "the validation loss is not a number",
        }
        details = "; ".join(reasons[name] for name in self._metrics)
        return (
            f"spec.stop has only criteria on held-out episodes, but {MAX_MISSING_EVALUATIONS} evaluations in a row "
            f"could not compute them ({details}). Add a limit such as stop.updates."
        )
