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
"""Name of the sum of an update's losses, and prefix of each optimiser's loss if there are several optimisers."""


class Metrics(NamedTuple):
    """Metrics of one update.

    Attributes:
        names: M names.
        values: `[M]`.
    """

    names: tuple[str, ...]
    values: Tensor


class MetricSums:
    """Sums of scalars, kept as tensors, so that adding to them does not wait for the device.

    Args:
        device: device of the scalars.
        since: number of updates made before the first update that is added.
        source: where the losses are computed, for messages; begins with a space.
    """

    def __init__(self, device: torch.device, since: int = 0, source: str = "") -> None:
        self._device = device
        self._since = self._until = since
        self._source = source
        self._non_finite: tuple[int, list[str]] | None = None
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, metrics: Metrics, update: int, weight: float | Tensor = 1.0) -> None:
        """Add an update's metrics.

        Args:
            metrics: the values are copied.
            update: this update's number, counted from 1.
            weight: fraction of the batch that the metrics cover; the other learners add the rest.
        """
        names, values = metrics
        # Reading values from a GPU would wait for it; `means` detects non-finite values there.
        if values.is_cpu and self._non_finite is None and not all(map(math.isfinite, values.tolist())):
            self._non_finite = update, _non_finite_names(dict(zip(names, values.tolist(), strict=True)))
        if isinstance(weight, Tensor) or weight != 1.0:  # comparing a tensor would wait for the device
            values = values.double() * weight
        if names in self._sums:
            self._sums[names].add_(values)
        else:
            self._sums[names] = values.to(torch.float64, copy=True)
        self._counts[names] = self._counts.get(names, 0) + 1
        self._until = update

    def means(self) -> dict[str, float]:
        """Return the mean of each metric over the updates that had it.

        Raises:
            DataError: a metric was NaN or infinite in one of the updates.
        """
        # One NaN or infinity makes its sum non-finite for good, so that no update needs its own check.
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        for names, values in self._sums.items():
            for name, value in zip(names, values.tolist(), strict=True):
                sums[name] = sums.get(name, 0.0) + value
                counts[name] = counts.get(name, 0) + self._counts[names]
        if non_finite := _non_finite_names(sums):
            raise DataError(self._non_finite_message(non_finite, sums))
        return {name: value / counts[name] for name, value in sums.items()}

    def _non_finite_message(self, names: list[str], sums: Mapping[str, float]) -> str:
        """Return the message about a non-finite metric.

        It names the update if the metrics are on the CPU, where each update is checked without waiting for a device.
        """
        period = f"between updates {self._since + 1} and {self._until}"
        if self._non_finite is not None:
            update, names = self._non_finite
            period = f"in update {update}"
        name = min(names, key=_message_rank)
        problem = "infinite" if math.isinf(sums[name]) else "NaN"
        return (
            f"{_describe_metric(name)} became {problem} {period}{self._source}: lower lr or set gradClip, and look for "
            "extreme values in the data with `hindcast inspect`"
        )

    def tensors(self) -> list[Tensor]:
        """Return the sums themselves, which the caller may change in place."""
        return list(self._sums.values())

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return index -> sums of a group of metrics, `[M]`, and the groups' names and counts as JSON.

        A group is the metrics that one update had; updates with other metrics form other groups.
        """
        groups = [{"names": list(names), "updates": self._counts[names]} for names in self._sums]
        sums = {str(index): values for index, values in enumerate(self._sums.values())}
        return sums, {"since": self._since, "until": self._until, "groups": groups}

    def load(self, sums: Mapping[str, Tensor], meta: Mapping[str, Any], weight: float = 1.0) -> None:
        """Restore `state()`, multiplied by `weight`, this learner's fraction of the sums."""
        self._since, self._until = int(meta["since"]), int(meta["until"])
        groups = [tuple(group["names"]) for group in meta["groups"]]
        self._sums = {names: sums[str(index)].to(self._device) * weight for index, names in enumerate(groups)}
        self._counts = {tuple(group["names"]): int(group["updates"]) for group in meta["groups"]}


def stack_metrics(metrics: Mapping[str, Tensor]) -> Metrics:
    """Stack the metrics of an update into one tensor.

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
                description = (
                    f"shape {[*value.shape]}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
                )
                raise Misuse(
                    f"returned a metric {name!r} of {description}: a metric is a scalar tensor"
                ) from error
        raise


def _non_finite_names(values: Mapping[str, float]) -> list[str]:
    return [name for name, value in values.items() if not math.isfinite(value)]


def _message_rank(metric: str) -> int:
    """Rank a metric for the message: the loss of one optimiser comes first, then the sum of losses, then others."""
    if metric.startswith(f"{TOTAL_LOSS}/"):
        return 0
    return 1 if metric == TOTAL_LOSS else 2


def _describe_metric(metric: str) -> str:
    optimiser = metric.removeprefix(f"{TOTAL_LOSS}/")
    if optimiser != metric:
        return f"the loss of optimiser {optimiser!r}"
    return "the loss" if metric == TOTAL_LOSS else metric
