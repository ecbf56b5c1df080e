"""`hindcast status` against a small API server: its output and its errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cluster_objects import make_pod, make_recording, make_training, running_status
from command_result import Hindcast
from fake_cluster import FakeCluster


@pytest.fixture
def cluster(cluster: FakeCluster) -> FakeCluster:
    """Serve a running training with two pods, an unprocessed recording and a pod of another training."""
    cluster.add(make_training(running_status()))
    cluster.add(make_recording())
    cluster.pods = [make_pod("head"), make_pod("learner"), make_pod("learner", "another", owner="another")]
    return cluster


@pytest.mark.parametrize(
    "target",
    [
        "training/clone",
        "trainings/clone",
        "otr/clone",
        "OfflineTraining/clone",
        "offlinetrainings/clone",
        "offlinetrainings.hindcast.dev/clone",
    ],
)
def test_every_alias_of_kind_is_accepted(hindcast: Hindcast, cluster: FakeCluster, target: str) -> None:
    result = hindcast("status", target)
    assert result.code == 0, result.err
    assert result.out.startswith("OfflineTraining/clone  in rl\n")
    assert "Attempt 2 is running: Training" in result.out
    assert "another" not in result.out


def test_unprocessed_recording_is_unseen(hindcast: Hindcast, cluster: FakeCluster) -> None:
    result = hindcast("status", "orec/expert")
    assert result.code == 0
    assert "The operator has not seen it yet." in result.out


def test_json_is_one_document(hindcast: Hindcast, cluster: FakeCluster) -> None:
    result = hindcast("status", "otr/clone", "--json")
    assert result.out.count("\n") == 1
    document = json.loads(result.out)
    assert (document["kind"], document["state"]) == ("OfflineTraining", "Running")
    assert [len(pool["pods"]) for pool in document["pools"]] == [1, 0, 1]


def test_watch_ends_when_resource_finishes(hindcast: Hindcast, cluster: FakeCluster) -> None:
    def change_status(reads: int) -> None:
        states = {
            1: {"message": "Attempt 2 is running: Evaluating"},
            3: {"state": "Succeeded", "message": "Done"},
        }
        if reads in states:
            cluster.add(make_training(running_status(**states[reads])))

    cluster.before_read = change_status
    result = hindcast("status", "otr/clone", "--watch", "--json")
    assert result.code == 0
    lines = [json.loads(line) for line in result.out.splitlines()]
    # Only changes are printed.
    assert [line["message"] for line in lines] == [
        "Attempt 2 is running: Training",
        "Attempt 2 is running: Evaluating",
        "Done",
    ]


def test_forbidden_pods_are_omitted_with_note(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.refusals = {"/pods$": 403}
    result = hindcast("status", "otr/clone")
    assert result.code == 0
    assert "Attempt 2 is running" in result.out
    assert "pods cannot be shown: you lack the permission to read pods in namespace rl" in result.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("otr/clon", 2, "OfflineTraining/clon does not exist in namespace rl; did you mean 'clone'?"),
        ("otr/zebra", 2, "OfflineTraining/zebra does not exist in namespace rl; allowed: clone"),
        ("otr/clone -n other", 2, "the namespace has no OfflineTraining (choose another namespace with -n"),
        ("clone", 2, "clone does not name a resource: expected recording/NAME or training/NAME"),
        ("trainin/clone", 2, "did you mean 'training'?"),
        ("job/clone", 2, "job/clone does not name a resource"),
        ("training/a/b", 2, "expected training/NAME"),
        ("otr/clone --context her", 1, "which is not in the kubeconfig; did you mean 'here'?"),
        ("otr/clone --context there", 1, "the API server at http://127.0.0.1:1 cannot be reached: "),
    ],
)
def test_invalid_target_is_refused_in_one_sentence(
    hindcast: Hindcast, cluster: FakeCluster, arguments: str, code: int, message: str
) -> None:
    hindcast(f"status {arguments}").assert_refused(code, message)


def test_cluster_without_crds_is_named(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.has_crds = False
    hindcast("status otr/clone").assert_refused(
        1, "does not know OfflineTraining resources: install Hindcast there"
    )


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "you lack the permission to read OfflineTraining/clone in namespace rl"),
        (401, "rejected your credentials: log in again"),
        (503, "the API server refused to show OfflineTraining/clone: refused with 503"),
    ],
)
def test_api_server_refusal_is_reported_in_one_sentence(
    hindcast: Hindcast, cluster: FakeCluster, status: int, message: str
) -> None:
    cluster.refusals = {"offlinetrainings": status}
    hindcast("status otr/clone").assert_refused(1, message)


def test_missing_kubeconfig_is_named(
    hindcast: Hindcast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    hindcast("status otr/clone").assert_refused(
        1, "no cluster is configured: set KUBECONFIG to a kubeconfig file, or save one as ~/.kube/config"
    )


def test_invalid_kubeconfig_is_named(
    hindcast: Hindcast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kubeconfig").write_text("clusters: [")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    hindcast("status otr/clone").assert_refused(1, "the kubeconfig cannot be used: ")


def test_missing_cluster_extra_is_named_with_install_command(
    hindcast: Hindcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    hindcast("status otr/clone").assert_refused(
        1, "hindcast status requires kubernetes, which is not installed: pip install 'hindcast-rl[cluster]'"
    )
