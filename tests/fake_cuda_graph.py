"""A stand-in for a CUDA graph, without a GPU: it records operations once and repeats them in the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hindcast.learn.update_graphs import CudaGraph
from no_device_reads import PlainDispatchMode


class FakeCudaGraph(PlainDispatchMode):
    """Records the operations that run within it; `replay` repeats them without running the Python code again."""

    def __init__(self) -> None:
        super().__init__()
        # Function, arguments, keyword arguments and resulting tensors of each operation.
        self._calls: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, _find_tensors(result)))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        """Repeat all operations, reading and writing the tensors that were recorded."""
        for func, args, kwargs, recorded_tensors in self._calls:
            for target, value in zip(recorded_tensors, _find_tensors(func(*args, **kwargs)), strict=True):
                if target.data_ptr() != value.data_ptr():  # otherwise it is a view, or was changed in place
                    target.copy_(value)


class TapeGraph(CudaGraph):
    """A `CudaGraph` on a CPU.

    Attributes:
        num_launches: number of launches so far. The first one does nothing, because the recording has executed it.
    """

    def __init__(self, *_: Any) -> None:
        self._tape = FakeCudaGraph()
        self.num_launches = 0

    def warm_up(self, function: Callable[[], Any]) -> Any:
        return function()

    @contextmanager
    def recording(self) -> Iterator[None]:
        with self._tape:
            yield

    def launch(self) -> None:
        if self.num_launches:
            self._tape.replay()
        self.num_launches += 1


def _find_tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
