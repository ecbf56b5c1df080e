"""`hindcast logs`: of pods that are there, of pods that are gone, of a folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from calling import Hindcast
from cluster_objects import pod, recording, run, running, training
from fake_cluster import FakeCluster, serving

from hindcast.api import validate_resource
from hindcast.cli.cluster import live_log
from hindcast.cli.cluster.run_storage import log_path
from hindcast.run.claim import log_file

LOST = run(1, outcome="Lost", reason="LostDriver", endTime="2026-11-21T06:01:00Z")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    fake = FakeCluster()
    fake.add(training(running()))
    monkeypatch.setattr(live_log, "_POLL_SECONDS", 0.01)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with serving(fake, tmp_path / "kubeconfig"):
        yield fake


def stored_in(folder: Path, *runs: dict, **spec: object) -> dict:
    """A training whose relative paths lie in a folder of this machine."""
    for entry in runs:
        entry["inputs"] = {"defaults": {"storageRoot": str(folder)}}
    return training(running(runs=list(runs)), **spec)


def write_log(folder: Path, child: str, text: str, place: str = "rl/runs/clone/r1/logs") -> Path:
    file = folder / place / f"{child}.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_the_log_of_a_running_attempt_comes_from_its_submitter(
    hindcast: Hindcast, cluster: FakeCluster
) -> None:
    cluster.pods = [pod("head"), pod("submitter", "first"), pod("submitter", "second")]
    cluster.pods[2]["metadata"]["creationTimestamp"] = "2026-11-21T06:05:00Z"
    cluster.logs = {
        ("first", "submitter"): "no\n",
        ("second", "submitter"): "\x1b[36miteration\x1b[39m 1\nStörung\n",
    }
    called = hindcast("logs", "training/clone")
    assert (called.code, called.out, called.err) == (0, "iteration 1\nStörung\n", "")


def test_lines_are_documents_with_json(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.pods = [pod("submitter", "submitter")]
    cluster.logs = {("submitter", "submitter"): "iteration 1\nloss 0.5"}
    called = hindcast("logs", "training/clone", "--json")
    assert [json.loads(line) for line in called.out.splitlines()] == [
        {"line": "iteration 1"},
        {"line": "loss 0.5"},
    ]


def test_following_waits_for_the_driver(hindcast: Hindcast, cluster: FakeCluster) -> None:
    def change(reads: int) -> None:
        phases = {2: "Pending", 4: "Running"}
        if reads in phases:
            cluster.pods = [pod("submitter", "submitter", phase=phases[reads])]

    cluster.changes = change
    cluster.logs = {("submitter", "submitter"): "iteration 1\n"}
    called = hindcast("logs", "training/clone", "--follow")
    assert (called.code, called.out) == (0, "iteration 1\n")
    assert called.err == "waiting for the driver of attempt 2 to start\n"
    assert cluster.asked[-1].endswith("follow=true")


def test_following_ends_with_an_attempt_that_never_started(
    hindcast: Hindcast, cluster: FakeCluster, tmp_path: Path
) -> None:
    def change(reads: int) -> None:
        if reads == 2:
            ended = run(2, outcome="Failed", reason="StartDeadlineExceeded")
            cluster.add(stored_in(tmp_path, ended))

    cluster.add(stored_in(tmp_path, run(2)))
    cluster.changes = change
    called = hindcast("logs", "training/clone", "--follow")
    assert called.code == 1
    assert f"the pods are gone; the log is at {tmp_path}/rl/runs/clone/r1/logs/clone-t1-2.log" in called.err


def test_a_driver_that_has_not_started_has_printed_nothing(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.pods = [pod("submitter", phase="Pending")]
    called = hindcast("logs", "training/clone")
    assert called.code == 1
    assert called.err == (
        "error: attempt 2 of OfflineTraining/clone has no log yet: Attempt 2 is running: Training\n"
    )


def test_a_resource_without_attempts_says_why(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.add(training({"state": "Waiting", "message": "Waiting for OfflineRecording/expert to complete"}))
    called = hindcast("logs", "training/clone")
    assert called.code == 1
    assert "has no attempt yet: Waiting for OfflineRecording/expert to complete" in called.err


def test_the_log_of_an_attempt_that_is_over_comes_from_its_run_folder(
    hindcast: Hindcast, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.add(stored_in(tmp_path, run(2), dict(LOST)))
    cluster.pods = [pod("submitter", "second")]
    cluster.logs = {("second", "submitter"): "second\n"}
    write_log(tmp_path, "clone-t1-1", "first\n")
    assert hindcast("logs", "otr/clone").out == "second\n"
    assert hindcast("logs", "otr/clone", "--attempt", 1).out == "first\n"


def test_the_log_lies_with_the_revision_that_wrote_it(
    hindcast: Hindcast, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.add(stored_in(tmp_path, dict(LOST), revision=3))
    write_log(tmp_path, "clone-t1-1", "first\n")
    assert hindcast("logs", "otr/clone").out == "first\n"


def test_a_pod_that_goes_meanwhile_leaves_its_log_on_storage(
    hindcast: Hindcast, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.add(stored_in(tmp_path, dict(LOST)))
    cluster.pods = [pod("submitter", "gone", attempt=1)]
    write_log(tmp_path, "clone-t1-1", "first\n")
    assert hindcast("logs", "otr/clone").out == "first\n"


def test_an_attempt_that_there_is_not(hindcast: Hindcast, cluster: FakeCluster) -> None:
    called = hindcast("logs", "otr/clone", "--attempt", 7)
    assert called.code == 1
    assert called.err == "error: revision 1 of OfflineTraining/clone has no attempt 7; it has: 1, 2\n"


def test_a_log_on_a_clusters_volume_says_how_to_get_it(hindcast: Hindcast, cluster: FakeCluster) -> None:
    volume = {"name": "data", "mountPath": "/mnt/data", "persistentVolumeClaim": {"claimName": "shared"}}
    spec = {"checkpoint": {"path": "/mnt/data/runs"}, "cluster": {"volumes": [volume]}}
    cluster.add(training(running(runs=[dict(LOST)]), **spec))
    called = hindcast("logs", "otr/clone")
    assert called.code == 1
    assert called.err == (
        "error: the pods are gone; the log is at /mnt/data/runs/clone/r1/logs/clone-t1-1.log on the claim shared "
        "(mounted at /mnt/data): read it from a pod that mounts that claim\n"
    )


def test_storage_that_cannot_be_read_from_here(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.add(training(running(runs=[dict(LOST)]), checkpoint={"path": "nosuch://bucket/runs"}))
    called = hindcast("logs", "otr/clone")
    assert called.code == 5
    where = "nosuch://bucket/runs/clone/r1/logs/clone-t1-1.log"
    assert f"the log is at {where}, which cannot be read from here: no file system" in called.err
    assert called.err.count("\n") == 1


def test_without_the_runtime_extra_it_says_where_the_log_lies(
    hindcast: Hindcast, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add(training(running(runs=[dict(LOST)])))
    monkeypatch.setitem(sys.modules, "hindcast.storage.location", None)
    called = hindcast("logs", "otr/clone")
    assert called.code == 1
    assert "the log is at s3://bucket/rl/runs/clone/r1/logs/clone-t1-1.log: fetch it from there" in called.err


# -- where logs lie -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "memory://bucket/x",
        "memory://bucket/x/",
        "/mnt/data",
        "file:///mnt/x",
        "relative/x",
        "s3://bucket/x?y",
        "/mnt/x?y",
    ],
)
def test_where_the_log_lies_is_where_the_driver_puts_it(path: str) -> None:
    for raw in (training(checkpoint={"path": path}, revision=3), recording(output={"path": path})):
        resource = validate_resource({key: value for key, value in raw.items() if key != "status"})
        assert log_path(resource, "clone-t3-1") == str(log_file(resource, "clone-t3-1"))


def test_options_of_a_uri_stay_at_its_end() -> None:
    raw = training(checkpoint={"path": "hdfs://host/x?user=me"})
    resource = validate_resource({key: value for key, value in raw.items() if key != "status"})
    assert log_path(resource, "c") == "hdfs://host/x/clone/r1/logs/c.log?user=me"


def test_the_latest_log_of_a_folder(hindcast: Hindcast, tmp_path: Path) -> None:
    for child in ("clone-t1-9", "clone-t1-10", "clone-t1-2"):
        write_log(tmp_path, child, f"{child}\n", "logs")
    called = hindcast("logs", tmp_path)
    assert (called.code, called.out) == (0, "clone-t1-10\n")
    assert called.err == f"{tmp_path}/logs/clone-t1-10.log\n"
    assert hindcast("logs", tmp_path, "--attempt", 2).out == "clone-t1-2\n"
    called = hindcast("logs", tmp_path, "--attempt", 3)
    assert "has no log of attempt 3; of revision 1 there are: 2, 9, 10" in called.err


def test_the_log_of_a_dataset(hindcast: Hindcast, tmp_path: Path) -> None:
    write_log(tmp_path, "expert-r1-1", "recorded\n", "_hindcast/logs")
    assert hindcast("logs", tmp_path).out == "recorded\n"


def test_a_local_run_leaves_no_log(hindcast: Hindcast, tmp_path: Path) -> None:
    called = hindcast("logs", tmp_path)
    assert (called.code, called.err) == (
        1,
        f"error: {tmp_path} contains no logs: only attempts on a cluster write them\n",
    )


def test_neither_a_kind_nor_a_folder(hindcast: Hindcast) -> None:
    called = hindcast("logs", "trainin/clone")
    assert called.code == 2
    assert "did you mean 'training'?" in called.err
