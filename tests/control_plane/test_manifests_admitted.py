"""What is built for an attempt is admitted by a real API server: strictly, and under restricted Pod Security."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from api_server import ApiServer, Object, RefusalError, collection, wait_for
from hindcast.api import Resource, validate_resource
from hindcast.api.attempt import Attempt
from hindcast_operator.manifests import build, effective_resource
from hindcast_operator.manifests.build import render
from manifest_examples import attempt_of, defaults, recording, templates, training

LONG = "a" * 36
PLATFORM = defaults(
    allowAutoscaling=True,
    cluster={"env": [{"name": "REGION", "value": "on"}], "imagePullSecrets": [{"name": "registry"}]},
    runPolicy={"stallTimeoutSeconds": 600},
)
FULL: dict[str, Any] = {
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
INTERVAL = {"dataWorkers": {"minReplicas": 1, "maxReplicas": 3}}
RESOURCES = {
    "recording": recording(),
    "recording of an expert": recording(
        LONG, revision=9999, policy={"train": {"stop": {"iterations": 2}}}, cluster=FULL
    ),
    "training": training(learners={"gpus": 2, "replicas": 2}),
    "training in the learner's process": training(pipeline={"dataWorkers": {"replicas": 0}}),
    "training with everything": training(LONG, revision=9999, pipeline=INTERVAL, cluster=FULL),
}
examples = pytest.mark.parametrize("resource", RESOURCES.values(), ids=RESOURCES)


@pytest.fixture
def restricted(api: ApiServer, namespace: str) -> str:
    """The namespace, under restricted Pod Security."""
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.merge(space, {"metadata": {"labels": labels}})
    return namespace


def manifests_in(namespace: str, resource: Resource, number: int = 1) -> list[Object]:
    attempt = attempt_of(resource, number=number, uid="").model_copy(update={"namespace": namespace})
    return build(effective_resource(resource, PLATFORM), attempt)


def pods(job: Object, namespace: str) -> Iterator[Object]:
    for pool, template in templates(job).items():
        metadata = {**template["metadata"], "name": pool, "namespace": namespace}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


@examples
def test_objects_and_pods_are_admitted(api: ApiServer, restricted: str, resource: Resource) -> None:
    manifests = manifests_in(restricted, resource, number=999)
    for manifest in manifests:
        stored = api.create(manifest)
        assert pruned(manifest, stored) == []
    for pod in pods(manifests[-1], restricted):
        api.create(pod, dryRun="All")


def pruned(sent: Any, stored: Any, path: str = "") -> list[str]:
    """Fields that were sent and are not stored."""
    if isinstance(sent, dict):
        missing = [f"{path}.{key}" for key in sent if key not in stored]
        return missing + [p for k in sent if k in stored for p in pruned(sent[k], stored[k], f"{path}.{k}")]
    if isinstance(sent, list):
        return [
            p for i, (a, b) in enumerate(zip(sent, stored, strict=True)) for p in pruned(a, b, f"{path}[{i}]")
        ]
    return []


def test_the_namespace_would_refuse_pods_with_less(api: ApiServer, restricted: str) -> None:
    manifests = manifests_in(restricted, recording())
    for manifest in manifests[:-1]:
        api.create(manifest)
    for pod in pods(manifests[-1], restricted):
        pod["spec"]["containers"][0]["securityContext"] = {}
        with pytest.raises(RefusalError, match="violates PodSecurity"):
            api.create(pod, dryRun="All")


def test_a_rendered_resource_is_what_comes_of_the_stored_one(api: ApiServer, namespace: str) -> None:
    spec = {"input": [{"path": "data"}], "runPolicy": {"startDeadlineSeconds": 50}, "config": {"lr": 8e-4}}
    resource = training(**spec)
    document = resource.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["metadata"]["namespace"] = namespace
    stored = validate_resource(api.create(document))
    assert stored.metadata.namespace == namespace
    (rendered,) = render([validate_resource(document)], PLATFORM, "default")
    attempt = Attempt.model_validate_json(rendered.manifests[0]["data"]["attempt.json"])
    assert build(effective_resource(stored, PLATFORM), attempt) == rendered.manifests
    assert effective_resource(stored, PLATFORM).spec.run_policy.stall_timeout_seconds == 600


def test_the_run_can_patch_its_config_map_and_nothing_else(api: ApiServer, namespace: str) -> None:
    first, *others = manifests_in(namespace, training())
    for manifest in (first, *others[:-1]):
        api.create(manifest)
    account = others[0]["metadata"]["name"]

    def may(verb: str, resource: str, name: str = "", group: str = "") -> bool:
        attributes = {
            "namespace": namespace,
            "verb": verb,
            "resource": resource,
            "name": name,
            "group": group,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{namespace}:{account}",
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "resourceAttributes": attributes,
            },
        }
        answer = api.request("POST", collection("authorization.k8s.io/v1", "subjectaccessreviews"), review)
        return bool(answer["status"]["allowed"])

    own, later = "clone-t1-1", "clone-t1-2"
    wait_for(lambda: may("get", "configmaps", own), "the API server has heard of the new role")
    assert may("patch", "configmaps", own)
    forbidden = [
        ("update", "configmaps", own, ""),
        ("delete", "configmaps", own, ""),
        ("patch", "configmaps", later, ""),
        ("list", "configmaps", "", ""),
        ("create", "configmaps", "", ""),
        ("get", "secrets", "storage", ""),
        ("create", "pods", "", ""),
        ("patch", "roles", account, "rbac.authorization.k8s.io"),
        ("patch", "offlinetrainings", "clone", "hindcast.dev"),
        ("get", "rayjobs", own, "ray.io"),
    ]
    assert [request for request in forbidden if may(*request)] == []

    # The next attempt's role takes the voice of this one.
    role = manifests_in(namespace, training(), number=2)[2]
    api.apply(role, "hindcast-operator")
    wait_for(lambda: may("patch", "configmaps", later), "the API server has heard of the changed role")
    assert not may("patch", "configmaps", own)


def test_sizes_fit_the_status(api: ApiServer, namespace: str) -> None:
    resource = training()
    document = resource.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["metadata"]["namespace"] = namespace
    api.create(document)
    (rendered,) = render([resource], PLATFORM, namespace)
    resolved = rendered.sizes.to_status()
    stored = api.merge(document, {"status": {"resolved": resolved}}, "/status")
    assert stored["status"]["resolved"] == resolved
