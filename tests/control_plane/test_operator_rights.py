"""A run's own token reads and patches its attempt's ConfigMap, and can do nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_kuberay import PlayKubeRay, runs_on
from operator_process import RunOperator, token_of, write_kubeconfig
from resources import Team, recording

from api_server import ApiServer, Refused, collection

WALKS = recording()
MERGE = "application/merge-patch+json"


def test_a_run_has_its_config_map_and_nothing_else(
    api: ApiServer, namespace: str, run_operator: RunOperator, play_kuberay: PlayKubeRay, tmp_path: Path
) -> None:
    team = Team(api, namespace)
    play_kuberay(runs_on)
    with run_operator():
        team.apply(WALKS)
        team.wait_for_state(WALKS, "Running")
        token = token_of(api, namespace, "walks-recording")
        with ApiServer.of(str(write_kubeconfig(api, token, tmp_path / "run.kubeconfig"))) as run:
            maps, secrets = collection("v1", "configmaps", namespace), collection("v1", "secrets", namespace)
            beat = {"data": {"report.json": '{"beat": 7, "at": "t", "moved": "t"}'}}
            assert run.request("GET", f"{maps}/walks-r1-1")["data"]["intent"] == ""
            assert run.request("PATCH", f"{maps}/walks-r1-1", beat, MERGE)["data"]["report.json"]
            forbidden(run, "GET", maps)
            forbidden(run, "DELETE", f"{maps}/walks-r1-1")
            forbidden(run, "GET", f"{maps}/kube-root-ca.crt")
            forbidden(run, "GET", secrets)
            forbidden(run, "POST", collection("v1", "pods", namespace), {})
            forbidden(run, "GET", f"{collection('ray.io/v1', 'rayjobs', namespace)}/walks-r1-1")
            forbidden(
                run, "GET", f"{collection('hindcast.dev/v1alpha1', 'offlinerecordings', namespace)}/walks"
            )
            _suspend_and_go_on(team)
            forbidden(run, "GET", f"{maps}/walks-r1-1")
            forbidden(run, "PATCH", f"{maps}/walks-r1-1", beat, MERGE)
            assert run.request("GET", f"{maps}/walks-r1-2")["data"]["intent"] == ""


def _suspend_and_go_on(team: Team) -> None:
    team.apply(recording(suspend=True))
    team.wait_for_state(WALKS, "Suspended")
    team.apply(recording(suspend=False))
    team.wait_for_state(WALKS, "Running")


def forbidden(
    run: ApiServer, method: str, path: str, body: object = None, content: str = "application/json"
) -> None:
    with pytest.raises(Refused) as refused:
        run.request(method, path, body, content)
    assert refused.value.status == 403, f"{method} {path}: {refused.value}"
