"""The operator is killed before and after each of its writes: one RayJob per attempt, and the same end."""

from __future__ import annotations

from typing import Any

import pytest
from fake_kuberay import SUCCESS, Outcome, PlayKubeRay
from operator_process import RunOperator
from resources import Team, recording

from api_server import ApiServer, wait_for
from hindcast_operator.control.faults import EXIT_CODE, WRITES

WALKS = recording()


def around(*writes: str) -> list[str]:
    return [f"{when}:{write}" for write in writes for when in ("before", "after")]


CREATIONS = around(
    "write-status",
    "create-configmap",
    "create-serviceaccount",
    "create-role",
    "create-rolebinding",
    "create-rayjob",
)
# Each phase: what the user does, where the operator dies one time after the other, and the state in the end.
# An event that the operator was killed at is not posted later, so its two points need two transitions. Without a state
# in the end, the next change meets an attempt that is half made.
OTHER = {"suspend": False, "runners": {"replicas": 2}, "cluster": {"serviceAccountName": "other"}}
PHASES: list[tuple[dict[str, Any], list[str], str | None]] = [
    ({}, [*CREATIONS, "before:create-event"], "Running"),
    ({"runPolicy": {"ttlSecondsAfterFinished": 60}}, around("set-deadlines"), "Running"),
    ({"suspend": True}, around("set-intent", "delete-rayjob", "delete-configmap"), "Suspended"),
    ({"suspend": False}, ["before:apply-role"], None),
    (
        OTHER,
        [*around("apply-configmap"), "after:apply-role", *around("apply-rolebinding"), "after:create-event"],
        "Succeeded",
    ),
]


def second_attempt_succeeds(child: str) -> Outcome | None:
    return SUCCESS if child == "walks-r1-2" else None


def test_every_write_has_its_turn() -> None:
    assert sorted(around(*WRITES)) == sorted(fault for _, faults, _ in PHASES for fault in faults)


@pytest.mark.timeout(240)
def test_killed_before_and_after_each_write_the_end_is_the_same(
    api: ApiServer, namespace: str, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    team, kuberay = Team(api, namespace), play_kuberay(second_attempt_succeeds)
    killed = 0
    for change, faults, goal in PHASES:
        team.apply(recording(**change))
        for fault in faults:
            with run_operator(fault=fault) as operator:
                wait_for(lambda operator=operator: operator.ended() is not None, f"dies at {fault}")
                assert operator.ended() == EXIT_CODE, operator.log.read_text()[-3000:]
                killed += 1
        if goal is not None:
            with run_operator():
                team.wait_for_state(WALKS, goal)
    assert killed == 2 * len(WRITES)
    assert {name: len(uids) for name, uids in kuberay.seen.items()} == {"walks-r1-1": 1, "walks-r1-2": 1}
    assert shape(team.status(WALKS)) == undisturbed(api, namespace, run_operator, kuberay)


def undisturbed(api: ApiServer, namespace: str, run_operator: RunOperator, kuberay: Any) -> dict[str, Any]:
    """The end of the same story when no one is killed."""
    team = Team(api, namespace)
    team.delete(WALKS, "Foreground")
    wait_for(lambda: team.get(WALKS) is None, "the recording is gone")
    with run_operator():
        for change, _, goal in PHASES:
            if goal is not None:
                team.apply(recording(**change))
                team.wait_for_state(WALKS, goal)
        return shape(team.status(WALKS))


def shape(status: Any) -> Any:
    """A status without what differs from run to run: times and uids."""
    if isinstance(status, list):
        return [shape(entry) for entry in status]
    if not isinstance(status, dict):
        return status
    moving = {
        "lastTransitionTime",
        "lastReportTime",
        "startTime",
        "endTime",
        "firstReportTime",
        "admissionTime",
        "stopRequestedTime",
    }
    moving |= {"rayJobUID", "activeSeconds", "observedGeneration"}
    return {name: shape(value) for name, value in status.items() if name not in moving}
