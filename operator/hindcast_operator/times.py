"""Parsing and formatting of times, and deadlines in whole seconds."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import monotonic as monotonic_seconds
from typing import Final

_MAX_SLEW: Final = 0.01
"""Largest correction of `SteadyClock` towards the wall clock, as a fraction of the elapsed time."""
_CENTURY_SECONDS: Final = 100 * 365 * 24 * 3600


def format_timestamp(time: datetime) -> str:
    """Format a time as in the status: `2026-11-21T06:00:00Z`."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """Parse a timestamp of the status or of the API server."""
    return datetime.fromisoformat(text)


def parse_optional_time(text: str | None) -> datetime | None:
    """Parse a timestamp; None if it is missing or empty."""
    return parse_time(text) if text else None


def time_after(start: datetime, seconds: float) -> datetime:
    """Return the time `seconds` after `start`, rounded up to a whole second, at most a century later."""
    # A user may set more seconds than there are until the last date that datetime can represent.
    end = start + timedelta(seconds=min(seconds, _CENTURY_SECONDS))
    # Rounded up: a timer that is set for this time never fires too early.
    return end if end.microsecond == 0 else end.replace(microsecond=0) + timedelta(seconds=1)


def earliest_time(*times: datetime | None) -> datetime | None:
    """Return the earliest of the times that are not None, or None."""
    return min((time for time in times if time is not None), default=None)


def format_for_people(time: datetime) -> str:
    """Format a time for messages: `2026-11-21 06:00:00 UTC`."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class SteadyClock:
    """A clock of the time of day that never steps. A call returns the time.

    The first call returns the wall clock's time. After a step of the wall clock (NTP, a resumed VM) the time approaches
    it by at most 1 % of the time that passes, so durations that are measured with it are accurate to 1 %.

    Args:
        monotonic: returns seconds from any start, which no step of the wall clock affects.
        wall: returns the time of the wall clock.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = monotonic_seconds,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._last_reading: float | None = None
        self._time = datetime.min

    def __call__(self) -> datetime:
        reading = self._monotonic()
        if self._last_reading is None:
            self._last_reading, self._time = reading, self._wall()
        elapsed, self._last_reading = reading - self._last_reading, reading
        self._time += timedelta(seconds=elapsed)
        max_slew = timedelta(seconds=elapsed * _MAX_SLEW)
        self._time += max(-max_slew, min(self._wall() - self._time, max_slew))
        return self._time
