"""An operator of another version takes over in the middle of a run, and gives it back: the run does not notice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fake_kuberay import PlayKubeRay, never_ends, succeeds_at_once
from operator_process import RunOperator
from resources import TeamNamespace, make_recording

from api_server import wait_for

WALKS = make_recording()
NEXT_VERSION = """
from hindcast_operator.control import reconciler

def plain_status(new_status):
    plain = plain_status_before(new_status)
    plain["newField"] = {"since": "the next version"}
    for entry in plain.get("runs", []):
        entry["newField"] = 1
    for condition in plain["conditions"]:
        condition["reason"] = "NewWord" if condition["reason"] == "Running" else condition["reason"]
    return plain

plain_status_before, reconciler.plain_status = reconciler.plain_status, plain_status
"""
"""Setup of an operator whose status has fields and words that this version does not know, nor does the CRD."""


def make_previous_python(folder: Path) -> str:
    """Return a Python that imports the packages of the last commit but one. Without a history, the test is skipped."""
    repository = Path(__file__).parents[2]
    archive = ("git", "-C", str(repository), "archive", "HEAD~1", "runtime/hindcast", "operator")
    process = subprocess.run(archive, capture_output=True, check=False)
    if process.returncode:
        pytest.skip("needs the last commit but one")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=process.stdout, check=True)
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH={folder}/runtime:{folder}/operator exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize("version", ["previous", "next"])
def test_run_outlives_change_of_operator_and_back(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay, tmp_path: Path, version: str
) -> None:
    kuberay = play_kuberay(never_ends)
    with run_operator():
        team.apply(WALKS)
        team.wait_for_state(WALKS, "Running")
    options = {"setup": NEXT_VERSION} if version == "next" else {"python": make_previous_python(tmp_path)}
    with run_operator(**options):
        kuberay.write_report("walks-r1-1", progress={"episodes": 3})
        wait_for(
            lambda: team.status(WALKS)["progress"]["episodes"] == 3, "the other version writes the status"
        )
        team.apply(make_recording("begun-there"))
        wait_for(lambda: "begun-there-r1-1" in kuberay.uids_by_name, "the other version creates an attempt")
    kuberay.script = succeeds_at_once
    with run_operator():
        for document in (WALKS, make_recording("begun-there")):
            team.wait_for_state(document, "Succeeded")
    kuberay.assert_each_ran_once("walks-r1-1", "begun-there-r1-1")
