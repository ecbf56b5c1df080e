"""How many threads torch computes with: as many as the work is worth and the machine has free."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
from torch import nn

_OFFERED = torch.get_num_threads()
"""Torch's own default: `OMP_NUM_THREADS` if set."""

_WORTH_SHARING = 4_000_000
"""Parameters times rows from which on a forward pass gains from a second thread."""


def num_processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def choose_num_threads(net: nn.Module, rows: int, num_busy: int = 0) -> int:
    """Threads for passes of `rows` rows through `net`.

    Threads that wait for each other on occupied processors cost more than they bring, and small passes are
    over before a second thread has begun.

    Args:
        net: what computes.
        rows: rows of a batch.
        busy: processors that other processes of the same run occupy.
    """
    convolves = any(isinstance(module, nn.Conv2d) for module in net.modules())
    parameters = sum(parameter.numel() for parameter in net.parameters())
    if not convolves and parameters * rows < _WORTH_SHARING:
        return 1
    return max(1, min(_OFFERED, num_processors() - num_busy))


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Compute with `count` threads in this block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
