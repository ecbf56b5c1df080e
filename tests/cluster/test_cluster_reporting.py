"""What is reported, and when."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from cluster_toys import Told

from hindcast.api.attempt import CHECKPOINT, AttemptOutcome, Report
from hindcast.api.status import CheckpointStatus
from hindcast.cluster.channel import ReportError, SupersededError
from hindcast.cluster.reporting import (
    REFUSAL_GRACE_SECONDS,
    ReportSender,
    heartbeat,
    progress_status,
    send_outcome,
)
from hindcast.report.events import Progress

START = datetime(2026, 1, 1, tzinfo=UTC)
OUTCOME = AttemptOutcome(state="Succeeded", reason="Succeeded", message="done")


class Time:
    """A clock that is moved by the test, which looks as often as the thread would."""

    def __init__(self, channel: Told) -> None:
        self.now = 0.0
        self.reporting = ReportSender(channel, lambda: self.now, lambda: START + timedelta(seconds=self.now))

    def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            wait = self.reporting.send_if_due()
            self.now = min(self.now + max(wait, 0.01), end)
        self.reporting.send_if_due()


@pytest.fixture
def channel() -> Told:
    return Told()


@pytest.fixture
def time(channel: Told) -> Time:
    return Time(channel)


def recorded(done: float, **metrics: float) -> Progress:
    return Progress("OfflineRecording/walk", "Recording", done, 500, "episodes", metrics)


def seconds(report: Report) -> float:
    return (datetime.fromisoformat(report.report_time) - START).total_seconds()


def test_the_first_report_comes_at_once(channel: Told, time: Time) -> None:
    time.passes(0.1)
    assert (channel.last.number, channel.last.stage) == (1, "Starting")


def test_changes_are_sent_every_ten_seconds_at_most(channel: Told, time: Time) -> None:
    for step in range(100):
        time.reporting.progress(recorded(step))
        time.passes(0.5)
    at = [seconds(report) for report in channel.reports]
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert min(gaps) >= 10
    assert max(gaps) < 11
    assert channel.last.progress is not None
    assert (channel.last.stage, channel.last.progress.summary) == ("Recording", "99/500 episodes")


def test_it_beats_at_least_every_thirty_seconds(channel: Told, time: Time) -> None:
    time.passes(200)
    at = [seconds(report) for report in channel.reports]
    assert max(later - earlier for earlier, later in itertools.pairwise(at)) <= 30
    assert len(at) <= 9
    assert [report.number for report in channel.reports] == list(range(1, len(at) + 1))


def test_a_beat_without_progress_does_not_move(channel: Told, time: Time) -> None:
    time.passes(5)
    time.reporting.progress(recorded(1))
    time.passes(100)
    assert seconds(channel.last) > 80
    assert channel.last.last_progress_time == "2026-01-01T00:00:05.000Z"
    time.reporting.progress(recorded(1))  # said again, but nothing was done
    time.passes(50)
    assert channel.last.last_progress_time == "2026-01-01T00:00:05.000Z"
    time.reporting.mark_progress()
    time.passes(50)
    assert channel.last.last_progress_time == "2026-01-01T00:02:35.000Z"


def test_the_outcome_is_sent_at_once_and_is_the_last_word(channel: Told, time: Time) -> None:
    time.passes(1)
    time.reporting.progress(recorded(500))
    time.reporting.outcome(OUTCOME)
    time.passes(0.1)
    assert channel.last.outcome == OUTCOME
    assert time.reporting.is_outcome_delivered
    count = len(channel.reports)
    time.passes(120)
    assert len(channel.reports) == count


def test_the_intent_comes_with_the_answer(channel: Told, time: Time) -> None:
    time.passes(1)
    assert not time.reporting.is_checkpoint_requested
    channel.intent = CHECKPOINT
    time.passes(30)
    assert time.reporting.is_checkpoint_requested


def test_what_could_not_be_sent_is_sent_later_with_growing_pauses(channel: Told, time: Time) -> None:
    tries: list[float] = []

    def fail(report: Report) -> None:
        tries.append(time.now)
        if time.now < 60:
            raise ReportError("503")

    channel.on_report = fail
    time.reporting.progress(recorded(7))
    time.passes(100)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries) if later < 60]
    assert pauses[0] <= 1
    assert 5 < max(pauses) <= 15
    assert channel.last.progress is not None
    assert channel.last.progress.episodes == 7
    assert channel.last.number < 5  # reports that were not taken do not count


def test_an_outcome_survives_an_api_server_that_is_away(channel: Told, time: Time) -> None:
    def fail(report: Report) -> None:
        if time.now < 100:
            raise ReportError("connection refused")

    channel.on_report = fail
    time.reporting.outcome(OUTCOME)
    time.passes(99)
    assert not time.reporting.is_outcome_delivered
    time.passes(20)
    assert time.reporting.is_outcome_delivered


def test_who_was_heard_before_is_superseded_by_the_first_refusal(channel: Told, time: Time) -> None:
    channel.superseded_after = 1
    time.passes(26)
    assert time.reporting.is_superseded
    time.passes(100)
    assert len(channel.reports) == 1


def test_a_right_that_comes_late_is_waited_for(channel: Told, time: Time) -> None:
    def refuse(report: Report) -> None:
        if time.now < 10:
            raise SupersededError("403")

    channel.on_report = refuse
    time.passes(20)
    assert not time.reporting.is_superseded
    assert channel.last.number == 1


def test_a_right_that_never_comes_is_not(channel: Told, time: Time) -> None:
    channel.superseded_after = 0
    time.passes(REFUSAL_GRACE_SECONDS + 16)
    assert time.reporting.is_superseded


def test_a_new_checkpoint_is_a_change_and_an_old_one_is_none(channel: Told, time: Time) -> None:
    time.passes(12)
    for _ in range(2):
        time.reporting.checkpoint(CheckpointStatus(path="runs/a/r1/checkpoints/checkpoint-000000010"))
        time.passes(12)
    assert len(channel.reports) == 2


def test_the_thread_reports_until_the_block_ends(channel: Told) -> None:
    with heartbeat(ReportSender(channel)) as reporting:
        assert send_outcome(reporting, OUTCOME, patience=10)
    assert channel.last.outcome == OUTCOME


class TestProgress:
    def test_of_a_recording(self) -> None:
        at = "2026-01-01T00:00:00Z"
        found = progress_status(recorded(120, timesteps_per_s=2000.0, **{"return": 487.25}), 12.7, at)
        assert (found.episodes, found.percentage, found.estimated_remaining_seconds) == (120, 24.0, 12)
        assert found.metrics == {"timestepsPerSecond": 2000.0, "episodeReturnMean": 487.25}
        assert (found.summary, found.episode_return) == ("120/500 episodes", "487.2")

    def test_of_a_training_that_is_judged(self) -> None:
        metrics = {"estimated_return": 8.5, "validation_loss": 0.25}
        told = Progress(
            "a/b", "Training", 8, 9, "iterations", metrics, "better than the behaviour: 0.97 likely"
        )
        found = progress_status(told, None, "")
        assert found.metrics == {"estimatedReturn": 8.5, "validationLoss": 0.25}
        assert found.verdict == "better than the behaviour: 0.97 likely"

    def test_of_a_training_with_a_loss_that_is_no_number(self) -> None:
        metrics = {"loss": float("nan"), "data_wait_share": 0.1, "timesteps": 4096.0}
        found = progress_status(Progress("a/b", "Training", 8, None, "iterations", metrics), None, "")
        assert (found.iteration, found.timesteps, found.percentage) == (8, 4096, None)
        assert found.metrics == {"dataWaitShare": 0.1}
        assert found.summary == "8 iterations"

    def test_of_an_expert_that_only_its_return_ends(self) -> None:
        metrics = {"return": 80.0, "iteration": 3.0}
        found = progress_status(Progress("a/b", "Training the expert", 80, None, "return", metrics), None, "")
        assert (found.summary, found.episode_return, found.iteration) == ("iteration 3", "80", 3)
