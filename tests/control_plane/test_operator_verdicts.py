"""Verdicts of Helm 4's `--wait` (kstatus) and of `kubectl wait` on the statuses of a running operator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fake_kuberay import PlayKubeRay, never_ends
from operator_process import RunOperator
from resources import TeamNamespace, make_recording

STATES: dict[str, tuple[dict[str, Any], str, str]] = {
    "Running": ({}, "Ready", "deployed"),
    "Suspended": ({"suspend": True}, "Suspended", "deployed"),
    "Stalled": ({"runPolicy": {"stallTimeoutSeconds": 10}}, "Stalled", "status: Failed"),
}
"""State -> fields of the spec that lead to it, the condition that is then true, and what Helm prints."""


@pytest.mark.skipif(not shutil.which("helm4"), reason="helm4 is not installed")
@pytest.mark.parametrize("state", STATES)
def test_helm_and_kubectl_wait_for_state(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay, tmp_path: Path, state: str
) -> None:
    spec, condition, text = STATES[state]
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: runs\nversion: 1.0.0\n")
    (tmp_path / "templates" / "walks.yaml").write_text(json.dumps(make_recording(**spec)))
    play_kuberay(never_ends)
    with run_operator():
        seconds = 5 if state == "Stalled" else 30  # after a failure Helm waits on, as somebody may act
        install = ("helm4", "install", "runs", str(tmp_path), "--wait", "--timeout", f"{seconds}s")
        assert text in run_in(team, *install)
        assert team.status(make_recording())["state"] == state
        wait = ("kubectl", "wait", "offlinerecording/walks", "--timeout", "1s")
        assert "condition met" in run_in(team, *wait, "--for", f"condition={condition}")
        assert "timed out" in run_in(team, *wait, "--for", "condition=Finished")


def run_in(team: TeamNamespace, *command: str) -> str:
    """Run a command in the team's namespace, and return all that it prints."""
    variables = os.environ | {"HELM_NAMESPACE": team.namespace}
    namespace = () if command[0] == "helm4" else ("--namespace", team.namespace)
    process = subprocess.run(
        [*command, *namespace], env=variables, capture_output=True, text=True, check=False
    )
    return process.stdout + process.stderr
