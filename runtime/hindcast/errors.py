"""Errors a user can act on. Each carries a sentence: what was found, where, and what to do. (One per line, if several.)

The command line prints the message without a traceback and exits with `exit_code`.
Anything that is not a `UserError` is a bug in Hindcast.

Between processes a user error travels as a value (`catch_user_error`, `unwrap`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class UserError(Exception):
    """Base of all errors that are shown to the user without a traceback (exit code 1)."""

    exit_code = 1


class SpecError(UserError):
    """A resource is wrong: broken YAML, unknown field, wrong type, impossible combination."""

    exit_code = 2


class NoCudaDevice(SpecError):
    """A learner is configured to use a GPU, but torch finds no CUDA device (exit code 2)."""


class DataError(UserError):
    """Recorded data cannot be used: truncated file, wrong shape, NaN, no episodes."""

    exit_code = 3


class OutputConflict(UserError):
    """The output folder belongs to something else, or to the same thing with another spec."""

    exit_code = 4


class StorageError(UserError):
    """Storage failed or denied a request: read-only, full, access denied, unreachable."""

    exit_code = 5


class StorageUnavailable(StorageError):
    """Storage did not answer, or kept failing, until the retries of a request timed out. A later try may succeed."""


class UserCodeError(UserError):
    """The user's own code (environment, algorithm, connector, …) raised an exception or returned something unusable."""

    exit_code = 6


class WorkerLost(UserError):
    """Worker processes or nodes keep dying; the run resumes when it is started again."""

    exit_code = 7


class OutOfMemory(WorkerLost):
    """A process was killed because memory ran out; the message says which size to raise."""


class Interrupted(UserError):
    """The run was interrupted after a checkpoint and can be continued."""

    exit_code = 130


def first_line(error: Exception) -> str:
    """Return the first non-empty line of another library's message, which may continue with a long traceback."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), "no reason given")


def catch_user_error(function: Callable[[], T]) -> T | UserError:
    """Call the function; return its result, or the `UserError` that it raises."""
    try:
        return function()
    except UserError as error:
        return error  # if it were raised here, Ray or loky would wrap it in another error


def unwrap(result: T | UserError) -> T:
    """Return the result of a `catch_user_error` in another process, or raise the error that it returned.

    Raises:
        UserError: the function called by `catch_user_error` raised it.
    """
    if isinstance(result, UserError):
        raise result
    return result
