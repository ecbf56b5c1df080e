"""`Filler`: loads the next window in a thread while the current one is in use."""

from __future__ import annotations

import threading
from collections.abc import Generator

from hindcast.pipeline.loader import LoadedWindow


class Prefetcher:
    """Loads windows ahead, one at a time: at most one is waiting or being loaded in addition to the one in use.

    Args:
        windows: each is loaded in a thread of its own; they do not keep a process from ending.
    """

    def __init__(self, windows: Generator[LoadedWindow, None, None]) -> None:
        self._windows = windows
        self._begin()

    def take(self) -> LoadedWindow:
        """Wait for the next window; the one taken before must not be in use any more.

        Raises:
            Exception: whatever loading it raised; there is none after it.
        """
        self._thread.join()
        loaded = self._loaded
        if isinstance(loaded, BaseException):
            raise loaded
        del self._loaded  # so that it is freed as soon as it is not in use any more
        self._begin()
        return loaded

    def close(self) -> None:
        """Stop, and wait until the window that is being loaded is there."""
        self._thread.join()
        self._windows.close()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._load, name="hindcast-window-filler", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        self._loaded: LoadedWindow | BaseException
        try:
            self._loaded = next(self._windows)
        except BaseException as error:  # handed to the consumer, who raises it
            self._loaded = error
