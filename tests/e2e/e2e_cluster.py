"""What the tests bring to the cluster: images, storage, the chart. Nothing here depends on which cluster it is.

KUBECONFIG           the cluster; without it the tests are skipped
E2E_RUNTIME_IMAGE    runtime image, present on the nodes (default hindcast-runtime:e2e)
E2E_OPERATOR_IMAGE   operator image, present on the nodes (default hindcast-operator:e2e)
E2E_STORAGE_CLASS    StorageClass for the runs' data; default: the cluster's default class, and where it has
                     none, a folder of this machine, which must then be the only node
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e_kube import Kube, Object, run

RUNTIME_IMAGE = os.environ.get("E2E_RUNTIME_IMAGE", "hindcast-runtime:e2e")
OPERATOR_IMAGE = os.environ.get("E2E_OPERATOR_IMAGE", "hindcast-operator:e2e")
SYSTEM = "hindcast-system"
RELEASE = "hindcast"
CHART = Path(__file__).parents[2] / "charts" / "hindcast"
DATA = "/data"
_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def values() -> Object:
    """Values of the chart: a small node's sizes, data on the claim `data` of the run's namespace."""
    small = {"cpu": 0.1, "memory": "2Gi", "sharedMemory": "512Mi", "ephemeralStorage": "1Gi"}
    return {
        "image": OPERATOR_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "defaults": {
            "image": RUNTIME_IMAGE,
            "storageRoot": DATA,
            "cluster": {
                "imagePullPolicy": "IfNotPresent",
                "volumes": [
                    {"name": "data", "mountPath": DATA, "persistentVolumeClaim": {"claimName": "data"}}
                ],
                "resources": dict.fromkeys(("head", "runner", "dataWorker", "learner"), small),
            },
        },
    }


def install(*arguments: str) -> None:
    """`helm install`, waiting as users do."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values(), file)
        file.flush()
        run(
            "helm",
            *("upgrade", "--install", RELEASE, str(CHART), "--namespace", SYSTEM, "--create-namespace"),
            *("--values", file.name, "--wait", "--timeout", "120s", "--take-ownership", *arguments),
            timeout=180,
        )


def uninstall() -> None:
    """Remove the release; the CRDs stay, as they do for users."""
    run("helm", "uninstall", RELEASE, "--namespace", SYSTEM, "--ignore-not-found", "--wait")


@contextmanager
def namespace(name: str) -> Iterator[Kube]:
    """A namespace in which only restricted pods may run, with a claim `data` and a pod that reads it."""
    kube = Kube(name)
    run(
        *("kubectl", "apply", "--filename", "-"),
        stdin=json.dumps(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": _RESTRICTED}}
        ),
    )
    try:
        with _claim(kube):
            kube.apply(_reader())
            kube.kubectl("wait", "--for=condition=Ready", "pod/reader", "--timeout=60s")
            yield kube
    finally:
        kube.delete("pod", "reader", "--wait=false", "--grace-period=0", "--force")
        run("kubectl", "delete", "namespace", name, "--ignore-not-found", "--timeout=120s", timeout=150)


@contextmanager
def _claim(kube: Kube) -> Iterator[None]:
    storage_class = os.environ.get("E2E_STORAGE_CLASS") or _default_class()
    spec: Object = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "5Gi"}},
        "storageClassName": storage_class or "",
    }
    if storage_class is not None:
        if not os.environ.get("E2E_STORAGE_CLASS"):
            spec["accessModes"] = ["ReadWriteOnce"]  # what the default class of a one-node cluster has
        kube.apply(_object("PersistentVolumeClaim", "data", spec))
        yield
        return
    with tempfile.TemporaryDirectory(prefix="hindcast-e2e-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o777)
        volume = f"data-{kube.namespace}"
        kube.apply(
            _object(
                "PersistentVolume",
                volume,
                {
                    "accessModes": ["ReadWriteMany"],
                    "capacity": {"storage": "5Gi"},
                    "hostPath": {"path": folder, "type": "Directory"},
                    "claimRef": {"name": "data", "namespace": kube.namespace},
                },
            ),
            _object("PersistentVolumeClaim", "data", {**spec, "volumeName": volume}),
        )
        try:
            yield
        finally:
            kube.delete("persistentvolume", volume, "--wait=false")


def _default_class() -> str | None:
    mark = "storageclass.kubernetes.io/is-default-class"
    for found in json.loads(run("kubectl", "get", "storageclasses", "--output", "json"))["items"]:
        if found["metadata"].get("annotations", {}).get(mark) == "true":
            return str(found["metadata"]["name"])
    return None


def _object(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _reader() -> Object:
    container = {
        "name": "reader",
        "image": RUNTIME_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "volumeMounts": [{"name": "data", "mountPath": DATA}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return _object(
        "Pod",
        "reader",
        {
            "containers": [container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "terminationGracePeriodSeconds": 0,
        },
    )


def copy_out(kube: Kube, path: str, target: Path) -> Path:
    """Copy a folder of the claim to `target/from-cluster`, as a user downloads it from storage."""
    folder = target / "from-cluster"
    folder.mkdir()
    reader = ("kubectl", "--namespace", kube.namespace, "exec", "reader", "--")
    with tempfile.TemporaryFile() as archive:
        subprocess.run(
            [*reader, "tar", "-C", f"{DATA}/{kube.namespace}/{path}", "-cf", "-", "."],
            stdout=archive,
            check=True,
            timeout=120,
        )
        archive.seek(0)
        subprocess.run(["tar", "-C", str(folder), "-xf", "-"], stdin=archive, check=True, timeout=120)
    return folder


def put_in(kube: Kube, folder: Path, path: str) -> None:
    """Copy a folder into the claim."""
    reader = ("kubectl", "--namespace", kube.namespace, "exec", "--stdin", "reader", "--")
    run(*reader, "mkdir", "-p", f"{DATA}/{kube.namespace}/{path}")
    with tempfile.TemporaryFile() as archive:
        subprocess.run(["tar", "-C", str(folder), "-cf", "-", "."], stdout=archive, check=True, timeout=120)
        archive.seek(0)
        subprocess.run(
            [*reader, "tar", "-C", f"{DATA}/{kube.namespace}/{path}", "-xf", "-"],
            stdin=archive,
            check=True,
            timeout=120,
        )
