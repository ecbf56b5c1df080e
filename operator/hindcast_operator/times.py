"""Times: UTC, whole seconds in the status."""

from datetime import UTC, datetime, timedelta
from typing import Final

_CENTURY: Final = 100 * 365 * 24 * 3600


def format_timestamp(at: datetime) -> str:
    """As the status has it: `2026-11-21T06:00:00Z`."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """The time of a timestamp of the status or of the API server."""
    return datetime.fromisoformat(text)


def parse_optional_time(text: str | None) -> datetime | None:
    """The same; None if there is none."""
    return parse_time(text) if text else None


def after(start: datetime, seconds: float) -> datetime:
    """`seconds` later, rounded up to a whole second: a timer set for it never fires too early.

    At most a century: later times may have no date.
    """
    end = start + timedelta(seconds=min(seconds, _CENTURY))
    return end if end.microsecond == 0 else end.replace(microsecond=0) + timedelta(seconds=1)


def earliest(*times: datetime | None) -> datetime | None:
    """The first of them; None if there is none."""
    return min((time for time in times if time is not None), default=None)


def format_for_people(at: datetime) -> str:
    """In messages: `2026-11-21 06:00:00 UTC`."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
