"""Evaluations and their metrics: when they are due, what makes a checkpoint the best, what ends a training, and what
never would.
"""

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
PATIENCE: Final = 10
"""Evaluations in a row without a value to stop by, after which a training that nothing else stops is ended."""
_NOT_OF_A_RETURN: Final = ("interval", "parallelToTraining", "envsPerRunner", "referenceReturns", "offline")
_NOT_OF_AN_ESTIMATE: Final = ("interval", "estimates")


def selection_metric(spec: OfflineTrainingSpec) -> str:
    """The metric of which the best checkpoint has the most: the return in the environment where that is measured again
    and again, else the first estimate of it, by name, else the return at the end; empty where nothing is evaluated.
    """
    played, estimates = spec.evaluation_in_environment, spec.offline.estimates if spec.offline else []
    if played is not None and (played.interval is not None or not estimates):
        return EPISODE_RETURN_MEAN
    return estimates[0] if estimates else ""


def measurement_hash(spec: OfflineTrainingSpec) -> str:
    """A word for how the followed metric is measured: values of it are compared only where it is the same.

    When an evaluation comes, and where it runs, changes nothing of what it gives.
    """
    by = selection_metric(spec)
    if by == EPISODE_RETURN_MEAN and spec.evaluation is not None:
        return part_hash(spec.evaluation, _NOT_OF_A_RETURN)
    return part_hash(spec.offline, _NOT_OF_AN_ESTIMATE) if by and spec.offline is not None else ""


def is_due(interval: int | None, iteration: int, at_end: bool) -> bool:
    """Whether an evaluation is due after an iteration: every so many, or once, at the end, without an interval."""
    if interval is None:
        return at_end
    return not at_end and iteration % interval == 0


def evaluation_metric(result: Result, name: str) -> float | None:
    """A metric of the evaluation that came with a result; None where none did, or it could not be computed.

    Args:
        result: see above.
        name: `EPISODE_RETURN_MEAN`, `ESTIMATED_RETURN` (the first estimate), `VALIDATION_LOSS`, or an estimate's.
    """
    evaluation: Mapping[str, Any] = result.get("evaluation", {})
    if name == EPISODE_RETURN_MEAN:
        return evaluation.get("env_runners", {}).get(name)
    judged: Mapping[str, Any] = evaluation.get("offline", {})
    if name in (ESTIMATED_RETURN, VALIDATION_LOSS):
        return judged.get(name)
    return judged.get("estimates", {}).get(name, {}).get("value")


def current_metric(result: Result, name: str) -> float | None:
    """The metric, where it is of the weights after this iteration and not of earlier ones."""
    evaluation = result.get("evaluation", {})
    measured = evaluation if name == EPISODE_RETURN_MEAN else evaluation.get("offline", {})
    return evaluation_metric(result, name) if measured.get(ITERATION) == result[ITERATION] else None


def add_evaluation(result: Result, played: Result | None, judged: Result | None) -> Result:
    """A result with what evaluations gave, if any: in the environment, and by held-out episodes."""
    found = {**(played or {}), **({} if judged is None else {"offline": judged})}
    return {**result, "evaluation": found} if found else result


def should_stop(stop: StopSpec | TrainStop, result: Result) -> bool:
    """Whether a stop criterion holds."""
    score = evaluation_metric(result, EPISODE_RETURN_MEAN)
    if stop.episode_return_mean is not None and score is not None and score >= stop.episode_return_mean:
        return True
    if isinstance(stop, StopSpec) and _judged_enough(stop, result):
        return True
    return any(total is not None and done >= total for done, total, _ in _counts(stop, result))


def _judged_enough(stop: StopSpec, result: Result) -> bool:
    """Whether what held-out episodes say ends the training."""
    estimate, loss = evaluation_metric(result, ESTIMATED_RETURN), evaluation_metric(result, VALIDATION_LOSS)
    if stop.estimated_return is not None and estimate is not None and estimate >= stop.estimated_return:
        return True
    return stop.validation_loss is not None and loss is not None and loss <= stop.validation_loss


def _counts(stop: StopSpec | TrainStop, result: Result) -> list[tuple[float, float | None, str]]:
    """Done, total and unit of each criterion; an expert's timesteps are those it sampled, and it has no epochs."""
    timesteps = "sampled" if isinstance(stop, TrainStop) else "trained"
    done = {
        "iterations": result[ITERATION],
        "timesteps": result.get(f"num_env_steps_{timesteps}_lifetime", 0),
        "updates": result.get("num_updates_lifetime", 0),
        "epochs": result.get("epoch", 0.0),
    }
    return [(count, getattr(stop, unit, None), unit) for unit, count in done.items()]


def nearest_stop(stop: StopSpec, result: Result) -> tuple[float, float | None, str]:
    """The count that will end the training first; iterations without an end where only a return ends it."""
    limited = [(done, total, unit) for done, total, unit in _counts(stop, result) if total is not None]
    if not limited:
        return result[ITERATION], None, "iterations"
    return max(limited, key=lambda count: count[0] / count[1])


class EndlessGuard:
    """Notices that a training never ends: nothing but `stop.estimatedReturn` or `stop.validationLoss` would stop it,
    and evaluations do not have these.

    Low overlap may grow while the policy learns, so one evaluation without an estimate proves nothing. Estimates that
    no policy of the training can have are refused before it starts, by `HeldOut`.
    """

    def __init__(self, spec: OfflineTrainingSpec) -> None:
        stop = spec.stop
        others = (stop.episode_return_mean, stop.iterations, stop.timesteps, stop.updates, stop.epochs)
        wanted = {ESTIMATED_RETURN: stop.estimated_return, VALIDATION_LOSS: stop.validation_loss}
        only_judged = all(limit is None for limit in others)
        self._wanted = [name for name, limit in wanted.items() if only_judged and limit is not None]
        self._first = spec.offline.estimates[0] if spec.offline and spec.offline.estimates else ""
        self._missing = 0

    def why_endless(self, judged: Result) -> str:
        """Why the training would never end, in a sentence; empty while it may."""
        if not self._wanted or any(judged.get(name) is not None for name in self._wanted):
            self._missing = 0
            return ""
        self._missing += 1
        if self._missing < PATIENCE:
            return ""
        reasons = {
            ESTIMATED_RETURN: f"{self._first}: {judged.get('refused', {}).get(self._first, 'too few episodes')}",
            VALIDATION_LOSS: "the validation loss is not a number",
        }
        why = "; ".join(reasons[name] for name in self._wanted)
        return (
            f"only held-out episodes could stop it, and {PATIENCE} evaluations in a row gave nothing to stop by "
            f"({why}). Add a limit such as stop.updates."
        )
