"""`TrainingCallbacks`: calls the user's callbacks as a training progresses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson

from hindcast.pipeline.metrics_logger import MetricsLogger
from hindcast.record.callbacks import TRAINING_HOOKS
from hindcast.record.episode_callbacks import call_each, make_callbacks, select_overriding
from hindcast.user_code import Misuse


class TrainingCallbacks:
    """The callbacks of a training.

    Args:
        paths: "package.module:Class" of each.

    Attributes:
        algorithm: passed to each call.

    Raises:
        SpecError: there is no such class, it is not a `Callbacks`, or it overrides a method that is never called.
        UserCodeError: importing or making it raised.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        self.algorithm: Any = None
        self._callbacks = select_overriding(make_callbacks(paths), TRAINING_HOOKS)
        self._metrics = MetricsLogger()

    def call(self, event: str, **arguments: Any) -> None:
        """Call the method `event` of each callback; what was logged since the last result is merged into a `result`.

        Raises:
            UserCodeError: one raised, put something into a result that is not JSON, or took out what was there.
        """
        given = {"algorithm": self.algorithm, "metrics_logger": self._metrics, **arguments}
        call_each(self._callbacks, event, given, check=partial(_check, arguments, _shape(arguments)))
        if "result" in arguments:
            merge(arguments["result"], self._metrics.reduce())


def _check(arguments: dict[str, Any], before: dict[str, Any]) -> None:
    """Refuse results that could not be written, or that lack what the run puts into them."""
    orjson.dumps(arguments, option=orjson.OPT_SERIALIZE_NUMPY)  # as results are written
    after = _shape(arguments)
    if gone := [name for name, kind in before.items() if after.get(name) is not kind]:
        raise Misuse(f"removed or replaced {gone[0]!r} of the result: add to it, and leave what is there.")


def _shape(arguments: dict[str, Any]) -> dict[str, Any]:
    """The types of a result's entries, by name."""
    return {name: type(value) for name, value in arguments.get("result", {}).items()}


def merge(result: dict[str, Any], logged: dict[str, Any]) -> None:
    """Put what was logged into a result, dictionaries into those of the same name."""
    for name, value in logged.items():
        if isinstance(value, dict) and isinstance(result.get(name), dict):
            merge(result[name], value)
        else:
            result[name] = value
