"""A lock by which threads that pre-learn take turns: user code runs in one of them at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_lock: Final = threading.Lock()
_thread_state: Final = threading.local()


@contextmanager
def hold_turn() -> Iterator[None]:
    """Hold the turn for the duration of a `with` statement."""
    with _lock:
        _thread_state.has_turn = True
        _thread_state.waiting_factor = 1.0
        try:
            yield
        finally:
            _thread_state.has_turn = False


@contextmanager
def release_turn() -> Iterator[None]:
    """Release the turn for the duration of a `with` statement; do nothing if this thread does not hold the turn."""
    if not getattr(_thread_state, "has_turn", False):
        yield
        return
    _thread_state.has_turn = False
    _lock.release()
    start_time, start_cpu_time = time.perf_counter(), time.thread_time()
    try:
        yield
    finally:
        cpu_seconds = max(time.thread_time() - start_cpu_time, 1e-6)
        _thread_state.waiting_factor = (time.perf_counter() - start_time) / cpu_seconds
        _lock.acquire()
        _thread_state.has_turn = True


def waiting_factor() -> float:
    """Return the seconds over the processor's seconds of what this thread did last without the turn; 1 if nothing."""
    return getattr(_thread_state, "waiting_factor", 1.0)
