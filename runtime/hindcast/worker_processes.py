"""Worker processes of this machine, which end with the process that started them, however that ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar, TypeVarTuple

from hindcast.errors import WorkerLost
from hindcast.user_code import registered_objects, restore_objects

_LOOK_S = 0.5
_WORTH_PROCESSES = 256 << 20

Context = TypeVar("Context")
Context_co = TypeVar("Context_co", covariant=True)
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
Value = TypeVar("Value")
Item = TypeVar("Item")
Check = Callable[[], None]


class Workers(Protocol[Context_co]):
    """Processes, of this machine or of others, that each keep an object; they end with this process.

    Attributes:
        count: how many.
    """

    @property
    def num_workers(self) -> int: ...

    def submit(
        self, function: Callable[[Context_co, *Arguments], Result], *arguments: *Arguments
    ) -> Future[Result]:
        """Call `function(kept, *arguments)` in one of them, which has nothing else to do.

        Args:
            function: of a module, so that a process finds it.

        Raises:
            BrokenExecutor: from the future: the process was killed, or another one was. Later calls find new ones.
        """

    def share(self, value: Value) -> Value:
        """What several calls get as an argument, in a form that is sent as few times as can be."""

    def close(self) -> None:
        """Stop the processes, at work or not."""


class WorkerProcesses(Generic[Context]):
    """`Workers` on this machine.

    Args:
        count: how many.
        kept: sent to each of them once.
    """

    def __init__(self, num_workers: int, context: Context) -> None:
        self.num_workers = num_workers
        self._kept = context
        self._pool = self._start()

    def submit(
        self, function: Callable[[Context, *Arguments], Result], *arguments: *Arguments
    ) -> Future[Result]:
        """See `Workers`; where one is killed, all calls under way fail."""
        try:
            future: Future[Result] = self._pool.submit(_call, function, arguments)
        except BrokenExecutor:
            self.close()
            self._pool = self._start()
            future = self._pool.submit(_call, function, arguments)
        return future

    def share(self, value: Value) -> Value:
        """See `Workers`; each call sends it."""
        return value

    def close(self) -> None:
        """Stop the processes, at work or not."""
        self._pool.shutdown(wait=True, kill_workers=True)

    def _start(self) -> Any:
        import loky

        arguments = (registered_objects(), self._kept, os.getpid())
        return loky.ProcessPoolExecutor(
            self.num_workers, initializer=_begin, initargs=arguments, timeout=None
        )


def choose_num_workers(num_items: int, nbytes: int) -> int:
    """How many processes are worth having for this many items of this size in all; starting them takes seconds."""
    if num_items < 2 or nbytes < _WORTH_PROCESSES:
        return 1
    import loky

    return min(num_items, int(loky.cpu_count()))


def map_unordered(
    function: Callable[[Context, Item], Result],
    context: Context,
    items: Sequence[Item],
    num_workers: int,
    check: Check,
) -> Iterator[Result]:
    """`function(kept, item)` of each item, in the order in which they are done.

    Args:
        function: of a module, so that processes find it.
        kept: what all calls share; it is sent to each process once.
        items: what differs.
        workers: processes; 1 is this one.
        check: called between items, and every half second; what it raises ends the work.

    Raises:
        WorkerLost: a process was killed.
    """
    if num_workers == 1:
        for item in items:
            check()
            yield function(context, item)
        return
    processes = WorkerProcesses(num_workers, context)
    try:
        yield from _results(processes, function, iter(items), 2 * num_workers, check)
    except BrokenExecutor as error:
        raise WorkerLost("a worker process was killed, perhaps for memory: run it again to resume") from error
    finally:
        processes.close()


def _results(
    processes: WorkerProcesses[Context],
    function: Callable[[Context, Item], Result],
    waiting: Iterator[Item],
    most: int,
    check: Check,
) -> Iterator[Result]:
    running: set[Future[Result]] = {processes.submit(function, item) for item in islice(waiting, most)}
    while running:
        check()
        done, running = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
        results = [future.result() for future in done]
        running |= {processes.submit(function, item) for item in islice(waiting, len(done))}
        yield from results


def end_with_parent(parent: int) -> None:
    """End this process within a moment of its parent; a killed parent cannot do it itself.

    Args:
        parent: its process id, from the parent itself: it may have ended before this process can ask.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


_kept: Any = None
"""In a worker process: its object."""


def _begin(objects: dict[str, Any], kept: Any, parent: int) -> None:
    global _kept  # noqa: PLW0603  (one for each process)
    restore_objects(objects)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that decides what it means
    end_with_parent(parent)
    _kept = kept


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(_kept, *arguments)
