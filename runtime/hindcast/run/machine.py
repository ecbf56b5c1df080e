"""What this machine can give to a run that asks for more."""

from __future__ import annotations

from hindcast.threads import processors


def clamp_replicas(wanted: int, what: str) -> tuple[int, str | None]:
    """As many replicas as this machine has processors, and the sentence that says so.

    Args:
        wanted: replicas in the resource.
        what: "runners", "evaluation runners" …

    Returns:
        The number to use, and a note where it is smaller than wanted.
    """
    available = processors()
    if wanted <= available:
        return wanted, None
    return available, f"{wanted} {what} clamped to {available}: this machine has {available} processors"
