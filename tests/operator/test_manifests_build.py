"""The objects of an attempt: names, owners, rights, groups, security, mounts, variables."""

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

LONG = "a" * 36
SCALING = {"pipeline": {"dataWorkers": {"minReplicas": 1, "maxReplicas": 3}}}
EVERY = [
    recording(),
    recording(policy={"train": {"stop": {"iterations": 2}}}, runners={"replicas": 4}),
    training(),
    training(learners={"gpus": 2, "replicas": 2}),
    training(pipeline={"dataWorkers": {"replicas": 0}}),
    training(**SCALING),
]
every = pytest.mark.parametrize("resource", EVERY, ids=lambda resource: resource.kind)


def kinds(manifests: list[dict[str, Any]]) -> list[str]:
    return [manifest["kind"] for manifest in manifests]


# -- all of them --------------------------------------------------------------------------------------------


@every
def test_five_objects_in_the_order_of_creation_owned_by_the_resource(resource: Resource) -> None:
    manifests = build_manifests(resource)
    assert kinds(manifests) == ["ConfigMap", "ServiceAccount", "Role", "RoleBinding", "RayJob"]
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
        # GitOps tools would take for theirs what carries the labels of the user's object.
        assert "team" not in labels


def test_nothing_is_owned_without_a_uid() -> None:
    assert all("ownerReferences" not in m["metadata"] for m in build_manifests(training(), uid=""))


@pytest.mark.parametrize("make", [recording, training])
def test_names_hold_for_the_longest_name_and_the_largest_numbers(make: Any) -> None:
    resource = make(name=LONG, revision=9999)
    manifests = build_manifests(resource, number=999)
    for manifest in manifests:
        name = manifest["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= 47
        assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())
    letter = "r" if make is recording else "t"
    assert manifests[-1]["metadata"]["name"] == manifests[0]["metadata"]["name"] == f"{LONG}-{letter}9999-999"


def test_a_recording_and_a_training_of_one_name_share_nothing() -> None:
    names = [
        {(m["kind"], m["metadata"]["name"]) for m in build_manifests(make("same"))}
        for make in (recording, training)
    ]
    assert not names[0] & names[1]


# -- rights -------------------------------------------------------------------------------------------------


def test_the_run_may_read_and_patch_its_config_map_and_nothing_else() -> None:
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


@every
def test_the_head_alone_has_a_token(resource: Resource) -> None:
    mounted = {p: t["spec"]["automountServiceAccountToken"] for p, t in templates(ray_job(resource)).items()}
    assert {pool for pool, token in mounted.items() if token} == {"head"}


def test_an_account_that_is_given_is_used_and_not_made() -> None:
    manifests = build_manifests(training(cluster={"serviceAccountName": "storage-user"}))
    assert kinds(manifests) == ["ConfigMap", "Role", "RoleBinding", "RayJob"]
    assert manifests[2]["subjects"][0]["name"] == "storage-user"
    for template in templates(manifests[-1]).values():
        assert template["spec"]["serviceAccountName"] == "storage-user"


# -- ConfigMap ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "resource",
    [
        *EVERY,
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
def test_the_attempt_reads_the_resource_that_was_built(resource: Resource, tmp_path: Path) -> None:
    full = effective_resource(resource, defaults(runPolicy={"backoffLimit": 9}))
    attempt = attempt_of(resource)
    data = build(full, attempt)[0]["data"]
    assert data["intent"] == "" and "report.json" not in data
    file = tmp_path / "resource.yaml"
    file.write_text(data["resource.yaml"])
    (loaded,) = load_resources(file)
    assert loaded.resource == full
    assert Attempt.model_validate_json(data["attempt.json"]) == attempt


def test_secrets_are_named_and_never_copied() -> None:
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


@every
def test_kuberay_submits_once_and_shuts_down(resource: Resource) -> None:
    job = ray_job(resource)
    spec = job["spec"]
    assert job["metadata"]["annotations"] == {"ray.io/disable-provisioned-head-restart": "true"}
    assert (spec["submissionMode"], spec["backoffLimit"]) == ("K8sJobMode", 0)
    assert (spec["shutdownAfterJobFinishes"], spec["ttlSecondsAfterFinished"]) == (True, 0)
    assert spec["entrypoint"] == "python -m hindcast.run.cluster /etc/hindcast/attempt"
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"} and cluster["rayVersion"] == "2.60.0"
    found = templates(job)
    assert found["head"]["spec"]["restartPolicy"] == found["submitter"]["spec"]["restartPolicy"] == "Never"


def test_deadlines_come_after_the_operators_own() -> None:
    spec = ray_job(training(runPolicy={"startDeadlineSeconds": 100, "ttlSecondsAfterFinished": 5}))["spec"]
    assert spec["preRunningDeadlineSeconds"] > 100 and "activeDeadlineSeconds" not in spec
    assert spec["ttlSecondsAfterFinished"] == 5
    spec = ray_job(training(runPolicy={"activeDeadlineSeconds": 1000, "startDeadlineSeconds": 100}))["spec"]
    assert spec["activeDeadlineSeconds"] > 1100
    spec = ray_job(training(runPolicy={"activeDeadlineSeconds": 10**12}))["spec"]
    assert spec["activeDeadlineSeconds"] == 2**31 - 1, "KubeRay's field has 32 bits"


@every
def test_every_group_says_how_many_cpus_ray_hands_out_and_which_pool_it_is(resource: Resource) -> None:
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
        assert int(params["object-store-memory"]) < int(shm["emptyDir"]["sizeLimit"][:-2]) * 2**20


@every
def test_workers_are_restarted_without_a_raylet_and_the_head_is_not(resource: Resource) -> None:
    for pool, group in groups(ray_job(resource)).items():
        probe = group["template"]["spec"]["containers"][0].get("livenessProbe")
        assert (probe is None) == (pool == "head")
        if probe is not None:
            assert "raylet" in probe["exec"]["command"][-1]
            assert probe["failureThreshold"] * probe["periodSeconds"] < 600, "KubeRay's own takes ten minutes"


@every
def test_pools_have_a_fixed_size_unless_the_interval_scales(resource: Resource) -> None:
    cluster = ray_job(resource)["spec"]["rayClusterSpec"]
    scaling = resource in EVERY[-1:]
    assert cluster.get("enableInTreeAutoscaling", False) == scaling
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] == group["replicas"] <= group["maxReplicas"]
        assert (group["maxReplicas"] > group["replicas"]) == (scaling and group["groupName"] == "data")
    if scaling:
        options = cluster["autoscalerOptions"]
        assert options["version"] == "v2"
        assert options["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert options["resources"]["requests"]["memory"] == options["resources"]["limits"]["memory"]


def test_queue_priority_and_labels() -> None:
    scheduling = {
        "queueName": "gpus",
        "priorityClassName": "research",
        "labels": {"volcano.sh/queue-name": "q", "hindcast.dev/name": "hidden"},
    }
    job = ray_job(training(cluster={"scheduling": scheduling}))
    labels = job["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "gpus" and labels["volcano.sh/queue-name"] == "q"
    assert labels["hindcast.dev/name"] == "clone"
    for template in templates(job).values():
        assert template["spec"]["priorityClassName"] == "research"
        assert template["metadata"]["labels"]["team"] == "control", "the resource's labels are handed on"


def test_labels_that_others_act_on_are_not_handed_on_to_pods() -> None:
    resource = training()
    labels = {"kueue.x-k8s.io/queue-name": "q", "app.kubernetes.io/instance": "argo", "keep": "me"}
    metadata = resource.metadata.model_copy(update={"labels": labels})
    for template in templates(ray_job(resource.model_copy(update={"metadata": metadata}))).values():
        assert {"keep"} == labels.keys() & template["metadata"]["labels"].keys()


# -- pods ---------------------------------------------------------------------------------------------------


@every
def test_every_pod_holds_to_restricted_pod_security(resource: Resource) -> None:
    for template in templates(ray_job(resource)).values():
        pod = template["spec"]["securityContext"]
        assert pod["runAsNonRoot"] is True and pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert (pod["runAsUser"], pod["runAsGroup"], pod["fsGroup"]) == (1000, 1000, 1000)
        for container in containers(template):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True


@every
def test_memory_is_bounded_and_disk_is_requested_everywhere(resource: Resource) -> None:
    for template in templates(ray_job(resource)).values():
        for container in containers(template):
            found = container["resources"]
            assert found["requests"]["memory"] == found["limits"]["memory"]
            assert {"cpu", "ephemeral-storage"} <= found["requests"].keys()
            assert "cpu" not in found["limits"], "a burst costs nothing"


@every
def test_gpus_stand_in_their_own_pool_alone(resource: Resource) -> None:
    for pool, template in templates(ray_job(resource)).items():
        found = template["spec"]["containers"][0]["resources"]
        gpus = found["requests"].get("nvidia.com/gpu")
        assert gpus == found["limits"].get("nvidia.com/gpu")
        tolerated = [t for t in template["spec"].get("tolerations", []) if t["key"] == "nvidia.com/gpu"]
        assert bool(tolerated) == bool(gpus)
        if pool != "submitter":
            assert (env(template).get("NVIDIA_VISIBLE_DEVICES") == "void") == (gpus is None)
        if gpus:
            assert pool == "learner"


@every
def test_pods_write_to_volumes_and_the_head_reads_its_attempt(resource: Resource) -> None:
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


def test_variables_of_ray_pods() -> None:
    given = [{"name": "PYTHONUNBUFFERED", "value": "0"}, {"name": "MINE", "value": "1"}]
    for pool, template in templates(ray_job(training(cluster={"env": given}), number=2)).items():
        found = env(template)
        names = [variable["name"] for variable in template["spec"]["containers"][0]["env"]]
        assert len(names) == len(set(names))
        if pool == "submitter":
            continue
        assert found["HINDCAST_ATTEMPT"] == "clone-t1-2" and found["HINDCAST_NAMESPACE"] == "rl"
        assert found["MINE"] == "1" and found["PYTHONUNBUFFERED"] == "0"
        assert found["HINDCAST_CACHE"] == "s3://bucket/hindcast/rl/runs/.cache"


def test_the_cache_keeps_the_options_of_its_uri_at_the_end() -> None:
    job = ray_job(training(checkpoint={"path": "hdfs://nn:8020/runs/?user=me"}))
    assert env(templates(job)["learner"])["HINDCAST_CACHE"] == "hdfs://nn:8020/runs/.cache?user=me"


def test_the_users_code_can_be_imported_on_every_ray_pod() -> None:
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


def test_a_users_volume_takes_the_place_of_ours() -> None:
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


def test_where_pods_may_go_and_how_their_image_comes() -> None:
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


def test_building_twice_gives_the_same() -> None:
    assert json.dumps(build_manifests(training())) == json.dumps(build_manifests(training()))


# -- YAML ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["on", "No", "1", "1_000", "0o17", "1e3", "~", "", "2001-01-01", "12:30", ":key:", "a\nb", "x"]
)
def test_text_stays_text_for_readers_of_old_and_new_yaml(text: str) -> None:
    from ruamel.yaml import YAML

    written = yaml_text({"value": text})
    for version in ("1.1", "1.2"):
        reader = YAML(typ="safe", pure=True)
        reader.version = version  # type: ignore[assignment]
        assert reader.load(written) == {"value": text}
