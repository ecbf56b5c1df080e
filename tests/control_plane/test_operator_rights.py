"""A run's own token reads and patches its attempt's ConfigMap, and can do nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_kuberay import PlayKubeRay, never_ends
from operator_process import RunOperator, create_token, write_kubeconfig
from resources import TeamNamespace, make_recording

from api_server import ApiServer, RefusalError, collection

WALKS = make_recording()
MERGE = "application/merge-patch+json"


def test_run_may_only_access_its_config_map(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay, tmp_path: Path
) -> None:
    api, namespace = team.api, team.namespace
    play_kuberay(never_ends)
    with run_operator():
        team.apply(WALKS)
        team.wait_for_state(WALKS, "Running")
        token = create_token(api, namespace, "walks-recording")
        with ApiServer.from_kubeconfig(str(write_kubeconfig(api, token, tmp_path / "run.kubeconfig"))) as run:
            maps, secrets = collection("v1", "configmaps", namespace), collection("v1", "secrets", namespace)
            beat = {"data": {"report.json": '{"number": 7, "reportTime": "t", "lastProgressTime": "t"}'}}
            assert run.request("GET", f"{maps}/walks-r1-1")["data"]["intent"] == ""
            assert run.request("PATCH", f"{maps}/walks-r1-1", beat, MERGE)["data"]["report.json"]
            assert_forbidden(run, "GET", maps)
            assert_forbidden(run, "DELETE", f"{maps}/walks-r1-1")
            assert_forbidden(run, "PUT", f"{maps}/walks-r1-1", {})
            assert_forbidden(run, "POST", maps, {})
            assert_forbidden(run, "GET", f"{maps}/kube-root-ca.crt")
            assert_forbidden(run, "GET", secrets)
            assert_forbidden(run, "POST", collection("v1", "pods", namespace), {})
            assert_forbidden(run, "GET", f"{collection('ray.io/v1', 'rayjobs', namespace)}/walks-r1-1")
            assert_forbidden(
                run, "GET", f"{collection('hindcast.dev/v1alpha1', 'offlinerecordings', namespace)}/walks"
            )
            _suspend_and_resume(team)
            assert_forbidden(run, "GET", f"{maps}/walks-r1-1")
            assert_forbidden(run, "PATCH", f"{maps}/walks-r1-1", beat, MERGE)
            assert run.request("GET", f"{maps}/walks-r1-2")["data"]["intent"] == ""


def test_changed_account_gets_rights_with_next_attempt(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay, tmp_path: Path
) -> None:
    """Regression: the RoleBinding kept the first account, so every later attempt was lost without a report."""
    api, namespace = team.api, team.namespace
    play_kuberay(never_ends)
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "other"}}, namespace)
    with run_operator():
        team.apply(WALKS)
        team.wait_for_state(WALKS, "Running")
        _suspend_and_resume(team, cluster={"serviceAccountName": "other"})
        kubeconfigs = [
            write_kubeconfig(api, create_token(api, namespace, account), tmp_path / account)
            for account in ("other", "walks-recording")
        ]
        path = f"{collection('v1', 'configmaps', namespace)}/walks-r1-2"
        with (
            ApiServer.from_kubeconfig(str(kubeconfigs[0])) as run,
            ApiServer.from_kubeconfig(str(kubeconfigs[1])) as former_account,
        ):
            assert run.request("GET", path)["data"]["intent"] == ""
            assert_forbidden(former_account, "GET", path)


def _suspend_and_resume(team: TeamNamespace, **changes: object) -> None:
    team.apply(make_recording(suspend=True))
    team.wait_for_state(WALKS, "Suspended")
    team.apply(make_recording(suspend=False, **changes))
    team.wait_for_state(WALKS, "Running")


def assert_forbidden(
    run: ApiServer, method: str, path: str, body: object = None, content_type: str = "application/json"
) -> None:
    with pytest.raises(RefusalError) as error_info:
        run.request(method, path, body, content_type)
    assert error_info.value.status == 403, f"{method} {path}: {error_info.value}"
