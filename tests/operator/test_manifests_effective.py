"""Resources completed by the platform's defaults: precedence, joined lists, absolute paths."""

from __future__ import annotations

from typing import Any

import pytest

from hindcast_operator.defaults import Defaults
from hindcast_operator.manifests import effective_resource
from manifest_examples import defaults, recording, training

PLATFORM = defaults(
    image="platform:1",
    rayVersion="2.59.0",
    runPolicy={"backoffLimit": 7, "stallTimeoutSeconds": 60},
    cluster={
        "env": [{"name": "A", "value": "platform"}, {"name": "B", "value": "platform"}],
        "envFrom": [{"secretRef": {"name": "storage"}}],
        "tolerations": [{"key": "shared", "operator": "Exists"}],
        "nodeSelector": {"zone": "a", "disk": "fast"},
        "imagePullSecrets": [{"name": "registry"}],
        "resources": {"head": {"cpu": 2.0, "memory": "8Gi"}, "learner": {"memory": "16Gi"}},
        "scheduling": {"queueName": "everyone", "labels": {"cost": "research"}},
        "podOverrides": {"all": {"spec": {"dnsPolicy": "Default", "tolerations": [{"key": "p"}]}}},
        "code": {"runtimeEnv": {"pip": ["a"], "env_vars": {"X": "1", "Y": "1"}}},
    },
)
USER_CLUSTER: dict[str, Any] = {
    "env": [{"name": "B", "value": "own"}, {"name": "C", "value": "own"}],
    "tolerations": [{"key": "own"}],
    "nodeSelector": {"zone": "b"},
    "resources": {"head": {"cpu": 1.0}},
    "scheduling": {"queueName": "mine", "labels": {"team": "rl"}},
    "podOverrides": {"all": {"spec": {"dnsPolicy": None, "tolerations": [{"key": "o"}]}}},
    "code": {"configMap": {"name": "code"}, "runtimeEnv": {"pip": ["b"], "env_vars": {"Y": "2"}}},
}


def test_user_scalars_take_precedence_and_mappings_are_merged() -> None:
    cluster = effective_resource(training(cluster=USER_CLUSTER), PLATFORM).spec.cluster
    assert cluster.resources.head.cpu == 1.0
    assert cluster.resources.head.memory == "8Gi"
    assert cluster.scheduling.queue_name == "mine"
    assert cluster.scheduling.labels == {"cost": "research", "team": "rl"}
    assert cluster.node_selector == {"zone": "b", "disk": "fast"}


def test_lists_are_joined_without_duplicate_names() -> None:
    cluster = effective_resource(training(cluster=USER_CLUSTER), PLATFORM).spec.cluster
    assert [(v.name, v.value) for v in cluster.env] == [("A", "platform"), ("B", "own"), ("C", "own")]
    assert [t.key for t in cluster.tolerations] == ["shared", "own"]
    assert [s.name for s in cluster.image_pull_secrets] == ["registry"]
    assert [e.secret_ref.name for e in cluster.env_from if e.secret_ref] == ["storage"]


def test_code_and_pod_overrides_are_merged_field_by_field() -> None:
    cluster = effective_resource(training(cluster=USER_CLUSTER), PLATFORM).spec.cluster
    assert cluster.code is not None and cluster.code.config_map is not None
    assert cluster.code.config_map.name == "code"
    assert cluster.code.runtime_env == {"pip": ["a", "b"], "env_vars": {"X": "1", "Y": "2"}}
    # A null in the resource is kept: it removes the field when the pod is built.
    assert cluster.pod_overrides.all == {
        "spec": {"dnsPolicy": None, "tolerations": [{"key": "p"}, {"key": "o"}]}
    }


def test_image_and_ray_version_are_always_set() -> None:
    cluster = effective_resource(training(), Defaults()).spec.cluster
    assert (cluster.image, cluster.ray_version) == (Defaults().image, Defaults().ray_version)
    cluster = effective_resource(training(), PLATFORM).spec.cluster
    assert (cluster.image, cluster.ray_version) == ("platform:1", "2.59.0")
    platform = defaults(image="platform:1", cluster={"image": "cluster:1"})
    assert effective_resource(training(), platform).spec.cluster.image == "cluster:1"
    assert effective_resource(training(cluster={"image": "own:1"}), platform).spec.cluster.image == "own:1"


def test_run_policy_of_platform_applies_unless_written_in_resource() -> None:
    policy = effective_resource(training(runPolicy={"backoffLimit": 3}), PLATFORM).spec.run_policy
    assert policy.backoff_limit == 3
    assert policy.stall_timeout_seconds == 60
    assert effective_resource(training(), PLATFORM).spec.run_policy.backoff_limit == 7
    assert effective_resource(training(), Defaults()).spec.run_policy.backoff_limit == 3


def test_pool_memory_in_spec_overrides_platform() -> None:
    spec = effective_resource(training(learners={"memory": "3Gi"}), PLATFORM).spec
    assert spec.cluster.resources.learner.memory == "3Gi"
    resource_with_both = training(
        learners={"memory": "3Gi"}, cluster={"resources": {"learner": {"memory": "4Gi"}}}
    )
    assert effective_resource(resource_with_both, PLATFORM).spec.cluster.resources.learner.memory == "4Gi"
    runner = recording(runners={"memory": "2Gi"})
    assert effective_resource(runner, PLATFORM).spec.cluster.resources.runner.memory == "2Gi"


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [
        ("s3://bucket/x", "runs", "s3://bucket/x/rl/runs"),
        ("s3://bucket/x/", "./a//b/", "s3://bucket/x/rl/a/b"),
        ("s3://bucket/x?", "runs", "s3://bucket/x?/rl/runs"),
        ("/mnt/x?", "runs", "/mnt/x?/rl/runs"),
        ("hdfs://host/x?user=me", "runs", "hdfs://host/x/rl/runs?user=me"),
        ("/mnt/data", "runs", "/mnt/data/rl/runs"),
        ("s3://bucket/x", "gs://other/runs", "gs://other/runs"),
        ("s3://bucket/x", "/mnt/runs", "/mnt/runs"),
        ("s3://bucket/x", "../runs", "../runs"),
    ],
)
def test_relative_paths_are_below_storage_root(root: str, path: str, expected: str) -> None:
    spec = effective_resource(training(checkpoint={"path": path}), Defaults(storage_root=root)).spec
    assert spec.checkpoint.path == expected


def test_every_location_becomes_absolute_and_references_are_kept() -> None:
    platform = Defaults(storage_root="s3://b")
    training_spec = effective_resource(
        training(input=[{"path": "data"}, {"recordingRef": {"name": "cartpole"}}], initialCheckpoint="best"),
        platform,
    ).spec
    assert training_spec.input[0].path == "s3://b/rl/data"
    assert training_spec.input[1].path is None and training_spec.input[1].recording_ref.name == "cartpole"
    assert training_spec.initial_checkpoint == "s3://b/rl/best"
    assert training_spec.checkpoint.path == "s3://b/rl/runs"
    recording_spec = effective_resource(
        recording(policy={"checkpoint": {"path": "p"}}, output={"path": "o"}), platform
    ).spec
    assert (recording_spec.policy.checkpoint.path, recording_spec.output.path) == (
        "s3://b/rl/p",
        "s3://b/rl/o",
    )
    expert = {"train": {"initialCheckpoint": "c", "stop": {"iterations": 1}}}
    assert (
        effective_resource(recording(policy=expert), platform).spec.policy.train.initial_checkpoint
        == "s3://b/rl/c"
    )


@pytest.mark.parametrize(
    "resource", [training(cluster=USER_CLUSTER), recording(), training(learners={"memory": "3Gi"})]
)
def test_effective_resource_is_idempotent(resource: Any) -> None:
    effective = effective_resource(resource, PLATFORM)
    assert effective_resource(effective, PLATFORM) == effective


def test_effective_resource_does_not_modify_input() -> None:
    resource = training(cluster=USER_CLUSTER)
    dump_before = resource.model_dump()
    effective_resource(resource, PLATFORM)
    assert resource.model_dump() == dump_before
