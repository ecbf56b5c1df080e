"""The work queue: keys of resources to reconcile, now or later. A key is queued at most once, for one worker.

Groups of keys (namespaces) take turns, so many keys of one delay the others by one key at most. One group cannot hold
all workers, as it could while the API server does not answer for it.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

MAX_ACTIVE_PER_GROUP: Final = 16
"""Number of keys of a group that are processed at a time."""

_MIN_BACKOFF_SECONDS: Final = 0.2
_MAX_BACKOFF_SECONDS: Final = 30.0


class WorkQueue(Generic[K]):
    """Keys; those of a group in the order in which they were added.

    A key that is added while it is being processed is queued again.
    """

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        """Create an empty queue. `jitter` returns numbers from 0 to 1, which vary the delay of retries."""
        # The group whose turn is next comes first.
        self._queues: dict[Hashable, deque[K]] = {}
        self._enqueue_times: dict[K, float] = {}
        self._active_keys: set[K] = set()
        self._num_active: Counter[Hashable] = Counter()
        self._dirty_keys: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._key_arrival = asyncio.Event()
        self._jitter = jitter

    def __len__(self) -> int:
        return len(self._enqueue_times)

    def age(self) -> float:
        """Return for how many seconds the oldest key has waited; 0 if the queue is empty."""
        oldest_time = min((self._enqueue_times[queue[0]] for queue in self._queues.values()), default=None)
        return 0.0 if oldest_time is None else asyncio.get_running_loop().time() - oldest_time

    def add(self, key: K) -> None:
        """Queue a key for processing as soon as possible."""
        if key in self._active_keys:
            self._dirty_keys.add(key)
        elif key not in self._enqueue_times:
            self._enqueue_times[key] = asyncio.get_running_loop().time()
            self._queues.setdefault(_group(key), deque()).append(key)
            self._key_arrival.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Queue a key after some seconds. Of a key's timers the earliest counts; `get` of the key cancels it."""
        loop = asyncio.get_running_loop()
        due_time = loop.time() + max(seconds, 0.0)
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due_time:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due_time, self._on_timer, key)

    def retry(self, key: K, min_seconds: float = 0.0) -> float:
        """Queue a key again after a failure; the delay doubles with each failure. Return the delay in seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        max_seconds = min(_MIN_BACKOFF_SECONDS * 2.0**failures, _MAX_BACKOFF_SECONDS)
        seconds = max(max_seconds * (0.5 + 0.5 * self._jitter()), min_seconds)
        self.add_after(key, seconds)
        return seconds

    def forget_failures(self, key: K) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Wait for the next key. It is not returned again before `mark_done`."""
        while (group := self._next_group()) is _NO_GROUP:
            self._key_arrival.clear()
            await self._key_arrival.wait()
        queue = self._queues.pop(group)
        key = queue.popleft()
        if queue:
            self._queues[group] = queue
        del self._enqueue_times[key]
        self._active_keys.add(key)
        self._num_active[group] += 1
        if timer := self._timers.pop(key, None):
            timer.cancel()
        return key

    def mark_done(self, key: K) -> None:
        """Mark a key as processed."""
        self._active_keys.discard(key)
        group = _group(key)
        self._num_active[group] -= 1
        if not self._num_active[group]:
            del self._num_active[group]
        if key in self._dirty_keys:
            self._dirty_keys.discard(key)
            self.add(key)
        if group in self._queues:  # it may have waited for a worker
            self._key_arrival.set()

    def _next_group(self) -> Hashable:
        """Return the group whose turn is next, or `_NO_GROUP`."""
        return next((g for g in self._queues if self._num_active[g] < MAX_ACTIVE_PER_GROUP), _NO_GROUP)

    def _on_timer(self, key: K) -> None:
        del self._timers[key]
        self.add(key)


_NO_GROUP: Final = object()


def _group(key: Hashable) -> Hashable:
    return getattr(key, "namespace", None)
