"""Each value of the chart changes what it says it changes, and nothing is left that no test has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ruamel.yaml import YAML

from chart_helm import CHART, Object, RenderedChart, render

Look = Callable[[RenderedChart], Any]


def yaml(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def container(field: str) -> Look:
    return lambda chart: chart.container.get(field)


def pod(field: str) -> Look:
    return lambda chart: chart.pod.get(field)


def template(field: str, key: str) -> Look:
    return lambda chart: chart.find_one("Deployment")["spec"]["template"]["metadata"][field].get(key)


def metadata(kind: str, field: str, key: str) -> Look:
    return lambda chart: chart.find_one(kind)["metadata"].get(field, {}).get(key)


def count(kind: str) -> Look:
    return lambda chart: len(chart.find_all(kind))


def defaults(chart: RenderedChart) -> Any:
    return yaml(chart.find_one("ConfigMap", "hindcast-defaults")["data"]["defaults.yaml"])["defaults"]


def argument(word: str) -> Look:
    return lambda chart: [text for text in chart.container["args"] if text.startswith(word)]


def names(chart: RenderedChart) -> set[str]:
    kinds = {"CustomResourceDefinition"}
    return {o["metadata"]["name"] for o in chart.objects if o["kind"] not in kinds}


def policy(part: str) -> Look:
    return lambda chart: chart.find_one("NetworkPolicy")["spec"][part]


def resource_policies(chart: RenderedChart) -> set[Any]:
    return {
        crd["metadata"].get("annotations", {}).get("helm.sh/resource-policy")
        for crd in chart.find_all("CustomResourceDefinition")
    }


SERVICE_MONITOR: Object = {"serviceMonitor": {"enabled": True}}
PROMETHEUS_RULE: Object = {"prometheusRule": {"enabled": True}}
DASHBOARD: Object = {"dashboard": {"enabled": True}}
NETWORK_POLICY: Object = {"networkPolicy": {"enabled": True}}
TAINT = {"key": "infra", "operator": "Exists"}
PEER = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
PEER_OF_TEST = {
    "podSelector": {
        "matchLabels": {"app.kubernetes.io/instance": "hindcast", "app.kubernetes.io/component": "test"}
    }
}
PORTS = [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 6443}]
SPREAD = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
SECRET = {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}

# value, what it is set to, where to look, what is there before and after, what else has to be set
CASES: list[tuple[str, Any, Look, Any, Any, Object]] = [
    ("image", "mirror/hc:1", container("image"), "hindcast-operator:0.1.0", "mirror/hc:1", {}),
    ("imagePullPolicy", "Always", container("imagePullPolicy"), "IfNotPresent", "Always", {}),
    ("imagePullSecrets", [{"name": "s"}], pod("imagePullSecrets"), None, [{"name": "s"}], {}),
    ("replicas", 3, lambda f: f.find_one("Deployment")["spec"]["replicas"], 2, 3, {}),
    ("watchNamespaces", ["a", "b"], argument("--namespace"), [], ["--namespace=a", "--namespace=b"], {}),
    ("watchNamespaces", ["a", "b"], count("ClusterRoleBinding"), 1, 0, {}),
    ("logLevel", "debug", argument("--log-level"), ["--log-level=info"], ["--log-level=debug"], {}),
    ("defaults", {"storageRoot": "s3://b"}, defaults, {}, {"storageRoot": "s3://b"}, {}),
    ("crds.create", False, count("CustomResourceDefinition"), 2, 0, {}),
    ("crds.keep", False, resource_policies, {"keep"}, {None}, {}),
    ("rbac.create", False, count("RoleBinding"), 1, 0, {}),
    ("rbac.create", False, count("ClusterRole"), 3, 2, {}),
    ("rbac.aggregate", False, count("ClusterRole"), 3, 1, {}),
    ("serviceAccount.create", False, count("ServiceAccount"), 1, 0, {"serviceAccount": {"name": "mine"}}),
    ("serviceAccount.name", "mine", pod("serviceAccountName"), "hindcast", "mine", {}),
    ("serviceAccount.annotations", {"a": "b"}, metadata("ServiceAccount", "annotations", "a"), None, "b", {}),
    (
        "resources",
        {"limits": {"memory": "1Gi"}},
        lambda f: f.container["resources"]["limits"]["memory"],
        "512Mi",
        "1Gi",
        {},
    ),
    ("podSecurityContext", {"runAsUser": 7}, lambda f: f.pod["securityContext"]["runAsUser"], 1000, 7, {}),
    (
        "securityContext",
        {"runAsUser": 7},
        lambda f: f.container["securityContext"].get("runAsUser"),
        None,
        7,
        {},
    ),
    ("podAnnotations", {"a": "b"}, template("annotations", "a"), None, "b", {}),
    ("podLabels", {"a": "b"}, template("labels", "a"), None, "b", {}),
    ("extraEnv", [SECRET], container("env"), None, [SECRET], {}),
    ("extraArgs", ["--x"], argument("--x"), [], ["--x"], {}),
    ("priorityClassName", "high", pod("priorityClassName"), None, "high", {}),
    ("nodeSelector", {"a": "b"}, pod("nodeSelector"), None, {"a": "b"}, {}),
    ("tolerations", [TAINT], pod("tolerations"), None, [TAINT], {}),
    ("affinity", {"podAffinity": {}}, pod("affinity"), None, {"podAffinity": {}}, {}),
    (
        "topologySpreadConstraints",
        [SPREAD],
        lambda f: [c["topologyKey"] for c in f.pod["topologySpreadConstraints"]],
        ["kubernetes.io/hostname"],
        ["zone"],
        {},
    ),
    ("podDisruptionBudget.enabled", False, count("PodDisruptionBudget"), 1, 0, {}),
    ("service.annotations", {"a": "b"}, metadata("Service", "annotations", "a"), None, "b", {}),
    ("service.port", 9090, lambda f: f.find_one("Service")["spec"]["ports"][0]["port"], 8080, 9090, {}),
    ("serviceMonitor.enabled", True, count("ServiceMonitor"), 0, 1, {}),
    (
        "serviceMonitor.interval",
        "5s",
        lambda f: f.find_one("ServiceMonitor")["spec"]["endpoints"][0]["interval"],
        "30s",
        "5s",
        SERVICE_MONITOR,
    ),
    (
        "serviceMonitor.labels",
        {"a": "b"},
        metadata("ServiceMonitor", "labels", "a"),
        None,
        "b",
        SERVICE_MONITOR,
    ),
    ("prometheusRule.enabled", True, count("PrometheusRule"), 0, 1, {}),
    (
        "prometheusRule.labels",
        {"a": "b"},
        metadata("PrometheusRule", "labels", "a"),
        None,
        "b",
        PROMETHEUS_RULE,
    ),
    ("dashboard.enabled", True, count("ConfigMap"), 1, 2, {}),
    (
        "dashboard.labels",
        {"a": "b"},
        lambda f: f.find_one("ConfigMap", "hindcast-dashboard")["metadata"]["labels"].get("a"),
        None,
        "b",
        DASHBOARD,
    ),
    ("networkPolicy.enabled", True, count("NetworkPolicy"), 0, 1, {}),
    (
        "networkPolicy.from",
        [PEER],
        lambda f: policy("ingress")(f)[0].get("from"),
        None,
        [PEER, PEER_OF_TEST],
        NETWORK_POLICY,
    ),
    (
        "networkPolicy.apiServer",
        ["10.0.0.1/32"],
        lambda f: policy("egress")(f)[1].get("to"),
        None,
        [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
        NETWORK_POLICY,
    ),
    (
        "networkPolicy.apiServerPorts",
        [8443],
        lambda f: policy("egress")(f)[1]["ports"],
        PORTS,
        [{"protocol": "TCP", "port": 8443}],
        NETWORK_POLICY,
    ),
    (
        "nameOverride",
        "offline",
        lambda f: f.find_one("Deployment")["metadata"]["name"],
        "hindcast",
        "hindcast-offline",
        {},
    ),
    (
        "fullnameOverride",
        "offline",
        names,
        {
            "hindcast",
            "hindcast-defaults",
            "hindcast-lease",
            "hindcast-test",
            "hindcast-view",
            "hindcast-edit",
        },
        {"offline", "offline-defaults", "offline-lease", "offline-test", "offline-view", "offline-edit"},
        {},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)])
def test_value_changes_the_rendered_manifest(case: tuple[str, Any, Look, Any, Any, Object]) -> None:
    path, value, look, before, after, other_values = case
    assert look(render(other_values)) == before
    assert look(render(merge_values(other_values, nested_value(path, value)))) == after


def test_every_value_has_a_case() -> None:
    text = (CHART / "values.yaml").read_text()
    paths = {
        f"{key}.{below}" if below else key
        for key, value in yaml(text).items()
        for below in (value if f"\n{key}:\n  # --" in text else [""])
    }
    assert paths == {case[0] for case in CASES}


def test_single_replica_has_no_disruption_budget() -> None:
    assert render({"replicas": 1}).find_all("PodDisruptionBudget") == []


def test_watched_namespaces_get_their_own_roles() -> None:
    everywhere = render().find_one("ClusterRole", "hindcast")["rules"]
    chart = render({"watchNamespaces": ["a", "b"]})
    for place in ("a", "b"):
        roles = [role for role in chart.find_all("Role") if role["metadata"]["namespace"] == place]
        assert [role["rules"] for role in roles] == [everywhere]
        bindings = [
            binding for binding in chart.find_all("RoleBinding") if binding["metadata"]["namespace"] == place
        ]
        assert [binding["roleRef"]["kind"] for binding in bindings] == ["Role"]
    assert not [role for role in chart.find_all("ClusterRole") if role["metadata"]["name"] == "hindcast"]


def test_changed_defaults_restart_the_pods() -> None:
    mark = template("annotations", "hindcast.dev/defaults")
    assert mark(render()) != mark(render({"defaults": {"storageRoot": "s3://b"}}))
    assert mark(render()) == mark(render({"replicas": 4}))


def nested_value(path: str, value: Any) -> Object:
    for key in reversed(path.split(".")):
        value = {key: value}
    values: Object = value
    return values


def merge_values(one: Object, other: Object) -> Object:
    merged_values = {**one, **other}
    for key in one.keys() & other.keys():
        if isinstance(one[key], dict) and isinstance(other[key], dict):
            merged_values[key] = merge_values(one[key], other[key])
    return merged_values
