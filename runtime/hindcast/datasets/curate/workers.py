"""A function of many items, here or in processes that end with this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from itertools import islice
from typing import TypeVar

from hindcast.errors import WorkerLost
from hindcast.worker_processes import WorkerProcesses

_LOOK_S = 0.5
_WORTH_PROCESSES = 256 << 20

Held = TypeVar("Held")
Item = TypeVar("Item")
Result = TypeVar("Result")
Check = Callable[[], None]


def count_workers(items: int, nbytes: int) -> int:
    """How many processes are worth having for this many items of this size in all; starting them takes seconds."""
    if items < 2 or nbytes < _WORTH_PROCESSES:
        return 1
    import loky

    return min(items, int(loky.cpu_count()))


def each(
    function: Callable[[Held, Item], Result], held: Held, items: Sequence[Item], workers: int, check: Check
) -> Iterator[Result]:
    """`function(held, item)` of each item, in the order in which they are done.

    Args:
        function: of a module, so that processes find it.
        held: what all calls share; it is sent to each process once.
        items: what differs.
        workers: processes; 1 is this one.
        check: called between items, and every half second; what it raises ends the work.

    Raises:
        WorkerLost: a process was killed.
    """
    if workers == 1:
        for item in items:
            check()
            yield function(held, item)
        return
    processes = WorkerProcesses(workers, held)
    try:
        yield from _results(processes, function, iter(items), 2 * workers, check)
    except BrokenExecutor as error:
        raise WorkerLost("a worker process was killed, perhaps for memory: run it again to resume") from error
    finally:
        processes.close()


def _results(
    processes: WorkerProcesses[Held],
    function: Callable[[Held, Item], Result],
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
