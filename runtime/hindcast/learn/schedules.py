"""Schedules: constants, or points `[[timestep, value], ...]` joined to a curve over the trained timesteps."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from hindcast.api.option_types import Curve, Schedule

__all__ = ["Curve", "Schedule", "ScheduledValue", "is_constant", "make_curve", "value_at"]


class _Segment(NamedTuple):
    """A schedule from one point on: `value + rise * progress`; the progress grows from 0 to 1 over `length`."""

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
    """A schedule that is computed on the device.

    Its value is a tensor, since compiled code and CUDA graphs would keep the first value of a Python number. As one of
    an algorithm's networks it moves to their device. The schedule never changes, so checkpoints do not contain it.

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
        starts, values, rises, lengths, is_cosine = torch.tensor(_segments(schedule), dtype=torch.float64).T
        self._has_cosine = bool(is_cosine.any())
        tables = {"starts": starts, "values": values, "rises": rises, "lengths": lengths, "ends": starts[1:]}
        for name, values in {**tables, "is_cosine": is_cosine.bool()}.items():
            self.register_buffer(f"_{name}", values.contiguous(), persistent=False)

    def forward(self, clock: Tensor) -> Tensor:
        """Return the value at `clock`, the timesteps trained (`Step.clock`), as a float32 scalar for losses."""
        return self.float64_value(clock).float()

    def float64_value(self, clock: Tensor) -> Tensor:
        """Return the value as a float64 scalar, equal to `value_at` to the bit except for cosines."""
        elapsed = clock - self._starts
        values = self._values + self._rises * elapsed / self._lengths
        if self._has_cosine:
            cosine_values = self._values + self._rises * (
                0.5 - 0.5 * torch.cos(math.pi * elapsed / self._lengths)
            )
            values = torch.where(self._is_cosine, cosine_values, values)
        return values.take(torch.searchsorted(self._ends, clock, right=True))


def value_at(schedule: Curve, timesteps: int) -> float:
    """Return the schedule's value after `timesteps` trained timesteps, which stays the same after the last point."""
    return make_curve(schedule)(timesteps)


def make_curve(schedule: Curve) -> Callable[[int], float]:
    """Return `value_at` of a schedule as a function of the timesteps alone, for schedules that every update reads."""
    segments = _segments(schedule)
    starts = [segment.start for segment in segments]
    return lambda timesteps: segments[bisect_right(starts, timesteps) - 1].at(timesteps)


def is_constant(schedule: Curve) -> bool:
    """Return True if the schedule is a number; points, even a single one, are not constant in this sense."""
    return isinstance(schedule, int | float)


def _segments(schedule: Curve) -> list[_Segment]:
    if isinstance(schedule, int | float):
        return [_Segment(0.0, float(schedule), 0.0, 1.0, is_cosine=False)]
    end = [*schedule[-1][:2], "step"]  # the last point again, so that its segment has no rise
    return [
        _segment(point, next_point) for point, next_point in zip(schedule, [*schedule[1:], end], strict=True)
    ]


def _segment(point: Sequence[float | str], next_point: Sequence[float | str]) -> _Segment:
    start, value, end, next_value = (cast(float, coordinate) for coordinate in (*point[:2], *next_point[:2]))
    shape = point[2] if len(point) > 2 else "line"
    rise = 0.0 if shape == "step" else next_value - value
    # `at` divides by the length, which would be 0 for the last segment; any other number has the same effect there.
    return _Segment(start, value, rise, (end - start) or 1.0, shape == "cosine")
