"""Callbacks of long-running work on data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _ignore(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Hooks:
    """Callbacks; by default they do nothing.

    Attributes:
        progress: called with the name of a stage, the amount of work done and the total; their unit depends on the
            stage.
        note: called with a sentence for the user.
        check: called often; its exception stops the work.
    """

    progress: Callable[[str, int, int], None] = _ignore
    note: Callable[[str], None] = _ignore
    check: Callable[[], None] = _ignore


NO_HOOKS = Hooks()
