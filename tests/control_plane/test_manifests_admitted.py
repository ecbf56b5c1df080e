"""The manifests of an attempt are admitted by a real API server: strictly, and under restricted Pod Security."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from api_server import ApiServer, Object, RefusalError
from hindcast.api import Resource, validate_resource
from hindcast.api.attempt import Attempt
from hindcast_operator.manifests import build, effective_resource
from hindcast_operator.manifests.build import render
from manifest_examples import attempt_of, defaults, recording, templates, training

LONG_NAME = "a" * 36
PLATFORM = defaults(
    allowAutoscaling=True,
    cluster={"env": [{"name": "REGION", "value": "on"}], "imagePullSecrets": [{"name": "registry"}]},
    runPolicy={"stallTimeoutSeconds": 600},
)
FULL_CLUSTER: dict[str, Any] = {
    "imagePullPolicy": "IfNotPresent",
    "code": {"configMap": {"name": "code"}, "runtimeEnv": {"env_vars": {"A": "on"}, "pip": ["x"]}},
    "env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}}],
    "envFrom": [{"secretRef": {"name": "storage"}, "prefix": "S3_"}],
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"key": "team", "effect": "NoExecute", "tolerationSeconds": 5}],
    "volumes": [
        {"name": "data", "mountPath": "/data", "subPath": "x", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "disk", "mountPath": "/tmp", "emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}},
        {"name": "keys", "mountPath": "/keys", "readOnly": True, "secret": {"secretName": "s"}},
        {"name": "conf", "mountPath": "/conf", "configMap": {"name": "c"}},
    ],
    "scheduling": {"queueName": "q", "labels": {"volcano.sh/queue-name": "q"}},
    "podOverrides": {
        "all": {"metadata": {"annotations": {"a": "b"}}, "spec": {"dnsPolicy": "Default"}},
        "head": {"spec": {"containers": [{"name": "log", "image": "log", "args": ["x"]}]}},
        "learner": {"spec": {"containers": [{"name": "ray", "resources": {"limits": {"cpu": "2"}}}]}},
    },
}
AUTOSCALED_PIPELINE = {"dataWorkers": {"minReplicas": 1, "maxReplicas": 3}}
RESOURCES = {
    "recording": recording(),
    "recording of an expert": recording(
        LONG_NAME, revision=9999, policy={"train": {"stop": {"iterations": 2}}}, cluster=FULL_CLUSTER
    ),
    "training": training(learners={"gpus": 2, "replicas": 2}),
    "training in the learner's process": training(pipeline={"dataWorkers": {"replicas": 0}}),
    "training with everything": training(
        LONG_NAME, revision=9999, pipeline=AUTOSCALED_PIPELINE, cluster=FULL_CLUSTER
    ),
}
each_resource = pytest.mark.parametrize("resource", RESOURCES.values(), ids=RESOURCES)


@pytest.fixture
def restricted_namespace(api: ApiServer, namespace: str) -> str:
    """The namespace, with the Pod Security level `restricted`."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.merge(manifest, {"metadata": {"labels": labels}})
    return namespace


def build_manifests_in(namespace: str, resource: Resource, number: int = 1) -> list[Object]:
    attempt = attempt_of(resource, number=number, uid="").model_copy(update={"namespace": namespace})
    return build(effective_resource(resource, PLATFORM), attempt)


def build_pods(job: Object, namespace: str) -> Iterator[Object]:
    for pool, template in templates(job).items():
        metadata = {**template["metadata"], "name": pool, "namespace": namespace}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


@each_resource
def test_objects_and_pods_are_admitted(api: ApiServer, restricted_namespace: str, resource: Resource) -> None:
    manifests = build_manifests_in(restricted_namespace, resource, number=999)
    for manifest in manifests:
        response = api.create(manifest)
        assert find_dropped_fields(manifest, response) == []
    for pod in build_pods(manifests[-1], restricted_namespace):
        api.create(pod, dryRun="All")


def find_dropped_fields(sent: Any, stored: Any, path: str = "") -> list[str]:
    """Return the paths of fields that were sent but are not stored."""
    if isinstance(sent, dict):
        missing = [f"{path}.{key}" for key in sent if key not in stored]
        return missing + [
            p for k in sent if k in stored for p in find_dropped_fields(sent[k], stored[k], f"{path}.{k}")
        ]
    if isinstance(sent, list):
        return [
            p
            for i, (a, b) in enumerate(zip(sent, stored, strict=True))
            for p in find_dropped_fields(a, b, f"{path}[{i}]")
        ]
    return []


def test_restricted_namespace_refuses_unrestricted_pod(api: ApiServer, restricted_namespace: str) -> None:
    manifests = build_manifests_in(restricted_namespace, recording())
    for manifest in manifests[:-1]:
        api.create(manifest)
    for pod in build_pods(manifests[-1], restricted_namespace):
        pod["spec"]["containers"][0]["securityContext"] = {}
        with pytest.raises(RefusalError, match="violates PodSecurity"):
            api.create(pod, dryRun="All")


def test_rendered_resource_equals_stored_one(api: ApiServer, namespace: str) -> None:
    spec = {"input": [{"path": "data"}], "runPolicy": {"startDeadlineSeconds": 50}, "config": {"lr": 8e-4}}
    resource = training(**spec)
    document = resource.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["metadata"]["namespace"] = namespace
    stored_resource = validate_resource(api.create(document))
    assert stored_resource.metadata.namespace == namespace
    (rendered_attempt,) = render([validate_resource(document)], PLATFORM, "default")
    attempt = Attempt.model_validate_json(rendered_attempt.manifests[0]["data"]["attempt.json"])
    assert build(effective_resource(stored_resource, PLATFORM), attempt) == rendered_attempt.manifests
    assert effective_resource(stored_resource, PLATFORM).spec.run_policy.stall_timeout_seconds == 600


def test_sizes_are_stored_in_status(api: ApiServer, namespace: str) -> None:
    resource = training()
    document = resource.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["metadata"]["namespace"] = namespace
    api.create(document)
    (rendered_attempt,) = render([resource], PLATFORM, namespace)
    sizes = rendered_attempt.sizes.to_status()
    response = api.merge(document, {"status": {"resolved": sizes}}, "/status")
    assert response["status"]["resolved"] == sizes
