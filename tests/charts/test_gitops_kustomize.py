"""kustomize also applies its prefixes and hashes to the names that Hindcast's resources refer to."""

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

REFERENCES_FILE = ROOT / "docs" / "gitops" / "kustomize" / "name-references.yaml"
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
        assert resource["spec"]["cluster"] == replace_names(CLUSTER, new_names)


def build_kustomization(folder: Path) -> dict[tuple[str, str], Object]:
    """Build the objects with a prefix of all names, and with hashes at the end of generated names."""
    shutil.copy(REFERENCES_FILE, folder)
    (folder / "objects.yaml").write_text(
        "\n---\n".join(map(json.dumps, [RECORDING, TRAINING, EXPERT, *OTHER_OBJECTS]))
    )
    kustomization = {
        "namePrefix": "team-",
        "resources": ["objects.yaml"],
        "configMapGenerator": [{"name": "code", "literals": ["walk.py=pass"]}],
        "secretGenerator": [{"name": "keys", "literals": ["a=b"]}],
        "configurations": [REFERENCES_FILE.name],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    command = [tool("kubectl"), "kustomize", str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    objects = YAML(typ="safe", pure=True).load_all(process.stdout)
    return {(entry["kind"], entry["metadata"]["name"]): entry for entry in objects}


def replace_names(value: Any, names: dict[str, str]) -> Any:
    """Return the value with the names of other objects replaced."""
    if isinstance(value, list):
        return [replace_names(child, names) for child in value]
    if not isinstance(value, dict):
        return value
    fields = {"name", "secretName", "claimName", "serviceAccountName"}
    return {
        key: names.get(child, child)
        if key in fields and isinstance(child, str)
        else replace_names(child, names)
        for key, child in value.items()
    }


@pytest.mark.parametrize("kind", [OfflineRecording, OfflineTraining])
def test_kustomize_configures_every_reference_field(kind: Any) -> None:
    configured = {
        spec["path"]
        for reference in YAML(typ="safe", pure=True).load(REFERENCES_FILE)["nameReference"]
        for spec in reference["fieldSpecs"]
        if spec.get("kind", kind.__name__) == kind.__name__
    }
    assert set(find_reference_paths(kind.model_json_schema(by_alias=True))) == configured


REFERENCE_MODELS = ("NameRef", "KeyRef", "Reference")


def find_reference_paths(schema: Object) -> Iterator[str]:
    """Yield the paths of the fields that name another object. They are recognised by name and model."""
    definitions = schema["$defs"]

    def walk(schema_part: Any, path: tuple[str, ...], seen: tuple[str, ...]) -> Iterator[str]:
        if isinstance(schema_part, list):
            for child in schema_part:
                yield from walk(child, path, seen)
        if not isinstance(schema_part, dict):
            return
        if "$ref" in schema_part:
            name = schema_part["$ref"].rsplit("/", 1)[-1]
            if name not in seen:
                yield from walk(definitions[name], path, (*seen, name))
            return
        for field, child in schema_part.get("properties", {}).items():
            if field in ("secretName", "claimName", "serviceAccountName") or (
                field == "name" and seen and seen[-1] in REFERENCE_MODELS
            ):
                yield "/".join((*path, field))
            else:
                yield from walk(child, (*path, field), seen)
        for key in ("items", "anyOf", "allOf", "oneOf"):
            yield from walk(schema_part.get(key), path, seen)

    yield from walk(schema["properties"]["spec"], ("spec",), ())
