"""`DataWorkers`, one pool of Ray actors that reads units for all sources of a training.

A stream keeps a few units in progress on each worker, bounded by their bytes in the object store, and takes the blocks
in the order of the work. Blocks travel through Ray's object store, and their arrays are views of its shared memory; a
user's error travels in place of a block.
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
from hindcast.memory import count_oom_kills
from hindcast.pipeline.executors import PreLearn, UnitInEpoch
from hindcast.pipeline.turn_lock import hold_turn
from hindcast.user_code import calling
from hindcast.worker_processes import end_with_parent

# Measured with a store that answers in 50 to 100 ms: units of 4 MiB came 1.9 times as fast as one at a time;
# from a local disk, no slower.
_CONCURRENT_READS: Final = 2
"""Units that a worker reads at a time: one is fetched while the other is decoded and pre-learned."""
_MAX_UNITS_PER_WORKER: Final = _CONCURRENT_READS + 1
"""Units assigned to a worker: those that it reads, and one more, so that it never waits for work."""
_MAX_UNITS_PER_STREAM_AND_WORKER: Final = 4
"""Units in progress per stream and worker, including those that are read and wait to be delivered."""
_OBJECT_STORE_FRACTION: Final = 0.25
"""Fraction of the cluster's object stores that all units in progress may occupy."""
_MAX_IDLE_SECONDS: Final = 30.0
_MAX_RETRIES: Final = 3
OOM_MESSAGES = ("NODE_OUT_OF_MEMORY", "running low on memory")
"""Parts of Ray's messages about a process that its memory monitor killed."""


@dataclass
class DataWorkers:
    """An `Executor` whose data workers are Ray actors; Ray must be connected.

    Blocks are the same, in the same order, for any number of workers, whichever of them die. The workers
    start with the first stream and end with the last one.

    Args:
        worker_limits: minimum and maximum number of data workers; the pool grows and shrinks with the load.
        num_cpus: logical CPUs per worker.
        num_gpus: logical GPUs per worker.
        remote_args: further Ray options of the actors (`label_selector`, `memory`).
    """

    worker_limits: tuple[int, int]
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    remote_args: Mapping[str, Any] = field(default_factory=dict)
    # One pool for all sources. With Ray Data each source had a pool of its own: the pools waited for each other's CPUs,
    # and whenever a source read on, actors were started and the dataset's index was sent to them again.
    _pool: list[_Worker] = field(default_factory=list, init=False, compare=False, repr=False)
    _num_streams: int = field(default=0, init=False, compare=False, repr=False)
    _max_bytes: float = field(default=math.inf, init=False, compare=False, repr=False)
    _lock: Any = field(default_factory=threading.Lock, init=False, compare=False, repr=False)

    def stream(self, source: int, work: Iterable[UnitInEpoch], prelearn: PreLearn) -> Iterator[Block]:  # noqa: ARG002
        """See `Executor.stream`.

        Raises:
            UserError: the pre-learner raised it.
            WorkerLost: data workers keep dying.
        """
        for reference in self.references(work, prelearn):
            yield fetch_block(reference)

    def references(self, work: Iterable[UnitInEpoch], prelearn: PreLearn) -> Iterator[Any]:
        """Yield references to the blocks in the object store, for `fetch_block`, in the order of `stream`."""
        import ray

        pending = iter(work)
        # The pool starts with no more workers than there are units.
        first_work = list(islice(pending, self.worker_limits[0]))
        pending = chain(first_work, pending)
        # The pre-learner is stored once for all units. In a list, since Ray would replace a reference that is itself an
        # argument by its object in every call.
        job = [ray.put(prelearn)]
        in_progress: deque[tuple[Any, int]] = deque()  # reference to a block, and its unit's bytes in memory
        with self._open_stream(min(max(self.worker_limits[0], 1), max(len(first_work), 1))):
            next_work = next(pending, None)
            while in_progress or next_work is not None:
                while next_work is not None and self._has_room(in_progress, next_work):
                    reference = self._submit(job, next_work, is_needed=not in_progress)
                    if reference is None:
                        break
                    in_progress.append((reference, next_work.unit.nbytes))
                    next_work = next(pending, None)
                self._grow_if_slow(in_progress[0][0])
                yield in_progress.popleft()[0]

    @contextmanager
    def _open_stream(self, count: int) -> Iterator[None]:
        """Grow the pool to at least `count` workers for a stream; end all workers with the last stream."""
        import ray

        with self._lock:
            self._num_streams += 1
            object_store_bytes = ray.cluster_resources().get("object_store_memory", math.inf)
            self._max_bytes = _OBJECT_STORE_FRACTION * object_store_bytes
            self._pool += [self._start_worker() for _ in range(count - len(self._pool))]
        try:
            yield
        finally:
            with self._lock:
                self._num_streams -= 1
                if not self._num_streams:
                    while self._pool:
                        self._pool.pop().end()

    def _start_worker(self) -> _Worker:
        import ray

        options = {
            # Ray restarts a worker that died and reads its unit again, until the unit has killed it too often.
            "max_restarts": -1,
            "max_task_retries": _MAX_RETRIES,
            "max_concurrency": _CONCURRENT_READS,
            **self.remote_args,
        }
        actor = ray.remote(BlockReader).options(num_cpus=self.num_cpus, num_gpus=self.num_gpus, **options)
        return _Worker(actor.remote())

    def _has_room(self, in_progress: deque[tuple[Any, int]], next_work: UnitInEpoch) -> bool:
        """Return True if a stream may have another unit in progress."""
        if not in_progress:
            return True
        if len(in_progress) >= _MAX_UNITS_PER_STREAM_AND_WORKER * len(self._pool):
            return False
        total_bytes = sum(nbytes for _, nbytes in in_progress) + next_work.unit.nbytes
        return total_bytes * self._num_streams <= self._max_bytes

    def _submit(self, job: list[Any], work: UnitInEpoch, is_needed: bool) -> Any | None:
        """Assign a unit to the least loaded worker and return a reference to its block; wait for a worker to start.

        Args:
            job: a list with one reference, to the pre-learner.
            work: the unit.
            is_needed: whether to assign the unit even if all workers are full; if not, None is returned then.
        """
        import ray

        while True:
            with self._lock:
                # Workers that have not started get nothing: the cluster may never have room for the whole pool.
                ready = [worker for worker in self._pool if worker.is_ready()]
                if ready:
                    worker = min(ready, key=_Worker.load)
                    if worker.load() >= _MAX_UNITS_PER_WORKER and not is_needed:
                        return None
                    reference = worker.read(job, work)
                    # After the assignment, so that the assigned worker is not idle.
                    self._end_one_idle_worker(ready)
                    return reference
                starting = [worker.started for worker in self._pool]
            ray.wait(starting, timeout=1.0)

    def _grow_if_slow(self, reference: Any) -> None:
        """Start another worker if the next block is not ready and all workers are busy."""
        import ray

        # `fetch_local=False` asks whether the block is ready, without copying it to this node.
        if len(self._pool) >= self.worker_limits[1] or ray.wait([reference], timeout=0, fetch_local=False)[0]:
            return
        with self._lock:
            if all(worker.is_ready() and worker.load() for worker in self._pool):
                self._pool.append(self._start_worker())

    def _end_one_idle_worker(self, ready: list[_Worker]) -> None:
        """End a worker that has been idle for `_MAX_IDLE_SECONDS`, unless the pool has its minimum size."""
        idle = [worker for worker in ready if worker.idle_seconds() > _MAX_IDLE_SECONDS]
        if idle and len(self._pool) > max(self.worker_limits[0], 1):
            self._pool.remove(idle[-1])
            idle[-1].end()


class _Worker:
    """A worker of the pool, as the process that assigns units sees it.

    Attributes:
        started: a reference that is ready once the worker has started.
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
        """Return the number of units assigned and not read yet; a call also notes when the worker was last busy."""
        import ray

        if self._reading:
            self._last_busy = time.monotonic()
            count = len(self._reading)
            self._reading = ray.wait(self._reading, num_returns=count, timeout=0, fetch_local=False)[1]
        return len(self._reading)

    def idle_seconds(self) -> float:
        return 0.0 if self.load() else time.monotonic() - self._last_busy

    def read(self, job: list[Any], work: UnitInEpoch) -> Any:
        """Assign a unit to the worker, and return a reference to its block."""
        reference = self._actor.read.remote(job, work)
        self._reading.append(reference)
        return reference

    def end(self) -> None:
        import ray

        ray.kill(self._actor)


class BlockReader:
    """The actor of a data worker."""

    def __init__(self) -> None:
        end_with_parent(os.getppid())  # Ray only notices that its raylet died if init adopts the actor
        self._was_killed_for_memory = _is_restarted() and count_oom_kills() > 0
        self._prelearners: dict[str, PreLearn] = {}

    def start(self) -> None:
        """Return once the worker has started."""

    def read(self, job: list[Any], work: UnitInEpoch) -> Block | UserError:
        """Return the block of a unit, or the user's error in its place.

        Args:
            job: a list with one reference, to the pre-learner.
            work: the unit.
        """
        return catch_user_error(lambda: self._read_block(job[0], work))

    def _read_block(self, prelearner_reference: Any, work: UnitInEpoch) -> Block:
        if self._was_killed_for_memory:
            raise OutOfMemory(
                "a data worker ran out of memory: raise spec.pipeline.dataWorkers.memory",
                mentions=("spec.pipeline.dataWorkers.memory",),
            )
        # The pre-learner is user code, which need not be thread-safe.
        with hold_turn():
            block = self._load_prelearner(prelearner_reference)(*work)
        return block.without_details()  # drops cached properties too, such as the episode of each step

    def _load_prelearner(self, reference: Any) -> PreLearn:
        import ray

        key = reference.hex()
        # Loaded once per worker: it contains the dataset's index.
        if key not in self._prelearners:
            # Unpickling imports user code, which may fail on a data worker only.
            with calling("loading the pre-learner and its connectors on a data worker"):
                self._prelearners[key] = ray.get(reference)
        return self._prelearners[key]


def _is_restarted() -> bool:
    """Return True if an earlier process of this actor died."""
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def fetch_block(reference: Any) -> Block:
    """Return the block of a reference, as a view into the object store.

    Raises:
        UserError: the data worker returned it in place of the block.
        WorkerLost: data workers kept dying while they read the unit, or the block was lost with its node and could not
            be computed again.
    """
    import ray

    try:
        return unwrap(cast(Block | UserError, ray.get(reference)))
    except (
        ray.exceptions.RayActorError,
        ray.exceptions.ObjectLostError,
        ray.exceptions.OutOfMemoryError,
    ) as error:
        raise _make_worker_lost(error) from error


def _make_worker_lost(error: Exception) -> WorkerLost:
    import ray

    reason = first_line(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError) or any(
        message in str(error) for message in OOM_MESSAGES
    ):
        return OutOfMemory(
            f"data workers ran out of memory: raise spec.pipeline.dataWorkers.memory ({reason})",
            mentions=("spec.pipeline.dataWorkers.memory",),
        )
    return WorkerLost(
        f"a data worker died {_MAX_RETRIES + 1} times, or its block was lost; the last error: {reason}"
    )
