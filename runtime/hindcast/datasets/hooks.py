"""Callbacks of long-running work on data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hindcast.formats.spec import DataSpec


def _ignore(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Hooks:
    """Callbacks; by default none does anything.

    Attributes:
        progress: called with a stage, how much of it is done, and the total: pieces of data where they are prepared,
            timesteps elsewhere.
        note: called with a sentence that the user should read.
        check: called often; an exception that it raises stops the work.
        accept: called with what is known of the data before they are prepared; an exception that it raises prevents it.
    """

    progress: Callable[[str, int, int], None] = _ignore
    note: Callable[[str], None] = _ignore
    check: Callable[[], None] = _ignore
    accept: Callable[[DataSpec], None] = _ignore


NO_HOOKS = Hooks()
