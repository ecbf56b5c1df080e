"""The operator is killed before and after each of its writes: one RayJob per attempt, and the same final status."""

from __future__ import annotations

from typing import Any

import pytest
from fake_kuberay import SUCCESS_OUTCOME, Outcome, PlayKubeRay
from operator_process import RunOperator
from resources import TeamNamespace, make_recording

from api_server import wait_for
from hindcast_operator.control.faults import EXIT_CODE, WRITES

WALKS = make_recording()


def fault_points(*writes: str) -> list[str]:
    return [f"{when}:{write}" for write in writes for when in ("before", "after")]


CREATIONS = fault_points(
    "write-status",
    "create-configmap",
    "create-serviceaccount",
    "create-role",
    "create-rolebinding",
    "create-rayjob",
)
SECOND_ATTEMPT_CHANGE = {
    "suspend": False,
    "runners": {"replicas": 2},
    "cluster": {"serviceAccountName": "other"},
}
# Each phase: the user's change, the fault points at which one operator after the other is killed, and the final state.
# Without a final state, the next change meets an attempt that is only partly created. An operator that is killed while
# it posts an event does not post the event again, so the two fault points of events are in two phases.
PHASES: list[tuple[dict[str, Any], list[str], str | None]] = [
    ({}, [*CREATIONS, "before:create-event"], "Running"),
    ({"runPolicy": {"ttlSecondsAfterFinished": 60}}, fault_points("set-deadlines"), "Running"),
    ({"suspend": True}, fault_points("set-intent", "delete-rayjob", "delete-configmap"), "Suspended"),
    ({"suspend": False}, ["before:apply-role"], None),
    (
        SECOND_ATTEMPT_CHANGE,
        [
            *fault_points("apply-configmap"),
            "after:apply-role",
            *fault_points("apply-rolebinding"),
            "after:create-event",
        ],
        "Succeeded",
    ),
]


def second_attempt_succeeds(child: str) -> Outcome | None:
    return SUCCESS_OUTCOME if child == "walks-r1-2" else None


def test_every_write_has_a_fault_point() -> None:
    assert sorted(fault_points(*WRITES)) == sorted(fault for _, faults, _ in PHASES for fault in faults)


@pytest.mark.timeout(240)
def test_kill_before_and_after_each_write_gives_same_end(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    kuberay = play_kuberay(second_attempt_succeeds)
    num_kills = 0
    for change, faults, final_state in PHASES:
        team.apply(make_recording(**change))
        for fault in faults:
            with run_operator(fault=fault) as operator:
                wait_for(
                    lambda operator=operator: operator.exit_code() is not None,
                    f"the operator exits at {fault}",
                )
                assert operator.exit_code() == EXIT_CODE, operator.log.read_text()[-3000:]
                num_kills += 1
        if final_state is not None:
            with run_operator():
                team.wait_for_state(WALKS, final_state)
    assert num_kills == 2 * len(WRITES)
    kuberay.assert_each_ran_once("walks-r1-1", "walks-r1-2")
    assert remove_unstable_fields(team.status(WALKS)) == run_without_faults(team, run_operator)


def run_without_faults(team: TeamNamespace, run_operator: RunOperator) -> dict[str, Any]:
    """Return the final status of the same changes without any kill."""
    team.delete(WALKS, "Foreground")
    wait_for(lambda: team.get(WALKS) is None, "the recording is deleted")
    with run_operator():
        for change, _, final_state in PHASES:
            if final_state is not None:
                team.apply(make_recording(**change))
                team.wait_for_state(WALKS, final_state)
        return remove_unstable_fields(team.status(WALKS))


def remove_unstable_fields(status: Any) -> Any:
    """Return a status without the fields that differ between runs, such as times and uids."""
    if isinstance(status, list):
        return [remove_unstable_fields(entry) for entry in status]
    if not isinstance(status, dict):
        return status
    unstable_fields = {
        "lastTransitionTime",
        "lastReportTime",
        "startTime",
        "endTime",
        "firstReportTime",
        "admissionTime",
        "stopRequestedTime",
        "rayJobUID",
        "activeSeconds",
        "observedGeneration",
    }
    return {
        name: remove_unstable_fields(value) for name, value in status.items() if name not in unstable_fields
    }
