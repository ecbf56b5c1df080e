"""Fixtures that call the command line in this process."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.rich_utils  # noqa: F401 (reads FORCE_COLOR once: before a test sets it, not in it)
from command_result import CommandResult, Hindcast
from fake_cluster import FakeCluster, serve_cluster

from hindcast.cli.cluster import live_log
from hindcast.cli.commands import status as status_command
from hindcast.cli.main import main

RESOURCES = """
apiVersion: hindcast.dev/v1alpha1
kind: OfflineRecording
metadata: {name: random-data}
spec:
  environment: {id: CartPole-v1}
  policy: {random: {}}
  duration: {episodes: 12}
  output: {path: data}
---
apiVersion: hindcast.dev/v1alpha1
kind: OfflineTraining
metadata: {name: clone}
spec:
  algorithm: BC
  config: {lr: 1.0e-3, trainBatchSizePerLearner: 64}
  environment: {id: CartPole-v1}
  model: {fcnetHiddens: [16]}
  input: [{recordingRef: {name: random-data}}]
  evaluation: {interval: 1, duration: 2}
  stop: {iterations: 2}
"""


@pytest.fixture
def hindcast(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Hindcast:
    """Return a function that runs `hindcast COMMAND ARGUMENTS…` in this process and returns a `CommandResult`.

    `hindcast("inspect data --json", "--top", 0.5)`: a shell's rules split the first argument into words.
    """

    def call(command: str = "", *arguments: object) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["hindcast", *shlex.split(command), *map(str, arguments)])
        monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds folders
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main()
        output = capfd.readouterr()
        return CommandResult(int(exit_.value.code or 0), output.out, output.err)

    return call


@pytest.fixture
def resources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write `resources.yaml`, with a small recording and a training on it, into an empty current folder."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "resources.yaml"
    file.write_text(RESOURCES)
    return file


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the resources of `resources.yaml` in a new folder; return the folder."""
    from hindcast.api import load_resources
    from hindcast.cli.progress import open_reporter
    from hindcast.cli.screen import Flags, Screen
    from hindcast.run.execute import execute

    folder = tmp_path_factory.mktemp("finished_run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("resources.yaml").write_text(RESOURCES)
        with open_reporter(Screen(Flags(quiet=True))) as reporter:
            execute(load_resources("resources.yaml"), reporter)
    return folder


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Serve an empty cluster, select it in KUBECONFIG, and shorten the pauses between reads."""
    fake = FakeCluster()
    monkeypatch.setattr(live_log, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(status_command, "POLL_INTERVAL_SECONDS", 0.01)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with serve_cluster(fake, tmp_path / "kubeconfig"):
        yield fake


@pytest.fixture
def finished_folder(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder of the finished run the current one."""
    monkeypatch.chdir(finished_run)
    return finished_run
