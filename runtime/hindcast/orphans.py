"""Worker processes that end with the process that started them, however that ended."""

from __future__ import annotations

import os
import threading
import time

_LOOK_S = 0.5


def end_with_parent() -> None:
    """End this process within a moment of its parent; a killed parent cannot do it itself."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)
