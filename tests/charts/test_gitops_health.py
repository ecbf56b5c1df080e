"""Health of a resource in each state, as Argo CD and Flux compute it with the files in docs/gitops."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import celpy
import pytest
from lupa import lua51
from ruamel.yaml import YAML

sys.path.append(str(Path(__file__).parents[1] / "operator"))

from status_fixtures import EXPECTED_VERDICTS, FIXTURES, Verdict

Object = dict[str, Any]
GITOPS = Path(__file__).parents[2] / "docs" / "gitops"
KINDS = ("OfflineRecording", "OfflineTraining")
ARGO_HEALTH = {"InProgress": "Progressing", "Failed": "Degraded", "Current": "Healthy"}


def expected_argo_health(verdict: Verdict) -> str:
    """Return Argo CD's health: Healthy if the resource runs or is done, Suspended if it is suspended."""
    return "Suspended" if verdict.is_suspended else ARGO_HEALTH[verdict.kstatus]


def expected_flux_status(verdict: Verdict) -> str:
    """Return Flux's verdict: Current only if the resource is done or suspended."""
    is_running = verdict.kstatus == "Current" and not (verdict.is_finished or verdict.is_suspended)
    return "InProgress" if is_running else verdict.kstatus


# -- Argo CD ------------------------------------------------------------------------------------------------


def load_health_scripts() -> dict[str, str]:
    """Return the Lua script of each kind in the ConfigMap of Argo CD."""
    patch = YAML(typ="safe", pure=True).load(GITOPS / "argocd-cm.yaml")
    prefix = "resource.customizations.health.hindcast.dev_"
    return {key.removeprefix(prefix): text for key, text in patch["data"].items()}


def run_argo_health(script: str, resource: Object) -> Any:
    """Return the health that a script computes in Lua 5.1, with the libraries that Argo CD provides: base and table."""
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    for name in ("string", "math", "io", "os", "debug", "coroutine", "package", "require"):
        lua.globals()[name] = None
    lua.globals()["obj"] = lua.table_from(resource, recursive=True)
    return lua.execute(script)


def test_health_script_is_the_same_for_both_kinds() -> None:
    assert load_health_scripts() == dict.fromkeys(KINDS, (GITOPS / "health.lua").read_text())


@pytest.mark.parametrize("state", FIXTURES)
def test_argo_health_of_each_state_is_expected(state: str) -> None:
    resource = FIXTURES[state]
    health = run_argo_health(load_health_scripts()[resource["kind"]], resource)
    assert health.status == expected_argo_health(EXPECTED_VERDICTS[state])
    is_observed = resource["status"]["observedGeneration"] == resource["metadata"]["generation"]
    assert (resource["status"]["message"] if is_observed else "has not seen") in health.message


def test_argo_accepts_a_resource_without_status() -> None:
    resource = {key: value for key, value in FIXTURES["New"].items() if key != "status"}
    assert run_argo_health((GITOPS / "health.lua").read_text(), resource).status == "Progressing"


# -- Flux ---------------------------------------------------------------------------------------------------


def compute_flux_status(resource: Object) -> str:
    """Return the status as Flux computes it (its RFC 9): by the generation, then by the first true expression."""
    if resource["status"]["observedGeneration"] != resource["metadata"]["generation"]:
        return "InProgress"
    kustomization = YAML(typ="safe", pure=True).load(GITOPS / "flux.yaml")
    (checks,) = [c for c in kustomization["spec"]["healthCheckExprs"] if c["kind"] == resource["kind"]]
    assert checks["apiVersion"] == resource["apiVersion"]
    activation = celpy.json_to_cel(resource)
    assert isinstance(activation, dict)
    for word in ("inProgress", "failed", "current"):
        if word not in checks:
            continue
        environment = celpy.Environment()
        program = environment.program(environment.compile(checks[word]))
        if program.evaluate({str(name): value for name, value in activation.items()}):
            return word[0].upper() + word[1:]
    return "InProgress"


@pytest.mark.parametrize("state", FIXTURES)
def test_flux_status_of_each_state_is_expected(state: str) -> None:
    assert compute_flux_status(FIXTURES[state]) == expected_flux_status(EXPECTED_VERDICTS[state])
