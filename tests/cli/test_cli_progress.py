import json

import pytest

from hindcast.cli.progress import reporting
from hindcast.cli.screen import Flags, Screen
from hindcast.report.events import Outcome, Progress
from hindcast.run import execute as carry_out_module
from hindcast.run import progress as run_progress
from hindcast.run.progress import Pace, amount, describe, numbers

RECORDING = "OfflineRecording/random-data"


def step(done, total=500.0, **metrics):
    return Progress(RECORDING, "Recording", done, total, "episodes", metrics)


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(run_progress, "time", clock)
    return clock


def test_amount_and_numbers_are_short():
    progress = step(120, timesteps_per_s=21300.4, **{"return": 487.25, "unknown": 3})
    assert amount(progress) == "120/500 episodes"
    assert numbers(progress.metrics, ", ") == "return 487, 21.3k timesteps/s"


def test_a_stage_without_an_end_shows_what_is_done():
    assert amount(Progress("a/b", "Training", 7, None, "iterations")) == "7 iterations"
    assert amount(Progress("a/b", "Training", 1, None, "iterations")) == "1 iteration"


def test_time_left_comes_from_the_pace_since_the_stage_was_first_seen(clock):
    pace = Pace()
    pace.add(100)  # a resumed stage
    assert pace.seconds_left(500) is None
    clock.now = 10
    pace.add(200)
    assert pace.seconds_left(500) == 30
    assert pace.seconds_left(None) is None
    assert "30.0 s left" in describe(step(200), pace)


def test_a_log_has_a_line_now_and_then(clock, capfd):
    with reporting(Screen()) as reporter:
        for done in range(501):
            clock.now = done / 20  # 25 s in all
            reporter.progress(step(done))
        reporter.progress(step(500))
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition("Recording: ")[2].split(" ")[0] for line in lines] == [
        "0/500",
        "200/500",
        "400/500",
        "500/500",
    ]


def test_quiet_says_only_the_outcome(capfd):
    with reporting(Screen(Flags(quiet=True))) as reporter:
        reporter.progress(step(500))
        reporter.note(RECORDING, "clamped")
        reporter.finished(
            Outcome(RECORDING, "Succeeded", "500 episodes are in data", "data", "data/report.html")
        )
    captured = capfd.readouterr()
    assert captured.err == ""
    assert captured.out == f"{RECORDING}: 500 episodes are in data\nreport: data/report.html\n"


def test_json_prints_one_line_for_each_outcome_and_keeps_stdout_for_them(capfd):
    with reporting(Screen(Flags(json=True))) as reporter:
        reporter.progress(step(500))
        reporter.note(RECORDING, "clamped")
        reporter.finished(Outcome(RECORDING, "Succeeded", "done", "data", metrics={"episodes": 500}))
        reporter.finished(Outcome("OfflineTraining/clone", "AlreadyFinished", "was done", "runs/clone/r1"))
    captured = capfd.readouterr()
    first, second = map(json.loads, captured.out.splitlines())
    assert first["metrics"] == {"episodes": 500}
    assert (second["resource"], second["state"]) == ("OfflineTraining/clone", "AlreadyFinished")
    assert "clamped" in captured.err


def test_bars_show_stage_amount_and_numbers_and_leave_stdout_to_the_outcome(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "xterm")
    with reporting(Screen()) as reporter:
        reporter.note(RECORDING, "resuming in data")
        reporter.progress(step(120, **{"return": 487.0}))
        reporter.progress(Progress(RECORDING, "Training the expert", 3, None, "iterations"))
        reporter.finished(Outcome(RECORDING, "Succeeded", "done", "data"))
    captured = capfd.readouterr()
    assert captured.out == f"{RECORDING}: done\n"
    for text in (
        RECORDING,
        "resuming in",
        "120/500 episodes",
        "return 487",
        "Training the expert",
        "3 iterations",
    ):
        assert text in captured.err


def test_an_interrupted_outcome_exits_with_130(hindcast, resources, monkeypatch):
    outcome = Outcome("OfflineTraining/clone", "Interrupted", "checkpointed; run it again", "runs/clone/r1")

    def carry_out(loaded, reporter):
        reporter.finished(outcome)
        return [outcome]

    monkeypatch.setattr(carry_out_module, "execute", carry_out)
    called = hindcast("run", resources)
    assert called.code == 130
    assert called.out == "OfflineTraining/clone: checkpointed; run it again\n"
