"""`Called`: the user's callbacks hear how a training goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from hindcast.pipeline.metrics_logger import MetricsLogger
from hindcast.record.callbacks import OF_TRAINING
from hindcast.record.told import callbacks_of, overriding
from hindcast.user_code import calling


class Called:
    """The callbacks of a training.

    Args:
        paths: "package.module:Class" of each.

    Attributes:
        algorithm: what they are told of.

    Raises:
        SpecError: there is no such class, it is no `Callbacks`, or it overrides what nothing calls.
        UserCodeError: importing or making it raised.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        self.algorithm: Any = None
        self._callbacks = overriding(callbacks_of(paths), OF_TRAINING)
        self._metrics = MetricsLogger()

    def tell(self, event: str, **arguments: Any) -> None:
        """Call the method `event` of each; a `result` gets what was logged since the last one.

        Raises:
            UserCodeError: one raised, or put something into a result that is not JSON.
        """
        for each in self._callbacks:
            called = getattr(each, event)
            with calling(f"{type(each).__name__}.{event}", called):
                called(algorithm=self.algorithm, metrics_logger=self._metrics, **arguments)
                orjson.dumps(arguments, option=orjson.OPT_SERIALIZE_NUMPY)  # as results are written
        if "result" in arguments:
            merge(arguments["result"], self._metrics.reduce())


def merge(result: dict[str, Any], logged: dict[str, Any]) -> None:
    """Put what was logged into a result, dictionaries into those of the same name."""
    for name, value in logged.items():
        if isinstance(value, dict) and isinstance(result.get(name), dict):
            merge(result[name], value)
        else:
            result[name] = value
