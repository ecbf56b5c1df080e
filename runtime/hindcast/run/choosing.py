"""What a training's checkpoints are chosen by: the figure that makes one the best, and where results have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hindcast.api.training import OfflineTrainingSpec
from hindcast.names import EPISODE_RETURN_MEAN
from hindcast.report.results import ITERATION, Result

ESTIMATED_RETURN: Final = "estimated_return"
VALIDATION_LOSS: Final = "validation_loss"


def followed(spec: OfflineTrainingSpec) -> str | None:
    """The figure of which the best checkpoint has the most: the return in the environment where that is measured again
    and again, else the first estimate of it, by name, else the return at the end; None where nothing is evaluated.
    """
    played, estimates = spec.evaluation_in_environment, spec.offline.estimates if spec.offline else []
    if played is not None and (played.interval is not None or not estimates):
        return EPISODE_RETURN_MEAN
    return estimates[0] if estimates else None


def figure(result: Result, name: str) -> float | None:
    """A figure of the evaluation that came with a result; None where none did, or it could not be computed.

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


def own_figure(result: Result, name: str | None) -> float | None:
    """The figure, where it is of the weights after this iteration and not of earlier ones."""
    if name is None:
        return None
    evaluation = result.get("evaluation", {})
    measured = evaluation if name == EPISODE_RETURN_MEAN else evaluation.get("offline", {})
    return figure(result, name) if measured.get(ITERATION) == result[ITERATION] else None


def with_evaluation(result: Result, played: Result | None, judged: Result | None) -> Result:
    """A result with what evaluations gave, if any: in the environment, and by held-out episodes."""
    found = {**(played or {}), **({} if judged is None else {"offline": judged})}
    return {**result, "evaluation": found} if found else result
