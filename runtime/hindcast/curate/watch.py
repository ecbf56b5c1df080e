"""What work on data tells while it goes on, and what it asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _unheard(stage: str, done: int, total: int) -> None:
    """Nobody wants to know how it goes."""


def _unnoted(message: str) -> None:
    """Nobody wants to know what was found."""


def _unasked() -> None:
    """Nobody asks to stop."""


@dataclass(frozen=True)
class Watch:
    """Who watches.

    Attributes:
        progress: told of a stage, the timesteps done in it, and those that there are.
        note: told, in a sentence, what a user should know.
        check: called often; what it raises stops the work.
    """

    progress: Callable[[str, int, int], None] = _unheard
    note: Callable[[str], None] = _unnoted
    check: Callable[[], None] = _unasked


NOBODY = Watch()
