"""`Prefetcher` loads the next window in a thread while the current one is in use."""

from __future__ import annotations

import threading
from collections.abc import Generator

from hindcast.pipeline.loader import LoadedWindow


class Prefetcher:
    """Loads one window ahead of the one in use.

    Args:
        windows: yields the windows; each is loaded in a daemon thread, which does not keep the process alive.
    """

    def __init__(self, windows: Generator[LoadedWindow, None, None]) -> None:
        self._windows = windows
        self._start_thread()

    def take(self) -> LoadedWindow:
        """Wait for the next window and return it; start to load the one after it.

        The caller must not use the previous window any more.

        Raises:
            Exception: any error of loading the window. No further windows can be taken after an error.
        """
        self._thread.join()
        window = self._next_window
        if isinstance(window, BaseException):
            raise window
        del self._next_window  # so that the window is freed as soon as the caller drops it
        self._start_thread()
        return window

    def close(self) -> None:
        """Wait for the window that is being loaded, then stop."""
        self._thread.join()
        self._windows.close()

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._load, name="hindcast-window-filler", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        self._next_window: LoadedWindow | BaseException
        try:
            self._next_window = next(self._windows)
        except BaseException as error:  # `take` raises it in the consumer's thread
            self._next_window = error
