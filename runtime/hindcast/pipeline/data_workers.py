"""`DataWorkers`: units are read by one pool of Ray actors, which all sources of a training share.

A stream keeps a few units under way with each worker, bounded by their bytes in the object store, and takes the blocks
in the order of the work. Only workers that have started are given units, so that a pool which the cluster cannot hold
as a whole works with what there is.

A worker reads two units at a time, since reading from a store is mostly waiting; pre-learners take turns.

Blocks travel through Ray's object store, whose shared memory their arrays are views of; a user's mistake travels in
place of one.
"""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final, cast

from hindcast.episodes.block import Block
from hindcast.errors import OutOfMemory, UserError, WorkerLost, catch_user_error, first_line, unwrap
from hindcast.memory import oom_kills
from hindcast.pipeline.executors import PreLearn, UnitInEpoch
from hindcast.pipeline.turn_lock import hold_turn
from hindcast.user_code import calling
from hindcast.worker_processes import end_with_parent

_AT_A_TIME: Final = 2
"""Units that a worker reads: one comes from the store while the other is decoded and pre-learned."""
_WITH_A_WORKER: Final = _AT_A_TIME + 1
"""Units: those that it reads, and one that it need not wait for."""
_OF_A_STREAM: Final = 4
"""Units a worker, those included that are read and wait for their turn."""
_SHARE_OF_STORE: Final = 0.25
"""Of the cluster's object stores: what the units under way may take in all."""
_IDLE_SECONDS: Final = 30.0
_MOST_DEATHS: Final = 3
OOM_MESSAGES = ("NODE_OUT_OF_MEMORY", "running low on memory")
"""What Ray's messages say of a process that its memory monitor killed."""


@dataclass
class DataWorkers:
    """An `Executor` whose data workers are Ray actors; Ray must be connected.

    Blocks are the same, in the same order, for any number of workers, whichever of them die. The workers
    start with the first stream and end with the last one.

    Args:
        workers: fewest and most data workers; between them the pool grows and shrinks with the load.
        num_cpus: logical CPUs of each.
        num_gpus: logical GPUs of each.
        remote_args: further options of Ray's for the actors (`label_selector`, `memory`).
    """

    workers: tuple[int, int]
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    remote_args: Mapping[str, Any] = field(default_factory=dict)
    _pool: list[_Worker] = field(default_factory=list, init=False, compare=False, repr=False)
    _streams: int = field(default=0, init=False, compare=False, repr=False)
    _memory: float = field(default=math.inf, init=False, compare=False, repr=False)
    _lock: Any = field(default_factory=threading.Lock, init=False, compare=False, repr=False)

    def stream(self, source: int, work: Iterable[UnitInEpoch], prelearn: PreLearn) -> Iterator[Block]:  # noqa: ARG002
        """See `Executor.stream`.

        Raises:
            UserError: the pre-learner's; `WorkerLost` where data workers keep dying.
        """
        for reference in self.references(work, prelearn):
            yield fetch_block(reference)

    def references(self, work: Iterable[UnitInEpoch], prelearn: PreLearn) -> Iterator[Any]:
        """As `stream`, as references to the blocks' tables in the object store, for `fetch`."""
        import ray

        todo = iter(work)
        first = list(islice(todo, self.workers[0]))
        todo = chain(first, todo)
        job = [
            ray.put(prelearn)
        ]  # once for all units; in a list, so that Ray leaves it to the worker to get it
        under_way: deque[tuple[Any, int]] = deque()
        with self._opened(min(max(self.workers[0], 1), max(len(first), 1))):
            following = next(todo, None)
            while under_way or following is not None:
                while following is not None and self._has_room(under_way, following):
                    reference = self._submit(job, following, is_needed=not under_way)
                    if reference is None:
                        break
                    under_way.append((reference, following.unit.nbytes))
                    following = next(todo, None)
                self._grow_if_slow(under_way[0][0])
                yield under_way.popleft()[0]

    @contextmanager
    def _opened(self, count: int) -> Iterator[None]:
        """Have at least so many workers for a stream; without any stream there are none."""
        import ray

        with self._lock:
            self._streams += 1
            stores = ray.cluster_resources().get("object_store_memory", math.inf)
            self._memory = _SHARE_OF_STORE * stores
            self._pool += [self._worker() for _ in range(count - len(self._pool))]
        try:
            yield
        finally:
            with self._lock:
                self._streams -= 1
                if not self._streams:
                    while self._pool:
                        self._pool.pop().end()

    def _worker(self) -> _Worker:
        import ray

        options = {
            "max_restarts": -1,
            "max_task_retries": _MOST_DEATHS,
            "max_concurrency": _AT_A_TIME,
            **self.remote_args,
        }
        actor = ray.remote(BlockReader).options(num_cpus=self.num_cpus, num_gpus=self.num_gpus, **options)
        return _Worker(actor.remote())

    def _has_room(self, under_way: deque[tuple[Any, int]], following: UnitInEpoch) -> bool:
        """Whether a stream may have another unit under way."""
        if not under_way:
            return True
        if len(under_way) >= _OF_A_STREAM * len(self._pool):
            return False
        taken = sum(nbytes for _, nbytes in under_way) + following.unit.nbytes
        return taken * self._streams <= self._memory

    def _submit(self, job: list[Any], work: UnitInEpoch, is_needed: bool) -> Any | None:
        """Give a unit to the worker with the least to do; None if all have enough, unless it `is_needed` now."""
        import ray

        while True:
            with self._lock:
                ready = [worker for worker in self._pool if worker.is_ready()]
                if ready:
                    worker = min(ready, key=_Worker.load)
                    if worker.load() >= _WITH_A_WORKER and not is_needed:
                        return None
                    self._end_one_idle(ready)
                    return worker.read(job, work)
                starting = [worker.started for worker in self._pool]
            ray.wait(starting, timeout=1.0)

    def _grow_if_slow(self, wanted: Any) -> None:
        """Start another worker where a block is waited for, and all workers are busy."""
        import ray

        if len(self._pool) >= self.workers[1] or ray.wait([wanted], timeout=0, fetch_local=False)[0]:
            return
        with self._lock:
            if all(worker.is_ready() and worker.load() for worker in self._pool):
                self._pool.append(self._worker())

    def _end_one_idle(self, ready: list[_Worker]) -> None:
        idle = [worker for worker in ready if worker.idle_seconds() > _IDLE_SECONDS]
        if idle and len(self._pool) > max(self.workers[0], 1):
            self._pool.remove(idle[-1])
            idle[-1].end()


class _Worker:
    """One of the pool's, as this process sees it.

    Attributes:
        started: a reference that is there once it has started.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.started = actor.start.remote()
        self._is_ready = False
        self._reading: list[Any] = []
        self._last_busy = time.monotonic()

    def is_ready(self) -> bool:
        import ray

        self._is_ready = self._is_ready or bool(ray.wait([self.started], timeout=0)[0])
        return self._is_ready

    def load(self) -> int:
        """Units that it was given and has not read yet."""
        import ray

        if self._reading:
            self._last_busy = time.monotonic()
            count = len(self._reading)
            self._reading = ray.wait(self._reading, num_returns=count, timeout=0, fetch_local=False)[1]
        return len(self._reading)

    def idle_seconds(self) -> float:
        return 0.0 if self.load() else time.monotonic() - self._last_busy

    def read(self, job: list[Any], work: UnitInEpoch) -> Any:
        """A reference to the unit's block."""
        reference = self._actor.read.remote(job, work)
        self._reading.append(reference)
        return reference

    def end(self) -> None:
        import ray

        ray.kill(self._actor)


class BlockReader:
    """What a data worker does."""

    def __init__(self) -> None:
        end_with_parent(os.getppid())  # Ray itself sees that its node is gone only where init takes over
        self._is_killed_for_memory = _is_restarted() and oom_kills() > 0
        self._prelearners: dict[str, PreLearn] = {}

    def start(self) -> None:
        """Answers once the worker has started."""

    def read(self, job: list[Any], work: UnitInEpoch) -> Block | UserError:
        """The block of a unit, or a user's mistake.

        Args:
            job: one reference, to the pre-learner.
        """
        return catch_user_error(lambda: self._block(job[0], work))

    def _block(self, prelearner: Any, work: UnitInEpoch) -> Block:
        if self._is_killed_for_memory:
            raise OutOfMemory("a data worker was killed for memory: raise spec.pipeline.dataWorkers.memory")
        with hold_turn():
            block = self._prelearner(prelearner)(*work)
        return block.without_details()  # nor what it computed of itself, such as its steps' episodes

    def _prelearner(self, reference: Any) -> PreLearn:
        import ray

        name = reference.hex()
        if name not in self._prelearners:
            with calling("loading the pre-learner and its connectors on a data worker"):
                self._prelearners[name] = ray.get(reference)
        return self._prelearners[name]


def _is_restarted() -> bool:
    """Whether this actor had a process before, which died."""
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def fetch_block(reference: Any) -> Block:
    """The block behind a reference, as a view into the object store.

    Raises:
        UserError: a user's mistake in place of the block.
        WorkerLost: data workers keep dying over it, or it was lost with its node and could not be made again.
    """
    import ray

    try:
        return unwrap(cast(Block | UserError, ray.get(reference)))
    except (
        ray.exceptions.RayActorError,
        ray.exceptions.ObjectLostError,
        ray.exceptions.OutOfMemoryError,
    ) as error:
        raise _lost(error) from error


def _lost(error: Exception) -> WorkerLost:
    import ray

    reason = first_line(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError) or any(sign in str(error) for sign in OOM_MESSAGES):
        return OutOfMemory(
            f"data workers were killed for memory: raise spec.pipeline.dataWorkers.memory ({reason})"
        )
    return WorkerLost(f"a data worker died {_MOST_DEATHS + 1} times, the last time with: {reason}")
