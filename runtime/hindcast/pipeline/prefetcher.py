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
        """Return the next window; the previous one must not be in use any more.

        Raises:
            Exception: any error of loading it; no window follows it.
        """
        self._thread.join()
        window = self._next_window
        if isinstance(window, BaseException):
            raise window
        del self._next_window  # so that the window is freed as soon as the caller drops it
        self._start_thread()
        return window

    def close(self) -> None:
        """Stop, after waiting for the window that is being loaded."""
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
