"""Worker processes of this machine, which end with the process that started them, however that ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from itertools import islice
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from hindcast.errors import WorkerLost
from hindcast.user_code import given, take

_LOOK_S = 0.5
_WORTH_PROCESSES = 256 << 20

Kept = TypeVar("Kept")
Given = ParamSpec("Given")
Result = TypeVar("Result")
Item = TypeVar("Item")
Check = Callable[[], None]


class WorkerProcesses(Generic[Kept]):
    """Processes that call functions on an object that each keeps between calls.

    Args:
        count: how many.
        kept: sent to each of them once.
        begin: called with it in each of them, before anything else.
    """

    def __init__(self, count: int, kept: Kept, begin: Callable[[Kept], None] | None = None) -> None:
        import loky

        self._pool: Any = loky.ProcessPoolExecutor(
            count, initializer=_begin, initargs=(given(), kept, begin, os.getpid()), timeout=None
        )

    def submit(
        self,
        function: Callable[Concatenate[Kept, Given], Result],
        *arguments: Given.args,
        **named: Given.kwargs,
    ) -> Future[Result]:
        """Call `function(kept, *arguments)` in one of them.

        Args:
            function: of a module, so that a process finds it.

        Raises:
            BrokenExecutor: here or from the future: a process was killed; the others are of no use any more.
        """
        future: Future[Result] = self._pool.submit(_call, function, arguments, named)
        return future

    def close(self) -> None:
        """Stop the processes, at work or not."""
        self._pool.shutdown(wait=True, kill_workers=True)


def count_workers(items: int, nbytes: int) -> int:
    """How many processes are worth having for this many items of this size in all; starting them takes seconds."""
    if items < 2 or nbytes < _WORTH_PROCESSES:
        return 1
    import loky

    return min(items, int(loky.cpu_count()))


def each(
    function: Callable[[Kept, Item], Result], kept: Kept, items: Sequence[Item], workers: int, check: Check
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
    if workers == 1:
        for item in items:
            check()
            yield function(kept, item)
        return
    processes = WorkerProcesses(workers, kept)
    try:
        yield from _results(processes, function, iter(items), 2 * workers, check)
    except BrokenExecutor as error:
        raise WorkerLost("a worker process was killed, perhaps for memory: run it again to resume") from error
    finally:
        processes.close()


def _results(
    processes: WorkerProcesses[Kept],
    function: Callable[[Kept, Item], Result],
    waiting: Iterator[Item],
    most: int,
    check: Check,
) -> Iterator[Result]:
    running: set[Future[Result]] = {processes.submit(function, item) for item in islice(waiting, most)}
    while running:
        check()
        done, running = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
        running |= {processes.submit(function, item) for item in islice(waiting, len(done))}
        for future in done:
            yield future.result()


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


def _begin(objects: dict[str, Any], kept: Any, begin: Callable[[Any], None] | None, parent: int) -> None:
    global _kept  # noqa: PLW0603  (one for each process)
    take(objects)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that decides what it means
    end_with_parent(parent)
    _kept = kept
    if begin is not None:
        begin(kept)


def _call(function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return function(_kept, *arguments, **named)
