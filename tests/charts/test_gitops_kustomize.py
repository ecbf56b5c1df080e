"""kustomize carries its prefixes and hashes into the names that resources of Hindcast refer to."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from chart_helm import ROOT, Object, tool
from hindcast.api import OfflineRecording, OfflineTraining

REFERENCES = ROOT / "docs" / "gitops" / "kustomize" / "name-references.yaml"
API = "hindcast.dev/v1alpha1"

CLUSTER: Object = {
    "serviceAccountName": "robot",
    "imagePullSecrets": [{"name": "keys"}],
    "code": {"configMap": {"name": "code"}},
    "env": [
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "a"}}},
        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "code", "key": "b"}}},
    ],
    "envFrom": [{"secretRef": {"name": "keys"}}, {"configMapRef": {"name": "code"}}],
    "volumes": [
        {"name": "c", "mountPath": "/c", "configMap": {"name": "code"}},
        {"name": "s", "mountPath": "/s", "secret": {"secretName": "keys"}},
        {"name": "p", "mountPath": "/p", "persistentVolumeClaim": {"claimName": "disk"}},
    ],
}
RECORDING: Object = {
    "apiVersion": API,
    "kind": "OfflineRecording",
    "metadata": {"name": "data"},
    "spec": {
        "environment": {"id": "CartPole-v1"},
        "policy": {"trainingRef": {"name": "expert"}},
        "duration": {"episodes": 10},
        "output": {"path": "data"},
        "cluster": CLUSTER,
    },
}
TRAINING: Object = {
    "apiVersion": API,
    "kind": "OfflineTraining",
    "metadata": {"name": "clone"},
    "spec": {
        "algorithm": "BC",
        "input": [{"recordingRef": {"name": "data"}, "weight": 0.5}, {"path": "s3://b/old", "weight": 0.5}],
        "stop": {"iterations": 1},
        "cluster": CLUSTER,
    },
}
EXPERT: Object = {
    **TRAINING,
    "metadata": {"name": "expert"},
    "spec": {"algorithm": "BC", "input": [{"path": "s3://b/old"}], "stop": {"iterations": 1}},
}
OTHER_OBJECTS = [
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}},
    {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "disk"}},
]


def test_kustomize_renames_all_references(tmp_path: Path) -> None:
    objects = build_kustomization(tmp_path)
    data, clone = objects["OfflineRecording", "team-data"], objects["OfflineTraining", "team-clone"]
    assert clone["spec"]["input"][0]["recordingRef"]["name"] == "team-data"
    assert clone["spec"]["input"][1]["path"] == "s3://b/old"
    assert data["spec"]["policy"]["trainingRef"]["name"] == "team-expert"
    (code,) = [name for kind, name in objects if kind == "ConfigMap"]
    (keys,) = [name for kind, name in objects if kind == "Secret"]
    assert code.startswith("team-code-")
    new_names = {"code": code, "keys": keys, "disk": "team-disk", "robot": "team-robot"}
    for resource in (data, clone):
        assert resource["spec"]["cluster"] == with_names(CLUSTER, new_names)


def build_kustomization(folder: Path) -> dict[tuple[str, str], Object]:
    """Build the objects with a name prefix, and with hashes behind generated names."""
    shutil.copy(REFERENCES, folder)
    (folder / "objects.yaml").write_text(
        "\n---\n".join(map(json.dumps, [RECORDING, TRAINING, EXPERT, *OTHER_OBJECTS]))
    )
    kustomization = {
        "namePrefix": "team-",
        "resources": ["objects.yaml"],
        "configMapGenerator": [{"name": "code", "literals": ["walk.py=pass"]}],
        "secretGenerator": [{"name": "keys", "literals": ["a=b"]}],
        "configurations": [REFERENCES.name],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    command = [tool("kubectl"), "kustomize", str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    objects = YAML(typ="safe", pure=True).load_all(process.stdout)
    return {(entry["kind"], entry["metadata"]["name"]): entry for entry in objects}


def with_names(value: Any, names: dict[str, str]) -> Any:
    """Return the value with the names of other objects replaced."""
    if isinstance(value, list):
        return [with_names(part, names) for part in value]
    if not isinstance(value, dict):
        return value
    fields = {"name", "secretName", "claimName", "serviceAccountName"}
    return {
        key: names.get(part, part) if key in fields and isinstance(part, str) else with_names(part, names)
        for key, part in value.items()
    }


@pytest.mark.parametrize("kind", [OfflineRecording, OfflineTraining])
def test_kustomize_configures_every_reference_field(kind: Any) -> None:
    configured = {
        spec["path"]
        for reference in YAML(typ="safe", pure=True).load(REFERENCES)["nameReference"]
        for spec in reference["fieldSpecs"]
        if spec.get("kind", kind.__name__) == kind.__name__
    }
    assert set(references(kind.model_json_schema(by_alias=True))) == configured


NAMING = ("NameRef", "KeyRef", "Reference")


def references(schema: Object) -> Iterator[str]:
    """Paths of the fields that name another object, found by their types."""
    definitions = schema["$defs"]

    def walk(part: Any, path: tuple[str, ...], seen: tuple[str, ...]) -> Iterator[str]:
        if isinstance(part, list):
            for below in part:
                yield from walk(below, path, seen)
        if not isinstance(part, dict):
            return
        if "$ref" in part:
            name = part["$ref"].rsplit("/", 1)[-1]
            if name not in seen:
                yield from walk(definitions[name], path, (*seen, name))
            return
        for field, below in part.get("properties", {}).items():
            if field in ("secretName", "claimName", "serviceAccountName") or (
                field == "name" and seen and seen[-1] in NAMING
            ):
                yield "/".join((*path, field))
            else:
                yield from walk(below, (*path, field), seen)
        for key in ("items", "anyOf", "allOf", "oneOf"):
            yield from walk(part.get(key), path, seen)

    yield from walk(schema["properties"]["spec"], ("spec",), ())
