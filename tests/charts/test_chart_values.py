"""Each value of the chart changes the rendered manifests as documented, and each value has a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ruamel.yaml import YAML

from chart_helm import CHART, Object, RenderedChart, render

ReadValue = Callable[[RenderedChart], Any]


def load_yaml(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def read_container(field: str) -> ReadValue:
    return lambda chart: chart.container.get(field)


def read_pod(field: str) -> ReadValue:
    return lambda chart: chart.pod.get(field)


def read_template(field: str, key: str) -> ReadValue:
    return lambda chart: chart.find_one("Deployment")["spec"]["template"]["metadata"][field].get(key)


def read_metadata(kind: str, field: str, key: str) -> ReadValue:
    return lambda chart: chart.find_one(kind)["metadata"].get(field, {}).get(key)


def count_objects(kind: str) -> ReadValue:
    return lambda chart: len(chart.find_all(kind))


def read_defaults(chart: RenderedChart) -> Any:
    return load_yaml(chart.find_one("ConfigMap", "hindcast-defaults")["data"]["defaults.yaml"])["defaults"]


def read_arguments(word: str) -> ReadValue:
    return lambda chart: [text for text in chart.container["args"] if text.startswith(word)]


def read_names(chart: RenderedChart) -> set[str]:
    kinds = {"CustomResourceDefinition"}
    return {o["metadata"]["name"] for o in chart.objects if o["kind"] not in kinds}


def read_network_policy(part: str) -> ReadValue:
    return lambda chart: chart.find_one("NetworkPolicy")["spec"][part]


def read_resource_policies(chart: RenderedChart) -> set[Any]:
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

# name, new value, a function that reads the rendered manifests, its result before and after, other values to set
CASES: list[tuple[str, Any, ReadValue, Any, Any, Object]] = [
    ("image", "mirror/hc:1", read_container("image"), "hindcast-operator:0.1.0", "mirror/hc:1", {}),
    ("imagePullPolicy", "Always", read_container("imagePullPolicy"), "IfNotPresent", "Always", {}),
    ("imagePullSecrets", [{"name": "s"}], read_pod("imagePullSecrets"), None, [{"name": "s"}], {}),
    ("replicas", 3, lambda chart: chart.find_one("Deployment")["spec"]["replicas"], 2, 3, {}),
    (
        "watchNamespaces",
        ["a", "b"],
        read_arguments("--namespace"),
        [],
        ["--namespace=a", "--namespace=b"],
        {},
    ),
    ("watchNamespaces", ["a", "b"], count_objects("ClusterRoleBinding"), 1, 0, {}),
    ("logLevel", "debug", read_arguments("--log-level"), ["--log-level=info"], ["--log-level=debug"], {}),
    ("defaults", {"storageRoot": "s3://b"}, read_defaults, {}, {"storageRoot": "s3://b"}, {}),
    ("crds.create", False, count_objects("CustomResourceDefinition"), 2, 0, {}),
    ("crds.keep", False, read_resource_policies, {"keep"}, {None}, {}),
    ("rbac.create", False, count_objects("RoleBinding"), 1, 0, {}),
    ("rbac.create", False, count_objects("ClusterRole"), 3, 2, {}),
    ("rbac.aggregate", False, count_objects("ClusterRole"), 3, 1, {}),
    (
        "serviceAccount.create",
        False,
        count_objects("ServiceAccount"),
        1,
        0,
        {"serviceAccount": {"name": "mine"}},
    ),
    ("serviceAccount.name", "mine", read_pod("serviceAccountName"), "hindcast", "mine", {}),
    (
        "serviceAccount.annotations",
        {"a": "b"},
        read_metadata("ServiceAccount", "annotations", "a"),
        None,
        "b",
        {},
    ),
    (
        "resources",
        {"limits": {"memory": "1Gi"}},
        lambda chart: chart.container["resources"]["limits"]["memory"],
        "512Mi",
        "1Gi",
        {},
    ),
    (
        "podSecurityContext",
        {"runAsUser": 7},
        lambda chart: chart.pod["securityContext"]["runAsUser"],
        1000,
        7,
        {},
    ),
    (
        "securityContext",
        {"runAsUser": 7},
        lambda chart: chart.container["securityContext"].get("runAsUser"),
        None,
        7,
        {},
    ),
    ("podAnnotations", {"a": "b"}, read_template("annotations", "a"), None, "b", {}),
    ("podLabels", {"a": "b"}, read_template("labels", "a"), None, "b", {}),
    ("extraEnv", [SECRET], read_container("env"), None, [SECRET], {}),
    ("extraArgs", ["--x"], read_arguments("--x"), [], ["--x"], {}),
    ("priorityClassName", "high", read_pod("priorityClassName"), None, "high", {}),
    ("nodeSelector", {"a": "b"}, read_pod("nodeSelector"), None, {"a": "b"}, {}),
    ("tolerations", [TAINT], read_pod("tolerations"), None, [TAINT], {}),
    ("affinity", {"podAffinity": {}}, read_pod("affinity"), None, {"podAffinity": {}}, {}),
    (
        "topologySpreadConstraints",
        [SPREAD],
        lambda chart: [c["topologyKey"] for c in chart.pod["topologySpreadConstraints"]],
        ["kubernetes.io/hostname"],
        ["zone"],
        {},
    ),
    ("podDisruptionBudget.enabled", False, count_objects("PodDisruptionBudget"), 1, 0, {}),
    ("service.annotations", {"a": "b"}, read_metadata("Service", "annotations", "a"), None, "b", {}),
    (
        "service.port",
        9090,
        lambda chart: chart.find_one("Service")["spec"]["ports"][0]["port"],
        8080,
        9090,
        {},
    ),
    ("serviceMonitor.enabled", True, count_objects("ServiceMonitor"), 0, 1, {}),
    (
        "serviceMonitor.interval",
        "5s",
        lambda chart: chart.find_one("ServiceMonitor")["spec"]["endpoints"][0]["interval"],
        "30s",
        "5s",
        SERVICE_MONITOR,
    ),
    (
        "serviceMonitor.labels",
        {"a": "b"},
        read_metadata("ServiceMonitor", "labels", "a"),
        None,
        "b",
        SERVICE_MONITOR,
    ),
    ("prometheusRule.enabled", True, count_objects("PrometheusRule"), 0, 1, {}),
    (
        "prometheusRule.labels",
        {"a": "b"},
        read_metadata("PrometheusRule", "labels", "a"),
        None,
        "b",
        PROMETHEUS_RULE,
    ),
    ("dashboard.enabled", True, count_objects("ConfigMap"), 1, 2, {}),
    (
        "dashboard.labels",
        {"a": "b"},
        lambda chart: chart.find_one("ConfigMap", "hindcast-dashboard")["metadata"]["labels"].get("a"),
        None,
        "b",
        DASHBOARD,
    ),
    ("networkPolicy.enabled", True, count_objects("NetworkPolicy"), 0, 1, {}),
    (
        "networkPolicy.from",
        [PEER],
        lambda chart: read_network_policy("ingress")(chart)[0].get("from"),
        None,
        [PEER, PEER_OF_TEST],
        NETWORK_POLICY,
    ),
    (
        "networkPolicy.apiServer",
        ["10.0.0.1/32"],
        lambda chart: read_network_policy("egress")(chart)[1].get("to"),
        None,
        [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
        NETWORK_POLICY,
    ),
    (
        "networkPolicy.apiServerPorts",
        [8443],
        lambda chart: read_network_policy("egress")(chart)[1]["ports"],
        PORTS,
        [{"protocol": "TCP", "port": 8443}],
        NETWORK_POLICY,
    ),
    (
        "nameOverride",
        "offline",
        lambda chart: chart.find_one("Deployment")["metadata"]["name"],
        "hindcast",
        "hindcast-offline",
        {},
    ),
    (
        "fullnameOverride",
        "offline",
        read_names,
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
def test_value_changes_the_rendered_manifest(case: tuple[str, Any, ReadValue, Any, Any, Object]) -> None:
    path, value, read_value, default, expected, other_values = case
    assert read_value(render(other_values)) == default
    assert read_value(render(merge_values(other_values, make_nested_values(path, value)))) == expected


def test_every_value_has_a_case() -> None:
    text = (CHART / "values.yaml").read_text()
    # In a section, such as `crds`, each value has a comment. Other mappings, such as `resources`, are one value.
    paths = {
        f"{key}.{subkey}" if subkey else key
        for key, value in load_yaml(text).items()
        for subkey in (value if f"\n{key}:\n  # --" in text else [""])
    }
    assert paths == {case[0] for case in CASES}


def test_single_replica_has_no_disruption_budget() -> None:
    assert render({"replicas": 1}).find_all("PodDisruptionBudget") == []


def test_watched_namespaces_get_their_own_roles() -> None:
    cluster_rules = render().find_one("ClusterRole", "hindcast")["rules"]
    chart = render({"watchNamespaces": ["a", "b"]})
    for namespace in ("a", "b"):
        roles = [role for role in chart.find_all("Role") if role["metadata"]["namespace"] == namespace]
        assert [role["rules"] for role in roles] == [cluster_rules]
        bindings = [
            binding
            for binding in chart.find_all("RoleBinding")
            if binding["metadata"]["namespace"] == namespace
        ]
        assert [binding["roleRef"]["kind"] for binding in bindings] == ["Role"]
    assert not [role for role in chart.find_all("ClusterRole") if role["metadata"]["name"] == "hindcast"]


def test_changed_defaults_restart_the_pods() -> None:
    read_digest = read_template("annotations", "hindcast.dev/defaults")
    assert read_digest(render()) != read_digest(render({"defaults": {"storageRoot": "s3://b"}}))
    assert read_digest(render()) == read_digest(render({"replicas": 4}))


def make_nested_values(path: str, value: Any) -> Object:
    for key in reversed(path.split(".")):
        value = {key: value}
    values: Object = value
    return values


def merge_values(base: Object, override: Object) -> Object:
    merged_values = {**base, **override}
    for key in base.keys() & override.keys():
        if isinstance(base[key], dict) and isinstance(override[key], dict):
            merged_values[key] = merge_values(base[key], override[key])
    return merged_values
