"""Progress in words: a line now and then, with the numbers worth a look and the time left."""

import time
from collections.abc import Mapping

from hindcast import formatting
from hindcast.report.events import Progress

LINE_EVERY_S = 10.0
_METRICS = {
    "return": "return {}",
    "estimated_return": "estimated return {}",
    "validation_loss": "validation loss {}",
    "loss": "loss {}",
    "iteration": "iteration {}",
    "episodes": "{} episodes",
    "timesteps": "{} timesteps",
    "timesteps_per_s": "{} timesteps/s",
}


class ProgressLines:
    """Picks what of a run's progress is worth a line: where a stage begins and ends, and every ten seconds."""

    def __init__(self) -> None:
        self._stage: tuple[str, str] | None = None
        self._pace = Pace()
        self._written = 0.0
        self._done = False

    def line(self, progress: Progress) -> str | None:
        """The line, or None for now."""
        stage = (progress.resource, progress.stage)
        begins, self._stage = stage != self._stage, stage
        if begins:
            self._pace, self._done = Pace(), False
        self._pace.add(progress.done)
        ends = not self._done and progress.total is not None and progress.done >= progress.total
        self._done = self._done or ends
        now = time.monotonic()
        if not begins and not ends and now - self._written < LINE_EVERY_S:
            return None
        self._written = now
        return f"{progress.resource}: {progress.stage}: {describe(progress, self._pace)}"


class Pace:
    """Time left, from the average pace since the stage was first seen."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._first: float | None = None
        self._done = 0.0

    def add(self, done: float) -> None:
        """So much is done now."""
        if self._first is None:
            self._first = done
        self._done = done

    def seconds_left(self, total: float | None) -> float | None:
        """None while it is unknown."""
        if total is None or self._first is None or self._done <= self._first or self._done >= total:
            return None
        return (time.monotonic() - self._began) * (total - self._done) / (self._done - self._first)


def describe(progress: Progress, pace: Pace) -> str:
    """One line: `120/500 episodes, return 487, 21.3k timesteps/s, 12 s left`."""
    parts = [amount(progress), numbers(progress.metrics, ", ")]
    left = pace.seconds_left(progress.total)
    if left is not None:
        parts.append(f"{formatting.duration(left)} left")
    return ", ".join(part for part in parts if part)


def amount(progress: Progress) -> str:
    """How far: `120/500 episodes`; nothing where the unit is the return, which is among the numbers."""
    if progress.unit == "return":
        return ""
    if progress.total is None:
        return formatting.plural(progress.done, progress.unit.removesuffix("s"))
    total = f"/{formatting.integer(progress.total)}"
    return f"{formatting.integer(progress.done)}{total} {progress.unit}"


def numbers(metrics: Mapping[str, float], separator: str = "  ") -> str:
    """The numbers worth a look, in a fixed order."""
    return separator.join(
        text.format(formatting.count(metrics[name])) for name, text in _METRICS.items() if name in metrics
    )
