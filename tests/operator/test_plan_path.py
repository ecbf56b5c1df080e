"""The main path: accepted, started, running, ended."""

from __future__ import annotations

import pytest
from plan_world import CHECKPOINT, PROGRESS, World, make_running_world

from hindcast.api.status import ProgressStatus


def test_new_resource_gets_first_attempt() -> None:
    world = World()
    decision = world.plan()
    assert decision.status.state == "Pending"
    assert [type(action).__name__ for action in decision.actions] == ["CreateAttempt"]
    assert [run.ray_job_name for run in decision.status.runs] == ["cartpole-bc-t1-1"]
    world.settle()
    assert world.created_children == ["cartpole-bc-t1-1"]
    assert world.state == "Starting"
    assert world.run["rayJobUID"] == world.attempt.ray_job.uid  # type: ignore[union-attr]


def test_first_report_makes_state_running() -> None:
    world = make_running_world()
    assert world.state == "Running"
    assert world.status["progress"]["summary"] == PROGRESS.summary
    assert world.status["checkpoint"]["path"] == CHECKPOINT.path
    assert world.status["rayJobName"] == "cartpole-bc-t1-1"
    assert [event.reason for event in world.events] == ["AttemptCreated", "ClusterStarting", "Running"]


def test_final_report_makes_state_succeeded() -> None:
    world = make_running_world()
    world.report_end("Succeeded", "Succeeded", "100 iterations done").settle()
    assert world.state == "Succeeded"
    assert {entry["type"]: entry["status"] for entry in world.status["conditions"]} == {
        "Ready": "True",
        "Complete": "True",
        "Finished": "True",
    }
    assert world.created_children == ["cartpole-bc-t1-1"]
    assert world.events_with("Succeeded")[0].message == "100 iterations done"


def test_user_code_failure_is_final() -> None:
    world = make_running_world()
    world.report_end("Failed", "UserCodeFailed", "env.py:7: KeyError 'x'").settle()
    assert world.state == "Failed"
    assert world.find_reason("Stalled") == world.find_reason("Failed") == "UserCodeFailed"
    assert world.created_children == ["cartpole-bc-t1-1"]


def test_attempt_after_a_loss_is_sized_by_its_measured_memory() -> None:
    def memory_reason() -> str:
        return str(world.status["resolved"]["pools"]["learner"]["memory"]["reason"])

    world = make_running_world()
    progress = ProgressStatus(metrics={"learnerPeakBytes": 8 * 2**30})
    world.report_end("Lost", "OutOfMemory", progress=progress).settle()
    world.advance(30).settle()
    assert len(world.created_children) == 2
    assert "8Gi that a learner took in earlier attempts" in memory_reason()
    world.edit_spec(revision=2).settle()
    assert len(world.created_children) == 3
    assert "earlier attempts" not in memory_reason()


@pytest.mark.parametrize("reason", ["StorageFailed", "OutOfMemory", "WorkerLost", "Terminated"])
def test_lost_attempt_is_retried(reason: str) -> None:
    world = make_running_world()
    world.report_end("Lost", reason).settle()
    assert world.state == "Retrying"
    assert world.live_children == []
    world.advance(30).settle()
    assert world.created_children == ["cartpole-bc-t1-1", "cartpole-bc-t1-2"]
    assert world.run["retries"] == 1
    assert world.status["runs"][1]["reason"] == reason
