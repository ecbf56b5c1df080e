"""`TrainingCallbacks`: calls the user's callbacks during a training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson

from hindcast.api import OfflineRecording, OfflineTraining, document_of
from hindcast.metrics_logger import MetricsLogger
from hindcast.record.callbacks import TRAINING_HOOKS
from hindcast.record.episode_callbacks import call_each, make_callbacks, select_overriding
from hindcast.user_code import Misuse


class TrainingCallbacks:
    """The callbacks of a training.

    Args:
        paths: "package.module:Class" of each callback.

    Attributes:
        algorithm: passed to each callback; the trainer, or the user's algorithm in the builder.

    Raises:
        SpecError: there is no such class, it is not a `Callbacks`, or it overrides a method that is never called.
        UserCodeError: importing or creating it raised an exception.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        self.algorithm: Any = None
        self._callbacks = select_overriding(make_callbacks(paths), TRAINING_HOOKS)
        self._metrics = MetricsLogger()

    def start(self, resource: OfflineRecording | OfflineTraining, folder: str | None) -> None:
        """Call `on_algorithm_init`, with the resource as the values of its YAML document.

        Args:
            resource: the training, or the recording whose expert is trained.
            folder: the run folder; None in Python.

        Raises:
            UserCodeError: a callback raised an exception.
        """
        if self._callbacks:
            self.call("on_algorithm_init", resource=document_of(resource), folder=folder)

    def call(self, event: str, **arguments: Any) -> None:
        """Call the method `event` of each callback.

        If there is an argument `result`, the metrics that callbacks have logged since the last result are then merged
        into it.

        Raises:
            UserCodeError: a callback raised an exception, added entries that are not JSON, or removed an entry.
        """
        call_arguments = {"algorithm": self.algorithm, "metrics_logger": self._metrics, **arguments}
        call_each(
            self._callbacks,
            event,
            call_arguments,
            check=partial(_check_result, arguments, _entry_types(arguments)),
        )
        if "result" in arguments:
            merge_metrics(arguments["result"], self._metrics.reduce())


def _check_result(arguments: dict[str, Any], types_before: dict[str, Any]) -> None:
    """Refuse arguments that are not JSON, and a result from which a callback removed an entry or changed its type."""
    orjson.dumps(arguments, option=orjson.OPT_SERIALIZE_NUMPY)  # as results are written
    types_after = _entry_types(arguments)
    if missing_names := [
        name for name, entry_type in types_before.items() if types_after.get(name) is not entry_type
    ]:
        raise Misuse(
            f"removed or replaced {missing_names[0]!r} of the result: add entries, and keep the existing ones."
        )


def _entry_types(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return entry name -> type of a result's entries."""
    return {name: type(value) for name, value in arguments.get("result", {}).items()}


def merge_metrics(result: dict[str, Any], logged_metrics: dict[str, Any]) -> None:
    """Merge logged metrics into a result in place, recursively for dictionaries; a logged value replaces another."""
    for name, value in logged_metrics.items():
        if isinstance(value, dict) and isinstance(result.get(name), dict):
            merge_metrics(result[name], value)
        else:
            result[name] = value
