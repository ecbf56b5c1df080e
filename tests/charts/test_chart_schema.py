"""values.schema.json: wrong values are refused by name, and `defaults` by the operator's own model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from chart_helm import CHART, Object, RenderedChart, refusal, render
from hindcast.errors import SpecError
from hindcast_operator.defaults import Defaults, load_defaults

REFUSED_VALUES: list[tuple[Object, str]] = [
    ({"replicsa": 3}, "replicsa"),
    ({"replicas": 0}, "/replicas"),
    ({"replicas": "2"}, "/replicas"),
    ({"image": {"tag": "1"}}, "/image"),
    ({"imagePullPolicy": "Sometimes"}, "/imagePullPolicy"),
    ({"imagePullSecrets": ["s"]}, "/imagePullSecrets/0"),
    ({"watchNamespaces": "team-a"}, "/watchNamespaces"),
    ({"watchNamespaces": ["Team_A"]}, "/watchNamespaces/0"),
    ({"watchNamespaces": ["a", "a"]}, "/watchNamespaces"),
    ({"logLevel": "loud"}, "/logLevel"),
    ({"crds": {"install": True}}, "install"),
    ({"crds": {"keep": "yes"}}, "/crds/keep"),
    ({"rbac": {"agregate": False}}, "agregate"),
    ({"serviceAccount": {"annotations": {"a": 1}}}, "/serviceAccount/annotations/a"),
    ({"resources": {"request": {}}}, "request"),
    ({"podLabels": {"a": True}}, "/podLabels/a"),
    ({"extraEnv": [{"value": "x"}]}, "/extraEnv/0"),
    ({"extraArgs": [1]}, "/extraArgs/0"),
    ({"service": {"port": 0}}, "/service/port"),
    ({"serviceMonitor": {"interval": "often"}}, "/serviceMonitor/interval"),
    ({"networkPolicy": {"apiServer": ["kubernetes"]}}, "/networkPolicy/apiServer/0"),
    ({"networkPolicy": {"apiServerPorts": []}}, "/networkPolicy/apiServerPorts"),
    ({"fullnameOverride": "9lives"}, "/fullnameOverride"),
]

REFUSED_DEFAULTS: list[tuple[Object, str]] = [
    ({"imgae": "x"}, "imgae"),
    ({"image": 3}, "/defaults/image"),
    ({"rayVersion": ""}, "/defaults/rayVersion"),
    ({"cluster": {"tolerations": [{"operator": "Maybe"}]}}, "/defaults/cluster/tolerations/0/operator"),
    ({"cluster": {"env": [{"nam": "A"}]}}, "/defaults/cluster/env/0"),
    ({"cluster": {"volumes": [{"name": "d", "mountPath": "data"}]}}, "/defaults/cluster/volumes/0/mountPath"),
    ({"cluster": {"resources": {"learners": {}}}}, "learners"),
    ({"cluster": {"imagePullSecrets": ["s"]}}, "/defaults/cluster/imagePullSecrets/0"),
    ({"runPolicy": {"backoffLimit": -1}}, "/defaults/runPolicy/backoffLimit"),
    ({"runPolicy": {"ttlSecondsAfterFinished": 5}}, "ttlSecondsAfterFinished"),
    ({"allowPrivileged": "yes"}, "/defaults/allowPrivileged"),
]

DEFAULTS: Object = {
    "image": "mirror/runtime:1",
    "rayVersion": "2.60.0",
    "storageRoot": "s3://bucket/hindcast",
    "cluster": {
        "imagePullSecrets": [{"name": "pull"}],
        "imagePullPolicy": "IfNotPresent",
        "envFrom": [{"secretRef": {"name": "storage"}}],
        "env": [{"name": "AWS_REGION", "value": "eu"}],
        "tolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 86400000}],
        "nodeSelector": {"pool": "ml"},
        "volumes": [{"name": "d", "mountPath": "/d", "persistentVolumeClaim": {"claimName": "d"}}],
        "resources": {"learner": {"cpu": 0.5, "memory": 17179869184, "sharedMemory": "8Gi"}},
        "podOverrides": {"all": {"spec": {"hostUsers": False}}},
        "scheduling": {"queueName": "research", "labels": {"team": "rl"}},
    },
    "runPolicy": {"backoffLimit": 0, "startDeadlineSeconds": 60, "stallTimeoutSeconds": 10000000},
    "allowPrivileged": True,
    "allowAutoscaling": True,
}


@pytest.mark.parametrize(("values", "name"), REFUSED_VALUES, ids=[name for _, name in REFUSED_VALUES])
def test_wrong_value_is_refused_by_name(values: Object, name: str) -> None:
    assert name in refusal(values)


@pytest.mark.parametrize(("values", "name"), REFUSED_DEFAULTS, ids=[name for _, name in REFUSED_DEFAULTS])
def test_wrong_defaults_are_refused_by_chart_and_operator(values: Object, name: str, tmp_path: Path) -> None:
    assert name in refusal({"defaults": values})
    (tmp_path / "values.yaml").write_text(json.dumps({"defaults": values}))
    with pytest.raises(
        SpecError, match=name.rsplit("/", 1)[-1] if not name[-1].isdigit() else name.split("/")[-2]
    ):
        load_defaults(tmp_path / "values.yaml")


def test_operator_reads_the_given_defaults(tmp_path: Path) -> None:
    """All of them, through helm, which passes every number through a float."""
    assert set(DEFAULTS) == {field.alias for field in Defaults.model_fields.values()}
    assert mounted_defaults(render({"defaults": DEFAULTS}), tmp_path) == Defaults.model_validate(
        DEFAULTS, by_alias=True, by_name=False
    )


def test_operator_without_defaults_uses_its_own(tmp_path: Path) -> None:
    assert mounted_defaults(render(), tmp_path) == Defaults()


def mounted_defaults(chart: RenderedChart, folder: Path) -> Defaults:
    """The defaults that the operator's pods mount."""
    (folder / "defaults.yaml").write_text(
        chart.find_one("ConfigMap", "hindcast-defaults")["data"]["defaults.yaml"]
    )
    return load_defaults(folder / "defaults.yaml")


def test_render_reads_the_values_of_the_chart() -> None:
    assert load_defaults(CHART / "values.yaml") == Defaults()


def test_values_schema_is_valid_and_closed() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    Draft7Validator.check_schema(schema)
    Draft202012Validator.check_schema(schema)
    assert list(open_mappings(schema, "")) == []


FREE = {
    # Kubernetes' own types, and free-form parts of the resources, which the API server checks.
    *("/global", "/podSecurityContext", "/securityContext", "/affinity", "/tolerations", "/valueFrom"),
    *("/topologySpreadConstraints", "/from", "/runtimeEnv"),
    *("/all", "/head", "/runner", "/dataWorker", "/learner"),
}


def open_mappings(schema: Any, place: str) -> Any:
    """Places of mappings that take any field."""
    if isinstance(schema, list):
        for part in schema:
            yield from open_mappings(part, place)
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object" and "additionalProperties" not in schema and place not in FREE:
        yield place
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions"):
            for name, part in value.items():
                yield from open_mappings(part, f"/{name}")
        else:
            yield from open_mappings(value, place)
