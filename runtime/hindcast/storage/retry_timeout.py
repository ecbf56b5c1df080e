"""The timeout after which a request to a store is no longer retried."""

from __future__ import annotations

import os
from typing import Final

from hindcast.errors import StorageError

TIMEOUT_VARIABLE: Final = "HINDCAST_STORAGE_TIMEOUT"
INITIAL_BACKOFF_SECONDS: Final = 0.2
"""Pause before the first retry; later pauses double."""
_DEFAULT_SECONDS: Final = 60.0


def retry_timeout_seconds() -> float:
    """Return the number of seconds for which a request is retried: `HINDCAST_STORAGE_TIMEOUT`, by default 60.

    Raises:
        StorageError: the variable is not a positive number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE)
    if text is None:
        return _DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise StorageError(f"{TIMEOUT_VARIABLE} is {text!r}: set it to a positive number of seconds")
    return seconds
