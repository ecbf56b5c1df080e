"""The life cycle of resources and their objects. No object is left behind, and no attempt runs twice."""

from __future__ import annotations

import time

import pytest
from fake_kuberay import SUCCESS_OUTCOME, PlayKubeRay, never_ends, succeeds_at_once
from operator_process import OperatorProcess, RunOperator
from resources import TeamNamespace, make_recording, make_training

from api_server import collection, wait_for

WALKS = make_recording()
CLONE = make_training()


def test_training_waits_for_its_recording(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    team.apply(CLONE)
    with run_operator() as operator:
        team.wait_for_state(CLONE, "Waiting")
        assert team.find_condition(CLONE, "DataReady") is not None
        assert team.ray_job_names() == set()
        kuberay = play_kuberay(never_ends)
        team.apply(WALKS)
        team.wait_for_state(WALKS, "Running")
        assert team.status(CLONE)["state"] == "Waiting"
        kuberay.script = succeeds_at_once
        team.wait_for_state(CLONE, "Succeeded")
        assert team.status(WALKS)["state"] == "Succeeded"
        assert (
            team.status(CLONE)["runs"][0]["inputs"]["OfflineRecording/walks"]["path"] == "s3://bucket/walks"
        )
        assert {"walks-r1-1", "clone-t1-1"} == team.ray_job_names()
        team.wait_for_event(WALKS, "AttemptCreated")
        wait_until_idle(operator)


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
def test_resource_recreated_immediately_runs_again(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay, policy: str
) -> None:
    play_kuberay(never_ends)
    with run_operator():
        team.apply(WALKS)
        first_uid = team.wait_for_state(WALKS, "Running")["metadata"]["uid"]
        team.delete(WALKS, policy)
        wait_for(lambda: _try_recreate(team, first_uid), "the second resource is created")
        # The garbage collector may delete the objects of the first resource at any later time.
        second_resource = team.wait_for_state(WALKS, "Running")
        assert second_resource["metadata"]["uid"] != first_uid
        job = team.api.get("RayJob", team.namespace, "walks-r1-1")
        assert job["metadata"]["ownerReferences"][0]["uid"] == second_resource["metadata"]["uid"]
        wait_for(
            lambda: not _objects_owned_by(team, first_uid), "all objects of the first resource are deleted"
        )
        assert team.find_condition(WALKS, "Stalled") is None


def _try_recreate(team: TeamNamespace, first_uid: str) -> bool:
    """Apply the recording. Return True if this created a new one, and did not patch the one that is being deleted."""
    return bool(team.apply(WALKS)["metadata"]["uid"] != first_uid)


def _objects_owned_by(team: TeamNamespace, uid: str) -> list[str]:
    kinds = [
        ("ray.io/v1", "rayjobs"),
        ("v1", "configmaps"),
        ("v1", "serviceaccounts"),
        ("rbac.authorization.k8s.io/v1", "roles"),
        ("rbac.authorization.k8s.io/v1", "rolebindings"),
    ]
    return [
        item["metadata"]["name"]
        for version, plural in kinds
        for item in team.api.request("GET", collection(version, plural, team.namespace))["items"]
        if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences", ()))
    ]


def test_finished_run_is_not_repeated_after_restart(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    kuberay = play_kuberay()
    with run_operator():
        team.apply(WALKS)
        final_status = team.wait_for_state(WALKS, "Succeeded")["status"]
        team.delete_ray_job("walks-r1-1")
        team.wait_for_ray_jobs()
    with run_operator() as operator:
        wait_for(lambda: operator.has_logged("cache filled"), "the operator is back")
        wait_until_idle(operator)
        assert operator.read_num_writes() == 0
        assert team.status(WALKS) == final_status
        assert team.ray_job_names() == set()
        team.apply(make_recording(revision=2))
        wait_for(lambda: team.status(WALKS)["runs"][0]["revision"] == 2, "revision 2 runs")
        team.wait_for_state(WALKS, "Succeeded")
    kuberay.assert_each_ran_once("walks-r1-1", "walks-r2-1")


def test_restored_resource_does_not_run_again(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    """If a backup restores a finished resource with its status into a new cluster, nothing runs."""
    kuberay = play_kuberay()
    with run_operator():
        team.apply(WALKS)
        backup = team.wait_for_state(WALKS, "Succeeded")
        team.delete(WALKS)
        wait_for(
            lambda: team.ray_job_names() == set() and team.get(WALKS) is None,
            "the recording and its RayJob are deleted",
            60,
        )
    team.apply(WALKS)
    status_document = {"apiVersion": backup["apiVersion"], "kind": backup["kind"], "status": backup["status"]}
    metadata = {"name": "walks", "namespace": team.namespace}
    team.api.apply(status_document | {"metadata": metadata}, "backup", "/status")
    with run_operator() as operator:
        wait_for(lambda: operator.has_logged("cache filled"), "the operator is back")
        wait_until_idle(operator)
        assert team.status(WALKS)["state"] == "Succeeded"
    kuberay.assert_each_ran_once("walks-r1-1")


def test_change_unseen_by_cel_is_reported_as_drift(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    kuberay = play_kuberay()
    data = {"input": [{"path": "s3://bucket/data"}]}
    with run_operator():
        team.apply(make_training(**data))
        team.wait_for_state(CLONE, "Succeeded")
        team.apply(make_training(**data, pipeline={"connectors": ["my_package:Connector"]}))
        team.wait_for_condition(CLONE, "SpecDrift", "True", "SpecChanged")
        assert team.status(CLONE)["state"] == "Succeeded"
    assert set(kuberay.uids_by_name) == {"clone-t1-1"}


def test_finished_training_continues_after_raised_stop(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    kuberay = play_kuberay()
    data = {"input": [{"path": "s3://bucket/data"}]}
    with run_operator() as operator:
        team.apply(make_training(**data, stop={"iterations": 2}))
        team.wait_for_state(CLONE, "Succeeded")
        team.apply(make_training(**data, stop={"iterations": 4}))
        wait_for(lambda: "clone-t1-2" in kuberay.uids_by_name, "another attempt")
        outcomes = ["Succeeded", "Succeeded"]
        wait_for(
            lambda: [run.get("outcome") for run in team.status(CLONE)["runs"]] == outcomes, "both have ended"
        )
        team.wait_for_state(CLONE, "Succeeded")
        assert team.find_condition(CLONE, "SpecDrift") is None
        wait_until_idle(operator)
    assert set(kuberay.uids_by_name) == {"clone-t1-1", "clone-t1-2"}


def test_changed_deadlines_reach_running_ray_job(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    play_kuberay(never_ends)

    def deadline() -> int | None:
        return team.api.get("RayJob", team.namespace, "walks-r1-1")["spec"].get("activeDeadlineSeconds")  # type: ignore[no-any-return]

    with run_operator():
        team.apply(make_recording(runPolicy={"activeDeadlineSeconds": 3600}))
        team.wait_for_state(WALKS, "Running")
        assert deadline() == 4500, "900 s later than the operator's"
        team.apply(make_recording(runPolicy={"activeDeadlineSeconds": 7200}))
        wait_for(lambda: deadline() == 8100, "the RayJob has the new deadline")
        team.apply(make_recording(runPolicy={"startDeadlineSeconds": 7200}))
        wait_for(lambda: deadline() is None, "the RayJob has no active deadline")
        assert team.ray_job_names() == {"walks-r1-1"}


def test_resource_created_suspended_creates_nothing(team: TeamNamespace, run_operator: RunOperator) -> None:
    with run_operator():
        team.apply(make_recording(suspend=True))
        team.wait_for_state(WALKS, "Suspended")
        assert team.find_condition(WALKS, "Ready") == ("True", "Suspended")
        assert team.names("configmaps") <= {"kube-root-ca.crt"}  # created by Kubernetes
        assert team.ray_job_names() == set()


def test_lost_attempt_is_retried(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    kuberay = play_kuberay(lambda child: None if child.endswith("-1") else SUCCESS_OUTCOME)
    with run_operator():
        team.apply(WALKS)
        team.wait_for_state(WALKS, "Running")
        team.delete_ray_job("walks-r1-1")
        team.wait_for_state(WALKS, "Retrying")
        status = team.wait_for_state(WALKS, "Succeeded")["status"]
    assert [run["outcome"] for run in status["runs"]] == ["Succeeded", "Lost"]
    assert set(kuberay.uids_by_name) == {"walks-r1-1", "walks-r1-2"}


def wait_until_idle(operator: OperatorProcess) -> None:
    """Wait until the operator has written nothing for two seconds. An event may still follow the last status."""
    wait_for(lambda: is_idle(operator), "the operator writes nothing", 20)


def is_idle(operator: OperatorProcess) -> bool:
    """Watch the operator for two seconds. Return True if it has written nothing in this time."""
    num_writes_before = operator.read_num_writes()
    time.sleep(2)
    return operator.read_num_writes() == num_writes_before
