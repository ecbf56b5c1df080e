"""A bar for one long piece of work, where a person watches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hindcast.cli.screen import Screen


@contextmanager
def watching(screen: Screen, what: str) -> Iterator[Callable[[int, int], None] | None]:
    """What to call with how much is done, and of how much; None where nobody watches."""
    if not screen.err.is_terminal or screen.flags.quiet or screen.flags.json:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen.err, transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
