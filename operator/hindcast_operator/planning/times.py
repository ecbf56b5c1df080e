"""Times in the status: UTC, whole seconds."""

from datetime import UTC, datetime, timedelta


def stamp(at: datetime) -> str:
    """As the status has it: `2026-11-21T06:00:00Z`."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(text: str) -> datetime:
    """The time of a stamp."""
    return datetime.fromisoformat(text)


def after(start: datetime, seconds: float) -> datetime:
    """`seconds` later, rounded up to a whole second, so that whoever wakes then finds it over."""
    end = start + timedelta(seconds=seconds)
    return end if end.microsecond == 0 else end.replace(microsecond=0) + timedelta(seconds=1)


def earliest(*times: datetime | None) -> datetime | None:
    """The first of them; None where there is none."""
    return min((time for time in times if time is not None), default=None)


def for_people(at: datetime) -> str:
    """In sentences: `2026-11-21 06:00:00 UTC`."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
