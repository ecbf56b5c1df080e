"""Verdicts of GitOps tools and `kubectl wait` on each state."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from plan_world import REFERRING_TRAINING, World, make_reference
from ruamel.yaml import YAML
from status_fixtures import EXPECTED_VERDICTS, FIXTURES

from hindcast.api.loading import validate_resource
from hindcast_operator.planning.status import State


def compute_kstatus(resource: dict[str, Any]) -> str:
    """Return kstatus' verdict, by its rules for unknown kinds (cli-utils, pkg/kstatus/status/generic.go)."""
    if resource["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = resource.get("status", {})
    observed_generation = status.get("observedGeneration")
    if observed_generation is not None and observed_generation != resource["metadata"]["generation"]:
        return "InProgress"
    conditions = status.get("conditions", [])
    for entry in conditions:
        if entry["type"] == "Reconciling" and entry["status"] == "True":
            return "InProgress"
        if entry["type"] == "Stalled" and entry["status"] == "True":
            return "Failed"
    ready = next((entry["status"] for entry in conditions if entry["type"] == "Ready"), None)
    return "Current" if ready in (None, "True") else "InProgress"


def has_condition(resource: dict[str, Any], type_: str) -> bool:
    """Return True if `kubectl wait --for=condition=<type>` would return."""
    conditions = resource["status"].get("conditions", [])
    return any(entry["type"] == type_ and entry["status"] == "True" for entry in conditions)


@pytest.mark.parametrize("name", FIXTURES)
def test_kstatus_of_each_state_is_expected(name: str) -> None:
    assert compute_kstatus(FIXTURES[name]) == EXPECTED_VERDICTS[name].kstatus


@pytest.mark.parametrize("name", FIXTURES)
def test_condition_finished_is_true_only_after_end(name: str) -> None:
    resource = FIXTURES[name]
    assert has_condition(resource, "Finished") == EXPECTED_VERDICTS[name].is_finished
    assert has_condition(resource, "Finished") == (
        has_condition(resource, "Complete") or has_condition(resource, "Failed")
    )
    assert has_condition(resource, "Suspended") == EXPECTED_VERDICTS[name].is_suspended


@pytest.mark.parametrize("name", FIXTURES)
def test_fixture_is_valid_resource(name: str) -> None:
    validate_resource(FIXTURES[name])


def test_every_state_has_a_fixture() -> None:
    states = {resource["status"].get("state") for resource in FIXTURES.values()}
    assert states == {None, *get_args(State)}


@pytest.mark.parametrize("name", [name for name in FIXTURES if name != "New"])
def test_each_state_has_message_and_reasons(name: str) -> None:
    status = FIXTURES[name]["status"]
    assert status["message"] and "\n" not in status["message"]
    assert all(entry["reason"].isalnum() for entry in status["conditions"])
    assert all(entry["message"] for entry in status["conditions"])


def test_transition_time_changes_only_with_status() -> None:
    world = World(REFERRING_TRAINING)
    world.references = (make_reference("Missing"),)
    world.settle()
    transition_time = world.find_condition("Ready")["lastTransitionTime"]  # type: ignore[index]
    world.advance(60).references = (make_reference("Unfinished"),)
    world.settle()
    assert world.find_reason() == "ReferenceUnfinished"
    assert world.find_condition("Ready")["lastTransitionTime"] == transition_time  # type: ignore[index]
    world.references = (make_reference(),)
    world.settle()
    world.start_pods().advance(60).send_report().settle()
    assert world.find_condition("Ready")["lastTransitionTime"] > transition_time  # type: ignore[index]


def test_status_has_only_fields_of_crd() -> None:
    from pathlib import Path

    crd = Path(__file__).resolve().parents[2] / "crds" / "hindcast.dev_offlinetrainings.yaml"
    schema = YAML(typ="safe", pure=True).load(crd.read_text())["spec"]["versions"][0]["schema"]
    properties = schema["openAPIV3Schema"]["properties"]["status"]["properties"]
    runs = properties["runs"]["items"]["properties"]
    for resource in FIXTURES.values():
        assert set(resource["status"]) <= set(properties)
        assert all(set(run) <= set(runs) for run in resource["status"].get("runs", []))
