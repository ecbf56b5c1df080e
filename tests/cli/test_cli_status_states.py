"""`hindcast status` explains every status that the operator's plan produces, with its next steps."""

from __future__ import annotations

import io
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

sys.path.append(str(Path(__file__).parents[1] / "operator"))

from plan_world import START
from status_fixtures import FIXTURES

from hindcast.cli.cluster.explain import explain
from hindcast.cli.cluster.next_step import next_steps
from hindcast.cli.cluster.status_view import render_screen

NOW = START + timedelta(hours=1)
TRAINING = "OfflineTraining/cartpole-bc"
PATCH = "kubectl patch offlinetraining cartpole-bc -n rl --type merge -p"
RECORDING = "hindcast status OfflineRecording/cartpole -n rl"

# Name of a status -> beginnings of the commands to suggest, in order; none if the user can only wait.
COMMANDS: dict[str, list[str]] = {
    "New": ["kubectl get pods --all-namespaces -l app.kubernetes.io/name=hindcast"],
    "Pending": ["kubectl get pods"],
    "PendingWithoutKubeRay": [],
    "Waiting": [RECORDING],
    "WaitingForMissing": [RECORDING],
    "StalledByDependency": [RECORDING],
    "StalledByInvalidSpec": [],
    "StalledByNameConflict": [],
    "Queued": ["kubectl get workloads -n rl"],
    "Starting": ["kubectl get pods"],
    "StartingUnschedulable": ["kubectl get pods"],
    "Running": [f"hindcast logs {TRAINING} --follow -n rl"],
    "RunningDegraded": [f"hindcast logs {TRAINING} --follow -n rl"],
    "RunningWithDrift": [f"hindcast logs {TRAINING} --follow -n rl"],
    "Retrying": [f"hindcast logs {TRAINING} -n rl"],
    "Suspending": [],
    "Suspended": [PATCH],
    "SuspendedBeforeStart": [PATCH],
    "Succeeded": ["hindcast evaluate s3://bucket/runs/cartpole-bc/r1/checkpoints/"],
    "SucceededRecording": ["hindcast inspect s3://bucket/cartpole"],
    "Failed": [f"hindcast logs {TRAINING} -n rl", PATCH],
    "FailedWithoutRetriesLeft": [f"hindcast logs {TRAINING} -n rl", PATCH],
    "SucceededWithHigherRevision": ["hindcast evaluate s3://bucket/runs/cartpole-bc/r1/checkpoints/"],
}


@pytest.mark.parametrize("name", FIXTURES)
def test_every_operator_status_is_explained(name: str) -> None:
    resource = FIXTURES[name]
    explanation = explain(resource, [], NOW)
    steps = next_steps(explanation)
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(render_screen(explanation, steps))
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert explanation.state == resource["status"].get("state", "Unseen")
    assert explanation.since is not None
    assert explanation.since >= START
    assert " ".join(resource["status"].get("message", "").split()) in text
    commands = [step.command for step in steps if step.command]
    assert len(commands) == len(COMMANDS[name]), commands
    assert all(
        command.startswith(prefix) for command, prefix in zip(commands, COMMANDS[name], strict=True)
    ), commands
    # `<=` is implication: a resource that is stalled or has failed has a next step with a text.
    assert (explanation.state in ("Stalled", "Failed")) <= any(step.text for step in steps)


def test_status_of_older_spec_is_noted() -> None:
    assert explain(FIXTURES["SucceededWithHigherRevision"], [], NOW).notes == (
        "The operator has not processed the latest change of the spec yet.",
    )
