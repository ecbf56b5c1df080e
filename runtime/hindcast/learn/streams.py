"""Run independent parts of an update at the same time on a GPU.

Each kernel of a small network occupies only a few of a GPU's hundred processors. A CUDA graph that is recorded on
several streams runs such kernels at the same time. Autograd runs a backward pass on the streams of its forward pass.
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
"""Maximum number of parts that run at the same time."""
_active_streams: ContextVar[Sequence[torch.cuda.Stream]] = ContextVar("_active_streams", default=())


@contextmanager
def use_streams(streams: Sequence[torch.cuda.Stream]) -> Iterator[None]:
    """Let `run_parallel` use these streams of the current device; without streams it runs its parts in order."""
    token = _active_streams.set(streams)
    try:
        yield
    finally:
        _active_streams.reset(token)


def run_parallel(*parts: Callable[[], Result]) -> list[Result]:
    """Return the result of each part; without streams the parts run one after the other.

    A part must not change what another part reads. The caller keeps tensors that existed before the call until the
    update ends: the allocator would otherwise reuse their memory while another stream still reads them.
    """
    streams = () if torch.compiler.is_compiling() else _active_streams.get()
    if not streams:
        return [part() for part in parts]
    current_stream = torch.cuda.current_stream()
    results = []
    with use_streams(()):  # nested calls run in order: the streams are already in use
        for part, stream in zip(parts, cycle(streams), strict=False):
            stream.wait_stream(current_stream)
            with torch.cuda.stream(stream):
                results.append(part())
    for _, stream in zip(parts, streams, strict=False):
        current_stream.wait_stream(stream)
    for tensor in tree_leaves(results):
        if isinstance(tensor, Tensor):  # allocated on another stream, used on this one
            tensor.record_stream(current_stream)
    return results
