"""A lock by which the threads of a data worker take turns: user code runs in one of them at a time."""

from __future__ import annotations

import threading
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
    try:
        yield
    finally:
        _lock.acquire()
        _thread_state.has_turn = True
