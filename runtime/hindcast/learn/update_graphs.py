"""`UpdateGraphs`: updates on a GPU as CUDA graphs, recorded once and then launched whole.

An update of small networks is some two hundred kernels of a few microseconds, which Python launches more slowly than
the GPU runs them. Recorded, they are launched together, and are the same kernels on the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from hindcast.learn.algorithm import Algorithm
from hindcast.learn.optimisers import Optimiser
from hindcast.learn.streams import MAX_STREAMS, use_streams

Result = TypeVar("Result")

_WARM_UP = 3
"""Updates of a kind before it is recorded: they make the optimisers' states, and libraries' workspaces."""
_MOST_GRAPHS = 16
"""Where shapes of batches keep changing, the later ones are not recorded: each graph takes a second and memory."""


class CudaGraph:
    """A CUDA graph, and the streams that it is recorded on.

    Args:
        generator: what is recorded draws from it, or from torch's own; each launch goes on where the last one ended.
        sharing: another graph whose memory this one uses too; they never run at the same time.
    """

    def __init__(self, generator: torch.Generator, sharing: CudaGraph | None = None) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(generator)
        self._streams: list[torch.cuda.Stream] = (
            sharing._streams
            if sharing
            else [torch.cuda.Stream(generator.device) for _ in range(1 + MAX_STREAMS)]
        )
        self._stream = self._streams[0]
        self._pool: Any = sharing._pool if sharing else torch.cuda.graph_pool_handle()

    def warm_up(self, call: Callable[[], Result]) -> Result:
        """Run on the graph's streams: what autograd and the libraries keep for a stream is there when it records."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), use_streams(self._streams[1:]):
            result = call()
        current.wait_stream(self._stream)
        return result

    def record(self, call: Callable[[], Result]) -> Result:
        """Record what a call launches, without running it; its tensors are the graph's."""
        # Other threads (a feed's) go on using the GPU in the meantime, which the other modes refuse.
        with (
            torch.cuda.graph(
                self._graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ),
            use_streams(self._streams[1:]),
        ):
            return call()

    def launch(self) -> None:
        """Run what was recorded."""
        self._graph.replay()


GRAPHS: dict[str, type[CudaGraph]] = {"cuda": CudaGraph}
"""By the kind of device."""


class UpdateGraphs(Generic[Result]):
    """One graph for each kind of update and shape of batch.

    Args:
        update: of a batch and further arguments. All that it reads and changes are the batch and tensors that stay.
        generator: the one that it draws from, on the device.
    """

    def __init__(self, update: Callable[..., Result], generator: torch.Generator) -> None:
        self._update = update
        self._generator = generator
        self._kind_of_graph = GRAPHS[generator.device.type]
        self.clear()

    def clear(self) -> None:
        """Record anew: tensors that the update uses were replaced by others."""
        self._graphs: dict[Hashable, CudaGraph] = {}
        self._recorded: dict[Hashable, tuple[list[Tensor], Result]] = {}
        self._made: Counter[Hashable] = Counter()

    def run(self, kind: Hashable, batch: Mapping[str, Tensor], *arguments: Any) -> Result:
        """`update(batch, *arguments)`.

        Args:
            kind: updates of one kind, with equal arguments and batches of one shape, do the same operations.
            batch: leaf -> `[batch, ...]`.
            arguments: hashable.

        Returns:
            What it gave; the tensors in it hold until the next call.
        """
        key = (kind, arguments, *((leaf, each.shape, each.dtype) for leaf, each in batch.items()))
        if key in self._recorded:
            static, result = self._recorded[key]
            torch._foreach_copy_(static, list(batch.values()))
            self._graphs[key].launch()
            return result
        if key not in self._graphs:
            if len(self._graphs) == _MOST_GRAPHS:
                return self._update(batch, *arguments)
            sharing = next(iter(self._graphs.values()), None)
            self._graphs[key] = self._kind_of_graph(self._generator, sharing)
        graph = self._graphs[key]
        if self._made[key] < _WARM_UP:
            self._made[key] += 1
            return graph.warm_up(lambda: self._update(batch, *arguments))
        copies = {leaf: each.clone() for leaf, each in batch.items()}
        result = graph.record(lambda: self._update(copies, *arguments))
        self._recorded[key] = list(copies.values()), result
        graph.launch()
        return result


def is_capturable(
    algorithm: Algorithm, nets: nn.ModuleDict, optimisers: Iterable[Optimiser], device: torch.device
) -> bool:
    """Whether an update does the same operations each time, on a device that has graphs.

    Of a user's own algorithm if its class says so (a class over one of the library may do otherwise than that), and
    not with networks of the user's own, which may look at numbers that change.
    """
    kind = type(algorithm)
    captured = kind.is_capturable if _is_ours(kind) else vars(kind).get("is_capturable", False)
    return (
        device.type in GRAPHS
        and captured
        and all(optimiser.is_capturable for optimiser in optimisers)
        and all(_is_ours(type(module)) for module in nets.modules())
    )


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("hindcast", "torch")
