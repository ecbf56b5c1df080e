"""Which resources to reconcile, now or later: level-based, each at most once, never by two workers."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SHORTEST_BACKOFF: Final = 0.2
_LONGEST_BACKOFF: Final = 30.0


class WorkQueue(Generic[K]):
    """Keys in the order in which they were added. A key that is added while it is being processed is queued again."""

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._waiting: deque[K] = deque()
        self._since: dict[K, float] = {}
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._arrived = asyncio.Event()
        self._random_share = jitter

    def __len__(self) -> int:
        return len(self._waiting)

    def age(self) -> float:
        """Seconds that the first key has waited; 0 where none waits."""
        return asyncio.get_running_loop().time() - self._since[self._waiting[0]] if self._waiting else 0.0

    def add(self, key: K) -> None:
        """Process a key as soon as possible."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._since:
            self._since[key] = asyncio.get_running_loop().time()
            self._waiting.append(key)
            self._arrived.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Process a key after a time; the earliest time counts, until the key is processed next."""
        loop = asyncio.get_running_loop()
        when = loop.time() + max(seconds, 0.0)
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= when:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(when, self._due, key)

    def retry(self, key: K, min_seconds: float = 0.0) -> float:
        """Process a key again after a failure, later each time. Returns in how many seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        longest = min(_SHORTEST_BACKOFF * 2.0**failures, _LONGEST_BACKOFF)
        seconds = max(longest * (0.5 + 0.5 * self._random_share()), min_seconds)
        self.add_after(key, seconds)
        return seconds

    def forget_failures(self, key: K) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key. It is not returned again before `done`."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        key = self._waiting.popleft()
        del self._since[key]
        self._working.add(key)
        if timer := self._timers.pop(key, None):
            timer.cancel()
        return key

    def mark_done(self, key: K) -> None:
        """A key has been processed."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _due(self, key: K) -> None:
        del self._timers[key]
        self.add(key)
