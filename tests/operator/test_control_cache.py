"""The cache: only newer versions replace older ones, and changes of children affect the resources that own them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from hindcast_operator.control import kinds
from hindcast_operator.control.cache import Cache, Key
from hindcast_operator.control.reads import resync
from hindcast_operator.control.service import Operator, OperatorOptions
from hindcast_operator.defaults import Defaults
from hindcast_operator.facts import ConfigMapFacts, PodFacts, RayClusterFacts, RayJobFacts

CREATION_TIME = "2026-11-21T06:00:00Z"
WALKS = Key("OfflineRecording", "team", "walks")
CLONE = Key("OfflineTraining", "team", "clone")


def make_object(name: str, version: int, uid: str = "u1", **fields: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": uid,
        "resourceVersion": str(version),
        "creationTimestamp": CREATION_TIME,
    }
    return {"metadata": metadata | fields.pop("metadata", {}), **fields}


def make_child(name: str, version: int, uid: str = "c1", **fields: Any) -> dict[str, Any]:
    labels = {
        "app.kubernetes.io/managed-by": "hindcast-operator",
        "hindcast.dev/kind": "OfflineRecording",
        "hindcast.dev/name": "walks",
        "hindcast.dev/revision": "2",
        "hindcast.dev/attempt": "3",
    }
    metadata = {"labels": labels | fields.pop("labels", {})} | fields.pop("metadata", {})
    return make_object(name, version, uid, metadata=metadata, **fields)


def find_facts(cache: Cache, name: str) -> Any:
    return next(entry.facts for entry in cache.children(WALKS) if entry.key.name == name)


def test_put_of_older_version_is_ignored() -> None:
    cache = Cache()
    assert cache.put(kinds.RECORDING, make_object("walks", 5, status={"state": "Running"})) == {WALKS}
    assert cache.put(kinds.RECORDING, make_object("walks", 4, status={"state": "Pending"})) == set()
    assert cache.put(kinds.RECORDING, make_object("walks", 5, status={"state": "Pending"})) == set()
    assert cache.resources[WALKS].status == {"state": "Running"}


@pytest.mark.parametrize("uid", ["uid", "former"])
@pytest.mark.parametrize("metadata_only", [False, True])
def test_list_after_restore_of_etcd_replaces_newer_versions(metadata_only: bool, uid: str) -> None:
    """Regression: resource versions begin again at lower numbers, and the cache ignored all changes until they met."""
    restored = make_object("walks", 5, uid=uid, status={"state": "Pending"})

    class Server:
        async def list_all(self, *_: Any) -> AsyncIterator[dict[str, Any]]:
            yield {"metadata": restored["metadata"]} if metadata_only else restored

        async def get(self, *_: Any) -> dict[str, Any]:
            return restored

    cache = Cache()
    cache.put(kinds.RECORDING, make_object("walks", 900, uid="uid", status={"state": "Running"}))
    api: Any = Server()
    affected = asyncio.run(resync(api, cache, kinds.RECORDING, "team", metadata_only=metadata_only))
    assert (affected, cache.resources[WALKS].status) == ({WALKS}, {"state": "Pending"})
    newer = make_object("walks", 6, uid=uid, status={"state": "Waiting"})
    assert cache.put(kinds.RECORDING, newer) == {WALKS}


def test_list_of_one_namespace_keeps_objects_of_others() -> None:
    class Server:
        async def list_all(self, *_: Any) -> AsyncIterator[dict[str, Any]]:
            for item in ():
                yield item

    cache = Cache()
    for namespace in ("team", "others"):
        cache.put(kinds.RECORDING, make_object("walks", 5, uid=namespace, metadata={"namespace": namespace}))
    api: Any = Server()
    assert asyncio.run(resync(api, cache, kinds.RECORDING, "team", metadata_only=True)) == {WALKS}
    assert [key.namespace for key in cache.resources] == ["others"]


def test_remove_with_other_uid_keeps_current_object() -> None:
    cache = Cache()
    cache.put(kinds.RECORDING, make_object("walks", 9, uid="new"))
    assert cache.remove(kinds.RECORDING, "team", "walks", "old") == set()
    assert WALKS in cache.resources
    assert cache.remove(kinds.RECORDING, "team", "walks", "new") == {WALKS}
    assert not cache.resources


def test_change_of_child_affects_labelled_resource() -> None:
    cache = Cache()
    assert cache.put(kinds.RAY_JOB, make_child("walks-r2-3", 1, spec={})) == {WALKS}
    (entry,) = cache.children(WALKS)
    assert entry.attempt == "walks-r2-3"
    assert cache.remove(kinds.RAY_JOB, "team", "walks-r2-3", "c1") == {WALKS}
    assert not list(cache.children(WALKS))


def test_change_without_new_facts_affects_nothing() -> None:
    cache = Cache()
    cache.put(kinds.RAY_JOB, make_child("walks-r2-3", 1, spec={}))
    assert cache.put(kinds.RAY_JOB, make_child("walks-r2-3", 2, spec={"entrypoint": "x"})) == set()
    assert cache.put(
        kinds.RAY_JOB, make_child("walks-r2-3", 3, status={"jobDeploymentStatus": "Running"})
    ) == {WALKS}


@pytest.mark.parametrize("labels", [{"hindcast.dev/attempt": "x"}, {"hindcast.dev/revision": ""}])
def test_object_with_invalid_labels_is_ignored(labels: dict[str, str]) -> None:
    cache = Cache()
    assert cache.put(kinds.POD, make_child("stray", 1, labels=labels)) == set()
    assert not cache.entries(kinds.POD)


def test_odd_object_does_not_stop_reading_of_others() -> None:
    """Regression: an exception in one object ended the lists of all objects, and with them the operator."""
    cache = Cache()
    odd_status = {"conditions": ["Ready"]}
    assert cache.put(kinds.POD, make_child("odd", 5, status=odd_status)) == set()
    nested_report = {"report.json": "[" * 200_000}
    assert cache.put(kinds.CONFIG_MAP, make_child("walks-r1-1", 6, data=nested_report)) == {WALKS}
    assert [child.facts.name for child in cache.children(WALKS)] == ["walks-r1-1"]


def test_change_of_resource_affects_referring_resources() -> None:
    cache = Cache()
    spec = {"input": [{"recordingRef": {"name": "walks"}}, {"path": "s3://b/x"}]}
    cache.put(kinds.TRAINING, make_object("clone", 1, spec=spec))
    assert cache.put(kinds.RECORDING, make_object("walks", 2)) == {WALKS, CLONE}
    cache.put(kinds.TRAINING, make_object("clone", 3, spec={"input": [{"path": "s3://b/x"}]}))
    assert cache.put(kinds.RECORDING, make_object("walks", 4)) == {WALKS}


def test_recording_with_training_ref_is_affected_by_training() -> None:
    cache = Cache()
    cache.put(kinds.RECORDING, make_object("walks", 1, spec={"policy": {"trainingRef": {"name": "clone"}}}))
    assert cache.put(kinds.TRAINING, make_object("clone", 2)) == {WALKS, CLONE}


def test_facts_of_config_map_have_heartbeat_of_any_report() -> None:
    def extract_facts(**data: str) -> ConfigMapFacts:
        cache = Cache()
        cache.put(kinds.CONFIG_MAP, make_child("walks-r2-3", 1, data=data))
        facts = find_facts(cache, "walks-r2-3")
        assert isinstance(facts, ConfigMapFacts)
        return facts

    def make_report(**fields: Any) -> str:
        return json.dumps({"number": 1, "reportTime": "t", "lastProgressTime": "p", **fields})

    facts = extract_facts(intent="checkpoint")
    assert (facts.intent, facts.beat, facts.progress, facts.report) == ("checkpoint", "", "", None)
    newer_outcome = {"state": "Lost", "reason": "NewerWord", "message": "", "newField": 1}
    texts = [
        make_report(),
        make_report(number=2),
        make_report(newField={"a": 1}, outcome=newer_outcome),
        make_report(stage=7),
        make_report(number="two"),
        "[]",
        "not a report",
    ]
    facts_by_text = [extract_facts(**{"report.json": text}) for text in texts]
    assert len({facts.beat for facts in facts_by_text}) == len(texts)
    assert [facts.progress for facts in facts_by_text[:5]] == ["p"] * 5
    assert [facts.report is not None for facts in facts_by_text] == [True] * 4 + [False] * 3
    assert [facts.report_problem for facts in facts_by_text[:4]] == [None] * 3 + ["stage cannot be read"]
    assert all(facts.report_problem for facts in facts_by_text[4:])


def test_facts_of_ray_job_have_state_and_owner() -> None:
    cache = Cache()
    owners = [{"controller": False, "uid": "x"}, {"controller": True, "uid": "u1"}]
    status = {"jobStatus": "RUNNING", "jobDeploymentStatus": "Running", "startTime": CREATION_TIME}
    raw = make_child(
        "walks-r2-3", 1, metadata={"ownerReferences": owners}, spec={"suspend": True}, status=status
    )
    cache.put(kinds.RAY_JOB, raw)
    job = find_facts(cache, "walks-r2-3")
    assert isinstance(job, RayJobFacts)
    assert (job.owner_uid, job.is_suspended, job.job_status, job.deployment_status) == (
        "u1",
        True,
        "RUNNING",
        "Running",
    )
    assert job.started_at == datetime(2026, 11, 21, 6, tzinfo=UTC)
    assert not job.is_deleting


def test_facts_of_ray_cluster_have_replica_failure() -> None:
    cache = Cache()
    failure = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreateHeadPod",
        "message": "quota",
    }
    cache.put(kinds.RAY_CLUSTER, make_child("walks-r2-3-x", 1, status={"state": "ready"}))
    assert find_facts(cache, "walks-r2-3-x") == RayClusterFacts("walks-r2-3-x")
    cache.put(kinds.RAY_CLUSTER, make_child("walks-r2-3-x", 2, status={"conditions": [failure]}))
    assert find_facts(cache, "walks-r2-3-x").replica_failure == "quota"


def extract_pod_facts(**status: Any) -> PodFacts:
    cache = Cache()
    cache.put(kinds.POD, make_child("p", 1, labels={"hindcast.dev/pool": "learner"}, status=status))
    facts = find_facts(cache, "p")
    assert isinstance(facts, PodFacts)
    return facts


def test_facts_of_pod_have_reason_for_not_starting() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
    assert extract_pod_facts(phase="Pending", conditions=[condition]).scheduling_failure == "no GPU"
    failed_state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    normal_state = {"waiting": {"reason": "ContainerCreating"}}
    statuses = [{"name": "ray", "state": normal_state}, {"name": "side", "state": failed_state}]
    assert extract_pod_facts(containerStatuses=statuses).container_wait == (
        "ImagePullBackOff",
        "no such image",
    )
    assert extract_pod_facts(containerStatuses=statuses[:1]).container_wait is None
    assert extract_pod_facts().pool == "learner"


@pytest.mark.parametrize(
    ("status", "expected"), [("True", datetime(2026, 11, 21, 6, tzinfo=UTC)), ("False", None)]
)
def test_facts_of_pod_have_time_of_scheduling(status: str, expected: datetime | None) -> None:
    condition = {"type": "PodScheduled", "status": status, "lastTransitionTime": CREATION_TIME}
    assert extract_pod_facts(conditions=[condition]).scheduled_at == expected


def test_facts_of_pod_record_container_killed_for_memory() -> None:
    for reason, is_killed in (("OOMKilled", True), ("Error", False)):
        final_state = {"terminated": {"reason": reason, "exitCode": 137}}
        restarted_container = {"name": "ray", "state": {}, "lastState": final_state}
        assert (
            extract_pod_facts(phase="Running", containerStatuses=[restarted_container]).is_oom_killed
            == is_killed
        )
        assert (
            extract_pod_facts(
                phase="Failed", containerStatuses=[{"name": "ray", "state": final_state}]
            ).is_oom_killed
            == is_killed
        )


def test_pod_past_deletion_time_has_unreachable_node() -> None:
    cache = Cache()
    metadata = {"deletionTimestamp": CREATION_TIME}
    cache.put(kinds.POD, make_child("p", 1, metadata=metadata, status={}))
    assert find_facts(cache, "p").unreachable_since == datetime(2026, 11, 21, 6, tzinfo=UTC)


def test_kuberay_counts_as_installed_once_its_ray_jobs_are_cached() -> None:
    """Regression: after KubeRay came back, each live run looked deleted until its RayJob was listed."""
    operator: Any = None
    observations: list[bool] = []

    class Server:
        def server_time(self) -> datetime:
            return datetime(2026, 11, 21, tzinfo=UTC)

        async def list_all(self, *_: Any) -> AsyncIterator[dict[str, Any]]:
            observations.append(operator._reconciler.observer.has_kuberay("team"))
            for item in ():
                yield item

    async def fill() -> bool:
        nonlocal operator
        api: Any = Server()
        operator = Operator(api, OperatorOptions(Defaults(), namespaces=("team",)))
        operator._set_served_kinds(frozenset(kinds.WATCHED_KINDS))
        await operator._fill_cache("team")
        return operator._reconciler.observer.has_kuberay("team")

    assert asyncio.run(fill())
    assert not any(observations)
