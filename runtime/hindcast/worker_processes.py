"""Worker processes on this machine. They end with their parent, even if it is killed."""

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

_POLL_INTERVAL_SECONDS = 0.5
_MIN_BYTES_FOR_PROCESSES = 256 << 20

Context = TypeVar("Context")
Context_co = TypeVar("Context_co", covariant=True)
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
Value = TypeVar("Value")
Item = TypeVar("Item")
Check = Callable[[], None]


class Workers(Protocol[Context_co]):
    """Processes, on this or other machines, that each keep a context object. They end with this process.

    Attributes:
        num_workers: number of processes.
    """

    @property
    def num_workers(self) -> int: ...

    def submit(
        self, function: Callable[[Context_co, *Arguments], Result], *arguments: *Arguments
    ) -> Future[Result]:
        """Call `function(context, *arguments)` in an idle process.

        Args:
            function: a function at the top level of a module, so that a process can import it.

        Raises:
            BrokenExecutor: from the future, if its process, or perhaps another one, was killed. Later calls get new
                processes.
        """

    def share(self, value: Value) -> Value:
        """Prepare a value that is an argument of several calls, so that it is sent as few times as possible."""

    def close(self) -> None:
        """Stop the processes; running calls are abandoned."""


class WorkerProcesses(Generic[Context]):
    """`Workers` on this machine.

    Args:
        num_workers: number of processes.
        context: object that each process keeps; it is sent once to each.
    """

    def __init__(self, num_workers: int, context: Context) -> None:
        self.num_workers = num_workers
        self._context = context
        self._pool = self._start()

    def submit(
        self, function: Callable[[Context, *Arguments], Result], *arguments: *Arguments
    ) -> Future[Result]:
        """Call the function in an idle process, see `Workers`. If a process is killed, all running calls fail."""
        try:
            future: Future[Result] = self._pool.submit(_call, function, arguments)
        except BrokenExecutor:
            self.close()
            self._pool = self._start()
            future = self._pool.submit(_call, function, arguments)
        return future

    def share(self, value: Value) -> Value:
        """Return the value itself, see `Workers`; each call sends it again."""
        return value

    def close(self) -> None:
        """Stop the processes; running calls are abandoned."""
        self._pool.shutdown(wait=True, kill_workers=True)

    def _start(self) -> Any:
        import loky

        arguments = (registered_objects(), self._context, os.getpid())
        return loky.ProcessPoolExecutor(
            self.num_workers, initializer=_initialise, initargs=arguments, timeout=None
        )


def choose_num_workers(num_items: int, nbytes: int) -> int:
    """Return how many processes pay off for `num_items` items of `nbytes` bytes in total; 1 means this process."""
    if num_items < 2 or nbytes < _MIN_BYTES_FOR_PROCESSES:
        return 1  # starting processes takes seconds
    import loky

    return min(num_items, int(loky.cpu_count()))


def map_unordered(
    function: Callable[[Context, Item], Result],
    context: Context,
    items: Sequence[Item],
    num_workers: int,
    check: Check,
) -> Iterator[Result]:
    """Yield `function(context, item)` of each item, in the order in which they complete.

    Args:
        function: a function at the top level of a module, so that processes can import it.
        context: first argument of all calls; it is sent once to each process.
        items: second argument of each call.
        num_workers: number of processes; 1 runs everything in this process.
        check: called between items, and with several processes every half second; an exception from it ends the work.

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
        # Twice as many calls as processes are submitted, so that no process is idle while results are collected.
        yield from _collect_results(processes, function, iter(items), 2 * num_workers, check)
    except BrokenExecutor as error:
        raise WorkerLost(
            "a worker process was killed, perhaps because memory ran out: run the command again to resume"
        ) from error
    finally:
        processes.close()


def _collect_results(
    processes: WorkerProcesses[Context],
    function: Callable[[Context, Item], Result],
    items: Iterator[Item],
    max_running: int,
    check: Check,
) -> Iterator[Result]:
    """Yield the results as they complete, with at most `max_running` calls submitted at a time."""
    running: set[Future[Result]] = {processes.submit(function, item) for item in islice(items, max_running)}
    while running:
        check()
        completed_futures, running = wait(
            running, timeout=_POLL_INTERVAL_SECONDS, return_when=FIRST_COMPLETED
        )
        results = [future.result() for future in completed_futures]
        running |= {processes.submit(function, item) for item in islice(items, len(completed_futures))}
        yield from results


def end_with_parent(parent_pid: int) -> None:
    """End this process soon after its parent has ended.

    Args:
        parent_pid: process id of the parent. The parent should send it, because it may have ended before this process
            asks the kernel.
    """
    threading.Thread(target=_exit_with_parent, args=(parent_pid,), daemon=True).start()


def _exit_with_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_INTERVAL_SECONDS)
    os._exit(1)  # sys.exit would end this thread only


_context: Any = None
"""The context object of a worker process."""


def _initialise(objects: dict[str, Any], context: Any, parent_pid: int) -> None:
    global _context  # noqa: PLW0603  (one per process)
    restore_objects(objects)
    # Ctrl-C, and the SIGTERM of `timeout`, reach all processes of a terminal's job; only the parent reacts to them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(
        signal.SIGTERM, lambda *_: None
    )  # unlike SIG_IGN, a simulator that this process starts has no part
    end_with_parent(parent_pid)
    _context = context


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(_context, *arguments)
