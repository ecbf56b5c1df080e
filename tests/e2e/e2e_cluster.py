"""Chart, namespaces and storage of the end-to-end tests, on any cluster. Environment variables:

KUBECONFIG           the cluster; without it the tests are skipped
E2E_RUNTIME_IMAGE    runtime image, present on the nodes (default hindcast-runtime:e2e)
E2E_OPERATOR_IMAGE   operator image, present on the nodes (default hindcast-operator:e2e)
E2E_STORAGE_CLASS    StorageClass for the runs' data; default: the cluster's default class, or without one
                     a folder of this machine, which must then be the only node
E2E_KEEP             if set, the release is not uninstalled, because the cluster is deleted afterwards
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e_kube import Kube, Object, run

RUNTIME_IMAGE = os.environ.get("E2E_RUNTIME_IMAGE", "hindcast-runtime:e2e")
OPERATOR_IMAGE = os.environ.get("E2E_OPERATOR_IMAGE", "hindcast-operator:e2e")
SYSTEM_NAMESPACE = "hindcast-system"
RELEASE = "hindcast"
CHART = Path(__file__).parents[2] / "charts" / "hindcast"
DATA_FOLDER = "/data"
_NAMESPACE_LABEL = "hindcast-e2e"
_LABELS = {"pod-security.kubernetes.io/enforce": "restricted", _NAMESPACE_LABEL: ""}


def make_chart_values() -> Object:
    """Return the chart's values: sizes for a small node, and data on the claim `data` in the run's namespace."""
    small_pod = {"cpu": 0.1, "memory": "2Gi", "sharedMemory": "512Mi", "ephemeralStorage": "1Gi"}
    return {
        "image": OPERATOR_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "defaults": {
            "image": RUNTIME_IMAGE,
            "storageRoot": DATA_FOLDER,
            "allowAutoscaling": True,
            "cluster": {
                "imagePullPolicy": "IfNotPresent",
                "volumes": [
                    {"name": "data", "mountPath": DATA_FOLDER, "persistentVolumeClaim": {"claimName": "data"}}
                ],
                "resources": dict.fromkeys(("head", "runner"), small_pod | {"memory": "1536Mi"})
                | dict.fromkeys(("dataWorker", "learner"), small_pod),
            },
        },
    }


def install_chart(*arguments: str) -> None:
    """Install the chart with helm, and wait until it is ready."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(make_chart_values(), file)
        file.flush()
        run(
            "helm",
            *("upgrade", "--install", RELEASE, str(CHART)),
            *("--namespace", SYSTEM_NAMESPACE, "--create-namespace"),
            *("--values", file.name, "--wait", "--timeout", "120s", "--take-ownership", *arguments),
            timeout=180,
        )


def uninstall_chart() -> None:
    """Uninstall the release after the tests' namespaces are gone. The CRDs stay, as for users."""
    if os.environ.get("E2E_KEEP"):
        return
    namespaces = ("namespace", "--selector", _NAMESPACE_LABEL)
    run("kubectl", "wait", *namespaces, "--for=delete", "--timeout=120s", timeout=150)
    run("helm", "uninstall", RELEASE, "--namespace", SYSTEM_NAMESPACE, "--ignore-not-found", "--wait")


@contextmanager
def temporary_namespace(name: str) -> Iterator[Kube]:
    """Create a namespace that allows only restricted pods, with a claim `data`.

    The namespace is deleted without waiting, while the next test runs.
    """
    kube = Kube(name)
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": _LABELS}}
    run("kubectl", "apply", "--filename", "-", stdin=json.dumps(manifest))
    with _temporary_claim(kube):
        try:
            yield kube
        finally:
            run("kubectl", "delete", "namespace", name, "--wait=false")
            kube.kubectl("delete", "pods", "--all", "--wait=false", "--grace-period=0", "--force")


@contextmanager
def _temporary_claim(kube: Kube) -> Iterator[None]:
    storage_class = os.environ.get("E2E_STORAGE_CLASS") or _find_default_storage_class()
    spec: Object = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "5Gi"}},
        "storageClassName": storage_class or "",
    }
    if storage_class is not None:
        if not os.environ.get("E2E_STORAGE_CLASS"):
            # The default class of a one-node cluster supports no more.
            spec["accessModes"] = ["ReadWriteOnce"]
        kube.apply(_make_object("PersistentVolumeClaim", "data", spec))
        yield
        return
    with tempfile.TemporaryDirectory(prefix="hindcast-e2e-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o777)
        volume = f"data-{kube.namespace}"
        kube.apply(
            _make_object(
                "PersistentVolume",
                volume,
                {
                    "accessModes": ["ReadWriteMany"],
                    "capacity": {"storage": "5Gi"},
                    "hostPath": {"path": folder, "type": "Directory"},
                    "claimRef": {"name": "data", "namespace": kube.namespace},
                },
            ),
            _make_object("PersistentVolumeClaim", "data", {**spec, "volumeName": volume}),
        )
        try:
            yield
        finally:
            kube.delete("persistentvolume", volume, "--wait=false")


def _find_default_storage_class() -> str | None:
    annotation = "storageclass.kubernetes.io/is-default-class"
    for storage_class in json.loads(run("kubectl", "get", "storageclasses", "--output", "json"))["items"]:
        if storage_class["metadata"].get("annotations", {}).get(annotation) == "true":
            return str(storage_class["metadata"]["name"])
    return None


def _make_object(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _make_reader_pod() -> Object:
    container = {
        "name": "reader",
        "image": RUNTIME_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "volumeMounts": [{"name": "data", "mountPath": DATA_FOLDER}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return _make_object(
        "Pod",
        "reader",
        {
            "containers": [container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "terminationGracePeriodSeconds": 0,
        },
    )


def run_in_reader_pod(kube: Kube, *command: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a pod that mounts the claim. The first call creates the pod."""
    if kube.get("Pod", "reader") is None:
        kube.apply(_make_reader_pod())
    # Long: it waits for CPUs, which pods of other tests may hold until they have ended.
    kube.kubectl("wait", "--for=condition=Ready", "pod/reader", "--timeout=300s", timeout=320)
    kubectl_command = ("kubectl", "--namespace", kube.namespace, "exec", "--stdin", "reader", "--", *command)
    return subprocess.run(kubectl_command, check=True, timeout=120, **options)


def copy_from_claim(kube: Kube, path: str, target: Path) -> Path:
    """Copy a folder of the claim to `target/from-cluster`, as a user downloads it from storage."""
    folder = target / "from-cluster"
    folder.mkdir()
    kube.wait(
        f"{path} is copied", lambda: _try_copy(kube, f"{DATA_FOLDER}/{kube.namespace}/{path}", folder), 100
    )
    return folder


def _try_copy(kube: Kube, path: str, folder: Path) -> bool:
    """Copy a folder of the claim. Return False if `kubectl exec` has cut off the end of the archive."""
    with tempfile.TemporaryFile() as archive:
        run_in_reader_pod(kube, "tar", "-C", path, "-cf", "-", ".", stdout=archive)
        archive.seek(0)
        return not subprocess.run(
            ["tar", "-C", str(folder), "-xf", "-"], stdin=archive, check=False, timeout=120
        ).returncode


def copy_to_claim(kube: Kube, folder: Path, path: str) -> None:
    """Copy a folder into the claim."""
    target = f"{DATA_FOLDER}/{kube.namespace}/{path}"
    with tempfile.TemporaryFile() as archive:
        subprocess.run(["tar", "-C", str(folder), "-cf", "-", "."], stdout=archive, check=True, timeout=120)
        archive.seek(0)
        run_in_reader_pod(kube, "mkdir", "-p", target)
        run_in_reader_pod(kube, "tar", "-C", target, "-xf", "-", stdin=archive)
