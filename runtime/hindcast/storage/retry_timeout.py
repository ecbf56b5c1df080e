"""For how long a request to a store is tried."""

from __future__ import annotations

import os
from typing import Final

from hindcast.errors import StorageError

TIMEOUT_VARIABLE: Final = "HINDCAST_STORAGE_TIMEOUT"
INITIAL_BACKOFF_SECONDS: Final = 0.2
"""Before the second try; pauses double."""
_DEFAULT_SECONDS: Final = 60.0


def retry_timeout_seconds() -> float:
    """Seconds for which a request is tried: `HINDCAST_STORAGE_TIMEOUT`, by default 60.

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
        raise StorageError(f"{TIMEOUT_VARIABLE} is {text!r}: give a positive number of seconds")
    return seconds
