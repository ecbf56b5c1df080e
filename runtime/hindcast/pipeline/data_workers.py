"""`DataWorkers`, one pool of Ray actors that pre-learns units for all sources and learners of a training.

Each learner asks the workers itself for the units of its lanes. Blocks travel through Ray's object store, and their
arrays are views of its shared memory; a user's error travels in place of a block.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import warnings
from collections.abc import Mapping
from concurrent.futures import CancelledError
from typing import Any, Final, cast

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.units import Unit
from hindcast.episodes.block import Block
from hindcast.errors import OutOfMemory, UserError, WorkerLost, catch_user_error, first_line, unwrap
from hindcast.memory import count_oom_kills
from hindcast.pipeline.executors import Executor, PreLearn, Read
from hindcast.pipeline.prelearner import detach_dataset, set_extracted
from hindcast.pipeline.turn_lock import hold_turn, last_turn_seconds
from hindcast.ray_session import companion_options
from hindcast.storage.disk_cache import open_disk_cache
from hindcast.user_code import calling
from hindcast.worker_processes import end_with_parent

# Measured with a store that answers in 50 to 100 ms: units of 4 MiB came 1.9 times as fast as one at a time;
# from a local disk, no slower.
_CONCURRENT_READS: Final = 2
"""Units that a worker reads at a time: one is fetched while the other is decoded and pre-learned."""
_UNITS_PER_WORKER: Final = _CONCURRENT_READS + 1
"""Units that a learner assigns to a worker: those that it reads, and one more, so that it never waits for work."""
_OBJECT_STORE_FRACTION: Final = 0.25
"""Fraction of the cluster's object stores that the units of all learners in progress may occupy."""
_MAX_LEARNERS: Final = 1000
_REFRESH_SECONDS: Final = 1.0
"""Time after which a learner asks for the current workers again."""
_POLL_SECONDS: Final = 0.1
"""Time after which a read that waits for the pool or for a worker notices that it is abandoned."""
_MAX_IDLE_SECONDS: Final = 30.0
_MAX_RETRIES: Final = 3
_OOM_MESSAGES: Final = ("NODE_OUT_OF_MEMORY", "running low on memory")
"""Parts of Ray's messages about a process that its memory monitor killed."""

_ReadBlock = tuple[Block, dict[str, float]]


class DataWorkers(Executor):
    """An executor whose units are read by a pool of Ray actors; Ray must be connected.

    Blocks are the same for any number of workers, whichever of them die. The pool starts with the first unit and stays
    until `close`.

    Args:
        worker_limits: minimum and maximum number of data workers; the pool grows while learners wait for data, and
            shrinks while workers are idle.
        num_cpus: logical CPUs per worker.
        num_gpus: logical GPUs per worker.
        remote_args: further Ray options of the actors (`label_selector`, `memory`).
        disk_cache_bytes: size of each worker's disk cache; 0 for none.
        pool_name: name of a pool that another learner of the group has opened; None opens one.
    """

    def __init__(
        self,
        worker_limits: tuple[int, int],
        *,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        remote_args: Mapping[str, Any] | None = None,
        disk_cache_bytes: int = 0,
        pool_name: str | None = None,
    ) -> None:
        super().__init__()
        self.worker_limits = worker_limits
        self.options = {"num_cpus": num_cpus, "num_gpus": num_gpus, **(remote_args or {})}
        self.disk_cache_bytes = disk_cache_bytes
        self._shared_name = pool_name
        self._id = uuid.uuid4().hex
        self._pool: Any = None
        # Not the queue's `_lock`: while a thread waits for the pool, units can still be submitted.
        self._pool_lock = threading.Lock()
        self._answer: Any = None  # reference to the pool's answer, if it has been asked
        self._num_reading: dict[Any, int] = {}  # handle of a worker -> units that it reads for this learner
        self._refresh_time = 0.0
        self._is_waiting = False
        self._jobs: dict[int, tuple[PreLearn, list[Any], Dataset | None]] = {}

    def open_pool(self) -> str:
        """Open the pool unless it is open, and return its name.

        Raises:
            WorkerLost: another learner has opened it, and it died.
        """
        import ray

        name = self._shared_name or f"hindcast-data-{self._id}"
        if self._pool is None and self._shared_name:
            try:
                self._pool = ray.get_actor(name)
            except ValueError as error:  # no actor has this name
                raise _make_pool_lost(error) from error
        elif self._pool is None:
            # Each learner's call occupies one of the actor's concurrent calls.
            options = {"name": name, "max_concurrency": _MAX_LEARNERS, "get_if_exists": True}
            actor = ray.remote(DataPool).options(**companion_options(), **options)
            self._pool = actor.remote(self.worker_limits, self.options, self.disk_cache_bytes)
        return name

    def join(self, pool_name: str) -> DataWorkers:
        """Return an executor that reads with the pool of this name, which another learner has opened."""
        return DataWorkers(self.worker_limits, pool_name=pool_name)

    def note_wait(self) -> None:
        self._is_waiting = True

    def close(self) -> None:
        """End the pool, if this learner opened it; the next unit opens another one."""
        import ray

        with self._pool_lock:
            if self._pool is not None and self._shared_name is None:
                ray.kill(self._pool)  # which ends the workers, too
                self._id = uuid.uuid4().hex
            self._pool, self._answer, self._num_reading, self._jobs = None, None, {}, {}

    def _max_threads(self) -> int:
        return _UNITS_PER_WORKER * max(1, len(self._num_reading))

    def _read(self, read: Read) -> Block:
        """See `Executor._read`.

        Raises:
            UserError: the pre-learner raised it.
            WorkerLost: data workers keep dying, or the pool died.
        """
        job, dataset = self._job(read.prelearn)
        part = dataset and dataset.extract(read.unit)
        while True:
            worker = self._assign(read)
            try:
                block, seconds = _fetch_block(worker.read.remote(job, part, read.unit, read.epoch), read)
                self._count_seconds(**seconds)
                return block
            except WorkerLost:
                # A worker that the pool has ended meanwhile, because it was idle, is no loss.
                if self._is_in_pool(worker, read):
                    raise
            finally:
                with self._pool_lock:
                    if worker in self._num_reading:
                        self._num_reading[worker] -= 1

    def _job(self, prelearn: PreLearn) -> tuple[list[Any], Dataset | None]:
        """Store the pre-learner in Ray, once; return a list with its reference, and the dataset of its units."""
        import ray

        with self._pool_lock:
            if id(prelearn) not in self._jobs:
                detached, dataset = detach_dataset(prelearn)
                # In a list: Ray would replace a reference that is itself an argument by its object, in every call.
                self._jobs[id(prelearn)] = prelearn, [ray.put(detached)], dataset
            return self._jobs[id(prelearn)][1:]

    def _assign(self, read: Read) -> Any:
        """Return a worker for a read; wait if none has started.

        A unit goes to its preferred worker, which may have it in its disk cache, unless that one reads at least two
        units more for this learner than the least busy one.
        """
        while True:
            with self._pool_lock:
                if not self._num_reading or time.monotonic() - self._refresh_time > _REFRESH_SECONDS:
                    self._refresh()
                if self._num_reading:
                    workers = list(self._num_reading)
                    worker = min(workers, key=self._num_reading.__getitem__)
                    preferred = workers[read.unit.id % len(workers)]
                    if self._num_reading[preferred] <= self._num_reading[worker] + 1:
                        worker = preferred
                    self._num_reading[worker] += 1
                    return worker
            _sleep(read)

    def _is_in_pool(self, worker: Any, read: Read) -> bool:
        with self._pool_lock:
            # A pending answer may be from before the pool ended the worker.
            self._answer, self._refresh_time = None, 0.0
        while True:
            with self._pool_lock:
                self._refresh()
                if self._refresh_time:
                    return worker in self._num_reading
            _sleep(read)

    def _refresh(self) -> None:
        """Ask the pool for its workers, and tell it how much this learner reads; do nothing until it answers.

        Raises:
            WorkerLost: the pool died.
        """
        import ray

        try:
            self.open_pool()
            if self._answer is None:
                num_units = sum(self._num_reading.values()) + 1
                self._answer = self._pool.report_demand.remote(self._id, num_units, self._is_waiting)
            workers, num_learners = ray.get(self._answer, timeout=_POLL_SECONDS)
        except ray.exceptions.GetTimeoutError:
            return
        except ray.exceptions.RayActorError as error:
            self._answer = None
            raise _make_pool_lost(error) from error
        self._answer = None
        self._num_reading = {worker: self._num_reading.get(worker, 0) for worker in workers}
        self._refresh_time, self._is_waiting = time.monotonic(), False
        object_store_bytes = ray.cluster_resources().get("object_store_memory")
        if object_store_bytes:
            self._max_bytes = int(_OBJECT_STORE_FRACTION * object_store_bytes / num_learners)


class DataPool:
    """The actor that starts and ends the data workers of a training.

    Args:
        worker_limits: see `DataWorkers`.
        options: Ray options of the workers.
        disk_cache_bytes: see `DataWorkers`.
    """

    def __init__(
        self, worker_limits: tuple[int, int], options: Mapping[str, Any], disk_cache_bytes: int = 0
    ) -> None:
        end_with_parent(os.getppid())  # Ray only notices that its raylet died if init adopts the actor
        self._min_workers, self._max_workers = max(1, worker_limits[0]), max(1, *worker_limits)
        self._options, self._disk_cache_bytes = options, disk_cache_bytes
        self._lock = threading.Lock()
        self._starting: dict[Any, Any] = {}  # reference that is ready once the worker has started -> worker
        self._ready: list[Any] = []
        self._retired: list[tuple[float, Any]] = []
        self._demand: dict[str, tuple[float, int]] = {}
        self._last_busy = time.monotonic()
        for _ in range(self._min_workers):
            self._start_worker()

    def report_demand(self, learner: str, num_units: int, is_waiting: bool) -> tuple[list[Any], int]:
        """Grow or shrink the pool by a learner's demand; return the started workers, and the number of learners.

        Args:
            learner: id of the learner that reports.
            num_units: number of units that it has assigned to workers.
            is_waiting: whether it has waited for data since its last report.
        """
        import ray

        with self._lock:
            now = time.monotonic()
            self._demand[learner] = now, num_units
            if self._starting:
                count = len(self._starting)
                started, _ = ray.wait(list(self._starting), num_returns=count, timeout=0)
                self._ready += [self._starting.pop(reference) for reference in started]
            self._demand = {
                name: (asked, count)
                for name, (asked, count) in self._demand.items()
                if now - asked < _MAX_IDLE_SECONDS
            }
            total = sum(count for _, count in self._demand.values())
            num_busy = -(-total // _CONCURRENT_READS)
            if num_busy >= len(self._ready):
                self._last_busy = now
                if is_waiting and self._ready and not self._starting and len(self._ready) < self._max_workers:
                    self._start_worker()
            elif now - self._last_busy > _MAX_IDLE_SECONDS and len(self._ready) > self._min_workers:
                self._retired.append((now, self._ready.pop()))
                self._last_busy = now
            # A retired worker ends only after all learners have asked again, and so assign it nothing more.
            while self._retired and now - self._retired[0][0] > 2 * _REFRESH_SECONDS:
                ray.kill(self._retired.pop(0)[1])
            return self._ready, len(self._demand)

    def _start_worker(self) -> None:
        import ray

        options = {
            # Ray restarts a worker that died and reads its unit again, until the unit has killed it too often.
            "max_restarts": -1,
            "max_task_retries": _MAX_RETRIES,
            "max_concurrency": _CONCURRENT_READS,
            **self._options,
        }
        worker = ray.remote(BlockReader).options(**options).remote(self._disk_cache_bytes)
        self._starting[worker.start.remote()] = worker


class BlockReader:
    """The actor of a data worker.

    Args:
        disk_cache_bytes: see `DataWorkers`.
    """

    def __init__(self, disk_cache_bytes: int = 0) -> None:
        end_with_parent(os.getppid())  # Ray only notices that its raylet died if init adopts the actor
        self._was_killed_for_memory = _is_restarted() and count_oom_kills() > 0
        self._prelearners: dict[str, PreLearn] = {}
        open_disk_cache(disk_cache_bytes)

    def start(self) -> None:
        """Return once the worker has started."""

    def read(self, job: list[Any], part: Dataset | None, unit: Unit, epoch: int) -> _ReadBlock | UserError:
        """Return the block of a unit in an epoch with the seconds of `Executor.seconds`, or the user's error instead.

        Args:
            job: a list with one reference, to the pre-learner.
            part: the dataset of the unit, see `detach_dataset`.
            unit: the unit.
            epoch: number of the epoch.
        """
        set_extracted(part)
        return catch_user_error(lambda: self._read_block(job[0], unit, epoch))

    def _read_block(self, prelearner_reference: Any, unit: Unit, epoch: int) -> _ReadBlock:
        if self._was_killed_for_memory:
            raise OutOfMemory(
                "a data worker ran out of memory: raise spec.pipeline.dataWorkers.memory",
                mentions=("spec.pipeline.dataWorkers.memory",),
            )
        # The pre-learner is user code, which need not be thread-safe.
        with hold_turn():
            block = self._load_prelearner(prelearner_reference)(unit, epoch)
        read_seconds, prelearn_seconds = last_turn_seconds()
        # Without details: drops cached properties too, such as the episode of each step.
        return block.without_details(), {"read": read_seconds, "prelearn": prelearn_seconds}

    def _load_prelearner(self, reference: Any) -> PreLearn:
        import ray

        key = reference.hex()
        # Loaded once per worker.
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


def _sleep(read: Read) -> None:
    """Sleep before the next look at what a read waits for.

    Raises:
        CancelledError: nobody waits for the block any more.
    """
    if read.is_abandoned():
        raise CancelledError
    time.sleep(_POLL_SECONDS)


def _fetch_block(reference: Any, read: Read) -> _ReadBlock:
    """Return the block of a reference, as a view into the object store, with the seconds that it took.

    Raises:
        CancelledError: nobody waits for the block any more.
        UserError: the data worker returned it in place of the block.
        WorkerLost: data workers kept dying while they read the unit, or the block was lost with its node and could not
            be computed again.
    """
    import ray

    try:
        while not ray.wait([reference], timeout=_POLL_SECONDS)[0]:
            if read.is_abandoned():
                raise CancelledError
        return unwrap(cast(_ReadBlock | UserError, ray.get(reference)))
    except (
        ray.exceptions.RayActorError,
        ray.exceptions.ObjectLostError,
        ray.exceptions.OutOfMemoryError,
    ) as error:
        raise _make_worker_lost(error) from error


def _make_pool_lost(error: Exception) -> WorkerLost:
    return WorkerLost(f"the pool of data workers was lost: {first_line(error)}")


def _make_worker_lost(error: Exception) -> WorkerLost:
    import ray

    reason = first_line(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError) or any(
        message in str(error) for message in _OOM_MESSAGES
    ):
        return OutOfMemory(
            f"data workers ran out of memory: raise spec.pipeline.dataWorkers.memory ({reason})",
            mentions=("spec.pipeline.dataWorkers.memory",),
        )
    return WorkerLost(
        f"a data worker died {_MAX_RETRIES + 1} times, or its block was lost; the last error: {reason}"
    )
