"""Each value of the chart changes the rendered manifests as documented, and each value has a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ruamel.yaml import YAML

from chart_helm import CHART, Object, RenderedChart, render

Where = str | Callable[[RenderedChart], Any]
"""A field of an object, as `Deployment.spec.replicas`, or a function that reads the rendered manifests."""


def load_yaml(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def read(chart: RenderedChart, where: Where) -> Any:
    """Read a field; None if it is missing. `container` and `pod` are the operator's."""
    if not isinstance(where, str):
        return where(chart)
    place, *keys = where.split(".")
    value: Any = getattr(chart, place) if place in ("container", "pod") else chart.find_one(place)
    for key in keys:
        value = value[int(key)] if isinstance(value, list) else (value or {}).get(key)
    return value


def count_objects(kind: str) -> Where:
    return lambda chart: len(chart.find_all(kind))


def read_defaults(chart: RenderedChart) -> Any:
    return load_yaml(chart.find_one("ConfigMap", "hindcast-defaults")["data"]["defaults.yaml"])["defaults"]


def read_arguments(word: str) -> Where:
    return lambda chart: [text for text in chart.container["args"] if text.startswith(word)]


def read_names(chart: RenderedChart) -> set[str]:
    return {o["metadata"]["name"] for o in chart.objects if o["kind"] != "CustomResourceDefinition"}


def read_resource_policies(chart: RenderedChart) -> set[Any]:
    return {
        crd["metadata"].get("annotations", {}).get("helm.sh/resource-policy")
        for crd in chart.find_all("CustomResourceDefinition")
    }


def read_dashboard_label(chart: RenderedChart) -> Any:
    return chart.find_one("ConfigMap", "hindcast-dashboard")["metadata"]["labels"].get("a")


def read_honor_labels(chart: RenderedChart) -> list[bool]:
    return [monitor["spec"]["endpoints"][0]["honorLabels"] for monitor in chart.find_all("ServiceMonitor")]


def read_spread_keys(chart: RenderedChart) -> list[str]:
    return [constraint["topologyKey"] for constraint in chart.pod["topologySpreadConstraints"]]


NEEDED_VALUES: dict[str, Object] = {
    "serviceAccount.create": {"serviceAccount": {"name": "mine"}},
    **{
        section: {section: {"enabled": True}}
        for section in ("serviceMonitor", "prometheusRule", "dashboard", "networkPolicy")
    },
}
"""Value or section -> the other values without which it changes nothing."""
TAINT = {"key": "infra", "operator": "Exists"}
PEER = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
TEST_LABELS = {"app.kubernetes.io/instance": "hindcast", "app.kubernetes.io/component": "test"}
PEER_OF_TEST = {"podSelector": {"matchLabels": TEST_LABELS}}
PORTS = [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 6443}]
SPREAD = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
SECRET = {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
NAME_ENDINGS = ("", "-defaults", "-lease", "-test", "-view", "-edit")
AB = {"a": "b"}
TEMPLATE = "Deployment.spec.template.metadata"
EGRESS = "NetworkPolicy.spec.egress.1"
LIMIT_64_MI = {"limits": {"memory": "64Mi"}}

# name, new value, where it shows in the rendered manifests, what is there by default, and with the new value
CASES: list[tuple[str, Any, Where, Any, Any]] = [
    ("image", "mirror/hc:1", "container.image", "hindcast-operator:0.1.0", "mirror/hc:1"),
    ("imagePullPolicy", "Always", "container.imagePullPolicy", "IfNotPresent", "Always"),
    ("imagePullSecrets", [{"name": "s"}], "pod.imagePullSecrets", None, [{"name": "s"}]),
    ("replicas", 3, "Deployment.spec.replicas", 2, 3),
    ("watchNamespaces", ["a", "b"], read_arguments("--namespace"), [], ["--namespace=a", "--namespace=b"]),
    ("watchNamespaces", ["a", "b"], count_objects("ClusterRoleBinding"), 1, 0),
    ("logLevel", "debug", read_arguments("--log-level"), ["--log-level=info"], ["--log-level=debug"]),
    ("defaults", {"storageRoot": "s3://b"}, read_defaults, {}, {"storageRoot": "s3://b"}),
    ("crds.create", False, count_objects("CustomResourceDefinition"), 2, 0),
    ("crds.keep", False, read_resource_policies, {"keep"}, {None}),
    ("rbac.create", False, count_objects("RoleBinding"), 1, 0),
    ("rbac.create", False, count_objects("ClusterRole"), 3, 2),
    ("rbac.aggregate", False, count_objects("ClusterRole"), 3, 1),
    ("serviceAccount.create", False, count_objects("ServiceAccount"), 1, 0),
    ("serviceAccount.name", "mine", "pod.serviceAccountName", "hindcast", "mine"),
    ("serviceAccount.annotations", AB, "ServiceAccount.metadata.annotations.a", None, "b"),
    ("resources", LIMIT_64_MI, "container.resources.limits.memory", "512Mi", "64Mi"),
    ("podSecurityContext", {"runAsUser": 7}, "pod.securityContext.runAsUser", 1000, 7),
    ("securityContext", {"runAsUser": 7}, "container.securityContext.runAsUser", None, 7),
    ("podAnnotations", AB, f"{TEMPLATE}.annotations.a", None, "b"),
    ("podLabels", AB, f"{TEMPLATE}.labels.a", None, "b"),
    ("extraEnv", [SECRET], "container.env", None, [SECRET]),
    ("extraArgs", ["--x"], read_arguments("--x"), [], ["--x"]),
    ("priorityClassName", "high", "pod.priorityClassName", None, "high"),
    ("nodeSelector", AB, "pod.nodeSelector", None, AB),
    ("tolerations", [TAINT], "pod.tolerations", None, [TAINT]),
    ("affinity", {"podAffinity": {}}, "pod.affinity", None, {"podAffinity": {}}),
    ("topologySpreadConstraints", [SPREAD], read_spread_keys, ["kubernetes.io/hostname"], ["zone"]),
    ("podDisruptionBudget.enabled", False, count_objects("PodDisruptionBudget"), 1, 0),
    ("service.annotations", AB, "Service.metadata.annotations.a", None, "b"),
    ("service.port", 9090, "Service.spec.ports.0.port", 8080, 9090),
    ("serviceMonitor.enabled", True, count_objects("ServiceMonitor"), 0, 1),
    ("serviceMonitor.interval", "5s", "ServiceMonitor.spec.endpoints.0.interval", "30s", "5s"),
    # Without honorLabels, Prometheus replaces the resources' namespace in the metrics by the operator's.
    ("serviceMonitor.enabled", True, read_honor_labels, [], [True]),
    ("serviceMonitor.labels", AB, "ServiceMonitor.metadata.labels.a", None, "b"),
    ("prometheusRule.enabled", True, count_objects("PrometheusRule"), 0, 1),
    ("prometheusRule.labels", AB, "PrometheusRule.metadata.labels.a", None, "b"),
    ("dashboard.enabled", True, count_objects("ConfigMap"), 1, 2),
    ("dashboard.labels", AB, read_dashboard_label, None, "b"),
    ("networkPolicy.enabled", True, count_objects("NetworkPolicy"), 0, 1),
    ("networkPolicy.from", [PEER], "NetworkPolicy.spec.ingress.0.from", None, [PEER, PEER_OF_TEST]),
    (
        "networkPolicy.apiServer",
        ["10.0.0.1/32"],
        f"{EGRESS}.to",
        None,
        [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
    ),
    ("networkPolicy.apiServerPorts", [8443], f"{EGRESS}.ports", PORTS, [{"protocol": "TCP", "port": 8443}]),
    ("nameOverride", "offline", "Deployment.metadata.name", "hindcast", "hindcast-offline"),
    (
        "fullnameOverride",
        "offline",
        read_names,
        {f"hindcast{ending}" for ending in NAME_ENDINGS},
        {f"offline{ending}" for ending in NAME_ENDINGS},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)])
def test_value_changes_the_rendered_manifest(case: tuple[str, Any, Where, Any, Any]) -> None:
    name, value, where, default, expected = case
    is_switch = name.endswith(".enabled")
    needed_values = {} if is_switch else NEEDED_VALUES.get(name, NEEDED_VALUES.get(name.split(".")[0], {}))
    assert read(render(needed_values), where) == default
    assert read(render(merge_values(needed_values, make_nested_values(name, value))), where) == expected


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
    def read_digest(chart: RenderedChart) -> Any:
        template = chart.find_one("Deployment")["spec"]["template"]
        return template["metadata"]["annotations"]["hindcast.dev/defaults"]

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
