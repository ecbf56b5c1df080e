"""A lock that gives threads turns to pre-learn: user code runs in one thread at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_lock: Final = threading.Lock()
_thread_state: Final = threading.local()


@contextmanager
def hold_turn() -> Iterator[None]:
    """Hold the turn for the duration of a `with` statement."""
    with _lock:
        _thread_state.has_turn = True
        _thread_state.waiting_factor = 1.0
        _thread_state.read_seconds = _thread_state.turn_seconds = 0.0
        _thread_state.turn_start = time.perf_counter()
        try:
            yield
        finally:
            _thread_state.has_turn = False
            _count_turn()


@contextmanager
def release_turn() -> Iterator[None]:
    """Release the turn for the duration of a `with` statement; do nothing if this thread does not hold the turn."""
    if not getattr(_thread_state, "has_turn", False):
        yield
        return
    _thread_state.has_turn = False
    _count_turn()
    _lock.release()
    start_time, start_cpu_time, start_delay = time.perf_counter(), time.thread_time(), _processor_delay()
    try:
        yield
    finally:
        cpu_seconds = max(time.thread_time() - start_cpu_time, 1e-6)
        # Without the wait for a processor, which more threads do not shorten: counting it would start more and more.
        wall_seconds = time.perf_counter() - start_time
        seconds = wall_seconds - (_processor_delay() - start_delay)
        _thread_state.read_seconds += wall_seconds
        _thread_state.waiting_factor = max(1.0, seconds / cpu_seconds)
        _lock.acquire()
        _thread_state.has_turn = True
        _thread_state.turn_start = time.perf_counter()


def _count_turn() -> None:
    _thread_state.turn_seconds += time.perf_counter() - _thread_state.turn_start


def last_turn_seconds() -> tuple[float, float]:
    """Return the seconds of this thread's last `hold_turn` without the turn (reading) and with it (pre-learning)."""
    return _thread_state.read_seconds, _thread_state.turn_seconds


def waiting_factor() -> float:
    """Return the ratio of elapsed time to processor time in this thread's last read without the turn; 1 before any.

    The elapsed time excludes the time in which the thread was ready and all processors were busy.
    """
    return getattr(_thread_state, "waiting_factor", 1.0)


_SCHEDULER_STATISTICS: Final = Path("/proc/thread-self/schedstat")
"""Nanoseconds that the thread ran, nanoseconds that it waited for a processor, and number of its turns."""


def _processor_delay() -> float:
    """Return the seconds that this thread has waited for a processor; 0 if the kernel does not count them."""
    try:
        return int(_SCHEDULER_STATISTICS.read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0
