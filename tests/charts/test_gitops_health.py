"""What Argo CD and Flux are told of a resource in each state; the files are those that users copy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import celpy
import pytest
from lupa import lua51
from ruamel.yaml import YAML

sys.path.append(str(Path(__file__).parents[1] / "operator"))

from status_fixtures import EXPECTED, FIXTURES, Verdict

Object = dict[str, Any]
GITOPS = Path(__file__).parents[2] / "docs" / "gitops"
KINDS = ("OfflineRecording", "OfflineTraining")
BEGUN = {"InProgress": "Progressing", "Failed": "Degraded", "Current": "Healthy"}


def argo_verdict(verdict: Verdict) -> str:
    """It runs or is done: Healthy; suspended: its own word."""
    return "Suspended" if verdict.is_suspended else BEGUN[verdict.kstatus]


def flux_verdict(verdict: Verdict) -> str:
    """Current only when it is done, or suspended."""
    runs = verdict.kstatus == "Current" and not (verdict.is_finished or verdict.is_suspended)
    return "InProgress" if runs else verdict.kstatus


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


@pytest.mark.parametrize("state", FIXTURES)
def test_argo_is_told(state: str) -> None:
    resource = FIXTURES[state]
    health = argo(scripts()[resource["kind"]], resource)
    assert health.status == argo_verdict(EXPECTED[state])
    seen = resource["status"]["observedGeneration"] == resource["metadata"]["generation"]
    assert (resource["status"]["message"] if seen else "has not seen") in health.message


def test_argo_takes_a_resource_without_any_status() -> None:
    resource = {key: value for key, value in FIXTURES["Fresh"].items() if key != "status"}
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


@pytest.mark.parametrize("state", FIXTURES)
def test_flux_is_told(state: str) -> None:
    assert flux(FIXTURES[state]) == flux_verdict(EXPECTED[state])
