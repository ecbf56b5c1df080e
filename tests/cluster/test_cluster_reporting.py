"""Content and timing of reports."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from cluster_toys import RecordingChannel

from hindcast.api.attempt import CHECKPOINT, AttemptOutcome, Report
from hindcast.api.status import CheckpointStatus
from hindcast.cluster.channel import ReportError, ReportRefused
from hindcast.cluster.reporting import (
    REFUSAL_SECONDS,
    ReportSender,
    heartbeat,
    make_progress_status,
    send_outcome,
)
from hindcast.report.events import Progress

START = datetime(2026, 1, 1, tzinfo=UTC)
OUTCOME = AttemptOutcome(state="Succeeded", reason="Succeeded", message="done")


class FakeClock:
    """A clock that tests advance; it calls `sender` as often as the thread of `heartbeat` would."""

    def __init__(self, channel: RecordingChannel) -> None:
        self.now = 0.0
        self.sender = ReportSender(channel, lambda: self.now, lambda: START + timedelta(seconds=self.now))

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            wait = self.sender.send_if_due()
            self.now = min(self.now + max(wait, 0.01), end)
        self.sender.send_if_due()


@pytest.fixture
def channel() -> RecordingChannel:
    return RecordingChannel()


@pytest.fixture
def clock(channel: RecordingChannel) -> FakeClock:
    return FakeClock(channel)


def make_progress(done: float, **metrics: float) -> Progress:
    return Progress("OfflineRecording/walk", "Recording", done, 500, "episodes", metrics)


def seconds_since_start(report: Report) -> float:
    return (datetime.fromisoformat(report.report_time) - START).total_seconds()


def test_first_report_is_sent_immediately(channel: RecordingChannel, clock: FakeClock) -> None:
    clock.advance(0.1)
    assert (channel.last_report.number, channel.last_report.stage) == (1, "Starting")


def test_changes_are_sent_at_most_every_ten_seconds(channel: RecordingChannel, clock: FakeClock) -> None:
    for num_episodes in range(100):
        clock.sender.set_progress(make_progress(num_episodes))
        clock.advance(0.5)
    report_times = [seconds_since_start(report) for report in channel.reports]
    gaps = [later - earlier for earlier, later in itertools.pairwise(report_times)]
    assert min(gaps) >= 10
    assert max(gaps) < 11
    assert channel.last_report.progress is not None
    assert (channel.last_report.stage, channel.last_report.progress.summary) == (
        "Recording",
        "99/500 episodes",
    )


def test_note_is_sent_without_credentials(
    channel: RecordingChannel, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_PASSWORD", "open sesame")
    secret_across_cut = "x" * 495 + " open sesame"
    for note in ("cannot read s3://bob:hunter22@host/a: open sesame", secret_across_cut):
        clock.sender.set_note(note)
        clock.advance(20)
        assert channel.last_report.note
        assert not any(part in channel.last_report.note for part in ("hunter22", "open"))
    assert len(channel.last_report.note) <= 500


def test_heartbeat_is_sent_at_least_every_thirty_seconds(channel: RecordingChannel, clock: FakeClock) -> None:
    clock.advance(200)
    report_times = [seconds_since_start(report) for report in channel.reports]
    assert max(later - earlier for earlier, later in itertools.pairwise(report_times)) <= 30
    assert len(report_times) <= 9
    assert [report.number for report in channel.reports] == list(range(1, len(report_times) + 1))


def test_heartbeat_without_progress_keeps_time_of_progress(
    channel: RecordingChannel, clock: FakeClock
) -> None:
    clock.advance(5)
    clock.sender.set_progress(make_progress(1))
    clock.advance(100)
    assert seconds_since_start(channel.last_report) > 80
    assert channel.last_report.last_progress_time == "2026-01-01T00:00:05.000Z"
    clock.sender.set_progress(make_progress(1))  # reported again, without progress
    clock.advance(50)
    assert channel.last_report.last_progress_time == "2026-01-01T00:00:05.000Z"
    clock.sender.mark_progress()
    clock.advance(50)
    assert channel.last_report.last_progress_time == "2026-01-01T00:02:35.000Z"


def test_outcome_is_sent_immediately_and_last(channel: RecordingChannel, clock: FakeClock) -> None:
    clock.advance(1)
    clock.sender.set_progress(make_progress(500))
    clock.sender.set_outcome(OUTCOME)
    clock.advance(0.1)
    assert channel.last_report.outcome == OUTCOME
    assert clock.sender.is_outcome_delivered
    count = len(channel.reports)
    clock.advance(120)
    assert len(channel.reports) == count


def test_intent_of_answer_requests_checkpoint(channel: RecordingChannel, clock: FakeClock) -> None:
    clock.advance(1)
    assert not clock.sender.is_checkpoint_requested
    channel.intent = CHECKPOINT
    clock.advance(30)
    assert clock.sender.is_checkpoint_requested


def test_failed_report_is_retried_with_backoff(channel: RecordingChannel, clock: FakeClock) -> None:
    tries: list[float] = []

    def fail(report: Report) -> None:
        tries.append(clock.now)
        if clock.now < 60:
            raise ReportError("503")

    channel.on_report = fail
    clock.sender.set_progress(make_progress(7))
    clock.advance(100)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries) if later < 60]
    assert pauses[0] <= 1
    assert 5 < max(pauses) <= 15
    assert channel.last_report.progress is not None
    assert channel.last_report.progress.episodes == 7
    assert channel.last_report.number < 5  # rejected reports do not count


def test_outcome_is_delivered_after_outage(channel: RecordingChannel, clock: FakeClock) -> None:
    def fail(report: Report) -> None:
        if clock.now < 100:
            raise ReportError("connection refused")

    channel.on_report = fail
    clock.sender.set_outcome(OUTCOME)
    clock.advance(99)
    assert not clock.sender.is_outcome_delivered
    clock.advance(20)
    assert clock.sender.is_outcome_delivered


@pytest.mark.parametrize("num_reports", [0, 1, 5])
@pytest.mark.parametrize("seconds", [10, 60, REFUSAL_SECONDS - 30])
def test_refusals_for_minutes_supersede_nothing(
    channel: RecordingChannel, clock: FakeClock, num_reports: int, seconds: float
) -> None:
    """Regression: one 403 after the first report ended the attempt, so a restarted API server ended all runs."""
    channel.refused_after = num_reports
    clock.advance(30 * num_reports + seconds)
    channel.refused_after = None
    clock.advance(20)
    assert not clock.sender.is_superseded
    assert channel.last_report.number == num_reports + 1


def test_refusals_longer_than_limit_supersede(channel: RecordingChannel, clock: FakeClock) -> None:
    channel.refused_after = 1
    clock.advance(REFUSAL_SECONDS + 60)
    assert clock.sender.is_superseded
    clock.advance(100)
    assert len(channel.reports) == 1


def test_other_failure_between_refusals_restarts_limit(channel: RecordingChannel, clock: FakeClock) -> None:
    def fail(report: Report) -> None:
        raise ReportRefused("403") if clock.now % 400 > 20 else ReportError("503")

    channel.on_report = fail
    clock.advance(3 * REFUSAL_SECONDS)
    assert not clock.sender.is_superseded


def test_only_new_checkpoint_is_reported(channel: RecordingChannel, clock: FakeClock) -> None:
    clock.advance(12)
    for _ in range(2):
        clock.sender.set_checkpoint(CheckpointStatus(path="runs/a/r1/checkpoints/checkpoint-000000010"))
        clock.advance(12)
    assert len(channel.reports) == 2


def test_heartbeat_reports_until_block_ends(channel: RecordingChannel) -> None:
    with heartbeat(ReportSender(channel)) as sender:
        assert send_outcome(sender, OUTCOME, timeout_seconds=10)
    assert channel.last_report.outcome == OUTCOME


class TestProgress:
    def test_status_of_recording_has_counts_metrics_and_summary(self) -> None:
        report_time = "2026-01-01T00:00:00Z"
        status = make_progress_status(
            make_progress(120, timesteps_per_s=2000.0, **{"return": 487.25}), 12.7, report_time
        )
        assert (status.episodes, status.percentage, status.estimated_remaining_seconds) == (120, 24.0, 12)
        assert status.metrics == {"timestepsPerSecond": 2000.0, "episodeReturnMean": 487.25}
        assert (status.summary, status.episode_return) == ("120/500 episodes", "487.2")

    def test_status_of_recording_has_saved_amount(self) -> None:
        progress = Progress("a/b", "Recording", 120, 500, "episodes", saved_amount=4000)
        assert make_progress_status(progress, None, "").saved_amount == 4000

    def test_status_of_training_has_metrics_and_verdict(self) -> None:
        metrics = {"estimated_return": 8.5, "validation_loss": 0.25}
        progress = Progress(
            "a/b", "Training", 8, 9, "iterations", metrics, "probably better than the recorded policy (97 %)"
        )
        status = make_progress_status(progress, None, "")
        assert status.metrics == {"estimatedReturn": 8.5, "validationLoss": 0.25}
        assert status.verdict == "probably better than the recorded policy (97 %)"

    def test_status_omits_metrics_that_are_nan(self) -> None:
        metrics = {"loss": float("nan"), "data_wait_share": 0.1, "timesteps": 4096.0}
        status = make_progress_status(Progress("a/b", "Training", 8, None, "iterations", metrics), None, "")
        assert (status.iteration, status.timesteps, status.percentage) == (8, 4096, None)
        assert status.metrics == {"dataWaitShare": 0.1}
        assert status.summary == "8 iterations"

    def test_status_of_expert_with_return_goal_shows_iteration(self) -> None:
        metrics = {"return": 80.0, "iteration": 3.0}
        status = make_progress_status(
            Progress("a/b", "Training the expert", 80, None, "return", metrics), None, ""
        )
        assert (status.summary, status.episode_return, status.iteration) == ("iteration 3", "80", 3)
