"""Ctrl-C and SIGTERM as a request to stop, which a run obeys at its next safe point."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from hindcast.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Says whether the user has requested a stop.

    Attributes:
        is_requested: a stop was requested.
    """

    def __init__(self) -> None:
        self.is_requested = False

    def check(self) -> None:
        """Raise an exception if a stop was requested.

        Raises:
            Interrupted: a stop was requested.
        """
        if self.is_requested:
            raise Interrupted("interrupted; run the same command again to resume.")


@contextlib.contextmanager
def catch_signals() -> Iterator[Interruption]:
    """Turn the first Ctrl-C and the first SIGTERM into a stop request; a second signal of the same kind acts as usual.

    Outside the main thread no stop is ever requested.
    """
    interruption = Interruption()
    # Python installs signal handlers only from the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    original_handlers = {number: signal.getsignal(number) for number in _SIGNALS}

    def request_stop(signal_number: int, frame: FrameType | None) -> None:
        del frame
        interruption.is_requested = True
        signal.signal(signal_number, original_handlers[signal.Signals(signal_number)])

    for number in _SIGNALS:
        signal.signal(number, request_stop)
    try:
        yield interruption
    finally:
        for number, handler in original_handlers.items():
            signal.signal(number, handler)
