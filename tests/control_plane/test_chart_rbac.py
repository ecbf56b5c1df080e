"""The chart's roles on a real API server: the operator may do all that it does, and nothing else."""

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
from ruamel.yaml import YAML

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
ALLOWED = {
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
NEVER = (
    *(("", found) for found in ("secrets", "nodes", "namespaces", "pods/log", "pods/exec", "services")),
    *(("", found) for found in ("serviceaccounts/token", "persistentvolumeclaims")),
    *(("apps", found) for found in ("deployments", "statefulsets")),
    *((RBAC, found) for found in ("clusterroles", "clusterrolebindings")),
    *(("batch", found) for found in ("jobs", "cronjobs")),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("ray.io", "rayjobs/status"),
    ("ray.io", "rayservices"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
)


@dataclass(frozen=True)
class Installed:
    """The chart's roles and accounts, installed."""

    api: ApiServer
    system: str
    served: str
    elsewhere: str
    everywhere: bool

    @property
    def operator(self) -> str:
        return f"system:serviceaccount:{self.system}:hindcast"

    def may(self, verb: str, group: str, resource: str, namespace: str, **more: str) -> bool:
        """`kubectl auth can-i` for the operator; an empty namespace asks for all of them."""
        asked = {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
        return may(self.api, self.operator, **asked, **more)

    def token(self) -> str:
        """A token of the operator's account, as its pod mounts it."""
        path = f"/api/v1/namespaces/{self.system}/serviceaccounts/hindcast/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return str(self.api.request("POST", path, request)["status"]["token"])


def may(api: ApiServer, user: str, **asked: str) -> bool:
    """What the API server answers to a SubjectAccessReview."""
    asked["resource"], _, asked["subresource"] = asked["resource"].partition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": ["system:authenticated"], "resourceAttributes": asked},
    }
    answer = api.request("POST", collection("authorization.k8s.io/v1", "subjectaccessreviews"), review)
    return bool(answer["status"]["allowed"])


@contextlib.contextmanager
def namespaces(api: ApiServer, count: int) -> Iterator[list[str]]:
    made = [f"chart-{uuid.uuid4().hex[:10]}" for _ in range(count)]
    for name in made:
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield made
    for name in made:
        api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="module", params=["everywhere", "watched"])
def installed(api: ApiServer, request: pytest.FixtureRequest) -> Iterator[Installed]:
    """The roles as the chart makes them for the whole cluster, and for one namespace."""
    everywhere = request.param == "everywhere"
    with namespaces(api, 3) as (system, served, elsewhere):
        values = {} if everywhere else {"watchNamespaces": [served]}
        kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
        objects = [found for kind in kinds for found in render(values, system).all(kind)]
        for found in objects:
            api.apply(found, "tests")
        made = Installed(api, system, served, elsewhere, everywhere)
        lease = ("get", "coordination.k8s.io", "leases", system)
        wait_for(
            lambda: made.may("get", "ray.io", "rayjobs", served) and made.may(*lease, name="hindcast"),
            "the API server has heard of the new roles",
        )
        yield made
        for found in objects:
            api.delete(f"{api.path_of(found)}/{found['metadata']['name']}")


def test_what_the_operator_may_do(installed: Installed) -> None:
    """The whole table, both ways, in a namespace that it serves."""
    for resource, words in ALLOWED.items():
        group = GROUPS[resource.split("/")[0]]
        for verb in VERBS:
            asked = installed.may(verb, group, resource, installed.served)
            assert asked == (verb in words.split()), f"{verb} {resource}"


def test_what_the_operator_may_never_do(installed: Installed) -> None:
    for group, resource in NEVER:
        for place in (installed.served, installed.system):
            allowed = [verb for verb in VERBS if installed.may(verb, group, resource, place)]
            assert allowed == [], f"{resource} in {place}"
    for verb in ("bind", "escalate", "impersonate"):
        assert not installed.may(verb, RBAC, "roles", installed.served)
        assert not installed.may(verb, RBAC, "clusterroles", "")


def test_where_the_operator_may_do_it(installed: Installed) -> None:
    for resource, words in ALLOWED.items():
        group, verb = GROUPS[resource.split("/")[0]], words.split()[0]
        assert installed.may(verb, group, resource, installed.elsewhere) == installed.everywhere
        assert installed.may(verb, group, resource, "") == installed.everywhere


def test_events_are_only_created(installed: Installed) -> None:
    allowed = [v for v in VERBS if installed.may(v, "events.k8s.io", "events", installed.served)]
    assert allowed == ["create"]


def test_the_lease_is_one_lease(installed: Installed) -> None:
    def allowed(place: str, name: str) -> set[str]:
        asked = ("coordination.k8s.io", "leases", place)
        return {verb for verb in VERBS if installed.may(verb, *asked, name=name)}

    assert allowed(installed.system, "hindcast") == {"create", "get", "update"}
    assert allowed(installed.system, "another") == {"create"}
    assert allowed(installed.served, "hindcast") == set()


# -- really doing it ----------------------------------------------------------------------------------------

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
def operator(installed: Installed, tmp_path: Path) -> Iterator[ApiServer]:
    """The API server as the operator's pod speaks to it: with the token of its service account."""
    with ApiServer.of(str(kubeconfig_of(installed.token(), tmp_path))) as server:
        yield server


def kubeconfig_of(token: str, folder: Path) -> Path:
    """This API server, for whoever has the token."""
    kubeconfig = YAML(typ="safe", pure=True).load(Path(os.environ["KUBECONFIG"]).read_text())
    for user in kubeconfig["users"]:
        user["user"] = {"token": token}
    file = folder / "kubeconfig"
    file.write_text(json.dumps(kubeconfig))
    return file


def objects_of(installed: Installed, number: int, uid: str) -> list[Object]:
    resource = validate_resource(TRAINING | {"metadata": {"name": "clone", "namespace": installed.served}})
    attempt = Attempt(
        revision=1,
        number=number,
        ray_job_name=names.child_name("OfflineTraining", "clone", 1, number),
        namespace=installed.served,
        uid=uid,
        spec_hash="0" * 16,
    )
    return build(effective_resource(resource, Defaults()), attempt)


def test_a_run_from_the_first_object_to_the_last(installed: Installed, operator: ApiServer) -> None:
    """Each write of the operator, under its own account; then what the run's account may do with it."""
    api, place = installed.api, installed.served
    training = api.create(TRAINING, place)
    uid = training["metadata"]["uid"]
    status = TRAINING | {"metadata": {"name": "clone", "namespace": place, "uid": uid}}
    del status["spec"]
    operator.apply(status | {"status": {"observedGeneration": 1}}, names.MANAGER, "/status")
    objects = objects_of(installed, 1, uid)
    assert [found["kind"] for found in objects] == [
        *("ConfigMap", "ServiceAccount", "Role", "RoleBinding", "RayJob")
    ]
    for found in objects:
        operator.create(found, place)
    role = objects_of(installed, 2, uid)[2]
    operator.apply(role, names.MANAGER)
    operator.create(event(place), place)

    account = f"system:serviceaccount:{place}:{objects[1]['metadata']['name']}"
    first, second = (names.child_name("OfflineTraining", "clone", 1, number) for number in (1, 2))
    config_maps = {"group": "", "resource": "configmaps", "namespace": place}
    wait_for(
        lambda: may(api, account, verb="get", name=second, **config_maps),
        "the API server has heard of the changed role",
    )
    for child, verbs in ((second, ["get", "patch"]), (first, []), ("another", [])):
        assert [v for v in VERBS if may(api, account, verb=v, name=child, **config_maps)] == verbs, child
    for resource in ("pods", "secrets", "serviceaccounts", "configmaps"):
        assert not [v for v in VERBS if may(api, account, verb=v, **config_maps | {"resource": resource})]
    for resource in ("rayjobs", "rayclusters"):
        ray = {"group": "ray.io", "resource": resource, "namespace": place}
        assert not [v for v in VERBS if may(api, account, verb=v, **ray)]

    for found in reversed(objects):
        if found["kind"] in ("RayJob", "ConfigMap"):
            operator.delete(f"{operator.path_of(found, place)}/{found['metadata']['name']}")
    api.delete(f"{api.path_of(TRAINING, place)}/clone")


def event(place: str) -> Object:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "clone.1", "namespace": place},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "hindcast.dev/hindcast-operator",
        "reportingInstance": "test",
        "action": "Reconcile",
        "type": "Normal",
        "reason": "Started",
        "note": "It has started",
        "regarding": {"kind": "OfflineTraining", "name": "clone", "namespace": place},
    }


def test_the_operator_cannot_give_rights_that_it_has_not(installed: Installed, operator: ApiServer) -> None:
    role = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": "more", "namespace": installed.served},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}],
    }
    with pytest.raises(RefusalError, match="not currently held") as refused:
        operator.create(role)
    assert refused.value.status == 403


def test_the_operator_cannot_change_what_users_wrote(installed: Installed, operator: ApiServer) -> None:
    place = installed.served
    made = installed.api.create(TRAINING, place)
    path = f"{installed.api.path_of(TRAINING, place)}/clone"
    for method, body, kind in (
        ("PATCH", {"metadata": {"finalizers": ["hindcast.dev/x"]}}, "application/merge-patch+json"),
        ("PATCH", json.dumps(TRAINING), APPLY),
        ("DELETE", None, "application/json"),
    ):
        more = {"fieldManager": "x"} if kind == APPLY else {}
        with pytest.raises(RefusalError) as refused:
            operator.request(method, path, body, kind, **more)
        assert refused.value.status == 403
    assert installed.api.request("GET", path)["metadata"]["uid"] == made["metadata"]["uid"]
    installed.api.delete(path)


# -- people -------------------------------------------------------------------------------------------------


def test_people_work_with_resources_as_with_other_workloads(installed: Installed) -> None:
    """The cluster's own roles view and edit; aggregation is the controller manager's."""
    api, place = installed.api, installed.served
    for role in ("view", "edit", "admin"):
        api.apply(binding(role, place), "tests")
    wait_for(lambda: people_may(installed, "view", "get"), "view is aggregated")
    wait_for(lambda: people_may(installed, "admin", "deletecollection"), "admin is aggregated")
    reading, writing = {"get", "list", "watch"}, {"create", "update", "patch", "delete", "deletecollection"}
    for role, verbs in (("view", reading), ("edit", reading | writing), ("admin", reading | writing)):
        assert {verb for verb in VERBS if people_may(installed, role, verb)} == verbs
        status = {verb for verb in VERBS if people_may(installed, role, verb, "offlinetrainings/status")}
        assert status == reading, "status is the operator's alone"


def people_may(installed: Installed, role: str, verb: str, resource: str = "offlinetrainings") -> bool:
    asked = {"verb": verb, "group": "hindcast.dev", "resource": resource, "namespace": installed.served}
    return may(installed.api, f"a-{role}er", **asked)


def binding(role: str, place: str) -> Object:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"people-{role}", "namespace": place},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": f"a-{role}er"}],
    }


# -- the operator itself ------------------------------------------------------------------------------------


@pytest.mark.alone
def test_the_operator_itself_needs_nothing_else(installed: Installed, tmp_path: Path) -> None:
    """It runs under the chart's roles, from start to deletion, and is never refused."""
    api, place = installed.api, installed.served
    wait_for(lambda: not terminating(api), "the namespaces of earlier tests are gone", 120)
    with running_operator(installed, tmp_path) as metrics:
        made = api.create(TRAINING, place)
        job = f"{collection('ray.io/v1', 'rayjobs', place)}/{names.child_name('OfflineTraining', 'clone', 1, 1)}"
        wait_for(lambda: exists(api, job), "its RayJob is there", 60)
        wait_for(lambda: bool(events_about(api, place, made["metadata"]["uid"])), "an event is there", 60)
        api.merge(made, {"spec": {"suspend": True, "runPolicy": {"suspendGraceSeconds": 0}}})
        wait_for(lambda: not exists(api, job), "its RayJob is gone", 60)
        deleted = 'hindcast_writes_total{what="delete-rayjob"} 1.0'
        wait_for(lambda: deleted in metrics(), "the deletion is counted", 60)  # once its answer is there
        api.delete(f"{api.path_of(made)}/clone")
        said = metrics()
    assert "hindcast_leader 1.0" in said
    assert 'hindcast_writes_total{what="create-rayjob"} 1.0' in said
    assert deleted in said
    assert 'code="403"' not in said


def terminating(api: ApiServer) -> list[str]:
    """Namespaces that are being deleted: whoever writes into one is refused with a 403, whatever his rights."""
    found = api.request("GET", "/api/v1/namespaces")["items"]
    return [each["metadata"]["name"] for each in found if "deletionTimestamp" in each["metadata"]]


@contextlib.contextmanager
def running_operator(installed: Installed, folder: Path) -> Iterator[Callable[[], str]]:
    """The operator as the chart's Deployment starts it, with its account; what /metrics says."""
    values = {} if installed.everywhere else {"watchNamespaces": [installed.served]}
    container = render(values, installed.system).container
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "defaults.yaml").write_text("defaults: {}")
    replaced = {"--listen": f"127.0.0.1:{port}", "--defaults": str(folder / "defaults.yaml")}
    arguments = [
        f"{name}={replaced.get(name, value)}" for name, value in (a.split("=", 1) for a in container["args"])
    ]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig_of(installed.token(), folder))}
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
    except RefusalError as refused:
        assert refused.status == 404
        return False


def events_about(api: ApiServer, place: str, uid: str) -> list[Object]:
    found = api.request("GET", collection("v1", "events", place))["items"]
    return [about for about in found if about["involvedObject"].get("uid") == uid]
