"""What this machine can give to a run that asks for more."""

from __future__ import annotations

import os


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


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


def leave_processors(busy: int) -> None:
    """Let torch compute on the processors that `busy` other processes of this run leave free, at least one.

    Threads that wait for each other on occupied processors cost more than they bring.
    """
    import torch

    free = max(1, processors() - busy)
    if torch.get_num_threads() > free:
        torch.set_num_threads(free)
