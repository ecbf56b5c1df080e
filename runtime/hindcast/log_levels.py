"""Log levels that are changed for a while: they are the process's, and others may log later."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_only(name: str) -> Iterator[None]:
    """Let the logger of this name log only errors within a `with` statement."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
