"""What work on data tells while it goes on, and what it asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hindcast.formats.spec import DataSpec


def _unheard(stage: str, done: int, total: int) -> None:
    """Nobody wants to know how it goes."""


def _unnoted(message: str) -> None:
    """Nobody wants to know what was found."""


def _unasked() -> None:
    """Nobody asks to stop."""


def _accepted(spec: DataSpec) -> None:
    """All data will do."""


@dataclass(frozen=True)
class Watch:
    """Who watches.

    Attributes:
        progress: told of a stage, how much of it is done, and how much there is: pieces of data that are prepared,
            timesteps of others.
        note: told, in a sentence, what a user should know.
        check: called often; what it raises stops the work.
        accept: told what data say of themselves before they are prepared; what it raises keeps them from it.
    """

    progress: Callable[[str, int, int], None] = _unheard
    note: Callable[[str], None] = _unnoted
    check: Callable[[], None] = _unasked
    accept: Callable[[DataSpec], None] = _accepted


NOBODY = Watch()
