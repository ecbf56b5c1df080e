"""A run's own token reads and patches its attempt's ConfigMap, and can do nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_kuberay import PlayKubeRay, runs_on
from operator_process import RunOperator, token_of, write_kubeconfig
from resources import Team, recording

from api_server import ApiServer, RefusalError, collection

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
            beat = {"data": {"report.json": '{"number": 7, "reportTime": "t", "lastProgressTime": "t"}'}}
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


def test_another_account_gets_the_rights_with_the_next_attempt(
    api: ApiServer, namespace: str, run_operator: RunOperator, play_kuberay: PlayKubeRay, tmp_path: Path
) -> None:
    """The binding kept the first account: every later attempt was lost without a report."""
    team = Team(api, namespace)
    play_kuberay(runs_on)
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "other"}}, namespace)
    with run_operator():
        team.apply(WALKS)
        team.wait_for_state(WALKS, "Running")
        _suspend_and_go_on(team, cluster={"serviceAccountName": "other"})
        kubeconfigs = [
            write_kubeconfig(api, token_of(api, namespace, account), tmp_path / account)
            for account in ("other", "walks-recording")
        ]
        path = f"{collection('v1', 'configmaps', namespace)}/walks-r1-2"
        with ApiServer.of(str(kubeconfigs[0])) as run, ApiServer.of(str(kubeconfigs[1])) as former:
            assert run.request("GET", path)["data"]["intent"] == ""
            forbidden(former, "GET", path)


def _suspend_and_go_on(team: Team, **changes: object) -> None:
    team.apply(recording(suspend=True))
    team.wait_for_state(WALKS, "Suspended")
    team.apply(recording(suspend=False, **changes))
    team.wait_for_state(WALKS, "Running")


def forbidden(
    run: ApiServer, method: str, path: str, body: object = None, content: str = "application/json"
) -> None:
    with pytest.raises(RefusalError) as refused:
        run.request(method, path, body, content)
    assert refused.value.status == 403, f"{method} {path}: {refused.value}"
