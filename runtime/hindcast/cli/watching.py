"""A bar for one long piece of work, where a person watches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hindcast.cli.screen import Screen

if TYPE_CHECKING:
    from hindcast.datasets.watch import Watch


@contextmanager
def watching(screen: Screen, what: str) -> Iterator[Watch]:
    """What the work tells how it goes; without a bar where nobody watches."""
    from hindcast.datasets.watch import Watch

    if not screen.err.is_terminal or screen.flags.quiet or screen.flags.json:
        yield Watch(note=screen.note)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen.err, transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield Watch(lambda _, done, total: bars.update(task, completed=done, total=total), screen.note)
