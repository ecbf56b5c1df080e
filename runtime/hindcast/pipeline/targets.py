"""Targets: columns that an algorithm computes over the complete episodes of a window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from hindcast.pipeline.window import WindowData


@dataclass(frozen=True)
class Targets:
    """The function and the schedule that compute the targets of windows.

    Attributes:
        compute: returns further columns of a window, `[S, ...]` each, in the window's order and on its device.
        updates: returns the number of updates so far.
        every: number of updates after which targets are recomputed; None keeps them until the window ends.
    """

    compute: Callable[[WindowData], Mapping[str, Tensor]]
    updates: Callable[[], int]
    every: int | None = None


class WindowTargets(NamedTuple):
    """The targets of a window.

    Attributes:
        first_cursor: cursor of the window's first item, which identifies the window among those of its lane.
        updates: number of updates when the targets were computed.
        columns: name -> `[S, ...]`.
    """

    first_cursor: int
    updates: int
    columns: Mapping[str, Tensor]
