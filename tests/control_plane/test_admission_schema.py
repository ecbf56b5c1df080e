"""The CRDs in a real API server: size, new objects, status and spec, printer columns, numbers in YAML."""

from __future__ import annotations

import json
from typing import Any

import pytest
from admission_specs import load_crd

from api_server import ApiServer, Object, RefusalError, collection, plural
from resource_examples import API_VERSION, KINDS, changed_spec, make_document

CONDITION: Object = {
    "status": "True",
    "reason": "Test",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def get_crd(api: ApiServer, kind: str) -> Object:
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural(kind)}.hindcast.dev"
    return api.request("GET", path)


def create_from_yaml(api: ApiServer, namespace: str, text: str) -> Object:
    """Create a resource from YAML text, as kubectl sends it."""
    kind = "OfflineTraining" if "OfflineTraining" in text else "OfflineRecording"
    path = collection(API_VERSION, plural(kind), namespace)
    return api.request("POST", path, text, "application/yaml", fieldValidation="Strict")


@pytest.mark.parametrize("kind", KINDS)
def test_crd_is_established(api: ApiServer, kind: str) -> None:
    crd = get_crd(api, kind)
    conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
    assert conditions["Established"] == conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


@pytest.mark.parametrize("kind", KINDS)
def test_crd_fits_client_side_apply(api: ApiServer, kind: str) -> None:
    """`kubectl apply` stores the whole object in an annotation, and the size of annotations is limited."""
    crd = load_crd(kind)
    document_text = json.dumps(crd) + "\n"
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": document_text}
    api.merge(crd, {"metadata": {"annotations": annotations}}, dryRun="All")
    # The schema may still grow by 100 KiB.
    annotations["test"] = "x" * (100 * 1024)
    api.merge(crd, {"metadata": {"annotations": annotations}}, dryRun="All")


@pytest.mark.parametrize("kind", KINDS)
def test_server_stores_crd_without_loss(api: ApiServer, kind: str) -> None:
    file_version = load_crd(kind)["spec"]["versions"][0]
    assert get_crd(api, kind)["spec"]["versions"][0] == file_version


@pytest.mark.parametrize("kind", KINDS)
def test_crd_has_short_name_and_category(api: ApiServer, kind: str) -> None:
    api_resources = {
        entry["name"]: entry for entry in api.request("GET", f"/apis/{API_VERSION}")["resources"]
    }
    short_name = {"OfflineRecording": "orec", "OfflineTraining": "otr"}[kind]
    entry = api_resources[plural(kind)]
    assert (entry["shortNames"], entry["categories"]) == ([short_name], ["hindcast"])
    assert entry["namespaced"] is True
    assert set(api_resources) >= {f"{plural(kind)}/status"}
    assert f"{plural(kind)}/scale" not in api_resources


# -- numbers and words of YAML ------------------------------------------------------------------------------------

TRAINING = """\
apiVersion: hindcast.dev/v1alpha1
kind: OfflineTraining
metadata: {name: numbers}
spec:
  algorithm: BC
  config: {lr: LR, gradClip: 8.0e-4, trainBatchSizePerLearner: 1e3}
  environment: {id: CartPole-v1, clipActions: false}
  input: [{path: s3://bucket/data, weight: .5}]
  stop: {episodeReturnMean: -1e2, timesteps: 1.0e+6}
  evaluation: {interval: 3}
"""


@pytest.mark.parametrize("number", ["8.0e-4", "8e-4", "0.0008", "8.0E-4", ".8e-3"])
def test_numbers_keep_their_type_in_any_notation(api: ApiServer, namespace: str, number: str) -> None:
    spec = create_from_yaml(api, namespace, TRAINING.replace("LR", number))["spec"]
    assert spec["config"] == {"lr": 0.0008, "gradClip": 0.0008, "trainBatchSizePerLearner": 1000}
    assert [(source["path"], source["weight"]) for source in spec["input"]] == [("s3://bucket/data", 0.5)]
    assert spec["stop"] == {"episodeReturnMean": -100, "timesteps": 1_000_000}
    assert type(spec["stop"]["timesteps"]) is int


# -- status ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_new_object_is_in_progress(api: ApiServer, namespace: str, kind: str) -> None:
    """Without `observedGeneration: -1`, kstatus would report an object that no operator has seen as current."""
    new_object = api.create(make_document(kind, changed_spec(kind, {}), "plain"), namespace)
    assert new_object["status"] == {"observedGeneration": -1}
    assert new_object["metadata"]["generation"] == 1
    # A status that is sent with the spec is dropped, so a new object is never finished.
    resource = make_document(kind, changed_spec(kind, {}), "restored") | {"status": {"state": "Succeeded"}}
    assert api.create(resource, namespace)["status"] == {"observedGeneration": -1}


@pytest.mark.parametrize("kind", KINDS)
def test_spec_and_status_are_written_separately(api: ApiServer, namespace: str, kind: str) -> None:
    resource = api.create(make_document(kind, changed_spec(kind, {})), namespace)

    def read_current() -> tuple[str, bool, int]:
        current = api.get(kind, namespace, "test")
        return current["status"]["state"], current["spec"]["suspend"], current["metadata"]["generation"]

    api.merge(resource, {"status": {"state": "Running"}, "spec": {"suspend": True}}, "/status")
    assert read_current() == ("Running", False, 1)
    api.merge(resource, {"status": {"state": "Failed"}, "spec": {"suspend": True}})
    assert read_current() == ("Running", True, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_status_lists_merge_by_key(api: ApiServer, namespace: str, kind: str) -> None:
    resource = api.create(make_document(kind, changed_spec(kind, {})), namespace)

    def apply_status(manager: str, conditions: list[Object], *attempts: tuple[int, int]) -> None:
        runs = [
            {"revision": revision, "attempt": attempt, "rayJobName": "test", "specHash": "ab"}
            for revision, attempt in attempts
        ]
        metadata = {"name": "test", "namespace": namespace}
        document = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata}
        api.apply(document | {"status": {"conditions": conditions, "runs": runs}}, manager, "/status")

    ready, quota = CONDITION | {"type": "Ready"}, CONDITION | {"type": "QuotaReserved"}
    apply_status("us", [ready], (1, 2), (1, 1))
    apply_status("someone-else", [quota], (2, 1))
    apply_status("us", [ready | {"status": "False"}], (1, 2))
    current_status = api.get(kind, namespace, "test")["status"]
    assert {c["type"]: c["status"] for c in current_status["conditions"]} == {
        "Ready": "False",
        "QuotaReserved": "True",
    }
    assert {(r["revision"], r["attempt"]) for r in current_status["runs"]} == {(1, 2), (2, 1)}
    with pytest.raises(RefusalError, match="duplicate"):
        apply_status("us", [ready, ready])
    assert resource["metadata"]["generation"] == api.get(kind, namespace, "test")["metadata"]["generation"]


@pytest.mark.parametrize(
    ("status", "field"),
    [
        ({"progress": {"percentage": 101}}, "status.progress.percentage"),
        ({"conditions": [CONDITION | {"type": "Ready", "status": "Yes"}]}, "status.conditions[0].status"),
        ({"conditions": [CONDITION]}, "status.conditions[0].type"),
        ({"runs": [{"revision": 1}]}, "status.runs[0].attempt"),
        ({"message": "x" * 40_000}, "status.message"),
    ],
)
def test_invalid_status_is_refused(api: ApiServer, namespace: str, status: Object, field: str) -> None:
    resource = api.create(make_document("OfflineTraining", changed_spec("OfflineTraining", {})), namespace)
    with pytest.raises(RefusalError) as error_info:
        api.merge(resource, {"status": status}, "/status")
    assert field in [cause_field for cause_field, _ in error_info.value.causes]


# -- columns --------------------------------------------------------------------------------------------------------

STATUS: Object = {
    "observedGeneration": 1,
    "state": "Running",
    "message": "iteration 3 of 10",
    "conditions": [{**CONDITION, "type": "Ready", "reason": "OutOfMemory"}],
    "rayJobName": "test-1-2",
    "runs": [
        {"revision": 1, "attempt": attempt, "rayJobName": f"test-1-{attempt}", "specHash": "a"}
        for attempt in (2, 1)
    ],
    "progress": {"summary": "3/10", "episodeReturn": "451.2"},
    "output": {"path": "s3://bucket/data"},
    "checkpoint": {"path": "s3://bucket/runs/test/r1/checkpoints/3"},
}


@pytest.mark.parametrize(
    ("kind", "algorithm", "wide_columns"),
    [
        ("OfflineTraining", "BC", {"Checkpoint": "s3://bucket/runs/test/r1/checkpoints/3"}),
        ("OfflineRecording", "PPO", {"Output": "s3://bucket/data"}),
    ],
)
def test_printer_columns_show_progress(
    api: ApiServer, namespace: str, kind: str, algorithm: str, wide_columns: dict[str, Any]
) -> None:
    expert = {"policy": {"random": None, "train": {"stop": {"timesteps": 10}}}}
    resource = api.create(
        make_document(kind, changed_spec(kind, expert if kind == "OfflineRecording" else {})), namespace
    )
    api.merge(resource, {"status": STATUS}, "/status")
    table = api.request("GET", api.path_of(resource), accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    columns = [column["name"] for column in table["columnDefinitions"]]
    cells = dict(zip(columns, table["rows"][0]["cells"], strict=True))
    assert cells.pop("Age")
    assert cells == {
        "Name": "test",
        "State": "Running",
        "Reason": "OutOfMemory",
        "Algorithm": algorithm,
        "Progress": "3/10",
        "Return": "451.2",
        "Attempt": 2,
        "RayJob": "test-1-2",
        "Message": "iteration 3 of 10",
        **wide_columns,
    }


@pytest.mark.parametrize(
    ("kind", "selector"),
    [
        ("OfflineTraining", "spec.algorithm=BC"),
        ("OfflineTraining", "spec.cluster.scheduling.queueName=research"),
        ("OfflineTraining", "spec.suspend=true"),
        ("OfflineRecording", "status.state=Running"),
    ],
)
def test_resources_can_be_selected_by_fields(
    api: ApiServer, namespace: str, kind: str, selector: str
) -> None:
    resource = api.create(
        make_document(
            kind, changed_spec(kind, {"suspend": True, "cluster": {"scheduling": {"queueName": "research"}}})
        ),
        namespace,
    )
    api.merge(resource, {"status": STATUS}, "/status")
    path = collection(API_VERSION, plural(kind), namespace)
    field, value = selector.split("=")
    names = [
        [item["metadata"]["name"] for item in api.request("GET", path, fieldSelector=text)["items"]]
        for text in (selector, f"{field}!={value}")
    ]
    assert names == [[resource["metadata"]["name"]], []]


def test_server_side_apply_merges_variables_by_name(api: ApiServer, namespace: str) -> None:
    def apply_variable(manager: str, name: str) -> Object:
        spec = changed_spec("OfflineTraining", {"cluster": {"env": [{"name": name, "value": manager}]}})
        body = make_document("OfflineTraining", spec)
        path = f"{collection(API_VERSION, plural('OfflineTraining'), namespace)}/{body['metadata']['name']}"
        text = json.dumps(body)
        return api.request(
            "PATCH", path, text, "application/apply-patch+yaml", fieldManager=manager, force="true"
        )

    apply_variable("team", "A")
    env = apply_variable("platform", "B")["spec"]["cluster"]["env"]
    assert {entry["name"]: entry["value"] for entry in env} == {"A": "team", "B": "platform"}
