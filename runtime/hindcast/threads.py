"""Choose the number of torch threads by the size of the work and the number of idle processors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
from torch import nn

_DEFAULT_NUM_THREADS = torch.get_num_threads()
"""Torch's own default: `OMP_NUM_THREADS` if set."""

_MIN_WORK_TO_SHARE = 4_000_000
"""Number of parameters times number of rows above which a second thread makes a forward pass faster."""


def num_processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def choose_num_threads(net: nn.Module, rows: int, num_busy: int = 0, num_sharing: int = 1) -> int:
    """Return the number of threads for passes of `rows` rows through `net`.

    Args:
        net: the network.
        rows: number of rows of a batch.
        num_busy: number of processors that other processes of the same run occupy.
        num_sharing: number of processes, this one included, that share the other processors.
    """
    has_convolution = any(isinstance(module, nn.Conv2d) for module in net.modules())
    num_parameters = sum(parameter.numel() for parameter in net.parameters())
    # A small pass is over before a second thread has begun.
    if not has_convolution and num_parameters * rows < _MIN_WORK_TO_SHARE:
        return 1
    # Threads that wait for each other on occupied processors made recording 50 times slower.
    return max(1, min(_DEFAULT_NUM_THREADS, (num_processors() - num_busy) // num_sharing))


@contextlib.contextmanager
def torch_threads(num_threads: int) -> Iterator[None]:
    """Compute with `num_threads` threads in this block."""
    previous = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
