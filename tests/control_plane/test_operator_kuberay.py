"""KubeRay that is not there yet, or does not answer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from fake_kuberay import PlayKubeRay
from operator_process import RunOperator
from resources import Team, recording

from api_server import ApiServer, RefusalError, collection, wait_for

WALKS = recording()
DEFINITIONS = collection("apiextensions.k8s.io/v1", "customresourcedefinitions")


@pytest.fixture
def without_kuberay(api: ApiServer) -> Iterator[None]:
    """An API server that does not serve KubeRay's kinds."""
    _serve(api, False)
    yield
    _serve(api, True)


def _serve(api: ApiServer, served: bool) -> None:
    """Switch KubeRay's kinds on or off: to clients the same as adding and removing them, but nothing is lost."""
    for plural in ("rayjobs", "rayclusters"):
        path = f"{DEFINITIONS}/{plural}.ray.io"
        versions = range(len(api.request("GET", path)["spec"]["versions"]))
        change = [
            {"op": "replace", "path": f"/spec/versions/{at}/served", "value": served} for at in versions
        ]
        api.request("PATCH", path, change, "application/json-patch+json")
    wait_for(lambda: _knows_ray_jobs(api) is served, f"RayJobs are served: {served}")


def _knows_ray_jobs(api: ApiServer) -> bool:
    try:
        api.request("GET", collection("ray.io/v1", "rayjobs"), limit="1")
    except RefusalError as refused:
        if refused.status == 404:
            return False
        raise
    return True


@pytest.mark.alone
def test_installed_after_us_it_heals_by_itself(
    api: ApiServer,
    namespace: str,
    without_kuberay: None,
    run_operator: RunOperator,
    play_kuberay: PlayKubeRay,
) -> None:
    team = Team(api, namespace)
    with run_operator():
        team.apply(WALKS)
        wait_for(lambda: team.condition(WALKS, "Ready") == ("False", "KubeRayNotInstalled"), "it says so")
        _serve(api, True)
        play_kuberay()
        team.wait_for_state(WALKS, "Succeeded")
        team.wait_for_event(WALKS, "KubeRayNotInstalled")


def test_when_it_does_not_answer_that_is_said(
    api: ApiServer, namespace: str, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    from hindcast_operator.planning import diagnosis

    assert diagnosis.KUBERAY_SILENCE_SECONDS < 60, "the product says so within a minute"
    sooner = "import hindcast_operator.planning.diagnosis as d; d.KUBERAY_SILENCE_SECONDS = 3"
    team = Team(api, namespace)
    with run_operator(setup=sooner):
        team.apply(WALKS)
        began = time.monotonic()
        wait_for(
            lambda: team.condition(WALKS, "ClusterReady") == ("False", "KubeRayNotAnswering"), "it says so"
        )
        assert time.monotonic() - began >= 2
        assert team.status(WALKS)["state"] == "Starting"
        play_kuberay()
        team.wait_for_state(WALKS, "Succeeded")
        team.wait_for_event(WALKS, "KubeRayNotAnswering")
