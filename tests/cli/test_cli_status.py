"""`hindcast status` against a small API server: what it reads, what it says when that fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from calling import Hindcast
from cluster_objects import pod, recording, running, training
from fake_cluster import FakeCluster, serving

from hindcast.cli.commands import status as status_command


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    fake = FakeCluster()
    fake.add(training(running()))
    fake.add(recording())
    fake.pods = [pod("head"), pod("learner"), pod("learner", "another", owner="another")]
    monkeypatch.setattr(status_command, "INTERVAL_SECONDS", 0.01)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with serving(fake, tmp_path / "kubeconfig"):
        yield fake


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
def test_every_word_for_the_kind_is_understood(hindcast: Hindcast, cluster: FakeCluster, target: str) -> None:
    called = hindcast("status", target)
    assert called.code == 0, called.err
    assert called.out.startswith("OfflineTraining/clone  in rl\n")
    assert "Attempt 2 is running: Training" in called.out
    assert "another" not in called.out


def test_a_recording_that_nobody_has_seen(hindcast: Hindcast, cluster: FakeCluster) -> None:
    called = hindcast("status", "orec/expert")
    assert called.code == 0
    assert "The operator has not seen it yet." in called.out


def test_json_is_one_document(hindcast: Hindcast, cluster: FakeCluster) -> None:
    called = hindcast("status", "otr/clone", "--json")
    assert called.out.count("\n") == 1
    document = json.loads(called.out)
    assert (document["kind"], document["state"]) == ("OfflineTraining", "Running")
    assert [len(pool["pods"]) for pool in document["pools"]] == [1, 0, 1]


def test_watching_ends_when_the_resource_is_finished(hindcast: Hindcast, cluster: FakeCluster) -> None:
    def change(reads: int) -> None:
        states = {
            1: {"message": "Attempt 2 is running: Evaluating"},
            3: {"state": "Succeeded", "message": "Done"},
        }
        if reads in states:
            cluster.add(training(running(**states[reads])))

    cluster.changes = change
    called = hindcast("status", "otr/clone", "--watch", "--json")
    assert called.code == 0
    lines = [json.loads(line) for line in called.out.splitlines()]
    # What has not changed is not told again.
    assert [line["message"] for line in lines] == [
        "Attempt 2 is running: Training",
        "Attempt 2 is running: Evaluating",
        "Done",
    ]


def test_pods_that_may_not_be_read_are_left_out(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.refusals = {"/pods$": 403}
    called = hindcast("status", "otr/clone")
    assert called.code == 0
    assert "Attempt 2 is running" in called.out
    assert "pods are not shown: you may not read pods in namespace rl" in called.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["otr/clon"], 2, "there is no OfflineTraining/clon in namespace rl; did you mean 'clone'?"),
        (["otr/zebra"], 2, "there is no OfflineTraining/zebra in namespace rl; allowed: clone"),
        (
            ["otr/clone", "-n", "other"],
            2,
            "in namespace other; the namespace has none (another namespace: -n",
        ),
        (["clone"], 2, "clone does not name a resource: expected recording/NAME or training/NAME"),
        (["trainin/clone"], 2, "did you mean 'training'?"),
        (["job/clone"], 2, "job/clone does not name a resource"),
        (["training/a/b"], 2, "expected training/NAME"),
        (
            ["otr/clone", "--context", "her"],
            1,
            "--context is her, which the kubeconfig does not have; did you mean 'here'?",
        ),
        (["otr/clone", "--context", "there"], 1, "the API server at http://127.0.0.1:1 cannot be reached: "),
    ],
)
def test_a_mistake_is_one_sentence(
    hindcast: Hindcast, cluster: FakeCluster, arguments: list[str], code: int, said: str
) -> None:
    called = hindcast("status", *arguments)
    assert (called.code, called.out) == (code, "")
    assert called.err.startswith("error: ")
    assert called.err.count("\n") == 1
    assert said in called.err


def test_a_cluster_without_the_crds_says_so(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.installed = False
    called = hindcast("status", "otr/clone")
    assert called.code == 1
    assert "has no OfflineTraining resources: install Hindcast there" in called.err


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "you may not read OfflineTraining/clone in namespace rl"),
        (401, "rejected your credentials: log in again"),
        (503, "the API server refused to show OfflineTraining/clone: refused with 503"),
    ],
)
def test_a_refusal_is_one_sentence(hindcast: Hindcast, cluster: FakeCluster, status: int, said: str) -> None:
    cluster.refusals = {"offlinetrainings": status}
    called = hindcast("status", "otr/clone")
    assert called.code == 1
    assert said in called.err
    assert called.err.count("\n") == 1


def test_without_a_kubeconfig(hindcast: Hindcast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    called = hindcast("status", "otr/clone")
    assert called.code == 1
    assert called.err == (
        "error: no cluster is configured: set KUBECONFIG to a kubeconfig file, or put one at ~/.kube/config\n"
    )


def test_a_broken_kubeconfig(hindcast: Hindcast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kubeconfig").write_text("clusters: [")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    called = hindcast("status", "otr/clone")
    assert (called.code, called.err.count("\n")) == (1, 1)
    assert "the kubeconfig cannot be used: " in called.err


def test_without_the_extra_it_says_what_to_install(
    hindcast: Hindcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    called = hindcast("status", "otr/clone")
    assert called.code == 1
    assert called.err == (
        "error: hindcast status needs kubernetes, which is not installed: pip install 'hindcast-rl[cluster]'\n"
    )
