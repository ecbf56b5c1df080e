"""Trying again what a store failed to do, while that can help and there is time."""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar

from hindcast.errors import StorageError
from hindcast.store.store_failures import failure_of

Result = TypeVar("Result")

PATIENCE: Final = "HINDCAST_STORAGE_TIMEOUT"
_DEFAULT_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0
_LONGEST_ANSWER_S: Final = 20.0
_SLOWEST_BYTES_A_SECOND: Final = 256 << 10


def patience() -> float:
    """Seconds for which an operation is tried: `HINDCAST_STORAGE_TIMEOUT`, by default 60.

    Raises:
        StorageError: the variable is not a positive number.
    """
    given = os.environ.get(PATIENCE)
    if given is None:
        return _DEFAULT_S
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise StorageError(f"{PATIENCE} is {given!r}: give a positive number of seconds")
    return seconds


def persistently(operation: Callable[[], Result]) -> Result:
    """Carry out an operation, again while it fails for what can pass: pauses double, and vary by half."""
    end, pause = time.monotonic() + patience(), _FIRST_PAUSE_S
    while True:
        try:
            return operation()
        except Exception as error:
            failure = failure_of(error)
            wait = pause * random.uniform(0.5, 1.0)
            if failure is None or not failure.passes or time.monotonic() + wait > end:
                raise
        time.sleep(wait)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def answer_limit(nbytes: int = 0) -> float:
    """Seconds that one attempt may take which moves `nbytes`: after a stall there is time for another."""
    return min(_LONGEST_ANSWER_S, patience()) + nbytes / _SLOWEST_BYTES_A_SECOND


class GivenUp(Exception):
    """Raised in an attempt that nobody waits for any more."""


class _Attempt(threading.Thread):
    """An operation in a thread, since a client of C++ cannot be interrupted."""

    def __init__(self, operation: Callable[[], Result]) -> None:
        super().__init__(daemon=True)
        self._operation = operation
        self.is_given_up = False
        self.results: list[Any] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.results.append(self._operation())
        except BaseException as error:
            self.error = error


def within(operation: Callable[[], Result], seconds: float) -> Result:
    """The operation's result, unless it takes longer.

    For clients that know no limit of their own. The thread of an operation given up is left alone; what it would
    change later, it asks `still_wanted` first.

    Raises:
        TimeoutError: it takes longer.
    """
    attempt = _Attempt(operation)
    attempt.start()
    attempt.join(seconds)
    if attempt.error is not None:
        raise attempt.error
    if not attempt.results:
        attempt.is_given_up = True
        _exit_without_destructors()
        raise TimeoutError(f"timed out after {seconds:.0f} seconds")
    result: Result = attempt.results[0]
    return result


def still_wanted() -> None:
    """Look, before a change that others would see, whether the attempt of this thread was given up.

    Raises:
        GivenUp: it was; another one has taken its place.
    """
    attempt = threading.current_thread()
    if isinstance(attempt, _Attempt) and attempt.is_given_up:
        raise GivenUp


@cache
def _exit_without_destructors() -> None:
    """Let the process end by `_exit`: a client's thread left behind would abort it among destroyed globals."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc; it gives the exit status to what is registered
        libc.on_exit(libc._exit, None)
