"""`MetricsLogger`: metrics that a user's own pieces log, reduced for results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from hindcast.api.sentences import nearest

Key = str | tuple[str, ...]
MetricDump = list[tuple[list[str], str, int | None, list[float]]]

_REDUCTIONS: Final[dict[str, Callable[[list[float]], float]]] = {
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "min": min,
    "max": max,
    "last": lambda values: values[-1],
}
_AS_RLLIB: Final[dict[str | None, str]] = {
    None: "mean",
    "ema": "mean",
    "item": "last",
}
_LIFETIME: Final = (
    'no result holds a sum over the whole training: log with reduce="sum", which is that of one iteration, and add '
    "these up where you read results"
)
_REFUSED: Final[dict[str, str]] = {
    "ema_coeff": "nothing is smoothed over iterations; leave it out",
    "percentiles": "there are no percentiles; log each as a metric of its own",
    "with_throughput": 'there are no throughputs; log_time(...) beside reduce="sum" gives both parts of one',
}
"""RLlib's options that ask for what there is not here, and what to do instead."""
_WITHOUT_EFFECT: Final = ("clear_on_reduce", "throughput_ema_coeff", "reduce_per_index_on_aggregate")
"""RLlib's deprecated options, which have no effect there either."""


class MetricsLogger:
    """Logs numbers by name under RLlib's names; a result holds what was logged since the one before, and no more.

    A name is text, or a tuple of texts where results are nested. Unlike RLlib's, means and windows do not go over
    several results: a checkpoint has nothing to keep of them.
    """

    def __init__(self) -> None:
        self._logged: dict[tuple[str, ...], tuple[str, int | None, list[float]]] = {}

    def log_value(
        self, key: Key, value: Any, *, reduce: str | None = "mean", window: int | None = None, **others: Any
    ) -> None:
        """Log a number.

        Args:
            key: its name.
            value: a number, or an array or tensor of one.
            reduce: "mean" ("ema" is that too), "sum", "min", "max", "item" (the last): what a result holds of several.
            window: of the last so many alone since the last result; None for all since then.
            others: RLlib's other options, as far as they ask for nothing.

        Raises:
            ValueError: it is not a number, or there is no such reduction or option.
        """
        _refuse(key, reduce, others)
        reduction = _AS_RLLIB.get(reduce, reduce or "")
        if reduction not in _REDUCTIONS:
            raise ValueError(
                f"metric {key!r}: reduce is {reduce!r}, expected mean, ema, sum, min, max or item"
            )
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"metric {key!r} is a {type(value).__name__}, expected a number") from error
        values = self._logged.setdefault(_parts(key), (reduction, window, []))[-1]
        values.append(number)
        if window is not None:
            del values[:-window]

    def log_dict(self, values: Mapping[str, Any], *, key: Key = (), **options: Any) -> None:
        """Log all numbers of a dictionary, nested or not, under `key`."""
        for name, value in values.items():
            path = (*_parts(key), name)
            if isinstance(value, Mapping):
                self.log_dict(value, key=path, **options)
            else:
                self.log_value(path, value, **options)

    @contextmanager
    def log_time(self, key: Key, **options: Any) -> Iterator[None]:
        """Log the seconds that a `with` block takes."""
        begun = time.perf_counter()
        yield
        self.log_value(key, time.perf_counter() - begun, **options)

    def peek(self, key: Key, default: Any = None) -> Any:
        """What a result would hold of it now."""
        logged = self._logged.get(_parts(key))
        return default if logged is None else _REDUCTIONS[logged[0]](logged[2])

    def reduce(self) -> dict[str, Any]:
        """What a result holds, nested; logging starts again."""
        logged, self._logged = self._logged, {}
        found: dict[str, Any] = {}
        for (*parents, name), (reduction, _window, values) in sorted(logged.items()):
            here = found
            for parent in parents:
                here = here.setdefault(parent, {})
            here[name] = _REDUCTIONS[reduction](values)
        return found

    def drain(self) -> MetricDump:
        """All that was logged, as JSON, for `add` elsewhere; logging starts again."""
        logged, self._logged = self._logged, {}
        return [(list(key), *own) for key, own in logged.items()]

    def add(self, dumped: Sequence[Sequence[Any]]) -> None:
        """Log what was logged elsewhere."""
        for key, reduction, window, values in dumped:
            for value in values:
                self.log_value(tuple(key), value, reduce=reduction, window=window)


def _refuse(key: Key, reduce: str | None, others: Mapping[str, Any]) -> None:
    """Refuse options of `log_value` that would have no effect."""
    if reduce == "lifetime_sum" or (reduce == "sum" and others.get("clear_on_reduce") is False):
        raise ValueError(f"metric {key!r}: {_LIFETIME}")
    for name, value in others.items():
        if name not in (*_REFUSED, *_WITHOUT_EFFECT):
            raise ValueError(f"metric {key!r}: {name} is not an option{nearest(name, ('reduce', 'window'))}")
        if name in _REFUSED and value is not None and value is not False:
            raise ValueError(f"metric {key!r}: {name} is {value!r}, but {_REFUSED[name]}")


def _parts(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
