"""`MetricsLogger` collects metrics that user code logs, and reduces them for results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from hindcast.api.sentences import nearest
from hindcast.formatting import describe_type

Key = str | tuple[str, ...]
MetricDump = list[tuple[list[str], str, int | None, list[float]]]
"""Key, reduction, window and values of each metric."""

_REDUCTIONS: Final[dict[str, Callable[[list[float]], float]]] = {
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "min": min,
    "max": max,
    "last": lambda values: values[-1],
}
_RLLIB_REDUCTIONS: Final[dict[str | None, str]] = {
    None: "mean",
    "ema": "mean",
    "item": "last",
}
"""RLlib's name of a reduction -> its name here, where they differ."""
_LIFETIME_MESSAGE: Final = (
    'results contain no sums over the whole training: log with reduce="sum", which is the sum of one iteration, and '
    "add these up when you read results"
)
_REFUSED_OPTIONS: Final[dict[str, str]] = {
    "ema_coeff": "metrics are not smoothed over iterations; leave it out",
    "percentiles": "percentiles are not supported; log each one as a separate metric",
    "with_throughput": "throughputs are not supported; log the time with log_time(...) and the count with "
    'reduce="sum"',
}
"""RLlib's options that are not supported -> what to do instead."""
_IDLE_OPTIONS: Final = ("clear_on_reduce", "throughput_ema_coeff", "reduce_per_index_on_aggregate")
"""RLlib's deprecated options, which have no effect in RLlib either."""


class MetricsLogger:
    """Logs numbers by name, with RLlib's interface; a result contains those since the previous result.

    A name is text, or a tuple of texts for nested results. Unlike RLlib's, means and windows do not span several
    results, so checkpoints need not contain them.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, ...], tuple[str, int | None, list[float]]] = {}

    def log_value(
        self, key: Key, value: Any, *, reduce: str | None = "mean", window: int | None = None, **options: Any
    ) -> None:
        """Log a number.

        Args:
            key: name of the metric.
            value: a number, or an array or tensor of one element.
            reduce: "mean" (or "ema"), "sum", "min", "max" or "item" (the last): how a result combines several values.
                Until a result contains the metric, the first call decides.
            window: use only the last `window` values since the last result; None for all of them.
            options: RLlib's other options, with values that have no effect.

        Raises:
            ValueError: the value is not a number, or the reduction or an option is unknown or not supported.
        """
        _check_options(key, reduce, options)
        reduction = _RLLIB_REDUCTIONS.get(reduce, reduce or "")
        if reduction not in _REDUCTIONS:
            raise ValueError(
                f"metric {key!r}: reduce is {reduce!r}, expected mean, ema, sum, min, max or item"
            )
        try:
            float_value = float(value)
        # torch raises RuntimeError for a tensor of several elements.
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"metric {key!r} is {describe_type(value)}, expected a number") from error
        values = self._entries.setdefault(_key_path(key), (reduction, window, []))[-1]
        values.append(float_value)
        if window is not None:
            del values[:-window]

    def log_dict(self, values: Mapping[str, Any], *, key: Key = (), **options: Any) -> None:
        """Log all numbers of a dictionary, nested or not, under `key`."""
        for name, value in values.items():
            path = (*_key_path(key), name)
            if isinstance(value, Mapping):
                self.log_dict(value, key=path, **options)
            else:
                self.log_value(path, value, **options)

    @contextmanager
    def log_time(self, key: Key, **options: Any) -> Iterator[None]:
        """Log the seconds that a `with` block takes; nothing if the block raises."""
        start_time = time.perf_counter()
        yield
        self.log_value(key, time.perf_counter() - start_time, **options)

    def peek(self, key: Key, default: Any = None) -> Any:
        """Return the value that a result would contain now; `default` if none was logged."""
        entry = self._entries.get(_key_path(key))
        return default if entry is None else _REDUCTIONS[entry[0]](entry[2])

    def reduce(self) -> dict[str, Any]:
        """Return the metrics for a result, nested, and remove the values."""
        entries, self._entries = self._entries, {}
        results: dict[str, Any] = {}
        for (*parents, name), (reduction, _window, values) in sorted(entries.items()):
            node = results
            for parent in parents:
                node = node.setdefault(parent, {})
            node[name] = _REDUCTIONS[reduction](values)
        return results

    def drain(self) -> MetricDump:
        """Return all logged values as JSON, for `add` in another process, and remove them."""
        entries, self._entries = self._entries, {}
        return [(list(key), *entry) for key, entry in entries.items()]

    def add(self, dump: Sequence[Sequence[Any]]) -> None:
        """Log the values that `drain` returned, in this or another process."""
        # Value by value, so that windows and reductions apply across processes.
        for key, reduction, window, values in dump:
            for value in values:
                self.log_value(tuple(key), value, reduce=reduction, window=window)


def _check_options(key: Key, reduce: str | None, options: Mapping[str, Any]) -> None:
    """Raise an error for options of `log_value` that are not supported."""
    if reduce == "lifetime_sum" or (reduce == "sum" and options.get("clear_on_reduce") is False):
        raise ValueError(f"metric {key!r}: {_LIFETIME_MESSAGE}")
    for name, value in options.items():
        if name not in (*_REFUSED_OPTIONS, *_IDLE_OPTIONS):
            raise ValueError(f"metric {key!r}: {name} is not an option{nearest(name, ('reduce', 'window'))}")
        if name in _REFUSED_OPTIONS and value is not None and value is not False:
            raise ValueError(f"metric {key!r}: {name} is {value!r}, but {_REFUSED_OPTIONS[name]}")


def _key_path(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
