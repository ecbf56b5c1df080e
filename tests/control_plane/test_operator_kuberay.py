"""The operator in a cluster without KubeRay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_kuberay import PlayKubeRay
from operator_process import RunOperator
from resources import TeamNamespace, make_recording
from verdicts import check_verdicts

from api_server import ApiServer, RefusalError, collection, wait_for

WALKS = make_recording()
DEFINITIONS = collection("apiextensions.k8s.io/v1", "customresourcedefinitions")


@pytest.fixture
def without_kuberay(api: ApiServer) -> Iterator[None]:
    """An API server that does not serve KubeRay's kinds."""
    _set_served(api, False)
    yield
    _set_served(api, True)


def _set_served(api: ApiServer, is_served: bool) -> None:
    """Serve KubeRay's kinds, or stop serving them. Clients see no difference to adding or removing the CRDs."""
    for plural in ("rayjobs", "rayclusters"):
        path = f"{DEFINITIONS}/{plural}.ray.io"
        versions = range(len(api.request("GET", path)["spec"]["versions"]))
        patch = [
            {"op": "replace", "path": f"/spec/versions/{index}/served", "value": is_served}
            for index in versions
        ]
        api.request("PATCH", path, patch, "application/json-patch+json")
    wait_for(lambda: _has_ray_jobs(api) is is_served, f"RayJobs are served: {is_served}")


def _has_ray_jobs(api: ApiServer) -> bool:
    try:
        api.request("GET", collection("ray.io/v1", "rayjobs"), limit="1")
    except RefusalError as error:
        if error.status == 404:
            return False
        raise
    return True


@pytest.mark.alone
def test_kuberay_installed_after_operator_starts_waiting_run(
    api: ApiServer,
    team: TeamNamespace,
    without_kuberay: None,
    run_operator: RunOperator,
    play_kuberay: PlayKubeRay,
) -> None:
    with run_operator():
        team.apply(WALKS)
        team.wait_for_condition(WALKS, "Ready", "False", "KubeRayNotInstalled")
        check_verdicts(team.get(WALKS))
        _set_served(api, True)
        play_kuberay()
        team.wait_for_state(WALKS, "Succeeded")
        team.wait_for_event(WALKS, "KubeRayNotInstalled")
