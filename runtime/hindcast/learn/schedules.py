"""Values that change while training: a constant, or points `[[timestep, value], ...]` joined to a curve."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from hindcast.api.option_types import Curve, Schedule

__all__ = ["Curve", "Schedule", "ScheduledValue", "curve_of", "is_constant", "value_at"]


class _Piece(NamedTuple):
    """A schedule from one point on: `value + rise * share`, where the share grows from 0 to 1 over `length`."""

    start: float
    value: float
    rise: float
    length: float
    is_cosine: bool

    def at(self, timesteps: int) -> float:
        if not self.is_cosine:
            return self.value + self.rise * (timesteps - self.start) / self.length
        angle = math.pi * (timesteps - self.start) / self.length
        return self.value + self.rise * (0.5 - 0.5 * math.cos(angle))


class ScheduledValue(nn.Module):
    """A schedule that is computed on the device, without a number of Python's that changes.

    Among an algorithm's networks it moves to their device; checkpoints do not hold it, since it never changes.

    Args:
        schedule: a number, or points.
    """

    _starts: Tensor
    _values: Tensor
    _rises: Tensor
    _lengths: Tensor
    _ends: Tensor
    _is_cosine: Tensor

    def __init__(self, schedule: Curve) -> None:
        super().__init__()
        starts, values, rises, lengths, is_cosine = torch.tensor(_pieces(schedule), dtype=torch.float64).T
        self._has_cosine = bool(is_cosine.any())
        tables = {"starts": starts, "values": values, "rises": rises, "lengths": lengths, "ends": starts[1:]}
        for name, values in {**tables, "is_cosine": is_cosine.bool()}.items():
            self.register_buffer(f"_{name}", values.contiguous(), persistent=False)

    def forward(self, clock: Tensor) -> Tensor:
        """The value as a factor of losses (float32 scalar) at `clock`, the timesteps trained (`Step.clock`)."""
        return self.precise(clock).float()

    def precise(self, clock: Tensor) -> Tensor:
        """The value (float64 scalar), but for cosines to the bit what `value_at` gives."""
        passed = clock - self._starts
        curves = self._values + self._rises * passed / self._lengths
        if self._has_cosine:
            waves = self._values + self._rises * (0.5 - 0.5 * torch.cos(math.pi * passed / self._lengths))
            curves = torch.where(self._is_cosine, waves, curves)
        return curves.take(torch.searchsorted(self._ends, clock, right=True))


def value_at(schedule: Curve, timesteps: int) -> float:
    """The value after `timesteps` trained timesteps; it stays as it is after the last point."""
    return curve_of(schedule)(timesteps)


def curve_of(schedule: Curve) -> Callable[[int], float]:
    """`value_at` of the timesteps, for a schedule that is asked in every update."""
    pieces = _pieces(schedule)
    starts = [piece.start for piece in pieces]
    return lambda timesteps: pieces[bisect_right(starts, timesteps) - 1].at(timesteps)


def is_constant(schedule: Curve) -> bool:
    """Whether the value never changes."""
    return isinstance(schedule, int | float)


def _pieces(schedule: Curve) -> list[_Piece]:
    if isinstance(schedule, int | float):
        return [_Piece(0.0, float(schedule), 0.0, 1.0, is_cosine=False)]
    last = [*schedule[-1][:2], "step"]
    return [_piece(point, after) for point, after in zip(schedule, [*schedule[1:], last], strict=True)]


def _piece(point: Sequence[float | str], after: Sequence[float | str]) -> _Piece:
    start, value, end, then = (cast(float, each) for each in (*point[:2], *after[:2]))
    joined_by = point[2] if len(point) > 2 else "line"
    rise = 0.0 if joined_by == "step" else then - value
    return _Piece(start, value, rise, (end - start) or 1.0, joined_by == "cosine")
