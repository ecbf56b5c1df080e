"""Executors read units and turn them into blocks with a pre-learner (`prelearner.py`), in this process or others."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

from hindcast.datasets.units import Unit
from hindcast.episodes.block import Block
from hindcast.pipeline.timeline import Timeline
from hindcast.pipeline.turn_lock import hold_turn, last_turn_seconds, waiting_factor
from hindcast.threads import num_processors

_MAX_BYTES: Final = 256 << 20
"""Maximum bytes of the units that are read at a time; a larger unit is read alone."""
_MAX_THREADS: Final = 32

PreLearn = Callable[[Unit, int], Block]
"""Returns the block of a unit in an epoch."""


class ReadFuture(Future[Any]):
    """A future of a read; a read that has begun may end early once `cancel` was called."""

    is_abandoned = False

    def cancel(self) -> bool:
        self.is_abandoned = True
        return super().cancel()


@dataclass
class Read:
    """A unit to read, and the consumers of its block: several lanes may need pieces of it."""

    prelearn: PreLearn
    unit: Unit
    epoch: int
    consumers: list[tuple[ReadFuture, Callable[[Block], Any]]]

    def is_abandoned(self) -> bool:
        """Return True if nobody waits for the block any more."""
        return all(future.is_abandoned for future, _ in self.consumers)


class Executor:
    """Base class of executors: threads that read units, in the order in which they are submitted.

    The threads start and end with the work. The units that are read at a time have at most 256 MiB. A unit that is
    submitted again before it is read is read once.

    Attributes:
        seconds: seconds of all threads together since the start by stage: "read" (from storage, and decoding),
            "prelearn" (connectors and the user's code) and "copy" (into windows).
        timeline: records when threads are busy with each stage, and when this learner waits for data ("wait"); None for
            no record.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads: dict[tuple[int, int, int], Read] = {}
        self._num_threads = 0
        self._reading_bytes = 0
        self._max_bytes = _MAX_BYTES
        self.seconds: Counter[str] = Counter()
        self.timeline: Timeline | None = None

    def submit(
        self, prelearn: PreLearn, unit: Unit, epoch: int, deliver: Callable[[Block], Any]
    ) -> Future[Any]:
        """Read a unit, after those that were submitted before.

        Args:
            prelearn: returns the block of a unit.
            unit: the unit.
            epoch: number of the epoch.
            deliver: called with the block, in a thread.

        Returns:
            A future of the result of `deliver`.
        """
        future = ReadFuture()
        with self._lock:
            read = self._reads.setdefault((id(prelearn), unit.id, epoch), Read(prelearn, unit, epoch, []))
            read.consumers.append((future, deliver))
            self._start_threads()
        return future

    def note_wait(self) -> None:
        """Note that a learner waits for data, so that more units are read at a time if that is possible."""

    def close(self) -> None:
        """End the workers outside of this process; the executor can read again afterwards."""

    def _max_threads(self) -> int:
        """Return the number of units to read at a time, at least 1."""
        raise NotImplementedError

    def _read(self, read: Read) -> Block:
        """Return the block of a unit.

        Raises:
            CancelledError: nobody waits for the block any more.
        """
        raise NotImplementedError

    def _start_threads(self) -> None:
        for _ in range(min(len(self._reads), self._max_threads() - self._num_threads)):
            self._num_threads += 1
            # A daemon thread does not keep the process alive.
            threading.Thread(target=self._run, name="hindcast-reader", daemon=True).start()

    def _run(self) -> None:
        """Read units until none is left, or until the limits on threads or bytes are exceeded."""
        while (read := self._next_read()) is not None:
            self._execute(read)
            with self._lock:
                self._reading_bytes -= read.unit.nbytes
                self._start_threads()
            del read  # the windows that it refers to may not be needed any more

    def _execute(self, read: Read) -> None:
        consumers = [consumer for consumer in read.consumers if consumer[0].set_running_or_notify_cancel()]
        if not consumers:
            return
        try:
            block = self._read(read)
        except BaseException as error:  # raised where the results are needed
            for future, _ in consumers:
                future.set_exception(error)
            return
        for future, deliver in consumers:
            start_time = time.perf_counter()
            try:
                result = deliver(block)
            except BaseException as error:
                future.set_exception(error)
            else:
                self._count_seconds(copy=time.perf_counter() - start_time)
                future.set_result(result)
            block = replace(block, logged_metrics=())  # metrics count once, however many consumers there are

    def _count_seconds(self, **seconds: float) -> None:
        with self._lock:
            self.seconds.update(seconds)
            if (timeline := self.timeline) is not None:  # the learner's thread replaces it
                timeline.add(seconds)

    def _next_read(self) -> Read | None:
        with self._lock:
            if self._reads and self._num_threads <= self._max_threads():
                key, read = next(iter(self._reads.items()))
                nbytes = read.unit.nbytes
                if not self._reading_bytes or self._reading_bytes + nbytes <= self._max_bytes:
                    self._reading_bytes += nbytes
                    return self._reads.pop(key)
            self._num_threads -= 1
            return None


class Local(Executor):
    """Reads in this process.

    Units from a store are read several at a time, so that one is being decoded while others wait for the store; how
    many this takes is measured with each read. If learners wait for data nevertheless, more units are decoded at a
    time, up to the number of processors.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_decoding = 1
        self._waiting_factor = 1.0

    def note_wait(self) -> None:
        self._num_decoding = min(self._num_decoding + 1, num_processors())

    def _max_threads(self) -> int:
        return min(_MAX_THREADS, round(self._num_decoding * self._waiting_factor))

    def _read(self, read: Read) -> Block:
        # The pre-learner is user code, which need not be thread-safe.
        with hold_turn():
            block = read.prelearn(read.unit, read.epoch)
        read_seconds, prelearn_seconds = last_turn_seconds()
        self._count_seconds(read=read_seconds, prelearn=prelearn_seconds)
        # An average over several reads: a single slow answer should not start many threads.
        self._waiting_factor += 0.2 * (waiting_factor() - self._waiting_factor)
        return block
