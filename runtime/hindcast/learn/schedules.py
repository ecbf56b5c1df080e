"""Values that change while training: a constant, or points `[[timestep, value], ...]` joined by lines."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

Point = Annotated[list[float], Field(min_length=2, max_length=2)]
Points = Annotated[list[Point], Field(min_length=1, max_length=64)]


def _checked(schedule: float | list[list[float]]) -> float | list[list[float]]:
    if isinstance(schedule, float):
        return schedule
    timesteps = [point[0] for point in schedule]
    if timesteps[0] != 0:
        raise ValueError(f"a schedule starts at timestep 0, this one at {timesteps[0]:g}")
    if any(later <= earlier for earlier, later in itertools.pairwise(timesteps)):
        raise ValueError("the timesteps of a schedule must increase from point to point")
    if any(point[1] < 0 for point in schedule):
        raise ValueError("the values of a schedule must not be negative")
    return schedule


Schedule = Annotated[Annotated[float, Field(ge=0)] | Points, AfterValidator(_checked)]
"""A non-negative number, or points `[[timestep, value], ...]` from timestep 0 on (RLlib's form)."""


def value_at(schedule: float | Sequence[Sequence[float]], timesteps: int) -> float:
    """The value after `timesteps` trained timesteps: linear between points, constant after the last."""
    if isinstance(schedule, int | float):
        return float(schedule)
    after = bisect_right([point[0] for point in schedule], timesteps)
    if after == len(schedule):
        return float(schedule[-1][1])
    (t0, v0), (t1, v1) = schedule[after - 1], schedule[after]
    return float(v0 + (v1 - v0) * (timesteps - t0) / (t1 - t0))


def is_constant(schedule: float | Sequence[Sequence[float]]) -> bool:
    """Whether the value never changes."""
    return isinstance(schedule, int | float)
