"""What the operator keeps of what it observes: newer versions only, resources found by what belongs to them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hindcast_operator.control import kinds
from hindcast_operator.control.cache import Cache, Key
from hindcast_operator.facts import ConfigMapFacts, PodFacts, RayClusterFacts, RayJobFacts

CREATED = "2026-11-21T06:00:00Z"
WALKS = Key("OfflineRecording", "team", "walks")
CLONE = Key("OfflineTraining", "team", "clone")


def raw(name: str, version: int, uid: str = "u1", **parts: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": uid,
        "resourceVersion": str(version),
        "creationTimestamp": CREATED,
    }
    return {"metadata": metadata | parts.pop("metadata", {}), **parts}


def child(name: str, version: int, uid: str = "c1", **parts: Any) -> dict[str, Any]:
    labels = {
        "app.kubernetes.io/managed-by": "hindcast-operator",
        "hindcast.dev/kind": "OfflineRecording",
        "hindcast.dev/name": "walks",
        "hindcast.dev/revision": "2",
        "hindcast.dev/attempt": "3",
    }
    metadata = {"labels": labels | parts.pop("labels", {})} | parts.pop("metadata", {})
    return raw(name, version, uid, metadata=metadata, **parts)


def facts_of(cache: Cache, name: str) -> Any:
    return next(entry.facts for entry in cache.children(WALKS) if entry.key.name == name)


def test_older_news_never_replaces_newer() -> None:
    cache = Cache()
    assert cache.put(kinds.RECORDING, raw("walks", 5, status={"state": "Running"})) == {WALKS}
    assert cache.put(kinds.RECORDING, raw("walks", 4, status={"state": "Pending"})) == set()
    assert cache.put(kinds.RECORDING, raw("walks", 5, status={"state": "Pending"})) == set()
    assert cache.resources[WALKS].status == {"state": "Running"}


def test_the_end_of_an_earlier_object_does_not_take_the_present_one() -> None:
    cache = Cache()
    cache.put(kinds.RECORDING, raw("walks", 9, uid="new"))
    assert cache.remove(kinds.RECORDING, "team", "walks", "old") == set()
    assert WALKS in cache.resources
    assert cache.remove(kinds.RECORDING, "team", "walks", "new") == {WALKS}
    assert not cache.resources


def test_news_of_children_concern_the_resource_that_their_labels_name() -> None:
    cache = Cache()
    assert cache.put(kinds.RAY_JOB, child("walks-r2-3", 1, spec={})) == {WALKS}
    (entry,) = cache.children(WALKS)
    assert entry.attempt == "walks-r2-3"
    assert cache.remove(kinds.RAY_JOB, "team", "walks-r2-3", "c1") == {WALKS}
    assert not list(cache.children(WALKS))


def test_news_that_change_no_fact_concern_no_one() -> None:
    cache = Cache()
    cache.put(kinds.RAY_JOB, child("walks-r2-3", 1, spec={}))
    assert cache.put(kinds.RAY_JOB, child("walks-r2-3", 2, spec={"entrypoint": "x"})) == set()
    assert cache.put(kinds.RAY_JOB, child("walks-r2-3", 3, status={"jobDeploymentStatus": "Running"})) == {
        WALKS
    }


@pytest.mark.parametrize("labels", [{"hindcast.dev/attempt": "x"}, {"hindcast.dev/revision": ""}])
def test_objects_with_broken_labels_are_no_ones(labels: dict[str, str]) -> None:
    cache = Cache()
    assert cache.put(kinds.POD, child("stray", 1, labels=labels)) == set()
    assert not cache.keys_with_uids(kinds.POD)


def test_news_of_a_resource_concern_those_that_refer_to_it() -> None:
    cache = Cache()
    spec = {"input": [{"recordingRef": {"name": "walks"}}, {"path": "s3://b/x"}]}
    cache.put(kinds.TRAINING, raw("clone", 1, spec=spec))
    assert cache.put(kinds.RECORDING, raw("walks", 2)) == {WALKS, CLONE}
    cache.put(kinds.TRAINING, raw("clone", 3, spec={"input": [{"path": "s3://b/x"}]}))
    assert cache.put(kinds.RECORDING, raw("walks", 4)) == {WALKS}


def test_a_recording_of_a_trained_policy_refers_to_the_training() -> None:
    cache = Cache()
    cache.put(kinds.RECORDING, raw("walks", 1, spec={"policy": {"trainingRef": {"name": "clone"}}}))
    assert cache.put(kinds.TRAINING, raw("clone", 2)) == {WALKS, CLONE}


def report(beat: int, moved: str) -> dict[str, str]:
    return {"report.json": json.dumps({"number": beat, "reportTime": CREATED, "lastProgressTime": moved})}


def test_a_beat_is_seen_when_it_changes_and_so_is_progress() -> None:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    cache = Cache(clock=lambda: now)

    def hear(version: int, data: dict[str, str]) -> ConfigMapFacts:
        cache.put(kinds.CONFIG_MAP, child("walks-r2-3", version, data=data))
        found = facts_of(cache, "walks-r2-3")
        assert isinstance(found, ConfigMapFacts)
        return found

    first = now
    assert hear(1, {"intent": "checkpoint"}).beat_seen is None
    assert hear(2, report(1, "a")).beat_seen == first
    now += timedelta(seconds=30)
    second = hear(3, report(2, "a"))
    assert (second.beat_seen, second.moved_seen) == (now, first)
    now += timedelta(seconds=30)
    third = hear(4, report(2, "a") | {"intent": "checkpoint"})
    assert (third.beat_seen, third.moved_seen, third.intent) == (second.beat_seen, first, "checkpoint")
    assert hear(5, {"report.json": "not a report"}).report is None


def test_of_a_ray_job_its_state_and_owner_are_kept() -> None:
    cache = Cache()
    owners = [{"controller": False, "uid": "x"}, {"controller": True, "uid": "u1"}]
    status = {"jobStatus": "RUNNING", "jobDeploymentStatus": "Running", "startTime": CREATED}
    made = child("walks-r2-3", 1, metadata={"ownerReferences": owners}, spec={"suspend": True}, status=status)
    cache.put(kinds.RAY_JOB, made)
    job = facts_of(cache, "walks-r2-3")
    assert isinstance(job, RayJobFacts)
    assert (job.owner_uid, job.suspended, job.job_status, job.deployment_status) == (
        "u1",
        True,
        "RUNNING",
        "Running",
    )
    assert job.started == datetime(2026, 11, 21, 6, tzinfo=UTC)
    assert not job.deleting


def test_of_a_ray_cluster_its_failure_is_kept() -> None:
    cache = Cache()
    failure = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreateHeadPod",
        "message": "quota",
    }
    cache.put(kinds.RAY_CLUSTER, child("walks-r2-3-x", 1, status={"state": "ready"}))
    assert facts_of(cache, "walks-r2-3-x") == RayClusterFacts("walks-r2-3-x")
    cache.put(kinds.RAY_CLUSTER, child("walks-r2-3-x", 2, status={"conditions": [failure]}))
    assert facts_of(cache, "walks-r2-3-x").replica_failure == "quota"


def pod(**status: Any) -> PodFacts:
    cache = Cache()
    cache.put(kinds.POD, child("p", 1, labels={"hindcast.dev/pool": "learner"}, status=status))
    found = facts_of(cache, "p")
    assert isinstance(found, PodFacts)
    return found


def test_of_a_pod_it_is_kept_why_it_does_not_start() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
    assert pod(phase="Pending", conditions=[condition]).unschedulable == "no GPU"
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    usual = {"waiting": {"reason": "ContainerCreating"}}
    statuses = [{"name": "ray", "state": usual}, {"name": "side", "state": waiting}]
    assert pod(containerStatuses=statuses).waiting == ("ImagePullBackOff", "no such image")
    assert pod(containerStatuses=statuses[:1]).waiting is None
    assert pod().pool == "learner"


def test_of_a_pod_it_is_kept_whether_a_container_was_killed_for_memory() -> None:
    for reason, killed in (("OOMKilled", True), ("Error", False)):
        ended = {"terminated": {"reason": reason, "exitCode": 137}}
        again = {"name": "ray", "state": {}, "lastState": ended}
        assert pod(phase="Running", containerStatuses=[again]).out_of_memory == killed
        assert (
            pod(phase="Failed", containerStatuses=[{"name": "ray", "state": ended}]).out_of_memory == killed
        )


def test_a_pod_that_should_be_gone_shows_since_when_its_node_is_unreachable() -> None:
    cache = Cache()
    gone = {"deletionTimestamp": CREATED}
    cache.put(kinds.POD, child("p", 1, metadata=gone, status={}))
    assert facts_of(cache, "p").unreachable_since == datetime(2026, 11, 21, 6, tzinfo=UTC)
