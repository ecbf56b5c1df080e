"""The chart on a real API server: every object is admitted, CRDs stay, and the notes contain the next command."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from resources import make_recording
from ruamel.yaml import YAML

from api_server import ApiServer, RefusalError
from chart_helm import CHART, Object, render, tool

# Without the objects of the Prometheus operator's kinds, which the API server does not serve.
ALL_OPTIONAL_OBJECTS: Object = {"dashboard": {"enabled": True}, "networkPolicy": {"enabled": True}}
RELEASE = ("hindcast", "--namespace", "hindcast-system")


@pytest.mark.parametrize("values", [{}, ALL_OPTIONAL_OBJECTS], ids=["defaults", "everything"])
def test_every_object_of_chart_is_admitted(api: ApiServer, namespace: str, values: Object) -> None:
    for watch_namespaces in ([], [namespace]):
        objects = render(values | {"watchNamespaces": watch_namespaces}, namespace).objects
        for manifest in objects:
            api.apply(manifest, "tests", dryRun="All")
        assert len(objects) > 10


def test_operator_pod_is_admitted_in_restricted_namespace(api: ApiServer, namespace: str) -> None:
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    api.merge({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, label)
    pod = operator_pod(namespace)
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "hindcast"}}, namespace)
    api.create(pod, dryRun="All")
    api.create(render({}, namespace).find_one("Pod"), dryRun="All")
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(RefusalError, match="violates PodSecurity"):
        api.create(pod, dryRun="All")


def operator_pod(namespace: str) -> Object:
    template = render({}, namespace).find_one("Deployment")["spec"]["template"]
    metadata = template["metadata"] | {"name": "operator", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}


# -- a release ----------------------------------------------------------------------------------------------


def run_helm(*arguments: str) -> str:
    process = subprocess.run([tool("helm"), *arguments], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


def install(*arguments: str) -> str:
    """Run `helm upgrade --install` so that the release owns the CRDs, regardless of who created them."""
    options = ("--create-namespace", "--take-ownership")
    return run_helm("upgrade", "--install", *RELEASE, str(CHART), *options, *arguments)


@pytest.fixture
def release(api: ApiServer) -> Iterator[str]:
    """Install the chart; yield helm's output."""
    yield install()
    run_helm("uninstall", *RELEASE, "--ignore-not-found")


@pytest.mark.alone
def test_notes_contain_next_command(api: ApiServer, release: str) -> None:
    notes = release.split("NOTES:\n")[1]
    assert "kubectl apply" in notes
    assert "defaults.storageRoot is not set" in notes
    kuberay = "ray.io" in {group["name"] for group in api.request("GET", "/apis")["groups"]}
    assert ("KubeRayNotInstalled" in notes) != kuberay
    for arguments in ((), ("--set", "defaults.storageRoot=s3://b", "--set", "watchNamespaces={team-a}")):
        notes_text = install(*arguments, "--dry-run=server").split("NOTES:\n")[1]
        example = notes_text.split("<<EOF\n")[1].split("EOF")[0]
        resource = YAML(typ="safe", pure=True).load(example)
        api.create(resource, "default", dryRun="All")
        assert ("storageRoot is not set" in notes_text) == (not arguments)
        assert ("--namespace team-a" in notes_text) == bool(arguments)


@pytest.mark.alone
def test_uninstall_keeps_crds_and_resources(api: ApiServer, release: str, namespace: str) -> None:
    uid = api.create(make_recording("kept"), namespace)["metadata"]["uid"]
    run_helm("uninstall", *RELEASE)
    assert api.get("OfflineRecording", namespace, "kept")["metadata"]["uid"] == uid
    install()
    assert api.get("OfflineRecording", namespace, "kept")["metadata"]["uid"] == uid


@pytest.mark.alone
def test_upgrade_updates_crds(api: ApiServer, release: str) -> None:
    """helm never upgrades files in `crds/`; here the CRDs are templates."""
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/offlinetrainings.hindcast.dev"
    old = {"spec": {"names": {"shortNames": ["older"]}}}
    api.request("PATCH", crd, old, "application/merge-patch+json")
    install()
    assert api.request("GET", crd)["spec"]["names"]["shortNames"] == ["otr"]
