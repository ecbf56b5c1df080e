"""`Filler`: a thread that loads the next window while the current one is in use."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator

from hindcast.pipeline.loader import LoadedWindow


class Filler:
    """Loads windows ahead, one at a time: at most one is waiting or being loaded in addition to the one in use.

    Args:
        windows: makes the generator of windows; it is used, and closed, in the thread.
    """

    def __init__(self, windows: Callable[[], Generator[LoadedWindow, None, None]]) -> None:
        self._windows = windows
        self._wanted = threading.Semaphore(1)
        self._ready: queue.SimpleQueue[LoadedWindow | BaseException] = queue.SimpleQueue()
        self._stopping = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._fill, name="hindcast-window-filler", daemon=True)
        self._thread.start()

    def take(self) -> LoadedWindow:
        """Wait for the next window; the one taken before must not be in use any more.

        Raises:
            Exception: whatever loading it raised, on this and every further call.
        """
        if self._failure is not None:
            raise self._failure
        loaded = self._ready.get()
        if isinstance(loaded, BaseException):
            self._failure = loaded
            raise loaded
        self._wanted.release()
        return loaded

    def close(self) -> None:
        """Stop, and wait until the thread has ended (after the unit that it is reading)."""
        self._stopping = True
        self._wanted.release()
        self._thread.join()

    def _fill(self) -> None:
        windows = self._windows()
        try:
            while True:
                self._wanted.acquire()
                if self._stopping:
                    return
                self._ready.put(next(windows))
        except BaseException as error:  # handed to the consumer, who raises it
            self._ready.put(error)
        finally:
            windows.close()
