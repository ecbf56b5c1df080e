"""When a training ends: the criteria of `stop`, and a guard against those that are never measured."""

from __future__ import annotations

from typing import Final

from hindcast.api.recording import TrainStop
from hindcast.api.training import OfflineTrainingSpec, StopSpec
from hindcast.names import EPISODE_RETURN_MEAN
from hindcast.report.results import ITERATION, Result
from hindcast.run.choosing import ESTIMATED_RETURN, VALIDATION_LOSS, figure

PATIENCE: Final = 10
"""Evaluations in a row without a figure to stop by, after which a training that nothing else stops is ended."""


def reached(stop: StopSpec | TrainStop, result: Result) -> bool:
    """Whether a stop criterion holds."""
    score = figure(result, EPISODE_RETURN_MEAN)
    if stop.episode_return_mean is not None and score is not None and score >= stop.episode_return_mean:
        return True
    if isinstance(stop, StopSpec) and _judged_enough(stop, result):
        return True
    return any(total is not None and done >= total for done, total, _ in _counts(stop, result))


def _judged_enough(stop: StopSpec, result: Result) -> bool:
    """Whether what held-out episodes say ends the training."""
    estimate, loss = figure(result, ESTIMATED_RETURN), figure(result, VALIDATION_LOSS)
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

    Args:
        spec: of the training.
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
        """Why the training would never end, in a sentence; empty while it may.

        Args:
            judged: the next evaluation by held-out episodes, as results have it.
        """
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
