"""Progress and outcomes on the command line: lines, bars, --quiet and --json."""

import json
import re

import pytest

from hindcast.cli.progress import open_reporter
from hindcast.cli.screen import Flags, Screen
from hindcast.report import progress as report_progress
from hindcast.report.events import Outcome, Progress
from hindcast.report.progress import Pace, describe_progress, format_amount, format_metrics
from hindcast.run import execute as execute_module

RECORDING = "OfflineRecording/random-data"


def make_progress(done, total=500.0, **metrics):
    """Return the progress of a recording of 500 episodes."""
    return Progress(RECORDING, "Recording", done, total, "episodes", metrics)


class FakeClock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock of progress lines."""
    clock = FakeClock()
    monkeypatch.setattr(report_progress, "time", clock)
    return clock


def test_amount_and_numbers_are_short():
    progress = make_progress(120, timesteps_per_s=21300.4, **{"return": 487.25, "unknown": 3})
    assert format_amount(progress) == "120/500 episodes"
    assert format_metrics(progress.metrics, ", ") == "return 487, 21.3k timesteps/s"


def test_stage_without_total_shows_amount_done():
    assert format_amount(Progress("a/b", "Training", 7, None, "iterations")) == "7 iterations"
    assert format_amount(Progress("a/b", "Training", 1, None, "iterations")) == "1 iteration"


def test_time_left_follows_pace_since_stage_start(clock):
    pace = Pace()
    pace.add(100)  # a resumed stage
    assert pace.seconds_left(500) is None
    clock.now = 10
    pace.add(200)
    assert pace.seconds_left(500) == 30
    assert pace.seconds_left(None) is None
    assert "30.0 s left" in describe_progress(make_progress(200), pace)


def test_log_has_line_at_start_end_and_every_ten_seconds(clock, capfd):
    with open_reporter(Screen()) as reporter:
        for num_episodes in range(501):
            clock.now = num_episodes / 20  # 25 s in all
            reporter.progress(make_progress(num_episodes))
        reporter.progress(make_progress(500))
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition("Recording: ")[2].split(" ")[0] for line in lines] == [
        "0/500",
        "200/500",
        "400/500",
        "500/500",
    ]


def test_quiet_prints_only_outcome(capfd):
    with open_reporter(Screen(Flags(quiet=True))) as reporter:
        reporter.progress(make_progress(500))
        reporter.note(RECORDING, "clamped")
        reporter.finished(
            Outcome(RECORDING, "Succeeded", "500 episodes are in data", "data", "data/report.html")
        )
    output = capfd.readouterr()
    assert output.err == ""
    assert output.out == f"{RECORDING}: 500 episodes are in data\nreport: data/report.html\n"


def test_json_prints_only_outcome_lines_on_stdout(capfd):
    with open_reporter(Screen(Flags(json=True))) as reporter:
        reporter.progress(make_progress(500))
        reporter.note(RECORDING, "clamped")
        reporter.finished(Outcome(RECORDING, "Succeeded", "done", "data", metrics={"episodes": 500}))
        reporter.finished(Outcome("OfflineTraining/clone", "AlreadyFinished", "was done", "runs/clone/r1"))
    output = capfd.readouterr()
    first, second = map(json.loads, output.out.splitlines())
    assert first["metrics"] == {"episodes": 500}
    assert (second["resource"], second["state"]) == ("OfflineTraining/clone", "AlreadyFinished")
    assert "clamped" in output.err


def test_bars_show_progress_and_leave_stdout_to_outcome(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "xterm")
    with open_reporter(Screen()) as reporter:
        reporter.note(RECORDING, "resuming in data")
        reporter.progress(make_progress(120, **{"return": 487.0}))
        reporter.progress(Progress(RECORDING, "Training the expert", 3, None, "iterations"))
        reporter.finished(Outcome(RECORDING, "Succeeded", "done", "data"))
    output = capfd.readouterr()
    assert output.out == f"{RECORDING}: done\n"
    for text in (
        RECORDING,
        "resuming in",
        "120 episodes",
        "return 487",
        "Training the expert",
        "3 iterations",
    ):
        assert text in output.err


def test_interrupted_outcome_exits_with_130(hindcast, resources, monkeypatch):
    outcome = Outcome("OfflineTraining/clone", "Interrupted", "checkpointed; run it again", "runs/clone/r1")

    def execute(entries, reporter):
        reporter.finished(outcome)
        return [outcome]

    monkeypatch.setattr(execute_module, "execute", execute)
    result = hindcast("run", resources)
    assert result.code == 130
    assert result.out == "OfflineTraining/clone: checkpointed; run it again\n"


@pytest.mark.parametrize("num_columns", [80, 120])
@pytest.mark.parametrize("state", ["Succeeded", "Interrupted"])
def test_bars_fit_the_terminal_and_end_full_unless_interrupted(capfd, monkeypatch, num_columns, state):
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": str(num_columns), "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    metrics = {"estimated_return": 4.81, "validation_loss": 1.025, "loss": 0.5, "timesteps_per_s": 33900.0}
    with open_reporter(Screen()) as reporter:
        reporter.progress(Progress("a/b", "Training the expert", 7200, 10_000, "timesteps", metrics))
        reporter.progress(Progress("a/b", "Training", 7200, 10_000, "updates", metrics))
        reporter.finished(Outcome("a/b", state, "done", "runs/b/r1"))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capfd.readouterr().err)
    *_, expert_line, training_line = (
        line for line in text.replace("\r", "\n").splitlines() if "0:00:0" in line
    )
    assert "7,200 timesteps" in expert_line
    assert ("7,200/10,000 updates" in training_line) is (state == "Interrupted")
    for line in (expert_line, training_line):
        assert len(line) <= num_columns and re.search(r"━━.* \d:\d\d:\d\d [-\d]", line)
        assert line.partition("  loss ")[2][:3] in ("", "0.5")
        assert "…" not in line
