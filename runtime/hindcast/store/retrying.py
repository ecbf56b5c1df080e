"""Trying again what a store failed to do, while that can help and there is time."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from hindcast.errors import StorageError
from hindcast.store.store_failures import failure_of

Result = TypeVar("Result")

PATIENCE: Final = "HINDCAST_STORAGE_TIMEOUT"
_DEFAULT_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0
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


def within(operation: Callable[[], Result], nbytes: int = 0) -> Result:
    """The operation's result, unless it takes longer than `patience` and the time `nbytes` need on a slow line.

    For clients that know no limit of their own. The thread of an operation given up is left alone.

    Raises:
        TimeoutError: it takes longer.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(operation())
        except BaseException as error:
            errors.append(error)

    seconds = patience() + nbytes / _SLOWEST_BYTES_A_SECOND
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"timed out after {seconds:.0f} seconds")
    return results[0]
