"""Worker processes that end with the process that started them, however that ended."""

from __future__ import annotations

import os
import threading
import time

_LOOK_S = 0.5


def end_with_parent(parent: int) -> None:
    """End this process within a moment of its parent; a killed parent cannot do it itself.

    Args:
        parent: its process id, from the parent itself: it may have ended before this process can ask.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)
