"""values.schema.json refuses wrong values and names them; `defaults` are checked as by the operator's model."""

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
    ({"rayVersion": "nightly"}, "/defaults/rayVersion"),
    ({"cluster": {"tolerations": [{"operator": "Maybe"}]}}, "/defaults/cluster/tolerations/0/operator"),
    ({"cluster": {"env": [{"nam": "A"}]}}, "/defaults/cluster/env/0"),
    ({"cluster": {"volumes": [{"name": "d", "mountPath": "data"}]}}, "/defaults/cluster/volumes/0/mountPath"),
    ({"cluster": {"resources": {"learners": {}}}}, "learners"),
    ({"cluster": {"imagePullSecrets": ["s"]}}, "/defaults/cluster/imagePullSecrets/0"),
    ({"runPolicy": {"backoffLimit": -1}}, "/defaults/runPolicy/backoffLimit"),
    ({"runPolicy": {"ttlSecondsAfterFinished": 5}}, "ttlSecondsAfterFinished"),
    ({"allowPrivileged": "yes"}, "/defaults/allowPrivileged"),
]

ALL_DEFAULTS: Object = {
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
def test_wrong_value_is_named_in_the_error(values: Object, name: str) -> None:
    assert name in refusal(values)


@pytest.mark.parametrize(("values", "name"), REFUSED_DEFAULTS, ids=[name for _, name in REFUSED_DEFAULTS])
def test_wrong_defaults_are_refused_by_chart_and_operator(values: Object, name: str, tmp_path: Path) -> None:
    assert name in refusal({"defaults": values})
    (tmp_path / "values.yaml").write_text(json.dumps({"defaults": values}))
    # The operator writes paths in another notation, so only the last field's name is compared, without an index.
    with pytest.raises(
        SpecError, match=name.rsplit("/", 1)[-1] if not name[-1].isdigit() else name.split("/")[-2]
    ):
        load_defaults(tmp_path / "values.yaml")


def test_operator_reads_all_defaults_through_helm(tmp_path: Path) -> None:
    """helm converts every number to a float and back."""
    assert set(ALL_DEFAULTS) == {field.alias for field in Defaults.model_fields.values()}
    assert load_mounted_defaults(render({"defaults": ALL_DEFAULTS}), tmp_path) == Defaults.model_validate(
        ALL_DEFAULTS, by_alias=True, by_name=False
    )


def test_chart_without_defaults_mounts_the_operators_own_defaults(tmp_path: Path) -> None:
    assert load_mounted_defaults(render(), tmp_path) == Defaults()


def load_mounted_defaults(chart: RenderedChart, folder: Path) -> Defaults:
    """Load the defaults that the operator's pods mount."""
    (folder / "defaults.yaml").write_text(
        chart.find_one("ConfigMap", "hindcast-defaults")["data"]["defaults.yaml"]
    )
    return load_defaults(folder / "defaults.yaml")


def test_load_defaults_reads_values_of_chart() -> None:
    assert load_defaults(CHART / "values.yaml") == Defaults()


def test_values_schema_is_valid_and_closed() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    Draft7Validator.check_schema(schema)
    Draft202012Validator.check_schema(schema)
    assert list(find_open_mappings(schema, "")) == []


OPEN_FIELDS = {
    # Types of Kubernetes and open fields of the resources, which only the API server checks.
    *("/global", "/podSecurityContext", "/securityContext", "/affinity", "/tolerations", "/valueFrom"),
    *("/topologySpreadConstraints", "/from", "/runtimeEnv"),
    *("/all", "/head", "/runner", "/dataWorker", "/learner"),
}


def find_open_mappings(schema: Any, path: str) -> Any:
    """Yield `/name` of each mapping that accepts any field, except `OPEN_FIELDS`."""
    if isinstance(schema, list):
        for child in schema:
            yield from find_open_mappings(child, path)
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object" and "additionalProperties" not in schema and path not in OPEN_FIELDS:
        yield path
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions"):
            for name, child in value.items():
                yield from find_open_mappings(child, f"/{name}")
        else:
            yield from find_open_mappings(value, path)
