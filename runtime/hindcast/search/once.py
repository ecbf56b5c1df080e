"""A reporter for many trainings of the same data."""

from __future__ import annotations

from hindcast.report.events import Outcome, Progress, Reporter


class Once(Reporter):
    """Forwards everything, but each note only once: every trial has the same ones on its data.

    Args:
        reporter: receives it; None drops everything.
    """

    def __init__(self, reporter: Reporter | None) -> None:
        self._reporter = reporter or Reporter()
        self._noted: set[str] = set()

    def progress(self, progress: Progress) -> None:
        self._reporter.progress(progress)

    def note(self, resource: str, message: str) -> None:
        if message not in self._noted:
            self._noted.add(message)
            self._reporter.note(resource, message)

    def finished(self, outcome: Outcome) -> None:
        self._reporter.finished(outcome)
