"""Targets: columns that an algorithm computes over the complete episodes of a window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from hindcast.pipeline.window import WindowData


@dataclass(frozen=True)
class Targets:
    """How a window gets its targets.

    Attributes:
        compute: from a window to further columns, `[S, ...]` each, in the window's own order and on its device.
        updates: how many updates have been made.
        every: updates after which they are recomputed; None keeps them until the window is used up.
    """

    compute: Callable[[WindowData], Mapping[str, Tensor]]
    updates: Callable[[], int]
    every: int | None = None


class WindowTargets(NamedTuple):
    """The targets of a window.

    Attributes:
        first_cursor: says which window.
        updates: made when they were computed.
        columns: name -> `[S, ...]`.
    """

    first_cursor: int
    updates: int
    columns: Mapping[str, Tensor]
