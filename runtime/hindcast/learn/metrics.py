"""Means of metrics over updates, summed on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hindcast.errors import DataError
from hindcast.user_code import Misuse

TOTAL_LOSS = "total_loss"
"""The sum of an update's losses; below it those of single optimisers, where there are several."""


class Metrics(NamedTuple):
    """Metrics of one update.

    Attributes:
        names: M of them.
        values: `[M]`.
    """

    names: tuple[str, ...]
    values: Tensor


class MetricSums:
    """Sums of scalars, kept as tensors: adding to them does not wait for the device.

    Args:
        device: of the scalars.
        since: updates made before the first one added.
        whose: says in messages whose losses they come from; with a space in front.
    """

    def __init__(self, device: torch.device, since: int = 0, whose: str = "") -> None:
        self._device = device
        self._since = self._until = since
        self._whose = whose
        self._spoilt: tuple[int, list[str]] | None = None
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, metrics: Metrics, updates: int, weight: float | Tensor = 1.0) -> None:
        """Add an update's metrics.

        Args:
            metrics: the values are copied.
            updates: counts the update.
            weight: share of the batch that they are of; the other learners add those of the others.
        """
        names, values = metrics
        if values.is_cpu and self._spoilt is None and not all(map(math.isfinite, values.tolist())):
            self._spoilt = updates, _not_finite(dict(zip(names, values.tolist(), strict=True)))
        if weight != 1.0:
            values = values.double() * weight
        if names in self._sums:
            self._sums[names].add_(values)
        else:
            self._sums[names] = values.to(torch.float64, copy=True)
        self._counts[names] = self._counts.get(names, 0) + 1
        self._until = updates

    def means(self) -> dict[str, float]:
        """Mean of each metric over the updates that had it.

        A sum that one NaN or infinity has entered stays so: no update needs a check of its own.

        Raises:
            DataError: a metric was NaN or infinite in one of the updates.
        """
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        for names, values in self._sums.items():
            for name, value in zip(names, values.tolist(), strict=True):
                sums[name] = sums.get(name, 0.0) + value
                counts[name] = counts.get(name, 0) + self._counts[names]
        if spoilt := _not_finite(sums):
            raise DataError(self._of_spoilt(spoilt, sums))
        return {name: value / counts[name] for name, value in sums.items()}

    def _of_spoilt(self, spoilt: list[str], sums: Mapping[str, float]) -> str:
        """Names the update where each could be looked at without waiting for a device."""
        when = f"between updates {self._since + 1} and {self._until}"
        if self._spoilt is not None:
            update, spoilt = self._spoilt
            when = f"in update {update}"
        name = min(spoilt, key=_likeness_to_a_loss)
        found = "infinite" if math.isinf(sums[name]) else "NaN"
        return (
            f"{_described(name)} became {found} {when}{self._whose}: lower lr or set gradClip, and look for extreme "
            "values in the data with `hindcast inspect`"
        )

    def tensors(self) -> list[Tensor]:
        """The sums, to be changed in place."""
        return list(self._sums.values())

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Sums by group of metrics, and JSON that describes the groups."""
        groups = [{"names": list(names), "updates": self._counts[names]} for names in self._sums]
        sums = {str(group): values for group, values in enumerate(self._sums.values())}
        return sums, {"since": self._since, "until": self._until, "groups": groups}

    def load(self, sums: Mapping[str, Tensor], meta: Mapping[str, Any], weight: float = 1.0) -> None:
        """Take over `state()`; `weight` is this learner's share of the sums."""
        self._since, self._until = int(meta["since"]), int(meta["until"])
        names = [tuple(group["names"]) for group in meta["groups"]]
        self._sums = {group: sums[str(index)].to(self._device) * weight for index, group in enumerate(names)}
        self._counts = {tuple(group["names"]): int(group["updates"]) for group in meta["groups"]}


def stack_metrics(metrics: Mapping[str, Tensor]) -> Metrics:
    """One tensor of an update's metrics.

    Args:
        metrics: name -> scalar.

    Raises:
        Misuse: a metric is not a scalar.
    """
    try:
        return Metrics(tuple(metrics), torch.stack([value.detach() for value in metrics.values()]))
    except (AttributeError, RuntimeError) as error:
        for name, value in metrics.items():
            if not isinstance(value, Tensor) or value.dim():
                found = (
                    f"shape {[*value.shape]}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
                )
                raise Misuse(f"gave a metric {name!r} of {found}: a metric is a scalar tensor") from error
        raise


def _not_finite(values: Mapping[str, float]) -> list[str]:
    return [name for name, value in values.items() if not math.isfinite(value)]


def _likeness_to_a_loss(metric: str) -> int:
    """Smaller for what says more: the loss of one optimiser, then all together."""
    return 0 if metric.startswith(f"{TOTAL_LOSS}/") else 1 if metric == TOTAL_LOSS else 2


def _described(metric: str) -> str:
    optimiser = metric.removeprefix(f"{TOTAL_LOSS}/")
    if optimiser != metric:
        return f"the loss of optimiser {optimiser!r}"
    return "the loss" if metric == TOTAL_LOSS else metric
