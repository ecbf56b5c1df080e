"""Reporters of the command line: bars on a terminal, occasional lines elsewhere, JSON for machines."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from hindcast.cli.screen import Screen, print_text
from hindcast.report.events import Outcome, Progress, Reporter
from hindcast.report.progress import ProgressLines, format_amount, format_metrics

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from hindcast.datasets.hooks import Hooks


@contextmanager
def open_reporter(screen: Screen) -> Iterator[Reporter]:
    """Provide the reporter for a screen: bars on a terminal, lines elsewhere or with --json.

    With --quiet it prints only outcomes.
    """
    if screen.err.is_terminal and not screen.flags.quiet and not screen.flags.json:
        bars = BarReporter(screen)
        try:
            yield bars
        finally:
            bars.stop()
    else:
        yield LogReporter(screen)


@contextmanager
def progress_bar(screen: Screen, description: str) -> "Iterator[Hooks]":
    """Provide hooks that draw a transient bar for one long operation.

    Without a terminal or with --json, the hooks only print notes; with --quiet they print nothing.
    """
    from hindcast.datasets.hooks import Hooks

    if not screen.err.is_terminal or screen.flags.quiet or screen.flags.json:
        yield Hooks(note=screen.note)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=screen.err, transient=True) as bars:
        task = bars.add_task(description, total=None)
        yield Hooks(lambda _, done, total: bars.update(task, completed=done, total=total), screen.note)


def show_outcome(outcome: Outcome, screen: Screen) -> None:
    """Print the outcome of a resource to stdout."""
    has_resource_name = outcome.message.startswith(outcome.resource)
    text = outcome.message if has_resource_name else f"{outcome.resource}: {outcome.message}"
    if outcome.report is not None and outcome.report not in text:
        text += f"\nreport: {outcome.report}"
    screen.show_result(asdict(outcome), text)


class LogReporter(Reporter):
    """Writes a line when a stage starts, when it reaches its total, and every ten seconds in between.

    With --quiet it writes only outcomes.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._progress_lines = ProgressLines()

    def progress(self, progress: Progress) -> None:
        line = self._progress_lines.next_line(progress)
        if line is not None:
            self._screen.note(line)

    def note(self, resource: str, message: str) -> None:
        self._screen.note(f"{resource}: {message}")

    def finished(self, outcome: Outcome) -> None:
        show_outcome(outcome, self._screen)


class BarReporter(Reporter):
    """Draws one bar for each stage, with its metrics, the elapsed and the remaining time."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._bars: Bars | None = None
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._last_progress: Progress | None = None
        self._resource = ""

    def progress(self, progress: Progress) -> None:
        bars = self._bars_for(progress.resource)
        stage_key = (progress.resource, progress.stage)
        if stage_key not in self._tasks:
            self._complete_stage()  # a stage ends when the next one starts
            self._tasks[stage_key] = bars.add_task(progress.stage, total=progress.total, numbers="")
        self._last_progress = progress
        self._draw(progress)

    def note(self, resource: str, message: str) -> None:
        print_text(self._bars_for(resource).console, message, "dim")

    def finished(self, outcome: Outcome) -> None:
        if outcome.state == "Succeeded":
            self._complete_stage()
        self.stop()
        show_outcome(outcome, self._screen)

    def stop(self) -> None:
        """Stop redrawing; the bars stay on the screen."""
        if self._bars is not None:
            self._bars.stop()
        self._bars, self._tasks, self._last_progress = None, {}, None

    def _complete_stage(self) -> None:
        """Draw the bar of the last stage full and stop its clock, also if it ended before its total."""
        if self._last_progress is not None and self._bars is not None:
            # Without the total: a full bar beside "300/500" would be a contradiction.
            progress = replace(self._last_progress, total=None)
            task = self._draw(progress)
            self._bars.update(task, total=max(progress.done, 1), completed=max(progress.done, 1))
            self._bars.stop_task(task)

    def _draw(self, progress: Progress) -> "TaskID":
        """Update the bar of a stage, with as many whole metrics as fit on the line."""
        bars = self._bars_for(progress.resource)
        task = self._tasks[progress.resource, progress.stage]
        # Without a total and with nothing done there is no amount to show, such as "0 updates".
        amount = format_amount(progress) if progress.total is not None or progress.done else ""
        stage_width = max(_STAGE_WIDTH, len(progress.stage))
        room = bars.console.width - stage_width - _bar_width(self._screen) - _CLOCKS_WIDTH - len(amount)
        numbers = f"{amount}  {format_metrics(progress.metrics, max_length=room)}".strip()
        bars.update(task, completed=progress.done, total=progress.total, numbers=numbers)
        return task

    def _bars_for(self, resource: str) -> "Bars":
        """Return the bars, which are started if necessary, under the heading of a resource.

        The resource's name is printed if the previous call was for another resource.
        """
        if self._bars is None:
            self._bars = _new_bars(self._screen)
            self._bars.start()
        if resource != self._resource:
            self._resource = resource
            self._bars.console.print(resource, style="bold", markup=False, highlight=False)
        return self._bars


_STAGE_WIDTH = 20
"""Minimum width of the names of stages; only few are longer."""
_CLOCKS_WIDTH = 20
"""Width of the elapsed and the remaining time, the indent and the gaps."""


def _bar_width(screen: Screen) -> int:
    return 24 if screen.err.width >= 100 else 10


def _new_bars(screen: Screen) -> "Bars":
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    width = _bar_width(screen)
    return Bars(
        TextColumn("  {task.description}", table_column=Column(min_width=_STAGE_WIDTH + 2, no_wrap=True)),
        BarColumn(bar_width=width, table_column=Column(min_width=width)),
        TextColumn("{task.fields[numbers]}", style="cyan"),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        console=screen.err,
        redirect_stdout=False,
        redirect_stderr=False,
    )
