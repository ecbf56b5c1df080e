"""The objects of an attempt: names, owners, rights, worker groups, security, mounts, variables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hindcast.api import Resource, load_resources
from hindcast.api.attempt import Attempt
from hindcast_operator.manifests import build, effective_resource
from hindcast_operator.manifests.yaml_text import yaml_text
from manifest_examples import (
    UID,
    attempt_of,
    build_manifests,
    containers,
    defaults,
    env,
    groups,
    ray_job,
    recording,
    templates,
    training,
)

LONG_NAME = "a" * 36
AUTOSCALED = {"pipeline": {"dataWorkers": {"minReplicas": 1, "maxReplicas": 3}}}
RESOURCES = [
    recording(),
    recording(policy={"train": {"stop": {"iterations": 2}}}, runners={"replicas": 4}),
    training(),
    training(learners={"gpus": 2, "replicas": 2}),
    training(pipeline={"dataWorkers": {"replicas": 0}}),
    training(**AUTOSCALED),
]
each_resource = pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)


def list_kinds(manifests: list[dict[str, Any]]) -> list[str]:
    return [manifest["kind"] for manifest in manifests]


# -- all objects --------------------------------------------------------------------------------------------


@each_resource
def test_build_returns_five_owned_objects_in_creation_order(resource: Resource) -> None:
    manifests = build_manifests(resource)
    assert list_kinds(manifests) == ["ConfigMap", "ServiceAccount", "Role", "RoleBinding", "RayJob"]
    for manifest in manifests:
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert owner == {
            "apiVersion": "hindcast.dev/v1alpha1",
            "kind": resource.kind,
            "name": resource.metadata.name,
            "uid": UID,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        assert manifest["metadata"]["namespace"] == "rl"
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "hindcast-operator"
        assert labels["hindcast.dev/name"] == resource.metadata.name
        # GitOps tools would adopt an object that has the labels of the user's resource.
        assert "team" not in labels


def test_build_without_uid_sets_no_owner() -> None:
    assert all("ownerReferences" not in m["metadata"] for m in build_manifests(training(), uid=""))


@pytest.mark.parametrize("make", [recording, training])
def test_longest_names_and_largest_numbers_give_valid_names(make: Any) -> None:
    resource = make(name=LONG_NAME, revision=9999)
    manifests = build_manifests(resource, number=999)
    for manifest in manifests:
        name = manifest["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= 47
        assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())
    letter = "r" if make is recording else "t"
    assert (
        manifests[-1]["metadata"]["name"]
        == manifests[0]["metadata"]["name"]
        == f"{LONG_NAME}-{letter}9999-999"
    )


def test_recording_and_training_of_same_name_share_no_object() -> None:
    names = [
        {(m["kind"], m["metadata"]["name"]) for m in build_manifests(make("same"))}
        for make in (recording, training)
    ]
    assert not names[0] & names[1]


# -- rights -------------------------------------------------------------------------------------------------


def test_role_allows_only_get_and_patch_of_own_config_map() -> None:
    config_map, account, role, binding, job = build_manifests(training(), number=3)
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [config_map["metadata"]["name"]],
            "verbs": ["get", "patch"],
        }
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    subject = {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "rl"}
    assert binding["subjects"] == [subject]
    assert {t["spec"]["serviceAccountName"] for t in templates(job).values()} == {account["metadata"]["name"]}


@each_resource
def test_only_head_mounts_token(resource: Resource) -> None:
    mounts_token_by_pool = {
        pool: template["spec"]["automountServiceAccountToken"]
        for pool, template in templates(ray_job(resource)).items()
    }
    assert {pool for pool, token in mounts_token_by_pool.items() if token} == {"head"}


def test_token_of_head_is_renewed_within_minutes() -> None:
    """Regression: a restored ServiceAccount left the run silent for most of the hour for which a token lives."""
    head = templates(ray_job(training()))["head"]["spec"]
    (volume,) = [volume for volume in head["volumes"] if volume["name"] == "hindcast-token"]
    assert volume["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"] == 600
    mounts = {mount["name"]: mount["mountPath"] for mount in head["containers"][0]["volumeMounts"]}
    assert mounts["hindcast-token"] == "/var/run/secrets/kubernetes.io/serviceaccount"


def test_named_service_account_is_used_and_not_created() -> None:
    manifests = build_manifests(training(cluster={"serviceAccountName": "storage-user"}))
    assert list_kinds(manifests) == ["ConfigMap", "Role", "RoleBinding", "RayJob"]
    assert manifests[2]["subjects"][0]["name"] == "storage-user"
    for template in templates(manifests[-1]).values():
        assert template["spec"]["serviceAccountName"] == "storage-user"


# -- ConfigMap ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "resource",
    [
        *RESOURCES,
        training(
            config={"lr": 8e-4},
            seed=7,
            cluster={
                "env": [
                    {"name": "A", "value": "on"},
                    {"name": "B", "value": "1e3"},
                    {"name": "C", "value": "a: b\n#"},
                ],
                "podOverrides": {"all": {"spec": {"dnsPolicy": None, "x": [1.5, True, "no"]}}},
            },
        ),
    ],
)
def test_resource_in_config_map_loads_as_effective_resource(resource: Resource, tmp_path: Path) -> None:
    resource_with_defaults = effective_resource(resource, defaults(runPolicy={"backoffLimit": 9}))
    attempt = attempt_of(resource)
    data = build(resource_with_defaults, attempt)[0]["data"]
    assert data["intent"] == "" and "report.json" not in data
    file = tmp_path / "resource.yaml"
    file.write_text(data["resource.yaml"])
    (loaded,) = load_resources(file)
    assert loaded.resource == resource_with_defaults
    assert Attempt.model_validate_json(data["attempt.json"]) == attempt


def test_secrets_are_referenced_and_never_copied() -> None:
    cluster = {
        "envFrom": [
            {"secretRef": {"name": "storage"}, "prefix": "S3_"},
            {"configMapRef": {"name": "settings"}},
        ],
        "env": [
            {
                "name": "TOKEN",
                "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token", "optional": True}},
            },
            {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}},
        ],
    }
    for pool, template in templates(ray_job(training(cluster=cluster))).items():
        container = template["spec"]["containers"][0]
        if pool == "submitter":
            assert "envFrom" not in container
            continue
        assert container["envFrom"] == [
            {"secretRef": {"name": "storage"}, "prefix": "S3_"},
            {"configMapRef": {"name": "settings"}},
        ]
        assert env(template)["TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token", "optional": True}}
        assert env(template)["MODE"] == {"configMapKeyRef": {"name": "settings", "key": "mode"}}


# -- RayJob -------------------------------------------------------------------------------------------------


@each_resource
def test_ray_job_submits_once_and_shuts_down(resource: Resource) -> None:
    job = ray_job(resource)
    spec = job["spec"]
    assert job["metadata"]["annotations"] == {"ray.io/disable-provisioned-head-restart": "true"}
    assert (spec["submissionMode"], spec["backoffLimit"]) == ("K8sJobMode", 0)
    assert (spec["shutdownAfterJobFinishes"], spec["ttlSecondsAfterFinished"]) == (True, 0)
    assert spec["entrypoint"] == "python -m hindcast.cluster /etc/hindcast/attempt"
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"} and cluster["rayVersion"] == "2.60.0"
    pod_templates = templates(job)
    assert (
        pod_templates["head"]["spec"]["restartPolicy"]
        == pod_templates["submitter"]["spec"]["restartPolicy"]
        == "Never"
    )


def test_kuberay_deadlines_are_later_than_operator_deadlines() -> None:
    spec = ray_job(training(runPolicy={"startDeadlineSeconds": 100, "ttlSecondsAfterFinished": 5}))["spec"]
    assert not {"preRunningDeadlineSeconds", "activeDeadlineSeconds"} & spec.keys()
    assert spec["ttlSecondsAfterFinished"] == 5
    spec = ray_job(training(runPolicy={"activeDeadlineSeconds": 1000}))["spec"]
    assert spec["activeDeadlineSeconds"] > 1000
    spec = ray_job(training(runPolicy={"activeDeadlineSeconds": 10**12}))["spec"]
    assert spec["activeDeadlineSeconds"] == 2**31 - 1, "KubeRay's field has 32 bits"


@each_resource
def test_every_group_sets_ray_resources_and_pool_label(resource: Resource) -> None:
    job = ray_job(resource)
    for pool, group in groups(job).items():
        params = group["rayStartParams"]
        assert all(isinstance(value, str) for value in params.values())
        assert (params["num-cpus"] == "0") == (pool == "head")
        gpus = group["template"]["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", "0")
        assert params["num-gpus"] == gpus
        assert group["labels"] == {"hindcast.dev/pool": pool}
        assert group["template"]["metadata"]["labels"]["hindcast.dev/pool"] == pool
        (shm,) = (v for v in group["template"]["spec"]["volumes"] if v.get("emptyDir", {}).get("medium"))
        size_limit = shm["emptyDir"]["sizeLimit"]
        assert size_limit.endswith("Mi")
        assert int(params["object-store-memory"]) < int(size_limit[:-2]) * 2**20


@each_resource
def test_only_workers_have_raylet_probe(resource: Resource) -> None:
    for pool, group in groups(ray_job(resource)).items():
        container = group["template"]["spec"]["containers"][0]
        assert "httpGet" in container["readinessProbe"], "the image has no wget, which KubeRay 1.5 would use"
        probe = container["livenessProbe"]
        assert ("httpGet" in probe) == (pool == "head")
        if pool != "head":
            assert "raylet" in probe["exec"]["command"][-1]
            assert probe["failureThreshold"] * probe["periodSeconds"] < 600, (
                "KubeRay's probe takes ten minutes"
            )


@each_resource
def test_only_pools_with_replica_interval_are_autoscaled(resource: Resource) -> None:
    cluster = ray_job(resource)["spec"]["rayClusterSpec"]
    is_autoscaled = resource == training(**AUTOSCALED)
    assert cluster.get("enableInTreeAutoscaling", False) == is_autoscaled
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] == group["replicas"] <= group["maxReplicas"]
        assert (group["maxReplicas"] > group["replicas"]) == (is_autoscaled and group["groupName"] == "data")
    if is_autoscaled:
        options = cluster["autoscalerOptions"]
        assert options["version"] == "v2"
        assert options["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert options["resources"]["requests"]["memory"] == options["resources"]["limits"]["memory"]
        assert "hindcast-token" in {mount["name"] for mount in options["volumeMounts"]}


def test_scheduling_sets_queue_priority_labels_and_annotations() -> None:
    scheduling = {
        "queueName": "gpus",
        "priorityClassName": "research",
        "labels": {"volcano.sh/queue-name": "q", "hindcast.dev/name": "hidden"},
        "avoidDisruption": True,
    }
    job = ray_job(training(cluster={"scheduling": scheduling}))
    labels = job["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "gpus" and labels["volcano.sh/queue-name"] == "q"
    assert labels["hindcast.dev/name"] == "clone"
    for template in templates(job).values():
        assert template["spec"]["priorityClassName"] == "research"
        assert template["metadata"]["labels"]["team"] == "control", (
            "the resource's labels are copied to its pods"
        )
        assert template["metadata"]["annotations"] == {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
        }


def test_labels_of_other_tools_are_not_copied_to_pods() -> None:
    resource = training()
    labels = {"kueue.x-k8s.io/queue-name": "q", "app.kubernetes.io/instance": "argo", "keep": "me"}
    metadata = resource.metadata.model_copy(update={"labels": labels})
    for template in templates(ray_job(resource.model_copy(update={"metadata": metadata}))).values():
        assert {"keep"} == labels.keys() & template["metadata"]["labels"].keys()


# -- pods ---------------------------------------------------------------------------------------------------


@each_resource
def test_every_pod_satisfies_restricted_pod_security(resource: Resource) -> None:
    for template in templates(ray_job(resource)).values():
        pod_context = template["spec"]["securityContext"]
        assert pod_context["runAsNonRoot"] is True and pod_context["seccompProfile"] == {
            "type": "RuntimeDefault"
        }
        assert (pod_context["runAsUser"], pod_context["runAsGroup"], pod_context["fsGroup"]) == (
            1000,
            1000,
            1000,
        )
        for container in containers(template):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True


@each_resource
def test_every_container_limits_memory_and_requests_disk(resource: Resource) -> None:
    for template in templates(ray_job(resource)).values():
        for container in containers(template):
            resources = container["resources"]
            assert resources["requests"]["memory"] == resources["limits"]["memory"]
            assert {"cpu", "ephemeral-storage"} <= resources["requests"].keys()
            assert "cpu" not in resources["limits"], "a pod may use idle CPUs"


@each_resource
def test_only_learner_pool_requests_gpus(resource: Resource) -> None:
    for pool, template in templates(ray_job(resource)).items():
        resources = template["spec"]["containers"][0]["resources"]
        gpus = resources["requests"].get("nvidia.com/gpu")
        assert gpus == resources["limits"].get("nvidia.com/gpu")
        tolerations = [t for t in template["spec"].get("tolerations", []) if t["key"] == "nvidia.com/gpu"]
        assert bool(tolerations) == bool(gpus)
        if pool != "submitter":
            assert (env(template).get("NVIDIA_VISIBLE_DEVICES") == "void") == (gpus is None)
        if gpus:
            assert pool == "learner"


@each_resource
def test_pods_have_writable_volumes_and_head_mounts_attempt(resource: Resource) -> None:
    job = ray_job(resource)
    for pool, template in templates(job).items():
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        mounts = {m["mountPath"]: m for m in template["spec"]["containers"][0]["volumeMounts"]}
        assert {mount["name"] for mount in mounts.values()} == set(volumes)
        assert {"/tmp", env(template)["HOME"]} <= mounts.keys()
        if pool == "submitter":
            continue
        assert volumes[mounts["/dev/shm"]["name"]]["emptyDir"]["medium"] == "Memory"
        spill = groups(job)[pool]["rayStartParams"]["object-spilling-directory"]
        assert "sizeLimit" in volumes[mounts[spill]["name"]]["emptyDir"]
        assert ("/etc/hindcast/attempt" in mounts) == (pool == "head")
        if pool == "head":
            source = volumes[mounts["/etc/hindcast/attempt"]["name"]]["configMap"]
            assert source["name"] == job["metadata"]["name"]
            # The report changes every few seconds; the mount must not.
            assert {item["key"] for item in source["items"]} == {"resource.yaml", "attempt.json"}


def test_user_variables_replace_all_but_reserved_ones() -> None:
    user_env = [{"name": "PYTHONUNBUFFERED", "value": "0"}, {"name": "MINE", "value": "1"}]
    for pool, template in templates(ray_job(training(cluster={"env": user_env}), number=2)).items():
        variables = env(template)
        names = [variable["name"] for variable in template["spec"]["containers"][0]["env"]]
        assert len(names) == len(set(names))
        if pool == "submitter":
            continue
        assert variables["HINDCAST_ATTEMPT"] == "clone-t1-2" and variables["HINDCAST_NAMESPACE"] == "rl"
        assert variables["MINE"] == "1" and variables["PYTHONUNBUFFERED"] == "0"
        assert variables["HINDCAST_CACHE"] == "s3://bucket/hindcast/rl/runs/.cache"


def test_cache_location_keeps_uri_query_at_end() -> None:
    job = ray_job(training(checkpoint={"path": "hdfs://nn:8020/runs/?user=me"}))
    assert env(templates(job)["learner"])["HINDCAST_CACHE"] == "hdfs://nn:8020/runs/.cache?user=me"


def test_user_code_is_importable_on_every_ray_pod() -> None:
    code = {"configMap": {"name": "mine"}, "runtimeEnv": {"pip": ["a"], "env_vars": {"X": "on"}}}
    job = ray_job(training(cluster={"code": code, "env": [{"name": "PYTHONPATH", "value": "/opt/own"}]}))
    assert json.loads(job["spec"]["runtimeEnvYAML"]) == code["runtimeEnv"]
    for pool, template in templates(job).items():
        if pool == "submitter":
            continue
        (mount,) = (
            m
            for m in template["spec"]["containers"][0]["volumeMounts"]
            if m["mountPath"] == "/etc/hindcast/code"
        )
        assert {"name": mount["name"], "configMap": {"name": "mine"}} in template["spec"]["volumes"]
        assert env(template)["PYTHONPATH"] == "/etc/hindcast/code:/opt/own"


def test_user_volume_replaces_operator_volume_at_same_path() -> None:
    volumes = [
        {"name": "disk", "mountPath": "/tmp", "emptyDir": {"sizeLimit": "9Gi"}},
        {"name": "data", "mountPath": "/data", "subPath": "a", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "keys", "mountPath": "/keys", "readOnly": True, "secret": {"secretName": "s"}},
    ]
    template = templates(ray_job(training(cluster={"volumes": volumes})))["data"]["spec"]
    mounts = template["containers"][0]["volumeMounts"]
    assert [m for m in mounts if m["mountPath"] == "/tmp"] == [{"name": "disk", "mountPath": "/tmp"}]
    assert {"name": "data", "mountPath": "/data", "subPath": "a"} in mounts
    assert {"name": "keys", "mountPath": "/keys", "readOnly": True} in mounts
    assert {"name": "disk", "emptyDir": {"sizeLimit": "9Gi"}} in template["volumes"]
    assert {"name": "keys", "secret": {"secretName": "s"}} in template["volumes"]
    assert len({volume["name"] for volume in template["volumes"]}) == len(template["volumes"])


def test_pods_have_placement_and_image_settings() -> None:
    cluster = {
        "image": "own:1",
        "imagePullPolicy": "Never",
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "team", "value": "rl", "effect": "NoSchedule"}],
    }
    for template in templates(ray_job(training(cluster=cluster))).values():
        spec = template["spec"]
        assert {(c["image"], c["imagePullPolicy"]) for c in containers(template)} == {("own:1", "Never")}
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["nodeSelector"] == {"zone": "a"}
        assert spec["tolerations"] == [
            {"key": "team", "operator": "Equal", "value": "rl", "effect": "NoSchedule"}
        ]


def test_build_is_deterministic() -> None:
    assert json.dumps(build_manifests(training())) == json.dumps(build_manifests(training()))


# -- YAML ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["on", "No", "1", "1_000", "0o17", "1e3", "~", "", "2001-01-01", "12:30", ":key:", "a\nb", "x"]
)
def test_yaml_text_stays_text_in_yaml_1_1_and_1_2(text: str) -> None:
    from ruamel.yaml import YAML

    document = yaml_text({"value": text})
    for version in ("1.1", "1.2"):
        reader = YAML(typ="safe", pure=True)
        reader.version = version  # type: ignore[assignment]
        assert reader.load(document) == {"value": text}
