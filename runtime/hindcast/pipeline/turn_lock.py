"""Threads of a data worker take turns: a user's code runs in one at a time, and reading needs no turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_lock: Final = threading.Lock()
_own: Final = threading.local()


@contextmanager
def hold_turn() -> Iterator[None]:
    """Wait for this thread's turn, and have it until the block ends."""
    with _lock:
        _own.has_turn = True
        try:
            yield
        finally:
            _own.has_turn = False


@contextmanager
def release_turn() -> Iterator[None]:
    """Let other threads have theirs during the block; nothing in a thread that has none."""
    if not getattr(_own, "has_turn", False):
        yield
        return
    _lock.release()
    try:
        yield
    finally:
        _lock.acquire()
