"""The chart's roles on a real API server: they permit the operator's requests, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from operator_process import create_token, is_permitted, write_kubeconfig

from api_server import APPLY, ApiServer, RefusalError, collection, wait_for
from chart_helm import Object, render
from hindcast.api.attempt import Attempt
from hindcast.api.loading import validate_resource
from hindcast_operator import names
from hindcast_operator.defaults import Defaults
from hindcast_operator.manifests import build, effective_resource

RBAC = "rbac.authorization.k8s.io"
GROUPS = {
    "pods": "",
    "configmaps": "",
    "serviceaccounts": "",
    "events": "",
    "roles": RBAC,
    "rolebindings": RBAC,
    "rayjobs": "ray.io",
    "rayclusters": "ray.io",
    "offlinerecordings": "hindcast.dev",
    "offlinetrainings": "hindcast.dev",
}
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
ALLOWED_VERBS = {
    "offlinerecordings": "get list watch",
    "offlinetrainings": "get list watch",
    "offlinerecordings/status": "patch",
    "offlinetrainings/status": "patch",
    "offlinerecordings/finalizers": "update",
    "offlinetrainings/finalizers": "update",
    "rayjobs": "get list watch create patch delete",
    "rayclusters": "get list watch",
    "configmaps": "get list watch create patch delete",
    "serviceaccounts": "get create",
    "roles": "get create patch",
    "rolebindings": "get create patch",
    "pods": "get list watch",
    "events": "list",
}
FORBIDDEN_RESOURCES = (
    *(("", plural) for plural in ("secrets", "nodes", "namespaces", "pods/log", "pods/exec", "services")),
    *(("", plural) for plural in ("serviceaccounts/token", "persistentvolumeclaims")),
    *(("apps", plural) for plural in ("deployments", "statefulsets")),
    *((RBAC, plural) for plural in ("clusterroles", "clusterrolebindings")),
    *(("batch", plural) for plural in ("jobs", "cronjobs")),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("ray.io", "rayjobs/status"),
    ("ray.io", "rayservices"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
)


@dataclass(frozen=True)
class Installation:
    """The chart's roles and accounts, installed."""

    api: ApiServer
    system_namespace: str
    served_namespace: str
    other_namespace: str
    is_cluster_wide: bool

    @property
    def operator_user(self) -> str:
        return f"system:serviceaccount:{self.system_namespace}:hindcast"

    def is_operator_permitted(
        self, verb: str, group: str, resource: str, namespace: str, **attributes: str
    ) -> bool:
        """Return True if the operator has the right, as `kubectl auth can-i` does; "" means all namespaces."""
        request = {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
        return is_permitted(self.api, self.operator_user, **request, **attributes)

    def write_kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig with a token of the operator's account, as its pod mounts it."""
        token = create_token(self.api, self.system_namespace, "hindcast")
        return write_kubeconfig(self.api, token, folder / "kubeconfig")


@contextlib.contextmanager
def temporary_namespaces(api: ApiServer, count: int) -> Iterator[list[str]]:
    new_names = [f"chart-{uuid.uuid4().hex[:10]}" for _ in range(count)]
    for name in new_names:
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield new_names
    for name in new_names:
        api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="module", params=["everywhere", "watched"])
def installation(api: ApiServer, request: pytest.FixtureRequest) -> Iterator[Installation]:
    """Install the chart's roles for the whole cluster or for one namespace."""
    is_cluster_wide = request.param == "everywhere"
    with temporary_namespaces(api, 3) as (system, served_namespace, other_namespace):
        values = {} if is_cluster_wide else {"watchNamespaces": [served_namespace]}
        kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
        objects = [manifest for kind in kinds for manifest in render(values, system).find_all(kind)]
        for manifest in objects:
            api.apply(manifest, "tests")
        roles = Installation(api, system, served_namespace, other_namespace, is_cluster_wide)
        lease = ("get", "coordination.k8s.io", "leases", system)
        wait_for(
            lambda: (
                roles.is_operator_permitted("get", "ray.io", "rayjobs", served_namespace)
                and roles.is_operator_permitted(*lease, name="hindcast")
            ),
            "the API server applies the new roles",
        )
        yield roles
        for manifest in objects:
            api.delete(f"{api.path_of(manifest)}/{manifest['metadata']['name']}")


def test_operator_has_exactly_its_verbs(installation: Installation) -> None:
    """In a served namespace, all verbs in the table are permitted, and no other verbs."""
    for resource, verbs_text in ALLOWED_VERBS.items():
        group = GROUPS[resource.split("/")[0]]
        for verb in VERBS:
            is_verb_permitted = installation.is_operator_permitted(
                verb, group, resource, installation.served_namespace
            )
            assert is_verb_permitted == (verb in verbs_text.split()), f"{verb} {resource}"


def test_operator_has_no_forbidden_rights(installation: Installation) -> None:
    for group, resource in FORBIDDEN_RESOURCES:
        for namespace in (installation.served_namespace, installation.system_namespace):
            verbs = [
                verb for verb in VERBS if installation.is_operator_permitted(verb, group, resource, namespace)
            ]
            assert verbs == [], f"{resource} in {namespace}"
    for verb in ("bind", "escalate", "impersonate"):
        assert not installation.is_operator_permitted(verb, RBAC, "roles", installation.served_namespace)
        assert not installation.is_operator_permitted(verb, RBAC, "clusterroles", "")


def test_operator_has_rights_only_in_its_namespaces(installation: Installation) -> None:
    for resource, verbs_text in ALLOWED_VERBS.items():
        group, verb = GROUPS[resource.split("/")[0]], verbs_text.split()[0]
        assert (
            installation.is_operator_permitted(verb, group, resource, installation.other_namespace)
            == installation.is_cluster_wide
        )
        assert installation.is_operator_permitted(verb, group, resource, "") == installation.is_cluster_wide


def test_operator_may_only_create_events(installation: Installation) -> None:
    verbs = [
        v
        for v in VERBS
        if installation.is_operator_permitted(v, "events.k8s.io", "events", installation.served_namespace)
    ]
    assert verbs == ["create"]


def test_operator_may_use_only_its_lease(installation: Installation) -> None:
    def allowed_verbs(namespace: str, name: str) -> set[str]:
        lease = ("coordination.k8s.io", "leases", namespace)
        return {verb for verb in VERBS if installation.is_operator_permitted(verb, *lease, name=name)}

    assert allowed_verbs(installation.system_namespace, "hindcast") == {"create", "get", "update"}
    assert allowed_verbs(installation.system_namespace, "another") == {"create"}
    assert allowed_verbs(installation.served_namespace, "hindcast") == set()


# -- writes with the operator's account ---------------------------------------------------------------------

TRAINING: Object = {
    "apiVersion": "hindcast.dev/v1alpha1",
    "kind": "OfflineTraining",
    "metadata": {"name": "clone"},
    "spec": {
        "algorithm": "BC",
        "environment": {"id": "CartPole-v1"},
        "input": [{"path": "s3://bucket/data"}],
        "stop": {"iterations": 1},
        "checkpoint": {"path": "s3://bucket/runs"},
    },
}


@pytest.fixture
def operator(installation: Installation, tmp_path: Path) -> Iterator[ApiServer]:
    """Connect to the API server like the operator's pod, with the token of its service account."""
    with ApiServer.from_kubeconfig(str(installation.write_kubeconfig(tmp_path))) as server:
        yield server


def build_objects(installation: Installation, number: int, uid: str) -> list[Object]:
    resource = validate_resource(
        TRAINING | {"metadata": {"name": "clone", "namespace": installation.served_namespace}}
    )
    attempt = Attempt(
        revision=1,
        number=number,
        ray_job_name=names.child_name("OfflineTraining", "clone", 1, number),
        namespace=installation.served_namespace,
        uid=uid,
        spec_hash="0" * 16,
    )
    return build(effective_resource(resource, Defaults()), attempt)


def test_operator_may_write_all_objects_and_run_may_access_only_its_config_map(
    installation: Installation, operator: ApiServer
) -> None:
    """Make each write of the operator with the operator's account, then check the rights of the run's account."""
    api, namespace = installation.api, installation.served_namespace
    training = api.create(TRAINING, namespace)
    uid = training["metadata"]["uid"]
    status_patch = [{"op": "add", "path": "/status", "value": {"observedGeneration": 1}}]
    path = f"{collection('hindcast.dev/v1alpha1', 'offlinetrainings', namespace)}/clone/status"
    operator.request("PATCH", path, status_patch, "application/json-patch+json")
    objects = build_objects(installation, 1, uid)
    assert [manifest["kind"] for manifest in objects] == [
        *("ConfigMap", "ServiceAccount", "Role", "RoleBinding", "RayJob")
    ]
    for manifest in objects:
        operator.create(manifest, namespace)
    role = build_objects(installation, 2, uid)[2]  # names the ConfigMap of the second attempt
    operator.apply(role, names.MANAGER)
    operator.create(make_event(namespace), namespace)

    service_account = objects[1]
    account = f"system:serviceaccount:{namespace}:{service_account['metadata']['name']}"
    first_child, second_child = (names.child_name("OfflineTraining", "clone", 1, number) for number in (1, 2))
    config_maps = {"group": "", "resource": "configmaps", "namespace": namespace}
    wait_for(
        lambda: is_permitted(api, account, verb="get", name=second_child, **config_maps),
        "the API server applies the changed role",
    )
    for child, verbs in ((second_child, ["get", "patch"]), (first_child, []), ("another", [])):
        assert [v for v in VERBS if is_permitted(api, account, verb=v, name=child, **config_maps)] == verbs, (
            child
        )
    own_account = service_account["metadata"]["name"]
    for group, resource, name in (
        *(("", plural, "") for plural in ("pods", "secrets", "serviceaccounts", "configmaps")),
        *(("ray.io", plural, "") for plural in ("rayjobs", "rayclusters")),
        (RBAC, "roles", own_account),
        ("hindcast.dev", "offlinetrainings", "clone"),
    ):
        target = {"group": group, "resource": resource, "name": name, "namespace": namespace}
        assert [v for v in VERBS if is_permitted(api, account, verb=v, **target)] == [], resource

    for manifest in reversed(objects):
        if manifest["kind"] in ("RayJob", "ConfigMap"):
            operator.delete(f"{operator.path_of(manifest, namespace)}/{manifest['metadata']['name']}")
    api.delete(f"{api.path_of(TRAINING, namespace)}/clone")


def make_event(namespace: str) -> Object:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "clone.1", "namespace": namespace},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "hindcast.dev/hindcast-operator",
        "reportingInstance": "test",
        "action": "Reconcile",
        "type": "Normal",
        "reason": "Started",
        "note": "It has started",
        "regarding": {"kind": "OfflineTraining", "name": "clone", "namespace": namespace},
    }


def test_operator_cannot_grant_rights_it_lacks(installation: Installation, operator: ApiServer) -> None:
    role = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": "more", "namespace": installation.served_namespace},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}],
    }
    with pytest.raises(RefusalError, match="not currently held") as error_info:
        operator.create(role)
    assert error_info.value.status == 403


def test_operator_cannot_change_user_resources(installation: Installation, operator: ApiServer) -> None:
    namespace = installation.served_namespace
    training = installation.api.create(TRAINING, namespace)
    path = f"{installation.api.path_of(TRAINING, namespace)}/clone"
    for method, body, kind in (
        ("PATCH", {"metadata": {"finalizers": ["hindcast.dev/x"]}}, "application/merge-patch+json"),
        ("PATCH", json.dumps(TRAINING), APPLY),
        ("DELETE", None, "application/json"),
    ):
        query = {"fieldManager": "x"} if kind == APPLY else {}
        with pytest.raises(RefusalError) as error_info:
            operator.request(method, path, body, kind, **query)
        assert error_info.value.status == 403
    assert installation.api.request("GET", path)["metadata"]["uid"] == training["metadata"]["uid"]
    installation.api.delete(path)


# -- people -------------------------------------------------------------------------------------------------


def test_cluster_roles_view_and_edit_include_resources(installation: Installation) -> None:
    """The controller manager aggregates the chart's roles into the cluster's roles view, edit and admin."""
    api, namespace = installation.api, installation.served_namespace
    for role in ("view", "edit", "admin"):
        api.apply(make_role_binding(role, namespace), "tests")
    wait_for(lambda: is_user_permitted(installation, "view", "get"), "view is aggregated")
    wait_for(lambda: is_user_permitted(installation, "admin", "deletecollection"), "admin is aggregated")
    reading, writing = {"get", "list", "watch"}, {"create", "update", "patch", "delete", "deletecollection"}
    for role, verbs in (("view", reading), ("edit", reading | writing), ("admin", reading | writing)):
        assert {verb for verb in VERBS if is_user_permitted(installation, role, verb)} == verbs
        status = {
            verb for verb in VERBS if is_user_permitted(installation, role, verb, "offlinetrainings/status")
        }
        assert status == reading, "only the operator writes the status"


def is_user_permitted(
    installation: Installation, role: str, verb: str, resource: str = "offlinetrainings"
) -> bool:
    attributes = {
        "verb": verb,
        "group": "hindcast.dev",
        "resource": resource,
        "namespace": installation.served_namespace,
    }
    return is_permitted(installation.api, f"a-{role}er", **attributes)


def make_role_binding(role: str, namespace: str) -> Object:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"people-{role}", "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": f"a-{role}er"}],
    }


# -- the operator itself ------------------------------------------------------------------------------------


@pytest.mark.alone
def test_operator_process_is_never_refused(installation: Installation, tmp_path: Path) -> None:
    """The API server refuses no request of an operator with the chart's roles, from start to deletion."""
    api, namespace = installation.api, installation.served_namespace
    wait_for(lambda: not list_terminating_namespaces(api), "the namespaces of earlier tests are gone", 120)
    with run_operator_process(installation, tmp_path) as metrics:
        training = api.create(TRAINING, namespace)
        job = f"{collection('ray.io/v1', 'rayjobs', namespace)}/{names.child_name('OfflineTraining', 'clone', 1, 1)}"
        wait_for(lambda: exists(api, job), "the RayJob exists", 60)
        wait_for(
            lambda: bool(list_events(api, namespace, training["metadata"]["uid"])), "an event exists", 60
        )
        api.merge(training, {"spec": {"suspend": True, "runPolicy": {"suspendGraceSeconds": 0}}})
        wait_for(lambda: not exists(api, job), "the RayJob is deleted", 60)
        deletion_count = 'hindcast_writes_total{what="delete-rayjob"} 1.0'
        # The deletion is counted once its answer has arrived.
        wait_for(lambda: deletion_count in metrics(), "the deletion is counted", 60)
        api.delete(f"{api.path_of(training)}/clone")
        metrics_text = metrics()
    assert "hindcast_leader 1.0" in metrics_text
    assert 'hindcast_writes_total{what="create-rayjob"} 1.0' in metrics_text
    assert deletion_count in metrics_text
    assert 'code="403"' not in metrics_text


def list_terminating_namespaces(api: ApiServer) -> list[str]:
    """Return the namespaces that are being deleted. A write into such a namespace is refused with a 403."""
    items = api.request("GET", "/api/v1/namespaces")["items"]
    return [item["metadata"]["name"] for item in items if "deletionTimestamp" in item["metadata"]]


@contextlib.contextmanager
def run_operator_process(installation: Installation, folder: Path) -> Iterator[Callable[[], str]]:
    """Run the operator as the chart's Deployment starts it, with its account; yield a reader of /metrics."""
    values = {} if installation.is_cluster_wide else {"watchNamespaces": [installation.served_namespace]}
    container = render(values, installation.system_namespace).container
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "defaults.yaml").write_text("defaults: {}")
    replacements = {"--listen": f"127.0.0.1:{port}", "--defaults": str(folder / "defaults.yaml")}
    arguments = [
        f"{name}={replacements.get(name, value)}"
        for name, value in (a.split("=", 1) for a in container["args"])
    ]
    environment = os.environ | {"KUBECONFIG": str(installation.write_kubeconfig(folder))}
    command = [sys.executable, "-m", "hindcast_operator", *arguments]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield (
                lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{(folder / 'log').read_text()[-3000:]}") from error
        finally:
            process.terminate()
            process.wait(30)


def exists(api: ApiServer, path: str) -> bool:
    try:
        return bool(api.request("GET", path))
    except RefusalError as error:
        assert error.status == 404
        return False


def list_events(api: ApiServer, namespace: str, uid: str) -> list[Object]:
    events = api.request("GET", collection("v1", "events", namespace))["items"]
    return [event for event in events if event["involvedObject"].get("uid") == uid]
