"""Strategic merge, and the limits of pod overrides."""

from __future__ import annotations

from typing import Any

import pytest

from hindcast_operator.defaults import Defaults
from hindcast_operator.manifests.overrides import strategic_merge
from manifest_examples import containers, list_refusals, ray_job, recording, templates, training


@pytest.mark.parametrize(
    ("base", "patch", "expected"),
    [
        ({"a": 1, "b": {"c": 1}}, {"b": {"d": 2}}, {"a": 1, "b": {"c": 1, "d": 2}}),
        ({"a": 1}, {"a": None}, {}),
        ({"args": ["x"]}, {"args": ["y"]}, {"args": ["y"]}),
        (
            {
                "containers": [
                    {"name": "ray", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}
                ]
            },
            {"containers": [{"name": "log"}, {"name": "ray", "env": [{"name": "B", "value": "2"}]}]},
            {
                "containers": [
                    {"name": "ray", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
                    {"name": "log"},
                ]
            },
        ),
        (
            {"volumes": [{"name": "a", "emptyDir": {}}]},
            {"volumes": [{"name": "b", "emptyDir": {}}]},
            {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}]},
        ),
        (
            {"volumeMounts": [{"mountPath": "/x", "name": "a"}]},
            {"volumeMounts": [{"mountPath": "/x", "readOnly": True}]},
            {"volumeMounts": [{"mountPath": "/x", "name": "a", "readOnly": True}]},
        ),
        (
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "a"}, {"key": "b"}]},
        ),
        ({"a": [1]}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_strategic_merge_follows_kubernetes_rules(
    base: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]
) -> None:
    repr_before = repr((base, patch))
    merged = strategic_merge(base, patch)
    assert merged == expected
    assert strategic_merge(merged, patch) == merged
    assert repr((base, patch)) == repr_before


def test_overrides_apply_to_all_pods_or_one_pool() -> None:
    job = ray_job(
        training(
            cluster={
                "podOverrides": {
                    "all": {"metadata": {"annotations": {"a": "all"}}, "spec": {"dnsPolicy": "Default"}},
                    "learner": {
                        "metadata": {"annotations": {"a": "learner"}},
                        "spec": {"containers": [{"name": "ray", "resources": {"limits": {"cpu": "3"}}}]},
                    },
                }
            }
        )
    )
    pod_templates = templates(job)
    assert {name: t["spec"]["dnsPolicy"] for name, t in pod_templates.items()} == dict.fromkeys(
        pod_templates, "Default"
    )
    annotations = {name: t["metadata"]["annotations"]["a"] for name, t in pod_templates.items()}
    assert annotations == {"submitter": "all", "head": "all", "data": "all", "learner": "learner"}
    limits = pod_templates["learner"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["cpu"] == "3" and "memory" in limits
    assert "cpu" not in pod_templates["data"]["spec"]["containers"][0]["resources"]["limits"]


def test_container_overrides_do_not_apply_to_submitter() -> None:
    sidecar = {"spec": {"containers": [{"name": "log", "image": "log"}], "nodeSelector": {"a": "b"}}}
    pod_templates = templates(ray_job(recording(cluster={"podOverrides": {"all": sidecar}})))
    assert [c["name"] for c in pod_templates["submitter"]["spec"]["containers"]] == ["submitter"]
    assert pod_templates["submitter"]["spec"]["nodeSelector"] == {"a": "b"}
    assert [c["name"] for c in pod_templates["runner"]["spec"]["containers"]] == ["ray", "log"]


def test_overrides_cannot_change_operator_labels() -> None:
    override = {"metadata": {"labels": {"hindcast.dev/pool": "mine", "own": "yes"}}}
    job = ray_job(training(cluster={"podOverrides": {"all": override}}))
    for pool, template in templates(job).items():
        assert template["metadata"]["labels"]["hindcast.dev/pool"] == pool
        assert template["metadata"]["labels"]["own"] == "yes"


def test_overrides_cannot_remove_restrictions() -> None:
    override = {
        "spec": {
            "securityContext": {"runAsUser": None, "runAsNonRoot": None, "seccompProfile": None},
            "containers": [
                {"name": "ray", "securityContext": None},
                {"name": "log", "image": "log", "securityContext": {"capabilities": {"drop": ["NET_RAW"]}}},
            ],
            "initContainers": [{"name": "fetch", "image": "fetch"}],
        }
    }
    resource = training(cluster={"podOverrides": {"all": override}})
    assert list_refusals(resource) == []
    for template in templates(ray_job(resource)).values():
        pod_context = template["spec"]["securityContext"]
        assert (
            pod_context["runAsNonRoot"] is True and pod_context["seccompProfile"]["type"] == "RuntimeDefault"
        )
        assert "runAsUser" not in pod_context
        for container in containers(template):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert "ALL" in container["securityContext"]["capabilities"]["drop"]


def test_build_does_not_modify_overrides() -> None:
    override = {"spec": {"containers": [{"name": "log", "image": "log"}]}}
    resource = training(cluster={"podOverrides": {"all": override}})
    ray_job(resource)
    assert resource.spec.cluster.pod_overrides.all == {
        "spec": {"containers": [{"name": "log", "image": "log"}]}
    }


RAY_CONTAINER = "spec.cluster.podOverrides.learner.spec.containers.ray"


@pytest.mark.parametrize(
    ("spec", "phrase"),
    [
        ({"hostNetwork": True}, "spec.cluster.podOverrides.learner.spec.hostNetwork is true"),
        ({"hostPID": True}, "hostPID is true"),
        ({"hostIPC": True}, "hostIPC is true"),
        ({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}, "spec.volumes.host.hostPath is"),
        ({"securityContext": {"runAsUser": 0}}, "spec.securityContext.runAsUser is 0"),
        ({"securityContext": {"runAsNonRoot": False}}, "spec.securityContext.runAsNonRoot is false"),
        ({"securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}}, "sysctls is"),
        (
            {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
            "seccompProfile.type is Unconfined",
        ),
        (
            {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}},
            "appArmorProfile.type is Unconfined",
        ),
        ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "seLinuxOptions is"),
        (
            {"containers": [{"name": "ray", "securityContext": {"privileged": True}}]},
            f"{RAY_CONTAINER}.securityContext.privileged",
        ),
        (
            {"containers": [{"name": "ray", "securityContext": {"allowPrivilegeEscalation": True}}]},
            "allowPrivilegeEscalation is true",
        ),
        (
            {"containers": [{"name": "ray", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
            "capabilities.add is ['SYS_ADMIN']",
        ),
        (
            {"containers": [{"name": "ray", "securityContext": {"procMount": "Unmasked"}}]},
            "procMount is Unmasked",
        ),
        ({"containers": [{"name": "ray", "ports": [{"containerPort": 1, "hostPort": 2}]}]}, "has hostPort 2"),
        ({"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}, "initContainers.i."),
    ],
)
def test_privilege_is_refused_unless_platform_allows_it(spec: dict[str, Any], phrase: str) -> None:
    resource = training(cluster={"podOverrides": {"learner": {"spec": spec}}})
    (problem,) = list_refusals(resource)
    assert phrase in str(problem) and problem.remedy == "remove it"
    assert list_refusals(resource, Defaults(storage_root="s3://b", allow_privileged=True)) == []


def test_privileges_in_platform_defaults_are_allowed() -> None:
    override = {"spec": {"volumes": [{"name": "cache", "hostPath": {"path": "/cache"}}]}}
    platform = Defaults.model_validate(
        {"storageRoot": "s3://b", "cluster": {"podOverrides": {"all": override}}}, by_alias=True
    )
    assert list_refusals(training(), platform) == []
    user_override = {"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}}
    (problem,) = list_refusals(training(cluster={"podOverrides": {"all": user_override}}), platform)
    assert problem.field[-3:] == ("volumes", "host", "hostPath")


@pytest.mark.parametrize("override", [{"containers": []}, {"spec": []}, {"metadata": "x"}])
def test_override_that_is_not_a_pod_template_is_refused(override: dict[str, Any]) -> None:
    (problem,) = list_refusals(training(cluster={"podOverrides": {"head": override}}))
    assert problem.field[:4] == ("spec", "cluster", "podOverrides", "head")
