"""Objects of the chart: pods are restricted, the CRDs are the generated ones, and queries use existing metrics."""

from __future__ import annotations

import base64
import gzip
import inspect
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any, get_args

import promql_parser
import pytest
from ruamel.yaml import YAML

from chart_helm import CHART, CLUSTER_VERSION, ROOT, Object, helm, render, tool
from hindcast.api.attempt import AttemptState
from hindcast.api.loading import validate_resource
from hindcast_operator.control import metrics, reconciler
from hindcast_operator.defaults import Defaults
from hindcast_operator.planning.status import State

ALL_OPTIONAL_OBJECTS: Object = {
    "watchNamespaces": ["team-a"],
    **{
        section: {"enabled": True}
        for section in ("serviceMonitor", "prometheusRule", "dashboard", "networkPolicy")
    },
}


def load_yaml(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text())


@pytest.mark.parametrize("values", [{}, ALL_OPTIONAL_OBJECTS], ids=["defaults", "everything"])
def test_helm_lint_has_no_warnings(values: Object) -> None:
    process = helm("lint", "--strict", str(CHART), values=values)
    assert process.returncode == 0, process.stdout
    assert "WARNING" not in process.stdout


@pytest.mark.parametrize("kind", ["Deployment", "Pod"])
def test_pods_are_restricted(kind: str) -> None:
    manifest = render().find_one(kind)
    pod = manifest["spec"]["template"]["spec"] if kind == "Deployment" else manifest["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert {volume["name"]: set(volume) - {"name"} for volume in pod.get("volumes", [])} in (
        {},
        {"defaults": {"configMap"}, "tmp": {"emptyDir"}},
    )


def test_objects_have_instance_label_and_namespace() -> None:
    cluster_wide = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
    for manifest in render(ALL_OPTIONAL_OBJECTS | {"watchNamespaces": []}).objects:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "hindcast", manifest["metadata"]["name"]
        assert ("namespace" in manifest["metadata"]) == (manifest["kind"] not in cluster_wide)


def test_selectors_match_the_operator() -> None:
    chart = render(ALL_OPTIONAL_OBJECTS)
    labels = chart.find_one("Deployment")["spec"]["template"]["metadata"]["labels"].items()
    service = chart.find_one("Service")
    assert service["spec"]["selector"].items() <= labels
    assert chart.find_one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels
    assert chart.find_one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels
    selector = chart.find_one("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert selector.items() <= service["metadata"]["labels"].items()


def test_chart_installs_the_generated_crds() -> None:
    expected = {d["metadata"]["name"]: d for d in map(load_yaml, sorted((ROOT / "crds").glob("*.yaml")))}
    for definition in render().find_all("CustomResourceDefinition"):
        assert definition["spec"] == expected.pop(definition["metadata"]["name"])["spec"]
    assert expected == {}


def test_braces_in_crd_are_not_templates(tmp_path: Path) -> None:
    """Rules and descriptions in a CRD may contain any text, so the CRDs must not be evaluated as templates."""
    tool("helm")
    chart = shutil.copytree(CHART, tmp_path / "hindcast")
    crd = chart / "files" / "crds" / "offlinetrainings.yaml"
    crd.write_text(crd.read_text().replace("scope: Namespaced", 'scope: "{{ fail }} {{/* {"'))
    process = helm("template", "x", str(chart), "--kube-version", CLUSTER_VERSION)
    assert process.returncode == 0, process.stderr
    assert 'scope: "{{ fail }} {{/* {"' in process.stdout


def test_release_fits_into_a_secret() -> None:
    """helm stores the chart and the manifests, compressed, in a Secret of at most 1 MiB."""
    chart = [path.read_bytes() for path in CHART.rglob("*") if path.is_file()]
    release = b"".join([*map(base64.b64encode, chart), render(ALL_OPTIONAL_OBJECTS).text.encode()])
    assert len(base64.b64encode(gzip.compress(release))) < 500_000


def test_chart_and_default_images_have_project_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = load_yaml(CHART / "Chart.yaml")
    assert chart["version"] == chart["appVersion"] == project
    assert Defaults().image == f"hindcast-runtime:{project}"
    images = {
        image["image"] for image in YAML(typ="safe").load(chart["annotations"]["artifacthub.io/images"])
    }
    assert images == {Defaults().image, f"hindcast-operator:{project}"}
    constraints = (ROOT / "constraints.txt").read_text()
    assert f"ray=={Defaults().ray_version}\n" in constraints


def test_artifact_hub_annotations_name_existing_crds() -> None:
    annotations = load_yaml(CHART / "Chart.yaml")["annotations"]
    names = {crd["name"] for crd in YAML(typ="safe").load(annotations["artifacthub.io/crds"])}
    assert names == {crd["metadata"]["name"] for crd in render().find_all("CustomResourceDefinition")}
    for example in YAML(typ="safe", pure=True).load(annotations["artifacthub.io/crdsExamples"]):
        validate_resource(example)


# -- metrics ------------------------------------------------------------------------------------------------

HISTOGRAM_SUFFIXES = ("_bucket", "_count", "_sum")


def test_queries_use_existing_metrics() -> None:
    metric_names = {f"{name}{end}" for name in list_histograms() for end in HISTOGRAM_SUFFIXES} | set(
        list_counters_and_gauges()
    )
    for expression in list_expressions():
        promql_parser.parse(expression)
        queried_names = set(re.findall(r"hindcast_\w+", expression))
        assert queried_names, expression
        assert queried_names <= metric_names, expression


def test_queries_use_existing_labels() -> None:
    label_names = {label for metric in list_metrics() for label in metric._labelnames} | {"le"}
    for expression in list_expressions():
        group_labels = {
            word for group in re.findall(r"by \(([^)]*)\)", expression) for word in re.findall(r"\w+", group)
        }
        selector_labels = set(re.findall(r"(\w+)=~?\"", expression))
        assert group_labels | selector_labels <= label_names, expression


def test_alerts_have_summary_and_description() -> None:
    rules = [rule for group in render_alerts()["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 5
    for rule in rules:
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}


def list_metrics() -> list[Any]:
    return [metric for metric in vars(metrics).values() if hasattr(metric, "_labelnames")]


def list_histograms() -> list[str]:
    return [metric._name for metric in list_metrics() if metric._type == "histogram"]


def list_counters_and_gauges() -> list[str]:
    suffixes = {"counter": "_total", "gauge": ""}
    return [metric._name + suffixes[metric._type] for metric in list_metrics() if metric._type in suffixes]


def render_alerts() -> Any:
    return render(ALL_OPTIONAL_OBJECTS).find_one("PrometheusRule")["spec"]


def list_expressions() -> list[str]:
    """Return every query of the alerts and the dashboard as the chart renders them."""
    board = json.loads(
        render(ALL_OPTIONAL_OBJECTS).find_one("ConfigMap", "hindcast-dashboard")["data"]["hindcast.json"]
    )
    dashboard_queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return dashboard_queries + [
        rule["expr"] for group in render_alerts()["groups"] for rule in group["rules"]
    ]


def test_alerts_use_existing_label_values() -> None:
    words_by_label = {
        "result": set(re.findall(r'return "([a-z-]+)"', inspect.getsource(reconciler))),
        "state": set(get_args(State)),
        "outcome": set(get_args(AttemptState)),
    }
    for expression in list_expressions():
        for label, words in re.findall(r'(\w+)=~?"([^"]*)"', expression):
            if label in words_by_label:
                assert set(words.split("|")) <= words_by_label[label], expression
