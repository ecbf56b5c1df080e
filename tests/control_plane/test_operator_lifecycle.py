"""The life cycle of resources and their objects around finished and running work: no orphan, no double run."""

from __future__ import annotations

import time

import pytest
from fake_kuberay import SUCCESS_OUTCOME, PlayKubeRay, never_ends, succeeds_at_once
from operator_process import OperatorProcess, RunOperator
from resources import Team, recording, training

from api_server import ApiServer, collection, wait_for

WALKS = recording()
CLONE = training()


@pytest.fixture
def team(api: ApiServer, namespace: str) -> Team:
    return Team(api, namespace)


def test_training_waits_for_its_recording(
    team: Team, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    team.apply(CLONE)
    with run_operator() as operator:
        team.wait_for_state(CLONE, "Waiting")
        assert team.condition(CLONE, "DataReady") is not None
        assert team.ray_jobs() == set()
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
        assert {"walks-r1-1", "clone-t1-1"} == team.ray_jobs()
        team.wait_for_event(WALKS, "AttemptCreated")
        assert_rests(operator)


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
def test_resource_recreated_immediately_runs_again(
    team: Team, run_operator: RunOperator, play_kuberay: PlayKubeRay, policy: str
) -> None:
    play_kuberay(never_ends)
    with run_operator():
        team.apply(WALKS)
        first = team.wait_for_state(WALKS, "Running")["metadata"]["uid"]
        team.delete(WALKS, policy)
        wait_for(lambda: _is_recreated(team, first), "the second one is accepted")
        # The garbage collector may look for what the first one left as late as it likes.
        second = team.wait_for_state(WALKS, "Running")
        assert second["metadata"]["uid"] != first
        job = team.api.get("RayJob", team.namespace, "walks-r1-1")
        assert job["metadata"]["ownerReferences"][0]["uid"] == second["metadata"]["uid"]
        wait_for(lambda: not _objects_owned_by(team, first), "nothing is left of the first one")
        assert team.condition(WALKS, "Stalled") is None


def _is_recreated(team: Team, first: str) -> bool:
    return bool(team.apply(WALKS)["metadata"]["uid"] != first)


def _objects_owned_by(team: Team, uid: str) -> list[str]:
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
    team: Team, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    kuberay = play_kuberay()
    with run_operator():
        team.apply(WALKS)
        final_status = team.wait_for_state(WALKS, "Succeeded")["status"]
        team.api.delete(f"{collection('ray.io/v1', 'rayjobs', team.namespace)}/walks-r1-1")
        wait_for(lambda: team.ray_jobs() == set(), "the finished RayJob is deleted")
    with run_operator() as operator:
        wait_for(lambda: operator.has_logged("cache filled"), "the operator is back")
        assert_rests(operator)
        assert operator.num_writes() == 0
        assert team.status(WALKS) == final_status
        assert team.ray_jobs() == set()
        team.apply(recording(revision=2))
        wait_for(lambda: team.status(WALKS)["runs"][0]["revision"] == 2, "revision 2 runs")
        team.wait_for_state(WALKS, "Succeeded")
    assert {name: len(uids) for name, uids in kuberay.uids_by_name.items()} == {
        "walks-r1-1": 1,
        "walks-r2-1": 1,
    }


def test_restored_resource_does_not_run_again(
    team: Team, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    """A backup restores a resource with its status into a new cluster: the work is done."""
    kuberay = play_kuberay()
    with run_operator():
        team.apply(WALKS)
        backup = team.wait_for_state(WALKS, "Succeeded")
        team.delete(WALKS)
        wait_for(lambda: team.ray_jobs() == set() and team.get(WALKS) is None, "it is gone", 60)
    team.apply(WALKS)
    status_document = {"apiVersion": backup["apiVersion"], "kind": backup["kind"], "status": backup["status"]}
    metadata = {"name": "walks", "namespace": team.namespace}
    team.api.apply(status_document | {"metadata": metadata}, "backup", "/status")
    with run_operator() as operator:
        wait_for(lambda: operator.has_logged("cache filled"), "the operator is back")
        assert_rests(operator)
        assert team.status(WALKS)["state"] == "Succeeded"
    assert {name: len(uids) for name, uids in kuberay.uids_by_name.items()} == {"walks-r1-1": 1}


def test_change_unseen_by_cel_is_reported_as_drift(
    team: Team, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    kuberay = play_kuberay()
    data = {"input": [{"path": "s3://bucket/data"}]}
    with run_operator():
        team.apply(training(**data))
        team.wait_for_state(CLONE, "Succeeded")
        team.apply(training(**data, pipeline={"connectors": ["mean_std"]}))
        wait_for(lambda: team.condition(CLONE, "SpecDrift") == ("True", "SpecChanged"), "SpecDrift")
        assert team.status(CLONE)["state"] == "Succeeded"
    assert set(kuberay.uids_by_name) == {"clone-t1-1"}


def test_finished_training_continues_after_raised_stop(
    team: Team, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    kuberay = play_kuberay()
    data = {"input": [{"path": "s3://bucket/data"}]}
    with run_operator() as operator:
        team.apply(training(**data, stop={"iterations": 2}))
        team.wait_for_state(CLONE, "Succeeded")
        team.apply(training(**data, stop={"iterations": 4}))
        wait_for(lambda: "clone-t1-2" in kuberay.uids_by_name, "another attempt")
        outcomes = ["Succeeded", "Succeeded"]
        wait_for(
            lambda: [run.get("outcome") for run in team.status(CLONE)["runs"]] == outcomes, "both have ended"
        )
        team.wait_for_state(CLONE, "Succeeded")
        assert team.condition(CLONE, "SpecDrift") is None
        assert_rests(operator)
    assert set(kuberay.uids_by_name) == {"clone-t1-1", "clone-t1-2"}


def test_changed_deadlines_reach_running_ray_job(
    team: Team, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    play_kuberay(never_ends)

    def deadlines() -> tuple[int | None, ...]:
        spec = team.api.get("RayJob", team.namespace, "walks-r1-1")["spec"]
        return tuple(spec.get(f"{name}Seconds") for name in ("preRunningDeadline", "activeDeadline"))

    with run_operator():
        team.apply(recording(runPolicy={"activeDeadlineSeconds": 3600}))
        team.wait_for_state(WALKS, "Running")
        assert deadlines() == (2700, 6300)
        team.apply(recording(runPolicy={"activeDeadlineSeconds": 7200}))
        wait_for(lambda: deadlines() == (2700, 9900), "the RayJob has the new one")
        team.apply(recording(runPolicy={"startDeadlineSeconds": 7200}))
        wait_for(lambda: deadlines() == (8100, None), "the RayJob has no limit")
        assert team.ray_jobs() == {"walks-r1-1"}


def test_resource_created_suspended_creates_nothing(team: Team, run_operator: RunOperator) -> None:
    with run_operator():
        team.apply(recording(suspend=True))
        team.wait_for_state(WALKS, "Suspended")
        assert team.condition(WALKS, "Ready") == ("True", "Suspended")
        assert team.names("configmaps") <= {"kube-root-ca.crt"}  # which Kubernetes makes
        assert team.ray_jobs() == set()


def test_lost_attempt_is_retried(team: Team, run_operator: RunOperator, play_kuberay: PlayKubeRay) -> None:
    kuberay = play_kuberay(lambda child: None if child.endswith("-1") else SUCCESS_OUTCOME)
    with run_operator():
        team.apply(WALKS)
        team.wait_for_state(WALKS, "Running")
        team.api.delete(f"{collection('ray.io/v1', 'rayjobs', team.namespace)}/walks-r1-1")
        team.wait_for_state(WALKS, "Retrying")
        status = team.wait_for_state(WALKS, "Succeeded")["status"]
    assert [run["outcome"] for run in status["runs"]] == ["Succeeded", "Lost"]
    assert set(kuberay.uids_by_name) == {"walks-r1-1", "walks-r1-2"}


def assert_rests(operator: OperatorProcess) -> None:
    """Writing ends: an event still follows the last status, and then nothing is written for two seconds."""
    wait_for(lambda: is_at_rest(operator), "the operator rests", 20)


def is_at_rest(operator: OperatorProcess) -> bool:
    num_writes_before = operator.num_writes()
    time.sleep(2)
    return operator.num_writes() == num_writes_before
