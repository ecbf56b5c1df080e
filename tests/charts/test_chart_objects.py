"""What the chart installs: strict pods, the CRDs as they are, metrics that exist."""

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

EVERYTHING: Object = {
    "watchNamespaces": ["team-a"],
    **{
        part: {"enabled": True} for part in ("serviceMonitor", "prometheusRule", "dashboard", "networkPolicy")
    },
}


def yaml(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text())


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_helm_finds_nothing_to_say(values: Object) -> None:
    done = helm("lint", "--strict", str(CHART), values=values)
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize("kind", ["Deployment", "Pod"])
def test_pods_are_restricted(kind: str) -> None:
    found = render().one(kind)
    pod = found["spec"]["template"]["spec"] if kind == "Deployment" else found["spec"]
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


def test_all_objects_say_whose_they_are_and_where() -> None:
    cluster_wide = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
    for found in render(EVERYTHING | {"watchNamespaces": []}).objects:
        labels = found["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "hindcast", found["metadata"]["name"]
        assert ("namespace" in found["metadata"]) == (found["kind"] not in cluster_wide)


def test_service_monitor_and_budget_find_the_operator() -> None:
    found = render(EVERYTHING)
    labels = found.one("Deployment")["spec"]["template"]["metadata"]["labels"].items()
    service = found.one("Service")
    assert service["spec"]["selector"].items() <= labels
    assert found.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels
    assert found.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels
    selector = found.one("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert selector.items() <= service["metadata"]["labels"].items()


def test_the_crds_are_those_of_the_models() -> None:
    stored = {d["metadata"]["name"]: d for d in map(yaml, sorted((ROOT / "crds").glob("*.yaml")))}
    for found in render().all("CustomResourceDefinition"):
        assert found["spec"] == stored.pop(found["metadata"]["name"])["spec"]
    assert stored == {}


def test_braces_in_a_description_stay_text(tmp_path: Path) -> None:
    """CEL rules and descriptions may hold anything: no CRD is read as a template."""
    tool("helm")
    chart = shutil.copytree(CHART, tmp_path / "hindcast")
    crd = chart / "files" / "crds" / "offlinetrainings.yaml"
    crd.write_text(crd.read_text().replace("scope: Namespaced", 'scope: "{{ fail }} {{/* {"'))
    done = helm("template", "x", str(chart), "--kube-version", CLUSTER_VERSION)
    assert done.returncode == 0, done.stderr
    assert 'scope: "{{ fail }} {{/* {"' in done.stdout


def test_a_release_fits_into_a_secret() -> None:
    """helm keeps chart and manifests, compressed, in a Secret of at most 1 MiB."""
    chart = [path.read_bytes() for path in CHART.rglob("*") if path.is_file()]
    release = b"".join([*map(base64.b64encode, chart), render(EVERYTHING).text.encode()])
    assert len(base64.b64encode(gzip.compress(release))) < 500_000


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml(CHART / "Chart.yaml")
    assert chart["version"] == chart["appVersion"] == project
    assert Defaults().image == f"hindcast-runtime:{project}"
    images = {
        image["image"] for image in YAML(typ="safe").load(chart["annotations"]["artifacthub.io/images"])
    }
    assert images == {Defaults().image, f"hindcast-operator:{project}"}
    pinned = (ROOT / "constraints.txt").read_text()
    assert f"ray=={Defaults().ray_version}\n" in pinned


def test_artifact_hub_shows_crds_and_examples_that_exist() -> None:
    annotations = yaml(CHART / "Chart.yaml")["annotations"]
    shown = {crd["name"] for crd in YAML(typ="safe").load(annotations["artifacthub.io/crds"])}
    assert shown == {crd["metadata"]["name"] for crd in render().all("CustomResourceDefinition")}
    for example in YAML(typ="safe", pure=True).load(annotations["artifacthub.io/crdsExamples"]):
        validate_resource(example)


# -- metrics ------------------------------------------------------------------------------------------------

HISTOGRAMS = ("_bucket", "_count", "_sum")


def test_alerts_and_dashboard_ask_for_metrics_that_exist() -> None:
    exported = {f"{name}{end}" for name in histograms() for end in HISTOGRAMS} | set(plain())
    for expression in expressions():
        promql_parser.parse(expression)
        asked = set(re.findall(r"hindcast_\w+", expression))
        assert asked, expression
        assert asked <= exported, expression


def test_alerts_and_dashboard_ask_for_labels_that_exist() -> None:
    known = {label for metric in own_metrics() for label in metric._labelnames} | {"le"}
    for expression in expressions():
        grouped = {
            word for words in re.findall(r"by \(([^)]*)\)", expression) for word in re.findall(r"\w+", words)
        }
        selected = set(re.findall(r"(\w+)=~?\"", expression))
        assert grouped | selected <= known, expression


def test_each_alert_says_what_happens_and_what_to_do() -> None:
    rules = [rule for group in alerts()["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 5
    for rule in rules:
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}


def own_metrics() -> list[Any]:
    return [found for found in vars(metrics).values() if hasattr(found, "_labelnames")]


def histograms() -> list[str]:
    return [metric._name for metric in own_metrics() if metric._type == "histogram"]


def plain() -> list[str]:
    ends = {"counter": "_total", "gauge": ""}
    return [metric._name + ends[metric._type] for metric in own_metrics() if metric._type in ends]


def alerts() -> Any:
    return render(EVERYTHING).one("PrometheusRule")["spec"]


def expressions() -> list[str]:
    """Every query of the rules and the dashboard, as they are rendered."""
    board = json.loads(render(EVERYTHING).one("ConfigMap", "hindcast-dashboard")["data"]["hindcast.json"])
    drawn = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return drawn + [rule["expr"] for group in alerts()["groups"] for rule in group["rules"]]


def test_alerts_ask_for_words_that_the_operator_says() -> None:
    said = {
        "result": set(re.findall(r'return "([a-z-]+)"', inspect.getsource(reconciler))),
        "state": set(get_args(State)),
        "outcome": set(get_args(AttemptState)),
    }
    for expression in expressions():
        for label, words in re.findall(r'(\w+)=~?"([^"]*)"', expression):
            if label in said:
                assert set(words.split("|")) <= said[label], expression
