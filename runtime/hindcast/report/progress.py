"""Progress as lines of text: a line every few seconds with the most useful metrics and the remaining time."""

import time
from collections.abc import Mapping

from hindcast import formatting
from hindcast.report.events import Progress

LINE_INTERVAL_SECONDS = 10.0
_METRIC_TEXTS = {
    "return": "return {}",
    "estimated_return": "estimated return {}",
    "validation_loss": "validation loss {}",
    "loss": "loss {}",
    "iteration": "iteration {}",
    "episodes": "{} episodes",
    "timesteps": "{} timesteps",
    "timesteps_per_s": "{} timesteps/s",
}
"""Metric -> its text in a progress line."""


class ProgressLines:
    """Selects the progress reports to print: the first and last of a stage, and between them one every ten seconds."""

    def __init__(self) -> None:
        self._stage: tuple[str, str] | None = None
        self._pace = Pace()
        self._last_line_time = 0.0
        self._is_complete = False

    def next_line(self, progress: Progress) -> str | None:
        """Return the line to print, or None if this report is skipped."""
        stage = (progress.resource, progress.stage)
        is_new_stage, self._stage = stage != self._stage, stage
        if is_new_stage:
            self._pace, self._is_complete = Pace(), False
        self._pace.add(progress.done)
        has_completed = (
            not self._is_complete and progress.total is not None and progress.done >= progress.total
        )
        self._is_complete = self._is_complete or has_completed
        now = time.monotonic()
        if not is_new_stage and not has_completed and now - self._last_line_time < LINE_INTERVAL_SECONDS:
            return None
        self._last_line_time = now
        return f"{progress.resource}: {progress.stage}: {describe_progress(progress, self._pace)}"


class Pace:
    """Estimate of the remaining time, from the average pace since the stage was first seen."""

    def __init__(self) -> None:
        self._start_time = time.monotonic()
        self._first_done: float | None = None
        self._done = 0.0

    def add(self, done: float) -> None:
        """Record the amount that is done now."""
        if self._first_done is None:
            self._first_done = done
        self._done = done

    def seconds_left(self, total: float | None) -> float | None:
        """Return the estimated remaining time in seconds; None if it is unknown or nothing remains."""
        if total is None or self._first_done is None or self._done <= self._first_done or self._done >= total:
            return None
        return (time.monotonic() - self._start_time) * (total - self._done) / (self._done - self._first_done)


def describe_progress(progress: Progress, pace: Pace) -> str:
    """Return one line, such as `120/500 episodes, return 487, 21.3k timesteps/s, 12 s left`."""
    texts = [format_amount(progress), format_metrics(progress.metrics, ", ")]
    seconds_left = pace.seconds_left(progress.total)
    if seconds_left is not None:
        texts.append(f"{formatting.duration(seconds_left)} left")
    return ", ".join(text for text in texts if text)


def format_amount(progress: Progress) -> str:
    """Return the amount done, such as `120/500 episodes`; empty if the unit is the return, which is a metric."""
    if progress.unit == "return":
        return ""
    if progress.total is None:
        return formatting.plural(progress.done, progress.unit.removesuffix("s"))
    total = f"/{formatting.integer(progress.total)}"
    return f"{formatting.integer(progress.done)}{total} {progress.unit}"


def format_metrics(metrics: Mapping[str, float], separator: str = "  ", max_length: int | None = None) -> str:
    """Return the text of those metrics that progress lines show, in a fixed order.

    Args:
        metrics: name -> value.
        separator: text between two metrics.
        max_length: maximum number of characters; metrics that do not fit whole are left out. None: no maximum.
    """
    line = ""
    for name, text in _METRIC_TEXTS.items():
        if name in metrics:
            longer_line = (line + separator if line else "") + text.format(formatting.count(metrics[name]))
            if max_length is None or len(longer_line) <= max_length:
                line = longer_line
    return line
