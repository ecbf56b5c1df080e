"""With two replicas, a faulty connection or a killed API server, every run ends correctly and runs only once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from chaos_proxy import ChaosProxy
from fake_kuberay import PlayKubeRay, never_ends, succeeds_at_once
from operator_process import ACCOUNT, OperatorProcess, RunOperator, delete_account, load_chart_rules
from resources import TeamNamespace, make_recording, make_training
from verdicts import check_verdicts

from api_server import Object, collection, wait_for

WALKS = make_recording()
CLUSTER = Path(__file__).parents[3] / "shared" / "cluster" / "cluster"
LEASE = ("--lease-name", "leader", "--lease-seconds", "3")


def is_leader(operator: OperatorProcess) -> bool:
    return operator.has_logged("became the leader")


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_other_replica_takes_over_after_end_of_leader(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay, end: str
) -> None:
    kuberay, flags = play_kuberay(never_ends), ("--lease-namespace", team.namespace, *LEASE)
    with run_operator(*flags) as first:
        wait_for(lambda: is_leader(first), "the first replica leads")
        with run_operator(*flags) as second:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{second.wait_for_port()}/healthz", timeout=5
            ) as answer:
                assert answer.status == 200
            team.apply(WALKS)
            team.wait_for_state(WALKS, "Running")
            assert not is_leader(second)
            assert second.read_num_writes() == 0
            start_time = time.monotonic()
            getattr(first, end)()
            wait_for(lambda: is_leader(second), "the second replica leads")
            assert time.monotonic() - start_time < 3 + 3 * 3 / 7 + 3, (
                "the lease's duration, three retry intervals, and a reserve for a busy machine"
            )
            kuberay.script = succeeds_at_once
            team.wait_for_state(WALKS, "Succeeded")
    kuberay.assert_each_ran_once("walks-r1-1")


SHORT_WATCHES = """
from hindcast_operator.control import service, watch
service._MAX_RESTART_PAUSE_SECONDS = 1.0
make_settings = watch._make_settings

def make_short_settings(kinds):
    settings = make_settings(kinds)
    settings.watching.server_timeout, settings.watching.client_timeout = 2, 3
    return settings

watch._make_settings = make_short_settings
"""


def test_forbidden_namespace_is_named_and_does_not_stop_others(
    team: TeamNamespace, other_team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    """Regression: one deleted or forbidden namespace among those to serve kept the operator from starting."""
    play_kuberay(never_ends)
    namespaces = ("--namespace", other_team.namespace, "--namespace", "does-not-exist")
    rules = load_chart_rules()
    without_pods = [rule for rule in rules if "pods" not in rule["resources"]]
    with run_operator(*namespaces, setup=SHORT_WATCHES) as operator:
        other_team.apply(WALKS)
        other_team.wait_for_ray_jobs("walks-r1-1")
        delete_account(team.api, team.namespace)
        bind_rules(team, rules, account_of=team)
        bind_rules(other_team, without_pods, account_of=team)
        other_team.wait_for_condition(WALKS, "Stalled", "True", "WatchForbidden")
        check_verdicts(other_team.get(WALKS))
        other_team.wait_for_event(WALKS, "WatchForbidden")
        assert "pods" in other_team.status(WALKS)["message"]
        samples = operator.read_samples("hindcast_watches_forbidden")
        assert samples[f'{{kind="pods",namespace="{other_team.namespace}"}}'] == 1
        team.apply(WALKS)
        team.wait_for_state(WALKS, "Running")
        with urllib.request.urlopen(
            f"http://127.0.0.1:{operator.wait_for_port()}/readyz", timeout=5
        ) as answer:
            assert answer.status == 200
        bind_rules(other_team, rules, account_of=team)
        other_team.wait_for_state(WALKS, "Starting")
        assert other_team.ray_job_names() == {"walks-r1-1"}
        labels = operator.read_samples("hindcast_watches_forbidden")
        assert not [label for label in labels if other_team.namespace in label]
        assert [label for label in labels if "does-not-exist" in label]


def bind_rules(team: TeamNamespace, rules: list[Object], account_of: TeamNamespace) -> None:
    """Give the operator's account of a namespace rights in a namespace, instead of those that it had."""
    role: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "operator"},
    }
    role["metadata"]["namespace"] = team.namespace
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": account_of.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"}
    team.api.apply(role | {"rules": rules}, "test")
    team.api.apply(role | {"kind": "RoleBinding", "roleRef": reference, "subjects": [subject]}, "test")


def test_leader_exits_when_lease_is_taken(team: TeamNamespace, run_operator: RunOperator) -> None:
    with run_operator("--lease-namespace", team.namespace, *LEASE) as operator:
        wait_for(lambda: is_leader(operator), "the operator is the leader")
        path = f"{collection('coordination.k8s.io/v1', 'leases', team.namespace)}/leader"
        team.api.request("PATCH", path, {"spec": {"holderIdentity": "other"}}, "application/merge-patch+json")
        wait_for(lambda: operator.exit_code() is not None, "the operator exits", 5)
        assert operator.exit_code() == 1
        assert operator.has_logged("lease lost")


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.timeout(400)
def test_runs_succeed_over_faulty_connection(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay, seed: int
) -> None:
    kuberay = play_kuberay()
    configuration = team.api.client.configuration
    documents: list[Object] = [make_recording(f"walks-{number}") for number in range(4)]
    documents += [make_training(f"clone-{number}", input=_input_of_clone(number)) for number in range(4)]
    with ChaosProxy(
        configuration.host, configuration.ssl_ca_cert, fraction=0.1, seed=seed
    ).serve_in_background() as proxy:
        with run_operator(server=proxy.url):
            for document in documents[:-1]:
                team.apply(document)
            time.sleep(2)
            team.delete(documents[0])
            wait_for(lambda: team.get(documents[0]) is None, "the first recording is deleted")
            team.apply(documents[0])
            wait_for(lambda: "watch cut" in proxy.fault_counts, "a watch is cut")
            team.apply(documents[-1])
            for document in documents:
                team.wait_for_state(document, "Succeeded", 300)
        assert "answer lost" in proxy.fault_counts
        assert {"409", "410", "429", "500"} & set(proxy.fault_counts)
    doubles = {name for name, uids in kuberay.uids_by_name.items() if len(uids) > 1}
    assert doubles <= {"walks-0-r1-1"}, "only the re-created recording may have had two RayJobs"
    assert len(kuberay.uids_by_name) == len(documents)


def _input_of_clone(number: int) -> list[Object]:
    return [{"recordingRef": {"name": f"walks-{number}"}}]


def test_deletion_during_broken_watch_is_detected(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    """A list after `410 Gone` contains the existing objects, but does not report deleted ones."""
    play_kuberay(never_ends)
    configuration = team.api.client.configuration
    chaos = ChaosProxy(configuration.host, configuration.ssl_ca_cert, fraction=0.0, seed=3)
    with chaos.serve_in_background() as proxy, run_operator(server=proxy.url):
        team.apply(WALKS)
        team.wait_for_state(WALKS, "Running")
        proxy.break_watches(seconds=3)
        team.delete_ray_job("walks-r1-1")
        wait_for(lambda: team.status(WALKS)["runs"][0].get("outcome") == "Lost", "the attempt is lost")


@pytest.mark.alone
def test_operator_survives_restart_of_api_server(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    home = _find_own_control_plane()
    with run_operator(
        "--lease-namespace", team.namespace, "--lease-name", "l", "--lease-seconds", "300"
    ) as operator:
        team.apply(WALKS)
        team.wait_for_ray_jobs("walks-r1-1")
        _kill_api_server(home)
        wait_for(lambda: _restart_control_plane(home), "the API server is back", 200)
        kuberay = play_kuberay()
        team.wait_for_state(WALKS, "Succeeded", 180)
        assert operator.exit_code() is None
    kuberay.assert_each_ran_once("walks-r1-1")


def _restart_control_plane(home: Path) -> bool:
    """Start the missing processes. On a busy machine, one try may not suffice."""
    environment = os.environ | {"CLUSTER_HOME": str(home)}
    command = [str(CLUSTER), "control-plane"]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0


def _kill_api_server(home: Path) -> None:
    pid = int((home / "log/pids/kube-apiserver").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    stat = Path(f"/proc/{pid}/stat")
    wait_for(lambda: not stat.exists() or ") Z " in stat.read_text(), "the API server is dead")


def _find_own_control_plane() -> Path:
    """Return the folder of a control plane that the tests may kill: one of `../shared/cluster` without a node."""
    home = Path(os.environ["KUBECONFIG"]).parents[1]
    pids = home / "log" / "pids"
    if not CLUSTER.exists() or not (pids / "kube-apiserver").exists() or (pids / "kubelet").exists():
        pytest.skip("the tests may kill the API server only if ../shared/cluster started it, without a node")
    return home
