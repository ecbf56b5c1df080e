"""What Argo CD and Flux are told of a resource in each state; the files are those that users copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import celpy
import pytest
from gitops_states import STATES, Object, resource_in
from lupa import lua51
from ruamel.yaml import YAML

from hindcast_operator.planning.situation import State

GITOPS = Path(__file__).parents[2] / "docs" / "gitops"
KINDS = ("OfflineRecording", "OfflineTraining")

ARGO = {
    "unseen": "Progressing",
    "Pending": "Progressing",
    "Waiting": "Progressing",
    "Stalled": "Degraded",
    "Queued": "Progressing",
    "Starting": "Progressing",
    "Running": "Healthy",
    "Retrying": "Progressing",
    "Suspending": "Progressing",
    "Suspended": "Suspended",
    "Succeeded": "Healthy",
    "recorded": "Healthy",
    "Failed": "Degraded",
    "changed": "Progressing",
}
FLUX = {
    "unseen": "InProgress",
    "Pending": "InProgress",
    "Waiting": "InProgress",
    "Stalled": "Failed",
    "Queued": "InProgress",
    "Starting": "InProgress",
    "Running": "InProgress",
    "Retrying": "InProgress",
    "Suspending": "InProgress",
    "Suspended": "Current",
    "Succeeded": "Current",
    "recorded": "Current",
    "Failed": "Failed",
    "changed": "InProgress",
}


def test_every_state_is_looked_at() -> None:
    assert set(get_args(State)) <= set(STATES)
    assert list(ARGO) == list(FLUX) == list(STATES)


# -- Argo CD ------------------------------------------------------------------------------------------------


def scripts() -> dict[str, str]:
    """The text for each kind, as it stands in the ConfigMap."""
    patch = YAML(typ="safe", pure=True).load(GITOPS / "argocd-cm.yaml")
    prefix = "resource.customizations.health.hindcast.dev_"
    return {key.removeprefix(prefix): text for key, text in patch["data"].items()}


def argo(script: str, resource: Object) -> Any:
    """The health, by Lua 5.1 with the libraries that Argo CD gives: base and table."""
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    for name in ("string", "math", "io", "os", "debug", "coroutine", "package", "require"):
        lua.globals()[name] = None
    lua.globals()["obj"] = lua.table_from(resource, recursive=True)
    return lua.execute(script)


def test_both_kinds_have_the_same_script() -> None:
    assert scripts() == dict.fromkeys(KINDS, (GITOPS / "health.lua").read_text())


@pytest.mark.parametrize("state", STATES)
def test_argo_is_told(state: str) -> None:
    resource = resource_in(state)
    health = argo(scripts()[resource["kind"]], resource)
    assert health.status == ARGO[state]
    if "conditions" in resource["status"] and state != "changed":
        assert resource["status"]["message"] in health.message
    else:
        assert "has not seen" in health.message


def test_argo_takes_a_resource_without_any_status() -> None:
    resource = resource_in("unseen")
    del resource["status"]
    assert argo((GITOPS / "health.lua").read_text(), resource).status == "Progressing"


# -- Flux ---------------------------------------------------------------------------------------------------


def flux(resource: Object) -> str:
    """The verdict as Flux finds it (its RFC 9): the generation, then the first expression that holds, in this order."""
    if resource["status"]["observedGeneration"] != resource["metadata"]["generation"]:
        return "InProgress"
    kustomization = YAML(typ="safe", pure=True).load(GITOPS / "flux.yaml")
    (checks,) = [c for c in kustomization["spec"]["healthCheckExprs"] if c["kind"] == resource["kind"]]
    assert checks["apiVersion"] == resource["apiVersion"]
    given = celpy.json_to_cel(resource)
    assert isinstance(given, dict)
    for word in ("inProgress", "failed", "current"):
        if word not in checks:
            continue
        environment = celpy.Environment()
        program = environment.program(environment.compile(checks[word]))
        if program.evaluate({str(name): value for name, value in given.items()}):
            return word[0].upper() + word[1:]
    return "InProgress"


@pytest.mark.parametrize("state", STATES)
def test_flux_is_told(state: str) -> None:
    assert flux(resource_in(state)) == FLUX[state]
