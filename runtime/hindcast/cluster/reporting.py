"""Reports of an attempt: changes at most every 10 s, without changes a heartbeat every 25 s, the outcome immediately.

The heartbeat comes from a separate thread, so it continues while the work hangs; the report's `lastProgressTime` is
the time when the work last made progress.
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
    MAX_REPORT_INTERVAL_SECONDS,
    MIN_REPORT_INTERVAL_SECONDS,
    AttemptOutcome,
    Report,
)
from hindcast.api.status import CheckpointStatus, OutputStatus, ProgressStatus
from hindcast.cluster.channel import Channel, ReportError, ReportRefused
from hindcast.cluster.log import make_redactor
from hindcast.report.events import Progress
from hindcast.report.progress import Pace, format_amount

REFUSAL_SECONDS: Final = 600.0
"""Time of uninterrupted refusals after which the attempt counts as superseded. A later attempt that has begun to write
is noticed within seconds, by the lease of the run's folder."""

_MAX_BACKOFF_SECONDS: Final = 15.0
_HEARTBEAT_SECONDS: Final = MAX_REPORT_INTERVAL_SECONDS - 5  # leaves time for one retry
_STATUS_METRICS: Final = {"return": "episodeReturnMean", "timesteps_per_s": "timestepsPerSecond"}
"""Metric of a progress report -> its name in the status; other names only change to camel case."""
_STATUS_COUNTS: Final = ("iteration", "timesteps", "episodes")
"""Metrics that are fields of the status, not entries of its `metrics`."""


def utc_now() -> datetime:
    return datetime.now(UTC)


class ReportSender:
    """Collects changes of the report and sends it when it is due. Its methods may be called from any thread.

    Args:
        channel: connection to the operator.
        clock: clock in seconds that measures the time between reports.
        now: clock of the timestamps in reports.

    Attributes:
        is_checkpoint_requested: the operator wants the attempt to write a checkpoint and end.
        is_superseded: the operator has abandoned this attempt and no longer reads its reports.
        is_outcome_delivered: the operator has received the outcome.
    """

    def __init__(
        self,
        channel: Channel,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.is_checkpoint_requested = False
        self.is_superseded = False
        self.is_outcome_delivered = False
        self._channel = channel
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._fields: dict[str, Any] = {"stage": "Starting"}
        self._last_progress_time = now()
        self._last_done: tuple[str, float] | None = None
        self._pace = Pace()
        self._has_changes = True
        self._num_sent = 0
        self._refusal_start_time: float | None = None
        self._last_sent_time = -math.inf
        self._num_failures = 0
        self._earliest_retry_time = -math.inf

    def set_progress(self, progress: Progress) -> None:
        """Report the progress of a stage."""
        with self._lock:
            if self._fields.get("stage") != progress.stage:
                self._pace = Pace()
            self._pace.add(progress.done)
            if self._last_done != (progress.stage, progress.done):
                self._last_done, self._last_progress_time = (progress.stage, progress.done), self._now()
            seconds_left = self._pace.seconds_left(progress.total)
            self._set_fields(
                stage=progress.stage,
                progress=make_progress_status(progress, seconds_left, _format_timestamp(self._now())),
            )

    def mark_progress(self) -> None:
        """Record that the work advanced, without a progress report."""
        with self._lock:
            self._last_progress_time = self._now()

    def set_note(self, message: str) -> None:
        """Report the first 500 characters of a note, without secrets. It replaces the previous note."""
        with self._lock:
            self._set_fields(note=make_redactor()(message)[:500])

    def set_checkpoint(self, checkpoint: CheckpointStatus) -> None:
        """Report the checkpoint if it has changed."""
        with self._lock:
            if self._fields.get("checkpoint") != checkpoint:
                self._set_fields(checkpoint=checkpoint)

    def set_output(self, output: OutputStatus) -> None:
        """Report the recorded dataset."""
        with self._lock:
            self._set_fields(output=output)

    def set_outcome(self, outcome: AttemptOutcome) -> None:
        """Report the outcome; the next `send_if_due` sends it without waiting."""
        with self._lock:
            self._set_fields(outcome=outcome)
            self._earliest_retry_time = -math.inf

    def send_if_due(self) -> float:
        """Send a report if one is due; return the number of seconds after which to call again."""
        with self._lock:
            wait_seconds = self._next_due_time() - self._clock()
            if wait_seconds > 0 or self.is_superseded:
                return min(max(wait_seconds, 0.05), 1.0)
            self._has_changes = False
        try:
            report = self._build_report()
            intent = self._channel.send(report)
        except ReportError as error:
            self._count_refusal(error)
            self._schedule_retry()
        except Exception:  # a bug here must not stop the heartbeat
            traceback.print_exc()
            self._schedule_retry()
        else:
            self._refusal_start_time = None
            self._last_sent_time, self._num_failures, self._num_sent = self._clock(), 0, self._num_sent + 1
            self.is_outcome_delivered = report.outcome is not None
            self.is_checkpoint_requested = self.is_checkpoint_requested or intent == CHECKPOINT
        return 0.0

    def _next_due_time(self) -> float:
        """Return the time of the next report, by `clock`."""
        if "outcome" in self._fields:
            due_time = -math.inf if self._has_changes else math.inf
        else:
            due_time = self._last_sent_time + (
                MIN_REPORT_INTERVAL_SECONDS if self._has_changes else _HEARTBEAT_SECONDS
            )
        return max(due_time, self._earliest_retry_time)

    def _build_report(self) -> Report:
        with self._lock:
            fields, last_progress_time = dict(self._fields), self._last_progress_time
        return Report(
            number=self._num_sent + 1,
            report_time=_format_timestamp(self._now()),
            last_progress_time=_format_timestamp(last_progress_time),
            **fields,
        )

    def _set_fields(self, **fields: Any) -> None:
        self._fields |= fields
        self._has_changes = True

    def _count_refusal(self, error: ReportError) -> None:
        """Give up after `REFUSAL_SECONDS` of refusals; a success or another error begins the time anew."""
        if not isinstance(error, ReportRefused):
            self._refusal_start_time = None
        elif self._refusal_start_time is None:
            self._refusal_start_time = self._clock()
        elif self._clock() - self._refusal_start_time > REFUSAL_SECONDS:
            self.is_superseded = True

    def _schedule_retry(self) -> None:
        """Retry later with the latest state, after exponential backoff with jitter."""
        with self._lock:
            self._has_changes = True
            self._num_failures += 1
            max_backoff = min(2.0 ** (self._num_failures - 1), _MAX_BACKOFF_SECONDS)
            self._earliest_retry_time = self._clock() + random.uniform(0.5, 1.0) * max_backoff


def make_progress_status(progress: Progress, seconds_left: float | None, report_time: str) -> ProgressStatus:
    """Convert a progress report to the `progress` section of the resource's status.

    Args:
        progress: latest progress of the stage.
        seconds_left: estimated remaining time; None if unknown.
        report_time: timestamp of the report.
    """
    counts = {name: int(progress.metrics[name]) for name in _STATUS_COUNTS if name in progress.metrics}
    count_name = "iteration" if progress.unit == "iterations" else progress.unit
    if count_name in _STATUS_COUNTS:
        counts[count_name] = int(progress.done)
    percentage = 100 * progress.done / progress.total if progress.total else None
    episode_return = progress.metrics.get("return")
    return ProgressStatus(
        **counts,
        percentage=None if percentage is None else round(min(max(percentage, 0.0), 100.0), 2),
        estimated_remaining_seconds=None if seconds_left is None else int(seconds_left),
        metrics={
            _STATUS_METRICS.get(name, to_camel(name)): float(value)
            for name, value in progress.metrics.items()
            if name not in _STATUS_COUNTS and math.isfinite(value)
        },
        last_report_time=report_time,
        summary=_format_summary(progress)[:64] or None,
        verdict=progress.verdict,
        episode_return=None
        if episode_return is None or not math.isfinite(episode_return)
        else f"{episode_return:.4g}",
        saved_amount=progress.saved_amount,
    )


def _format_summary(progress: Progress) -> str:
    """Return the amount done, such as `120/500 episodes`; the iteration if only a return ends the stage."""
    iteration = progress.metrics.get("iteration")
    return format_amount(progress) or (f"iteration {iteration:.0f}" if iteration is not None else "")


def _format_timestamp(timestamp: datetime) -> str:
    return timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def heartbeat(sender: ReportSender) -> Iterator[ReportSender]:
    """Send reports from a thread for the duration of the block."""
    end_event = threading.Event()

    def send_reports() -> None:
        while not end_event.is_set():
            end_event.wait(sender.send_if_due())

    thread = threading.Thread(target=send_reports, name="hindcast-report", daemon=True)
    thread.start()
    try:
        yield sender
    finally:
        end_event.set()
        thread.join(timeout=1.0)


def send_outcome(sender: ReportSender, outcome: AttemptOutcome, timeout_seconds: float) -> bool:
    """Report the outcome and wait until the operator has received it.

    Returns:
        False if `timeout_seconds` pass or the attempt is superseded before the operator has received it.
    """
    sender.set_outcome(outcome)
    deadline = time.monotonic() + timeout_seconds
    while not sender.is_outcome_delivered and not sender.is_superseded and time.monotonic() < deadline:
        time.sleep(0.05)
    return sender.is_outcome_delivered
