"""Parts of an update that do not wait for each other, at the same time on a GPU.

Kernels of small networks occupy a few of its hundred processors each. A CUDA graph that is recorded on several streams
runs them side by side; a backward pass is on the streams of its forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import cycle
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

Result = TypeVar("Result")

MAX_STREAMS = 4
"""Parts that run at the same time."""
_streams: ContextVar[Sequence[torch.cuda.Stream]] = ContextVar("_streams", default=())


@contextmanager
def use_streams(streams: Sequence[torch.cuda.Stream]) -> Iterator[None]:
    """Let `in_parallel` use these streams of the current device; without any it does not."""
    token = _streams.set(streams)
    try:
        yield
    finally:
        _streams.reset(token)


def run_parallel(*parts: Callable[[], Result]) -> list[Result]:
    """What each of `parts` gives; one after the other where there are no streams.

    A part must not change what another one reads. What exists before must be kept until the update ends: its memory
    would be used again while another stream still reads it.
    """
    streams = () if torch.compiler.is_compiling() else _streams.get()
    if not streams:
        return [part() for part in parts]
    current = torch.cuda.current_stream()
    found = []
    with use_streams(()):  # no parts within parts
        for part, stream in zip(parts, cycle(streams), strict=False):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                found.append(part())
    for _, stream in zip(parts, streams, strict=False):
        current.wait_stream(stream)
    for each in tree_leaves(found):
        if isinstance(each, Tensor):  # was made on another stream, and is used on this one
            each.record_stream(current)
    return found
