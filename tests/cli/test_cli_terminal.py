"""What commands look like on terminals of 80 and 120 columns, and in a pipe: also as pictures, to be looked at.

A terminal emulator draws what the commands write. The pictures are in `build/terminal`.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import pyte
import pytest
from cluster_objects import make_pod, make_training, running_status
from command_result import CommandResult, Hindcast
from fake_cluster import FakeCluster
from rich.console import Console
from rich.text import Text

from hindcast.report.events import Outcome, Progress, Reporter
from hindcast.run import execute as execute_module

pytestmark = pytest.mark.slow

PICTURES = Path(__file__).parents[2] / "build" / "terminal"
NUM_LINES = 160
METRICS = {"estimated_return": 4.81, "validation_loss": 1.025, "loss": 0.5, "timesteps_per_s": 33900.0}
COMMANDS = {
    "run": "run resources.yaml",
    "inspect": "inspect data",
    "compare": "compare runs",
    "status": "status training/clone",
    "validate": "validate resources.yaml",
    "help": "data filter --help",
}


def play_run(entries: object, reporter: Reporter) -> list[Outcome]:
    """Report the progress of a recording, and of a training that stops early, at a return."""
    recording, training = "OfflineRecording/cartpole-expert", "OfflineTraining/cartpole-bc"
    for done in (3, 40):
        reporter.progress(
            Progress(recording, "Training the expert", done, None, "iterations", {"return": 10.0 * done})
        )
    for done in (120, 500):
        reporter.progress(Progress(recording, "Recording", done, 500, "episodes", {"return": 487.25}))
    reporter.finished(Outcome(recording, "Succeeded", "500 episodes are in data", "data", "data/report.html"))
    reporter.note(training, "config.beta has no effect: BC does not read it")
    reporter.progress(Progress(training, "Training", 7200, 10_000, "updates", METRICS))
    outcome = Outcome(training, "Succeeded", "return 495 after 7,200 updates", "runs/clone/r1")
    reporter.finished(outcome)
    return [outcome]


def draw(output: str, num_columns: int, name: str) -> list[str]:
    """Return the lines that a terminal shows, without spaces at their ends, and write a picture of it."""
    screen = pyte.Screen(num_columns, NUM_LINES)
    pyte.Stream(screen).feed(output.replace("\n", "\r\n"))
    assert screen.cursor.y < NUM_LINES - 1
    lines = [line.rstrip() for line in screen.display[: screen.cursor.y + 1]]
    text = Text()
    for row in range(len(lines)):
        for column in range(num_columns):
            cell = screen.buffer[row][column]
            colour = "default" if cell.fg == "default" else f"#{cell.fg}" if len(cell.fg) == 6 else cell.fg
            text.append(cell.data, f"{colour} bold" if cell.bold else colour.replace("brown", "yellow"))
        text.append("\n")
    write_picture(text, num_columns, name)
    return lines


def write_picture(text: Text, num_columns: int, name: str) -> None:
    console = Console(record=True, width=num_columns, file=io.StringIO())
    console.print(text, soft_wrap=True)
    PICTURES.mkdir(parents=True, exist_ok=True)
    console.save_svg(str(PICTURES / f"{name}.svg"), title=name)


@pytest.fixture
def run_command(
    hindcast: Hindcast, cluster: FakeCluster, finished_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(execute_module, "execute", play_run)
    cluster.add(make_training(running_status()))
    cluster.pods += [make_pod(pool) for pool in ("head", "data", "data", "learner")]

    def call(command: str) -> CommandResult:
        result = hindcast(COMMANDS[command])
        assert result.code == 0, result
        return result

    return call


@pytest.mark.parametrize("num_columns", [80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_terminal_shows_whole_words(run_command, monkeypatch, command, num_columns):
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": str(num_columns), "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    result = run_command(command)
    lines = draw(result.err + result.out, num_columns, f"{command}-{num_columns}")
    assert command == "help" or "…" not in "".join(lines)  # as in "--columns A,B,…"
    if command != "run":
        words = re.sub(r"\x1b\[[0-9;]*m", "", result.out).split()
        assert " ".join(lines).split()[-len(words) :] == words
    else:
        assert [line for line in lines if " Recording " in line and "500 episodes" in line]
        assert sum("━" * 10 in line for line in lines) == 3


# Not "help": typer decides about colours when it is imported.
@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "help"])
def test_pipe_gets_plain_lines(run_command, monkeypatch, command):
    for name in ("FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    result = run_command(command)
    output = result.err + result.out
    write_picture(Text(output), 120, f"{command}-pipe")
    assert "\x1b" not in output and "\r" not in output and "…" not in output
