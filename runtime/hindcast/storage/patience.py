"""For how long a request to a store is tried."""

from __future__ import annotations

import os
from typing import Final

from hindcast.errors import StorageError

PATIENCE: Final = "HINDCAST_STORAGE_TIMEOUT"
FIRST_PAUSE_S: Final = 0.2
"""Before the second try; pauses double."""
_DEFAULT_S: Final = 60.0


def patience() -> float:
    """Seconds for which a request is tried: `HINDCAST_STORAGE_TIMEOUT`, by default 60.

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
