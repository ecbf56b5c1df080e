"""What the attempt reports, and when: changes at most every ten seconds, a beat every thirty, the outcome at once.

The heartbeat comes from a separate thread, so that it also shows a driver whose work hangs: `lastProgressTime` is when
the work itself last made progress.
"""

from __future__ import annotations

import math
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from pydantic.alias_generators import to_camel

from hindcast.api.attempt import (
    CHECKPOINT,
    LONGEST_SILENCE_SECONDS,
    SHORTEST_SILENCE_SECONDS,
    AttemptOutcome,
    Report,
)
from hindcast.api.status import CheckpointStatus, OutputStatus, ProgressStatus
from hindcast.cluster.channel import Channel, ReportError, SupersededError
from hindcast.report.events import Progress
from hindcast.run.progress import Pace, amount

REFUSAL_GRACE_SECONDS: Final = 30.0
"""The right to report may come a moment after the pod; so long a refusal of the first report is not believed."""

_LONGEST_WAIT_S: Final = 15.0
_BEAT_S: Final = LONGEST_SILENCE_SECONDS - 5  # leaves time for a first failure
_METRICS: Final = {"return": "episodeReturnMean", "timesteps_per_s": "timestepsPerSecond"}
_COUNTS: Final = ("iteration", "timesteps", "episodes")


def utc() -> datetime:
    return datetime.now(UTC)


class ReportSender:
    """Collects what there is to report and sends it in time. Its methods may be called from any thread.

    Args:
        clock: that the times between reports are measured with.
        now: the time that reports carry.

    Attributes:
        checkpoint_wanted: the operator wants the attempt to checkpoint and end.
        superseded: the operator has given up this attempt; nobody reads its reports any more.
        outcome_delivered: the operator has the outcome.
    """

    def __init__(
        self, channel: Channel, clock: Callable[[], float] = time.monotonic, now: Callable[[], datetime] = utc
    ) -> None:
        self.is_checkpoint_requested = False
        self.is_superseded = False
        self.is_outcome_delivered = False
        self._channel = channel
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._said: dict[str, Any] = {"stage": "Starting"}
        self._moved = now()
        self._done: tuple[str, float] | None = None
        self._pace = Pace()
        self._is_changed = True
        self._beats = 0
        self._begun = clock()
        self._sent = -math.inf
        self._failures = 0
        self._not_before = -math.inf

    def progress(self, progress: Progress) -> None:
        with self._lock:
            if self._said.get("stage") != progress.stage:
                self._pace = Pace()
            self._pace.add(progress.done)
            if self._done != (progress.stage, progress.done):
                self._done, self._moved = (progress.stage, progress.done), self._now()
            left = self._pace.seconds_left(progress.total)
            self._say(stage=progress.stage, progress=progress_status(progress, left, _stamp(self._now())))

    def mark_progress(self) -> None:
        """The work advanced, by less than a progress report."""
        with self._lock:
            self._moved = self._now()

    def note(self, message: str) -> None:
        with self._lock:
            self._say(note=message[:500])

    def checkpoint(self, checkpoint: CheckpointStatus) -> None:
        with self._lock:
            if self._said.get("checkpoint") != checkpoint:
                self._say(checkpoint=checkpoint)

    def output(self, output: OutputStatus) -> None:
        with self._lock:
            self._say(output=output)

    def outcome(self, outcome: AttemptOutcome) -> None:
        """How the attempt ended; it is sent at once."""
        with self._lock:
            self._say(outcome=outcome)
            self._not_before = -math.inf

    def send_if_due(self) -> float:
        """Send what is due; the seconds until the next call is worth it."""
        with self._lock:
            wait = self._due() - self._clock()
            if wait > 0 or self.is_superseded:
                return min(max(wait, 0.05), 1.0)
            self._is_changed = False
        try:
            report = self._report()
            intent = self._channel.send(report)
        except SupersededError:
            self._refused()
        except ReportError:
            self._failed()
        except Exception:  # a defect here must not end the beats
            traceback.print_exc()
            self._failed()
        else:
            self._sent, self._failures, self._beats = self._clock(), 0, self._beats + 1
            self.is_outcome_delivered = report.outcome is not None
            self.is_checkpoint_requested = self.is_checkpoint_requested or intent == CHECKPOINT
        return 0.0

    def _due(self) -> float:
        """When the next report is to be sent, by the clock."""
        if "outcome" in self._said:
            due = -math.inf if self._is_changed else math.inf
        else:
            due = self._sent + (SHORTEST_SILENCE_SECONDS if self._is_changed else _BEAT_S)
        return max(due, self._not_before)

    def _report(self) -> Report:
        with self._lock:
            said, moved = dict(self._said), self._moved
        return Report(
            number=self._beats + 1, report_time=_stamp(self._now()), last_progress_time=_stamp(moved), **said
        )

    def _say(self, **fields: Any) -> None:
        self._said |= fields
        self._is_changed = True

    def _refused(self) -> None:
        if self._beats or self._clock() - self._begun > REFUSAL_GRACE_SECONDS:
            self.is_superseded = True
        else:
            self._failed()

    def _failed(self) -> None:
        """Try again after a while, longer each time; what is sent then is the latest."""
        with self._lock:
            self._is_changed = True
            self._failures += 1
            longest = min(2.0 ** (self._failures - 1), _LONGEST_WAIT_S)
            self._not_before = self._clock() + random.uniform(0.5, 1.0) * longest


def progress_status(progress: Progress, seconds_left: float | None, at: str) -> ProgressStatus:
    """Progress as the resource's status has it."""
    counts = {name: int(progress.metrics[name]) for name in _COUNTS if name in progress.metrics}
    counted = "iteration" if progress.unit == "iterations" else progress.unit
    if counted in _COUNTS:
        counts[counted] = int(progress.done)
    share = 100 * progress.done / progress.total if progress.total else None
    score = progress.metrics.get("return")
    return ProgressStatus(
        **counts,
        percentage=None if share is None else round(min(max(share, 0.0), 100.0), 2),
        estimated_remaining_seconds=None if seconds_left is None else int(seconds_left),
        metrics={
            _METRICS.get(name, to_camel(name)): float(value)
            for name, value in progress.metrics.items()
            if name not in _COUNTS and math.isfinite(value)
        },
        last_report_time=at,
        summary=_summary(progress)[:64] or None,
        verdict=progress.verdict,
        episode_return=None if score is None or not math.isfinite(score) else f"{score:.4g}",
    )


def _summary(progress: Progress) -> str:
    """`120/500 episodes`; the iteration where only a return ends the stage."""
    iteration = progress.metrics.get("iteration")
    return amount(progress) or (f"iteration {iteration:.0f}" if iteration is not None else "")


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def heartbeat(reporting: ReportSender) -> Iterator[ReportSender]:
    """Report from a thread, for as long as the block runs."""
    ended = threading.Event()

    def report() -> None:
        while not ended.is_set():
            ended.wait(reporting.send_if_due())

    thread = threading.Thread(target=report, name="hindcast-report", daemon=True)
    thread.start()
    try:
        yield reporting
    finally:
        ended.set()
        thread.join(timeout=1.0)


def send_outcome(reporting: ReportSender, outcome: AttemptOutcome, patience: float) -> bool:
    """Report the outcome and wait until the operator has it; False if that takes more than `patience` seconds."""
    reporting.outcome(outcome)
    deadline = time.monotonic() + patience
    while not reporting.is_outcome_delivered and not reporting.is_superseded and time.monotonic() < deadline:
        time.sleep(0.05)
    return reporting.is_outcome_delivered
