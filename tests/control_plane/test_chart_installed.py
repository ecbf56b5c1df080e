"""The chart on a real API server: every object is admitted, CRDs stay, and helm tells the next command."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from ruamel.yaml import YAML

from api_server import ApiServer, RefusalError
from chart_helm import CHART, Object, render, tool

# All but the kinds of the Prometheus operator.
EVERYTHING: Object = {"dashboard": {"enabled": True}, "networkPolicy": {"enabled": True}}
RELEASE = ("hindcast", "--namespace", "hindcast-system")


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_every_object_is_admitted(api: ApiServer, namespace: str, values: Object) -> None:
    for served in ([], [namespace]):
        objects = render(values | {"watchNamespaces": served}, namespace).objects
        for found in objects:
            api.apply(found, "tests", dryRun="All")
        assert len(objects) > 10


def test_pods_are_admitted_where_only_restricted_ones_are(api: ApiServer, namespace: str) -> None:
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    api.merge({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, label)
    pod = pod_of(namespace)
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "hindcast"}}, namespace)
    api.create(pod, dryRun="All")
    api.create(render({}, namespace).one("Pod"), dryRun="All")
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(RefusalError, match="violates PodSecurity"):
        api.create(pod, dryRun="All")


def pod_of(namespace: str) -> Object:
    template = render({}, namespace).one("Deployment")["spec"]["template"]
    metadata = template["metadata"] | {"name": "operator", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}


# -- a release ----------------------------------------------------------------------------------------------


def helm(*arguments: str) -> str:
    done = subprocess.run([tool("helm"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def install(*arguments: str) -> str:
    """`helm upgrade --install`; whatever made the CRDs before, the release owns them now."""
    place = ("--create-namespace", "--take-ownership")
    return helm("upgrade", "--install", *RELEASE, str(CHART), *place, *arguments)


@pytest.fixture
def release(api: ApiServer) -> Iterator[str]:
    """The installed chart; what helm said."""
    yield install()
    helm("uninstall", *RELEASE, "--ignore-not-found")


@pytest.mark.alone
def test_notes_tell_the_next_command(api: ApiServer, release: str) -> None:
    notes = release.split("NOTES:\n")[1]
    assert "kubectl apply" in notes
    assert "defaults.storageRoot is not set" in notes
    kuberay = "ray.io" in {group["name"] for group in api.request("GET", "/apis")["groups"]}
    assert ("KubeRayNotInstalled" in notes) != kuberay
    for arguments in ((), ("--set", "defaults.storageRoot=s3://b", "--set", "watchNamespaces={team-a}")):
        said = install(*arguments, "--dry-run=server").split("NOTES:\n")[1]
        example = said.split("<<EOF\n")[1].split("EOF")[0]
        resource = YAML(typ="safe", pure=True).load(example)
        api.create(resource, "default", dryRun="All")
        assert ("storageRoot is not set" in said) == (not arguments)
        assert ("--namespace team-a" in said) == bool(arguments)


@pytest.mark.alone
def test_crds_and_resources_outlive_the_release(api: ApiServer, release: str, namespace: str) -> None:
    recording = {
        "apiVersion": "hindcast.dev/v1alpha1",
        "kind": "OfflineRecording",
        "metadata": {"name": "kept", "namespace": namespace},
        "spec": {
            "environment": {"id": "CartPole-v1"},
            "policy": {"random": {}},
            "duration": {"episodes": 1},
            "output": {"path": "s3://bucket/kept"},
        },
    }
    made = api.create(recording)
    helm("uninstall", *RELEASE)
    assert api.get("OfflineRecording", namespace, "kept")["metadata"]["uid"] == made["metadata"]["uid"]
    install()
    assert api.get("OfflineRecording", namespace, "kept")["metadata"]["uid"] == made["metadata"]["uid"]


@pytest.mark.alone
def test_an_upgrade_brings_the_new_crds(api: ApiServer, release: str) -> None:
    """helm never upgrades what stands in `crds/`; these are templates."""
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/offlinetrainings.hindcast.dev"
    old = {"spec": {"names": {"shortNames": ["older"]}}}
    api.request("PATCH", crd, old, "application/merge-patch+json")
    install()
    assert api.request("GET", crd)["spec"]["names"]["shortNames"] == ["otr"]
