"""`UpdateGraphs`: record updates on a GPU as CUDA graphs once, then replay them.

An update of small networks consists of about two hundred kernels of a few microseconds, which Python launches more
slowly than the GPU runs them. A graph launches the same kernels, on the same numbers, at once. Where learners exchange
gradients within an update, one graph ends and the next one begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from hindcast.learn.algorithm import Algorithm
from hindcast.learn.optimisers import Optimiser
from hindcast.learn.streams import MAX_STREAMS, use_streams

Result = TypeVar("Result")

_NUM_WARM_UP_UPDATES = 3
"""Eager updates of a kind before it is recorded: they allocate optimiser states and library workspaces."""
_MAX_RECORDINGS = 16
"""Maximum number of recorded updates. Recording one takes a second and memory, so further updates run eagerly."""


class CudaGraph:
    """A CUDA graph and the streams that it is recorded on.

    Args:
        generator: generator from which the recorded operations may draw, besides torch's global one. Each launch
            continues its sequence of random numbers.
        shared_graph: another graph whose memory and streams this one uses; the two never run at the same time.
    """

    def __init__(self, generator: torch.Generator, shared_graph: CudaGraph | None = None) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(generator)
        self._streams: list[torch.cuda.Stream] = (
            shared_graph._streams
            if shared_graph
            else [torch.cuda.Stream(generator.device) for _ in range(1 + MAX_STREAMS)]
        )
        self._stream = self._streams[0]
        self._pool: Any = shared_graph._pool if shared_graph else torch.cuda.graph_pool_handle()

    def warm_up(self, function: Callable[[], Result]) -> Result:
        """Run a function on the graph's streams, without recording it.

        Autograd and the libraries keep workspaces per stream; these must exist before the recording.
        """
        current_stream = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current_stream)
        with torch.cuda.stream(self._stream), use_streams(self._streams[1:]):
            result = function()
        current_stream.wait_stream(self._stream)
        return result

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the kernels of the block without running them; the tensors that it makes belong to the graph."""
        # Other threads, such as a feed's, use the GPU during the recording, which the other capture modes forbid.
        with (
            torch.cuda.graph(
                self._graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ),
            use_streams(self._streams[1:]),
        ):
            yield

    def launch(self) -> None:
        """Run the recorded kernels."""
        self._graph.replay()


GRAPHS: dict[str, type[CudaGraph]] = {"cuda": CudaGraph}
"""Device type -> class of the graphs; a device type without graphs is missing."""


@dataclass
class _Recording:
    """A recorded update.

    Attributes:
        inputs: the tensors from which the graphs read the batch.
        steps: launches of the graphs, and the exchanges between them, in order.
        result: what the update returned; its tensors belong to the graphs.
    """

    inputs: list[Tensor]
    steps: list[Callable[[], None]] = field(default_factory=list)
    result: Any = None


class UpdateGraphs(Generic[Result]):
    """Recordings of each kind of update and shape of batch.

    Args:
        update: called with a batch and further arguments. The only tensors that it reads or changes are the batch and
            those that exist before and after each call. It calls `exchange` for what a graph cannot contain.
        generator: the generator from which `update` draws, on the learner's device.
    """

    def __init__(self, update: Callable[..., Result], generator: torch.Generator) -> None:
        self._update = update
        self._generator = generator
        self._graph_class = GRAPHS[generator.device.type]
        self._unfinished: tuple[_Recording, ExitStack] | None = None
        self.clear()

    def clear(self) -> None:
        """Discard all graphs. Call it after tensors that `update` uses were replaced."""
        self._recordings: dict[Hashable, _Recording] = {}
        self._num_warm_ups: Counter[Hashable] = Counter()
        # Never recorded: all recordings use its streams and its memory.
        self._warm_up_graph: CudaGraph | None = None

    def run(self, kind: Hashable, batch: Mapping[str, Tensor], *arguments: Any) -> Result:
        """Run `update(batch, *arguments)`, replaying its recording if there is one.

        Args:
            kind: identifies the operations: updates of one kind, with equal arguments and batches of equal shape, run
                the same ones.
            batch: leaf -> `[batch, ...]`.
            arguments: further arguments of `update`; hashable.

        Returns:
            The result of the update; its tensors are valid until the next call.
        """
        key = (kind, arguments, *((leaf, tensor.shape, tensor.dtype) for leaf, tensor in batch.items()))
        if key in self._recordings:
            recording = self._recordings[key]
            # The graphs read the batch at the addresses at which it was recorded.
            torch._foreach_copy_(recording.inputs, list(batch.values()))
            for step in recording.steps:
                step()
            result: Result = recording.result
            return result
        if key not in self._num_warm_ups and len(self._num_warm_ups) == _MAX_RECORDINGS:
            return self._update(batch, *arguments)
        self._warm_up_graph = self._warm_up_graph or self._graph_class(self._generator)
        if self._num_warm_ups[key] < _NUM_WARM_UP_UPDATES:
            self._num_warm_ups[key] += 1
            return self._warm_up_graph.warm_up(lambda: self._update(batch, *arguments))
        self._recordings[key] = self._record(batch, arguments)
        return self._recordings[key].result

    def exchange(self, action: Callable[[], None]) -> None:
        """Run an action between two kernels of an update, in each replay too.

        Args:
            action: changes tensors in place, such as an exchange of gradients. Another learner need not record the
                update that this one records: each of them runs the action once per update.
        """
        if self._unfinished is None:
            action()
            return
        recording, stack = self._unfinished
        stack.close()
        recording.steps[-1]()  # recording runs nothing
        action()
        recording.steps.append(action)
        self._begin_graph(recording, stack)

    def _record(self, batch: Mapping[str, Tensor], arguments: tuple[Any, ...]) -> _Recording:
        """Record an update and run it."""
        copies = {leaf: tensor.clone() for leaf, tensor in batch.items()}
        recording = _Recording(list(copies.values()))
        try:
            with ExitStack() as stack:
                self._unfinished = recording, stack
                self._begin_graph(recording, stack)
                recording.result = self._update(copies, *arguments)
        finally:
            self._unfinished = None
        recording.steps[-1]()
        return recording

    def _begin_graph(self, recording: _Recording, stack: ExitStack) -> None:
        """Record the kernels in another graph, until the stack is closed."""
        # Graphs never run at the same time, so that all of them can use one memory pool.
        graph = self._graph_class(self._generator, self._warm_up_graph)
        recording.steps.append(graph.launch)
        stack.enter_context(graph.recording())


def is_capturable(
    algorithm: Algorithm, nets: nn.ModuleDict, optimisers: Iterable[Optimiser], device: torch.device
) -> bool:
    """Return True if CUDA graphs can record the algorithm's updates on a device.

    A custom algorithm must set `is_capturable` in its own class, since a subclass of a built-in one may run other
    operations. Custom networks are never captured: a graph would keep the first value of a Python number that changes.
    """
    algorithm_class = type(algorithm)
    is_declared = (
        algorithm_class.is_capturable
        if _is_builtin(algorithm_class)
        else vars(algorithm_class).get("is_capturable", False)
    )
    return (
        device.type in GRAPHS
        and is_declared
        and all(optimiser.is_capturable for optimiser in optimisers)
        and all(_is_builtin(type(module)) for module in nets.modules())
    )


def _is_builtin(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("hindcast", "torch")
